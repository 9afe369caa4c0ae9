"""Test trees: grown against a model, scored, and what becomes of their topics."""
