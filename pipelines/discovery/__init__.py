"""Groups of texts, images and embeddings: how they are fitted, described, kept and applied again."""
