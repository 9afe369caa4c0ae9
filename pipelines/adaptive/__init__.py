"""Adaptive tests: trees of tests, how they are scored, and the topics that an update fixed or broke."""
