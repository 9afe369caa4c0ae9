"""Losses and errors of each example, one row each."""

from math import inf

from slicebeam.metrics.measures.mean import Mean

METRICS = (
    Mean("loss", "Loss", (-inf, inf)),
    Mean("log_loss", "Log loss", (0.0, inf)),
    Mean("brier", "Brier score", (0.0, 1.0)),
    Mean("mse", "Mean squared error", (0.0, inf)),
    Mean("mae", "Mean absolute error", (0.0, inf)),
    # Too high counts as worse; --alternative both finds either.
    Mean("bias", "Mean of prediction minus label", (-inf, inf)),
)
