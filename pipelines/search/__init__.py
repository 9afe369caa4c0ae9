"""The search: its driver loop, and what it reports."""
