"""Findings: the few slices that are worse than those before them let one expect, one after another."""
