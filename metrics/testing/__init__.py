"""Tests of many slices together: the test that a metric takes, multiplicity, and bounds by level."""
