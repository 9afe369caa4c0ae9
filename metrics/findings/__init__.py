"""Findings: the few slices that are worse than expected from those before them."""
