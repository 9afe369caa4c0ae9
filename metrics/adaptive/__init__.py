"""Scores of adaptive tests, and what becomes of topics when a model is updated."""
