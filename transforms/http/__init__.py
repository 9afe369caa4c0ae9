"""Calls over HTTP: one sender, one pace, and what is called again."""
