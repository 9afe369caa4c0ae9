"""Calls over HTTP: one sender, one pace, repetition, and no key over a plain connection."""
