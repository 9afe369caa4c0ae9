"""Flags or keywords in, exit code or result out: the command line, its commands, and their functions in Python."""
