"""The sums over the examples of a pattern: their number or weights, and their target.

The *target* is what a metric averages: 0 or 1 of each example of a rate's denominator, a loss, or
the change of either between two models.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Literal

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import ArrayLike

    from slicebeam.metrics.arrays import BoolArray, FloatArray, IntArray

# A rate has targets of 0 and 1 and a logistic model; all else is a mean, by least squares.
Kind = Literal["rate", "mean"]
# A pattern is a set of findings, one bit each; the sign of an int64 is spared.
MOST_FINDINGS = 50


@dataclass(frozen=True)
class TargetSums:
    """The columns of summed targets: Σ weight^a · target^b.

    Of a rate, examples and errors are counted; of a mean, squares are summed too, and of weights
    their squares with everything:

    >>> TargetSums("rate").powers
    ((0, 0), (0, 1))
    >>> TargetSums("mean").powers
    ((0, 0), (0, 1), (0, 2))
    >>> TargetSums("rate", weighted=True).powers
    ((1, 0), (1, 1), (2, 0), (2, 1))

    Of a candidate's part of a pattern only the number of examples, or the weights, are needed:

    >>> TargetSums("mean").size_columns, TargetSums("mean", weighted=True).size_columns
    (1, 2)
    """

    kind: Kind  # ``rate`` for targets of 0 and 1, ``mean`` for any others
    weighted: bool = False  # whether examples have weights
    # units of the counts of examples or weights, and of squared weights
    size_scales: tuple[float, float] = (1.0, 1.0)

    def __post_init__(self) -> None:
        if self.kind not in ("rate", "mean"):
            raise ValueError(f"unknown kind {self.kind!r} of target: use 'rate' or 'mean'")

    @cached_property
    def powers(self) -> tuple[tuple[int, int], ...]:
        """The power of the weight and of the target, of each column."""
        largest = 1 if self.kind == "rate" else 2
        if not self.weighted:
            return tuple((0, power) for power in range(largest + 1))
        return tuple(
            (weight, power) for weight in (1, 2) for power in range(min(weight, largest) + 1)
        )

    @property
    def columns(self) -> int:
        """Number of the columns."""
        return len(self.powers)

    @property
    def size_columns(self) -> int:
        """Columns of a candidate's part of a pattern: examples; or weights and their squares."""
        return 2 if self.weighted else 1

    def moment(self, sums: FloatArray, weight: int, power: int) -> FloatArray:
        """Return Σ weight^a · target^b [...] of sums [..., columns], for a of 1 and 2, b ≤ a."""
        if self.kind == "rate":
            power = min(power, 1)
        at = self.powers.index((weight if self.weighted else 0, power))
        return np.asarray(sums[..., at], dtype=np.float64)

    def size(self, sizes: FloatArray, weight: int) -> FloatArray:
        """Return Σ weight^a [...] of the sizes [..., size columns] of parts, for a of 1 and 2."""
        return np.asarray(sizes[..., weight - 1 if self.weighted else 0], dtype=np.float64)

    def sums_of(self, target: ArrayLike, weight: ArrayLike | None = None) -> FloatArray:
        """Return the columns [examples, columns] of single examples."""
        x = np.asarray(target, dtype=np.float64)
        w = np.ones(x.shape) if weight is None else np.asarray(weight, dtype=np.float64)
        return np.stack([w**a * x**b for a, b in self.powers], axis=-1)


def membership(masks: ArrayLike, findings: int) -> BoolArray:
    """Return which findings [patterns, findings] the examples of each pattern are in."""
    bits: IntArray = np.asarray(masks, dtype=np.int64)
    if not 0 <= findings <= MOST_FINDINGS:
        raise ValueError(f"{findings} findings: a pattern holds 0 to {MOST_FINDINGS}")
    if bits.size and (bits.min() < 0 or bits.max() >> findings):
        raise ValueError(f"mask {int(bits.max())} holds more than {findings} findings")
    return np.asarray((bits[:, None] >> np.arange(findings)) & 1, dtype=np.bool_)


def design(masks: ArrayLike, findings: int) -> FloatArray:
    """Return the model's columns [patterns, 1 + findings]: a one, then membership as 0 and 1."""
    inside = membership(masks, findings).astype(np.float64)
    return np.concatenate([np.ones((len(inside), 1)), inside], axis=1)
