"""Counts of slices: predicates as a lattice, sums of statistics over their conjunctions, hashes of rows."""
