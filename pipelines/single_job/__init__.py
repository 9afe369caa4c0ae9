"""A search as one job of an engine, without a driver."""
