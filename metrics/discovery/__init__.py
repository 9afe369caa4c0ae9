"""Slices of unstructured data: a mixture over embeddings and losses, fitted from sums over chunks."""
