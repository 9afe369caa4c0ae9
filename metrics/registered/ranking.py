"""Metrics of the order of scores."""

from slicebeam.metrics.measures.ranking import AreaUnderCurve

METRICS = (AreaUnderCurve(),)
