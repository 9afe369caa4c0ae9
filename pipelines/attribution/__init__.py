"""The command `slicebeam attribute`: whether a slice is what its name says, by a few labels."""
