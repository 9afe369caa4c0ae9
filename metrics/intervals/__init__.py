"""Confidence intervals of the value of a metric on a slice, and of its difference."""
