"""Beam transforms that wire pure functions into pipelines, and the columnar functions they wire."""
