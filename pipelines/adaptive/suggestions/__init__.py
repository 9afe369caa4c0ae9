"""Rounds of the testing loop: proposals that are drawn, scored, and shown by their failure."""
