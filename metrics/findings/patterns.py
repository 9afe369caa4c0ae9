"""The patterns of the findings so far: which examples are in which of them, summed.

A pattern is the set of findings that an example is in. A new finding splits each pattern in two: the
examples inside it get one bit more. So only the finding's own examples are looked at again.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import ArrayLike, NDArray

    from slicebeam.metrics.arrays import FloatArray, IntArray
    from slicebeam.metrics.findings.target_sums import TargetSums

# Whole numbers up to which doubles hold each.
_DOUBLE_BITS = 53
# Of the least double above 0.
_LEAST_EXPONENT = -1074


class InsideSums(NamedTuple):
    """Sums of a finding's examples, by the pattern that they had before it was added."""

    masks: IntArray  # [patterns] distinct
    sums: NDArray[Any]  # [patterns, raw columns] in the columns of ``everything``


class PatternSplit(NamedTuple):
    """How a new finding changes the patterns: afterwards ``others`` come first, then ``kept``.

    The parts inside the finding come last, in the order of ``inside``. All are positions before.
    """

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

    def add(self, inside: InsideSums) -> PatternSplit:
        """Add a finding, and return how it splits the patterns."""
        row_of = {mask: row for row, mask in enumerate(self.masks.tolist())}
        masks = np.asarray(inside.masks, np.int64)
        missing = [mask for mask in masks.tolist() if mask not in row_of]
        if missing:
            raise ValueError(f"the finding holds examples of pattern {missing[0]}, which has none")
        own = np.array([row_of[mask] for mask in masks.tolist()], dtype=np.int64)
        others = np.setdiff1d(np.arange(self.masks.size), own)
        left = self.raw[own] - inside.sums
        # Patterns that lie within the finding are gone.
        kept = np.flatnonzero(self.layout.moment(self.moments(left), 1, 0) > 0)
        self.raw = np.concatenate([self.raw[others], left[kept], inside.sums])
        bit = 1 << self.findings
        self.masks = np.concatenate([self.masks[others], masks[kept], masks | bit])
        self.findings += 1
        self.sums = self.moments(self.raw)
        return PatternSplit(others, own, kept)

    def summable(self, values: FloatArray) -> FloatArray:
        """Return values [patterns] whose sums over examples are the same in any order.

        They are rounded to multiples of a unit so large that no sum over all examples exceeds 2⁵³
        units, which doubles hold without rounding: to about 2⁻⁵³ of the number of examples times
        the largest value. Of weighted examples they are returned as they are.
        """
        if self.layout.weighted:
            return values
        examples = float(self.layout.moment(self.sums, 1, 0).sum())
        largest = float(np.abs(values).max(initial=0.0))
        if not largest > 0:
            return values
        # All sums are below 2^bits; the product itself may not be a double.
        bits = int(np.frexp(largest)[1]) + int(np.frexp(examples)[1])
        unit = np.ldexp(1.0, max(bits - _DOUBLE_BITS, _LEAST_EXPONENT))
        return np.asarray(np.rint(values / unit) * unit)
