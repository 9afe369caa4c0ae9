"""The sums over the examples of a pattern (a set of findings) of the *target*, what a metric averages."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal, NamedTuple

import numpy as np

from slicebeam.metrics.arrays import ArrayLike, BoolArray, FloatArray, IntArray, NDArray
from slicebeam.metrics.counting.counting import positions
from slicebeam.metrics.counting.statistic_space import StatisticSpace

# A rate has targets of 0 and 1 and a logistic model; all else is a mean, by least squares.
Kind = Literal["rate", "mean"]
# A pattern is a set of findings, one bit each; the sign of an int64 is spared.
MOST_FINDINGS = 50


@dataclass(frozen=True)
class TargetSums:
    """The columns of summed targets: Σ weight^a · target^b, of the powers that the kind needs."""

    kind: Kind  # ``rate`` for targets of 0 and 1, ``mean`` for any others
    weighted: bool = False  # whether examples have weights
    # units of the counts of examples or weights, and of squared weights
    size_scales: tuple[float, float] = (1.0, 1.0)

    @classmethod
    def of(cls, space: StatisticSpace, kind: Kind) -> TargetSums:
        """Return the columns in a space, with its weights."""
        return cls(kind, space.weighted, space.weight_scales) if space.weighted else cls(kind)

    @cached_property
    def powers(self) -> tuple[tuple[int, int], ...]:
        """The power of the weight and of the target, of each column."""
        largest = 1 if self.kind == "rate" else 2
        if not self.weighted:
            return tuple((0, power) for power in range(largest + 1))
        return tuple((a, b) for a in (1, 2) for b in range(min(a, largest) + 1))

    @property
    def are_counts(self) -> bool:
        """Whether sums are counts of examples, with a law of their own."""
        return self.kind == "rate" and not self.weighted

    def moment(self, sums: FloatArray, weight: int, power: int) -> FloatArray:
        """Return Σ weight^a · target^b [...] of sums [..., columns], for a of 1 and 2, b ≤ a."""
        if self.kind == "rate":
            power = min(power, 1)
        at = self.powers.index((weight if self.weighted else 0, power))
        return np.asarray(sums[..., at], dtype=np.float64)

    def squared_deviations(self, sums: FloatArray, mean: FloatArray | float) -> FloatArray:
        """Return Σ weight²·(target − mean)² [...] of sums [..., columns]."""
        second, first, size = (self.moment(sums, 2, power) for power in (2, 1, 0))
        return np.asarray(second - 2.0 * mean * first + mean**2 * size)

    def size(self, sizes: FloatArray, weight: int) -> FloatArray:
        """Return Σ weight^a [...] of the sizes [..., size columns] of parts, for a of 1 and 2."""
        return np.asarray(sizes[..., weight - 1 if self.weighted else 0], dtype=np.float64)


def membership(masks: ArrayLike, findings: int) -> BoolArray:
    """Return which findings [patterns, findings] the examples of each pattern are in."""
    bits: IntArray = np.asarray(masks, dtype=np.int64)
    return np.asarray((bits[:, None] >> np.arange(findings)) & 1, dtype=np.bool_)


def design(masks: ArrayLike, findings: int) -> FloatArray:
    """Return the model's columns [patterns, 1 + findings]: a one, then membership as 0 and 1."""
    inside = membership(masks, findings).astype(np.float64)
    return np.concatenate([np.ones((len(inside), 1)), inside], axis=1)


# Whole numbers up to which doubles hold each.
_DOUBLE_BITS = 53
# Of the least double above 0.
_LEAST_EXPONENT = -1074


class InsideSums(NamedTuple):
    """Sums of a finding's examples, by the pattern that they had before it was added."""

    masks: IntArray  # [patterns] distinct
    sums: NDArray[Any]  # [patterns, raw columns] in the columns of ``everything``


class PatternSplit(NamedTuple):
    """How a new finding splits patterns: afterwards ``others`` come first, ``kept``, then ``inside``."""

    others: IntArray  # [patterns] those that the finding holds nothing of
    inside: IntArray  # [patterns] those that it holds examples of
    kept: IntArray  # [patterns] positions in ``inside`` of those that also have examples outside


class Patterns:
    """The patterns and their sums."""

    def __init__(
        self,
        everything: ArrayLike,
        layout: TargetSums,
        moments: Callable[[NDArray[Any]], FloatArray],
    ) -> None:
        self.layout, self.moments, self.findings = layout, moments, 0
        self.masks: IntArray = np.zeros(1, np.int64)
        self.raw = np.array(everything)[None]
        self.sums = moments(self.raw)

    @property
    def weight(self) -> FloatArray:
        """The weights [patterns] of all examples."""
        return self.layout.moment(self.sums, 1, 0)

    @property
    def total(self) -> FloatArray:
        """The summed targets [patterns], each times its weight."""
        return self.layout.moment(self.sums, 1, 1)

    def add(self, inside: InsideSums) -> PatternSplit:
        """Add a finding, and return how it splits the patterns."""
        masks = np.asarray(inside.masks, np.int64)
        held = positions(self.masks, 1 << MOST_FINDINGS)(masks)
        missing = masks[held < 0]
        if missing.size:
            raise ValueError(f"the finding holds examples of pattern {missing[0]}, which has none")
        others = np.setdiff1d(np.arange(self.masks.size), held)
        left = self.raw[held] - inside.sums
        # Patterns that lie within the finding are gone.
        kept = np.flatnonzero(self.layout.moment(self.moments(left), 1, 0) > 0)
        self.raw = np.concatenate([self.raw[others], left[kept], inside.sums])
        bit = 1 << self.findings
        self.masks = np.concatenate([self.masks[others], masks[kept], masks | bit])
        self.findings += 1
        self.sums = self.moments(self.raw)
        return PatternSplit(others, held, kept)

    def summable(self, values: FloatArray) -> FloatArray:
        """Return values [patterns] rounded so that sums over examples are below 2⁵³ units, hence exact in any order."""
        largest, examples = float(np.abs(values).max(initial=0.0)), float(self.weight.sum())
        if self.layout.weighted or not largest > 0:
            return values
        # All sums are below 2^bits; the product itself may not be a double.
        bits = int(np.frexp(largest)[1]) + int(np.frexp(examples)[1])
        unit = np.ldexp(1.0, max(bits - _DOUBLE_BITS, _LEAST_EXPONENT))
        return np.asarray(np.rint(values / unit) * unit)
