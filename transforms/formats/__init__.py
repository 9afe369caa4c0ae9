"""Formats of files: CSV, JSON Lines, TFRecord and YAML become Arrow tables with the right types."""
