"""The check: given slices are tested on new data."""
