"""Flags in, exit code out: what each command of ``slicebeam`` does with its flags."""
