"""Tests of one slice at a time: exact, approximate and the published one, on summed counts."""
