"""``slicebeam define``: slices that a person describes."""
