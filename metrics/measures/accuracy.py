"""Accuracy: the share of examples whose predicted class is the label."""

from slicebeam.metrics.proportion import ShareOfExamples

METRIC = ShareOfExamples("accuracy", "Accuracy", "wrong", counts_set=False, higher_is_better=True)
