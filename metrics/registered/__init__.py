"""The named metrics: each module lists some in ``METRICS``."""
