"""Slices are counted and tested on encoded shards, in parallel: the graph of a search."""
