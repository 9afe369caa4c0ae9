"""Slices of unstructured data: how they are found, told, and kept."""
