"""Text as vectors: what ``--encoder`` names, and the folder that keeps what was embedded."""
