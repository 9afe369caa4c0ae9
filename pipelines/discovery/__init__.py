"""Slices of unstructured data: how they are found, described, and kept."""
