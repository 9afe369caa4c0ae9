"""Tests and intervals of one slice at a time: exact, approximate and the published one, on summed counts."""
