"""Metrics: what one is, those built in, the registry of their names, and the test of a slice by a metric."""
