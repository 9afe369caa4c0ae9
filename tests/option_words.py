"""All words that options choose from; comparisons are those of one data set."""

from typing import get_args

from slicebeam.metrics.kinds import Alternative, Correction, Method, Test

COMPARISONS = ("overall", "baseline")
ALTERNATIVES, TESTS, CORRECTIONS, METHODS = map(get_args, (Alternative, Test, Correction, Method))
