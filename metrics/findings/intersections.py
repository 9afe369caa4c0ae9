"""Which findings the same examples are in: the largest sets of examples that share their findings.

Source: Lex, Gehlenborg, Strobelt, Vuillemot and Pfister (2014), IEEE Trans. Vis. Comput. Graph. 20:1983
(UpSet: intersections that exclude each other, by size).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from slicebeam.metrics.arrays import FloatArray, IntArray

# Findings, the first ones, and sets of examples that a reader takes in.
MOST_FINDINGS, MOST_SETS = 10, 20


class Intersections(NamedTuple):
    """Sets of examples that are in the same of the first ten findings, the largest first."""

    masks: IntArray  # [sets] bit k is set where the examples are in finding k; 0 of those in none
    size: FloatArray  # [sets] number of the examples, or their weight
    total: FloatArray  # [sets] their summed targets


def largest_intersections(masks: IntArray, size: FloatArray, total: FloatArray) -> Intersections:
    """Add up patterns that are in the same of the first findings.

    >>> import numpy as np
    >>> sums = np.array([50.0, 30.0, 20.0])
    >>> largest_intersections(np.array([0, 1, 1 + (1 << 10)]), sums, sums / 2)
    Intersections(masks=array([0, 1]), size=array([50., 50.]), total=array([25., 25.]))
    """
    first, at = np.unique(masks & ((1 << MOST_FINDINGS) - 1), return_inverse=True)
    sizes, totals = (
        np.asarray(np.bincount(at, sums, first.size), np.float64) for sums in (size, total)
    )
    order = np.lexsort((first, -sizes))[:MOST_SETS]
    return Intersections(first[order], sizes[order], totals[order])
