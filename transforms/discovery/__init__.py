"""Texts and images get embeddings, components of a mixture, and descriptions."""
