"""Error rate: the share of examples whose predicted class is not the label."""

from slicebeam.metrics.proportion import ShareOfExamples

METRIC = ShareOfExamples(
    "error_rate", "Error rate", "wrong", counts_set=True, higher_is_better=False
)
