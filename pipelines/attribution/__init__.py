"""The command `slicebeam attribute`: does a slice match its name? Answered with a few labels."""
