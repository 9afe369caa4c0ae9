"""Engines: each is one YAML file and one module; nothing here imports a pipeline."""
