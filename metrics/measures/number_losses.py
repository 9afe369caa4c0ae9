"""Losses of predicted numbers, of each example; and the root of a mean of them."""

from __future__ import annotations

from math import inf
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from scipy.special import xlogy

from slicebeam.metrics.measures.base import Metric, Target
from slicebeam.metrics.measures.cell_metric import ratio
from slicebeam.metrics.measures.mean import Mean

if TYPE_CHECKING:
    from collections.abc import Callable

    from slicebeam.metrics.arrays import BoolArray, FloatArray, IntArray
    from slicebeam.metrics.counting.statistic_space import StatisticSpace

    Sums = IntArray

PINBALL = "pinball:"


class NumberLoss(NamedTuple):
    """A loss [rows] of labels and predictions, which of them it is not defined for, and why (of ``{}``)."""

    of: Callable[[FloatArray, FloatArray], FloatArray]
    wrong_labels: Callable[[FloatArray], BoolArray] | None = None
    wrong_predictions: Callable[[FloatArray], BoolArray] | None = None
    why: str = ""


def number_loss(name: str) -> NumberLoss | None:
    """Return the loss of predicted numbers that a value is, None for another value."""
    if not name.startswith(PINBALL):
        return _LOSSES.get(name)
    share = float(name.removeprefix(PINBALL))
    return NumberLoss(lambda y, p: np.where(y >= p, share * (y - p), (1.0 - share) * (p - y)))


def _square(y: FloatArray, p: FloatArray) -> FloatArray:
    return (p - y) ** 2


_LOSSES = {
    "bias": NumberLoss(lambda y, p: p - y),
    "mae": NumberLoss(lambda y, p: np.abs(p - y)),
    "mse": NumberLoss(_square),
    "rmse": NumberLoss(_square),
    "mape": NumberLoss(
        lambda y, p: np.abs(p - y) / np.abs(y),
        wrong_labels=lambda y: y == 0,
        why="by which {} divides; drop such examples, or use smape",
    ),
    # 0 where both are 0.
    "smape": NumberLoss(
        lambda y, p: ratio(2.0 * np.abs(p - y), np.abs(p) + np.abs(y), otherwise=0.0)
    ),
    "poisson_deviance": NumberLoss(
        lambda y, p: 2.0 * (xlogy(y, y / p) - y + p),
        wrong_labels=lambda y: y < 0,
        wrong_predictions=lambda p: p <= 0,
        why="but {} takes labels of at least 0 and predictions above 0; drop such examples",
    ),
}


class RootMean(Mean):
    """The root of a mean. Its test is that of the mean; its intervals are the roots of that of the mean."""

    def __init__(self, name: str, title: str) -> None:
        super().__init__(name, title, (0.0, inf))

    def value(self, sums: Sums, space: StatisticSpace, *, old: bool = False) -> FloatArray:
        """See `Metric.value`."""
        return _root(super().value(sums, space, old=old))

    def delta(self, sums: Sums, totals: Sums, space: StatisticSpace) -> FloatArray:
        """See `Metric.delta`."""
        return Metric.delta(self, sums, totals, space)

    def value_interval(
        self,
        sums: Sums,
        totals: Sums,
        space: StatisticSpace,
        confidence: float,
        *,
        old: bool = False,
    ) -> tuple[FloatArray, FloatArray]:
        """See `Metric.value_interval`."""
        low, high = super().value_interval(sums, totals, space, confidence, old=old)
        return _root(low), _root(high)

    def delta_interval(
        self, sums: Sums, totals: Sums, space: StatisticSpace, confidence: float
    ) -> tuple[FloatArray, FloatArray]:
        """Return the roots of the mean's interval; for two models its arms, to the roots' linearised deviation."""
        low, high = super().delta_interval(sums, totals, space, confidence)
        before = self.reference(sums, totals, space)
        if space.comparison == "overall":
            return _root(before**2 + low) - before, _root(before**2 + high) - before
        after, delta = self.value(sums, space), self.delta(sums, totals, space)
        new, old, change = (
            self.moments(sums, space, source).variance for source in ("new", "old", "change")
        )
        slopes = [ratio(np.ones(len(sums)), 2.0 * one, otherwise=0.0) for one in (after, before)]
        covariance = 0.5 * (new + old - change)
        variance = (np.square(slopes) * [new, old]).sum(axis=0) - 2.0 * covariance * np.prod(
            slopes, axis=0
        )
        # Of the mean's arms; where no change varies, the slope between the two roots.
        scale = np.sqrt(ratio(np.maximum(variance, 0.0), change, otherwise=0.0))
        scale = np.where(scale > 0, scale, ratio(np.ones(len(sums)), after + before, otherwise=1.0))
        middle = np.nan_to_num(after**2 - before**2)
        ends = (np.nan_to_num(delta) + scale * (end - middle) for end in (low, high))
        return next(ends), next(ends)

    def target(self, space: StatisticSpace) -> Target | None:  # type: ignore[override]
        """See `Metric.target`; None for two models, whose difference of roots is not a mean."""
        return super().target(space) if space.comparison == "overall" else None

    def of_target(self, mean: FloatArray, space: StatisticSpace) -> FloatArray:
        """See `Metric.of_target`."""
        return _root(super().of_target(mean, space))

    def change_variance(self, sums: Sums, space: StatisticSpace) -> None:
        """See `Metric.change_variance`."""

    def movement(self, sums: Sums, space: StatisticSpace) -> None:
        """See `Metric.movement`: an example has no root of its own."""


def _root(mean: FloatArray) -> FloatArray:
    return np.sqrt(np.maximum(mean, 0.0))
