"""Slices are counted and tested on encoded shards, in parallel."""
