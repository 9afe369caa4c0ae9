"""The metrics: each module holds one, as ``METRIC``."""
