"""Metrics of the order of scores."""

from slicebeam.metrics.ranking import AreaUnderCurve

METRICS = (AreaUnderCurve(),)
