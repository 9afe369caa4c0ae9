"""The page of a result, served on this machine with what needs a program behind it."""
