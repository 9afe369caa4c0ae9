"""What is measured on a slice and how sure one can be: numpy and scipy only, no Beam, no I/O."""
