"""The contribution of some of a finding's examples to patterns and candidates."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from scipy.sparse import coo_array, csr_array

from slicebeam.metrics.findings.part_tables import InsideCounts
from slicebeam.metrics.findings.patterns import InsideSums

if TYPE_CHECKING:
    from slicebeam.metrics.arrays import IntArray
    from slicebeam.metrics.counting.counting import RowBlock
    from slicebeam.metrics.counting.statistic_space import StatisticSpace


# Cells of a table of patterns and candidates that is summed in place.
_MOST_CELLS = 1 << 24


class PatternParts(NamedTuple):
    """The contribution of some of a finding's examples to patterns and candidates."""

    masks: IntArray  # [patterns] distinct
    sums: IntArray  # [patterns, raw columns] of all of these examples
    # pattern, candidate: [pairs] position among the masks, and of the candidate
    pattern: IntArray
    candidate: IntArray
    sizes: IntArray  # [pairs, size columns] examples, or their weights and squared weights


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


def added_pairs(
    pattern: IntArray, candidate: IntArray, sizes: IntArray, patterns: int, candidates: int
) -> tuple[IntArray, IntArray, IntArray]:
    """Return pairs in any order, some of them alike, in their order and each once."""
    if sizes.shape[1] == 1 and patterns * candidates <= _MOST_CELLS:
        # Counts of examples are whole numbers that doubles hold.
        cell = pattern * candidates + candidate
        table = np.bincount(cell, sizes[:, 0], patterns * candidates)
        held = np.flatnonzero(table)
        return held // candidates, held % candidates, table[held].astype(np.int64)[:, None]
    shape = patterns, candidates
    tables = [
        # Twice transposed, the candidates of each pattern are in order.
        csr_array(coo_array((column, (pattern, candidate)), shape=shape)).tocsc().tocsr()
        for column in sizes.T
    ]
    numbers = np.repeat(np.arange(patterns), np.diff(tables[0].indptr))
    columns = np.stack([table.data for table in tables], axis=1)
    return numbers, tables[0].indices.astype(np.int64), columns


def inside_counts(parts: PatternParts, candidates: int) -> InsideCounts:
    """Return the parts, in any order, as the counts of a finding."""
    pattern, candidate, sizes = added_pairs(
        parts.pattern, parts.candidate, parts.sizes, parts.masks.size, candidates
    )
    starts = np.searchsorted(pattern, np.arange(parts.masks.size + 1))
    of_all = InsideSums(parts.masks, parts.sums)
    return InsideCounts(of_all, starts, candidate.astype(np.int32), sizes)
