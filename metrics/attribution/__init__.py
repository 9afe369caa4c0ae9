"""Whether a slice matches its name: precision and recall of words, from a few labels."""
