"""Calls over HTTP: one sender, one pace, and repetition."""
