"""The metrics that have a name: each module has some rows, as ``METRICS``."""
