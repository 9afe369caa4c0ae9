"""Test trees of what a run found: its slices become topics, and their failing examples tests."""
