"""The command `slicebeam shift`: how a paid API changed, within a budget of calls."""
