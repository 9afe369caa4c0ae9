"""Metrics of slices and their statistics: numpy and scipy only, no Beam, no I/O."""
