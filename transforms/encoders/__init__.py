"""Text as vectors: the encoders of ``--encoder``, and the folder that caches embeddings."""
