"""Whether a slice is what its name says: precision and recall of words, from a few labels."""
