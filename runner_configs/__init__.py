"""One YAML file an engine."""
