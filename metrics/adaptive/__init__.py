"""Tests grown against a model: which are shown to what proposes more, and what topics deviate."""
