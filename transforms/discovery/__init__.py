"""Examples with embeddings get components of a mixture, and descriptions."""
