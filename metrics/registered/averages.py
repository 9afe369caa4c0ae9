"""Metrics of the whole confusion matrix: balanced accuracy, MCC and the macro averages."""

from slicebeam.metrics.measures.confusion import BalancedAccuracy, MacroAverage, Matthews

METRICS = (
    BalancedAccuracy(),
    Matthews(),
    MacroAverage("precision", "Precision"),
    MacroAverage("recall", "Recall"),
    MacroAverage("f1", "F1"),
)
