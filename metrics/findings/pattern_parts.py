"""What some of a finding's examples add to their patterns, and to the candidates there."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from scipy.sparse import coo_array, csr_array

from slicebeam.metrics.findings.overlap import InsideCounts

if TYPE_CHECKING:
    from slicebeam.metrics.counting.counting import RowBlock
    from slicebeam.metrics.counting.statistic_space import StatisticSpace
    from slicebeam.metrics.significance.tails import IntArray


class PatternParts(NamedTuple):
    """What some of a finding's examples add to their patterns, and to the candidates there.

    Attributes
    ----------
    masks : int64 [patterns] distinct
    sums : int64 [patterns, raw columns] of all of these examples
    pattern, candidate : int64 [pairs] position among the masks, and of the candidate
    sizes : int64 [pairs, size columns] examples, or their weights and squared weights
    """

    masks: IntArray
    sums: IntArray
    pattern: IntArray
    candidate: IntArray
    sizes: IntArray


def weights_of(block: RowBlock, space: StatisticSpace) -> IntArray:
    """Return what each row of a block adds to a size [rows, size columns]: one, or its weights.

    A row without weight adds nothing.
    """
    if not space.weighted:
        return np.ones((block.rows, 1), np.int64)
    return np.asarray(np.where(block.weights[0] > 0, block.weights, 0).T)


def merged(parts: list[PatternParts]) -> PatternParts:
    """Return the parts of disjoint examples together."""
    masks = np.unique(np.concatenate([one.masks for one in parts]))
    sums = np.zeros((masks.size, parts[0].sums.shape[1]), np.int64)
    pattern = []
    for one in parts:
        at = np.searchsorted(masks, one.masks)
        np.add.at(sums, at, one.sums)
        pattern.append(at[one.pattern])
    return PatternParts(
        masks,
        sums,
        np.concatenate(pattern),
        np.concatenate([one.candidate for one in parts]),
        np.concatenate([one.sizes for one in parts]),
    )


def inside_counts(parts: PatternParts, candidates: int) -> InsideCounts:
    """Return the parts, in any order, as what a finding adds."""
    shape = parts.masks.size, candidates
    tables = [
        # Twice transposed, the candidates of each pattern are in order.
        csr_array(coo_array((column, (parts.pattern, parts.candidate)), shape=shape))
        .tocsc()
        .tocsr()
        for column in parts.sizes.T
    ]
    return InsideCounts(
        parts.masks,
        parts.sums,
        tables[0].indptr.astype(np.int64),
        tables[0].indices.astype(np.int32),
        np.stack([table.data for table in tables], axis=1),
    )
