"""What a metric is: a function of summed statistics, with its direction, range and tests.

Slices only ever *sum*. Each example has a few *indicators* (bits such as "the model is wrong
here"); the bits of an example together are its *cell*, and a slice's statistics are how many of
its examples are in each cell. Every metric of counts is a function of these cell counts, so
metrics that need the same indicators share one count (the split of Statistic and Metric of
WeatherBench-X, with integers in place of trees of arrays).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, get_args

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

Comparison = Literal["overall", "baseline"]
Alternative = Literal["worse", "better", "both"]
Tail = Literal["upper", "lower", "both"]

COMPARISONS: tuple[Comparison, ...] = get_args(Comparison)
ALTERNATIVES: tuple[Alternative, ...] = get_args(Alternative)

# Reason codes of `Tested.reasons`: why a slice has no p-value of its own (p is then 1).
REASONS: tuple[str, ...] = (
    "",
    "the slice is all examples",
    "all examples have the same outcome",
    "the two models never differ on the slice",
    "too many undefined replicates",
    "the replicates do not vary",
)
WHOLE, CONSTANT, UNCHANGED, UNDEFINED_REPLICATES, NO_VARIANCE = range(1, 6)


@dataclass(frozen=True)
class CellSpace:
    """Which cell an example is in: the bits of its indicators.

    Attributes
    ----------
    indicators : names of the indicators, the first one is the lowest bit
    comparison : for ``baseline`` each indicator has a bit for the new model and one for the old
    """

    indicators: tuple[str, ...]
    comparison: Comparison

    @property
    def size(self) -> int:
        """Number of cells."""
        return int(2 ** (len(self.indicators) * (2 if self.comparison == "baseline" else 1)))

    def bit(self, indicator: str, *, old: bool = False) -> int:
        """Return the position of an indicator's bit, of the old model's for ``old``."""
        return self.indicators.index(indicator) + (len(self.indicators) if old else 0)

    def holds(self, indicator: str, *, old: bool = False) -> NDArray[np.bool_]:
        """Return in which cells [cells] an indicator is set."""
        cells: NDArray[np.bool_] = (np.arange(self.size) >> self.bit(indicator, old=old)) % 2 == 1
        return cells


@dataclass(frozen=True)
class Tested:
    """The outcome of a test of many slices.

    Attributes
    ----------
    p : float64 [slices]; 1.0 where the test is degenerate, never NaN
    reasons : int8 [slices] position in ``REASONS``, 0 where the test was done
    """

    p: NDArray[np.float64]
    reasons: NDArray[np.int8]


class Metric(ABC):
    """A metric of counts.

    A new metric is one module in ``slicebeam.metrics.measures`` with a ``METRIC`` of this class.

    Attributes
    ----------
    name : what ``--metric`` calls it
    higher_is_better : its direction
    range : its smallest and largest value
    indicators : the bits of an example that it needs
    kind : ``pointwise`` if each example has a value of its own, whose mean the metric is
    min_slice_size : smallest slice that is tested by default
    """

    name: str
    title: str
    higher_is_better: bool
    range: tuple[float, float]
    indicators: tuple[str, ...]
    kind: Literal["pointwise", "aggregate"] = "pointwise"
    min_slice_size: int = 20

    @abstractmethod
    def value(
        self, counts: NDArray[np.int64], space: CellSpace, *, old: bool = False
    ) -> NDArray[np.float64]:
        """Return the metric [slices] of cell counts [slices, cells], of the old model for ``old``.

        NaN where the slice has no denominator.
        """

    @abstractmethod
    def test(
        self,
        counts: NDArray[np.int64],
        totals: NDArray[np.int64],
        space: CellSpace,
        alternative: Alternative,
    ) -> Tested:
        """Test each slice (counts [slices, cells]) against the whole, or the old model."""

    @abstractmethod
    def delta_interval(
        self,
        counts: NDArray[np.int64],
        totals: NDArray[np.int64],
        space: CellSpace,
        confidence: float,
    ) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Return the confidence interval (low, high) [slices] of the delta."""

    @abstractmethod
    def value_interval(
        self, counts: NDArray[np.int64], space: CellSpace, confidence: float, *, old: bool = False
    ) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Return the confidence interval (low, high) [slices] of the value."""

    @abstractmethod
    def p_refine(
        self,
        counts: NDArray[np.int64],
        parents: NDArray[np.int64],
        space: CellSpace,
        *,
        worse: bool,
    ) -> NDArray[np.float64]:
        """Return how likely a random subset of the parent is as extreme as the child [pairs]."""

    def tail(self, alternative: Alternative) -> Tail:
        """Return the tail of the metric's value that the alternative looks at."""
        if alternative == "both":
            return "both"
        return "lower" if (alternative == "worse") == self.higher_is_better else "upper"

    def reference(
        self, counts: NDArray[np.int64], totals: NDArray[np.int64], space: CellSpace
    ) -> NDArray[np.float64]:
        """Return what a slice [slices] is compared with: all examples, or the old model on it."""
        if space.comparison == "baseline":
            return self.value(counts, space, old=True)
        return np.broadcast_to(self.value(totals[None, :], space), (len(counts),)).copy()

    def complement(
        self, counts: NDArray[np.int64], totals: NDArray[np.int64], space: CellSpace
    ) -> NDArray[np.float64]:
        """Return the metric on the examples outside each slice [slices]."""
        return self.value(totals[None, :] - counts, space)

    def delta(
        self, counts: NDArray[np.int64], totals: NDArray[np.int64], space: CellSpace
    ) -> NDArray[np.float64]:
        """Return metric minus reference [slices]."""
        return self.value(counts, space) - self.reference(counts, totals, space)
