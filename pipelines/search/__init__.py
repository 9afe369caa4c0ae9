"""A search, a check or a discovery: what it costs, its driver loop, and what it reports."""
