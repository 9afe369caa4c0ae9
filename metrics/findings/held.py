"""Examples that are few enough to be held: with the candidates that each is in, or with their codes."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from scipy.sparse import coo_array, csc_array, csr_array

from slicebeam.metrics.counting.counting import Coded, RowBlock, SummedRows
from slicebeam.metrics.findings.finding_rows import joined, rows_of, taken_rows
from slicebeam.metrics.findings.lookup import CandidateLookup, rows_in
from slicebeam.metrics.findings.pattern_parts import PatternParts, weights_of

if TYPE_CHECKING:
    from collections.abc import Iterable

    from slicebeam.metrics.counting.lattice import Keys, Lattice
    from slicebeam.metrics.counting.statistic_space import StatisticSpace
    from slicebeam.metrics.findings.inside import InsideCounter
    from slicebeam.metrics.significance.tails import BoolArray, IntArray

# Bytes of a pair of an example and a candidate, while the table of pairs is made.
PAIR_BYTES = 32


class HeldExamples:
    """All examples of the denominator, to count inside one finding after another.

    Parameters
    ----------
    blocks : of all examples
    keys : int64 [candidates] distinct, ascending
    lattice : of the candidates
    space : the statistics that patterns are summed in, without score buckets
    counted : bool [cells] which examples are in the metric's denominator
    """

    def __init__(
        self,
        blocks: Iterable[RowBlock],
        keys: Keys,
        lattice: Lattice,
        space: StatisticSpace,
        counted: BoolArray,
    ) -> None:
        lookup = CandidateLookup(keys, lattice)
        none = np.zeros(0, np.int32)
        rows, slices = [none], [none]
        sums = [np.zeros((0, space.raw_columns), np.int64)]
        sizes = [np.zeros((0, 2 if space.weighted else 1), np.int64)]
        number = 0
        for block in blocks:
            some_rows, some_slices = lookup.pairs(block)
            rows.append((some_rows + number).astype(np.int32))
            slices.append(some_slices.astype(np.int32))
            table = np.zeros((1, space.raw_columns * block.rows), np.int64)
            SummedRows(block, space, []).add(table, Coded(np.arange(block.rows), None))
            sums.append(table.reshape(space.raw_columns, block.rows).T)
            sizes.append(weights_of(block, space) * counted[block.cells, None])
            number += block.rows
        self.sums, self.sizes = np.concatenate(sums), np.concatenate(sizes)
        pairs = np.concatenate(rows), np.concatenate(slices)
        kept = self.sizes[pairs[0], 0] > 0
        pairs = pairs[0][kept], pairs[1][kept]
        ones = np.ones(pairs[0].size, np.int64)
        self._of_rows = csr_array(coo_array((ones, pairs), shape=(number, keys.size)))
        self._of_candidates = csc_array(self._of_rows)
        self.masks = np.zeros(number, np.int64)
        self._findings = 0

    def count(self, candidate: int) -> PatternParts:
        """Return what a candidate that becomes a finding adds, and note that it is one."""
        begin, end = self._of_candidates.indptr[candidate : candidate + 2]
        rows = np.sort(self._of_candidates.indices[begin:end])
        masks, pattern = np.unique(self.masks[rows], return_inverse=True)
        sums = np.zeros((masks.size, self.sums.shape[1]), np.int64)
        np.add.at(sums, pattern, self.sums[rows])
        parts = of_rows(self._of_rows[rows], pattern, self.sizes[rows], masks.size)
        self.masks[rows] |= np.int64(1) << self._findings
        self._findings += 1
        return PatternParts(masks, sums, *parts)


class HeldCodes:
    """The codes of all examples of the denominator, to count inside one finding after another.

    Parameters
    ----------
    blocks : of all examples
    counter : of the candidates
    """

    def __init__(self, blocks: Iterable[RowBlock], counter: InsideCounter) -> None:
        self.counter = counter
        some = [
            taken_rows(
                block,
                counter.measured(block, np.arange(block.rows)),
                counter.features,
                counter.lattice,
            )
            for block in blocks
        ]
        self.block = joined(some, counter.features)
        self.masks = np.zeros(self.block.rows, np.int64)
        self._findings = 0

    def count(self, candidate: int) -> PatternParts:
        """Return what a candidate that becomes a finding adds, and note that it is one."""
        rows = rows_in(self.block, self.counter.lattice, int(self.counter.keys[candidate]))
        parts = self.counter.parts(rows_of(self.block, rows), self.masks[rows])
        self.masks[rows] |= np.int64(1) << self._findings
        self._findings += 1
        return parts


def of_rows(
    held: csr_array, pattern: IntArray, sizes: IntArray, patterns: int
) -> tuple[IntArray, IntArray, IntArray]:
    """Return pattern, candidate and sizes [pairs, size columns] of the candidates' parts.

    Parameters
    ----------
    held : ones [rows, candidates] where a row is in a candidate
    pattern : int64 [rows]
    sizes : int64 [rows, size columns]
    patterns : their number
    """
    at = pattern, np.arange(pattern.size)
    shape = patterns, pattern.size
    tables = [csr_array(coo_array((column, at), shape=shape)) @ held for column in sizes.T]
    for table in tables:
        table.sort_indices()
    numbers = np.repeat(np.arange(patterns), np.diff(tables[0].indptr))
    columns = np.stack([table.data for table in tables], axis=1)
    return numbers, tables[0].indices.astype(np.int64), columns
