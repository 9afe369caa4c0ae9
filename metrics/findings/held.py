"""Examples that are few enough to be held: with the candidates that each is in, or with their codes."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
from scipy.sparse import coo_array, csr_array

from slicebeam.metrics.counting.counting import Coded, RowBlock, SummedRows
from slicebeam.metrics.findings.finding_rows import joined, rows_of, taken_rows
from slicebeam.metrics.findings.lookup import CandidateLookup, rows_in
from slicebeam.metrics.findings.overlap import InsideCounts
from slicebeam.metrics.findings.pattern_parts import inside_counts, weights_of

if TYPE_CHECKING:
    from collections.abc import Iterable

    from slicebeam.metrics.arrays import BoolArray, IntArray
    from slicebeam.metrics.counting.lattice import Keys, Lattice
    from slicebeam.metrics.counting.statistic_space import StatisticSpace
    from slicebeam.metrics.findings.inside import InsideCounter

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
        row, candidate = np.concatenate(rows), np.concatenate(slices)
        measured = self.sizes[:, 0] > 0
        if not measured.all():
            kept = measured[row]
            row, candidate = row[kept], candidate[kept]
        pairs = coo_array((np.ones(row.size, np.int32), (row, candidate)), (number, keys.size))
        # No pair occurs twice; the candidates of a row need no order.
        pairs.has_canonical_format = True
        self._of_rows = csr_array(pairs)
        self.masks = np.zeros(number, np.int64)
        self._findings = 0

    def count(self, candidate: int) -> InsideCounts:
        """Return the counts of a new finding, and record it."""
        held = np.flatnonzero(self._of_rows.indices == candidate)
        rows = np.searchsorted(self._of_rows.indptr, held, side="right") - 1
        masks, pattern = np.unique(self.masks[rows], return_inverse=True)
        sums = np.zeros((masks.size, self.sums.shape[1]), np.int64)
        np.add.at(sums, pattern, self.sums[rows])
        tables = tables_of(self._of_rows[rows], pattern, self.sizes[rows], masks.size)
        self.masks[rows] |= np.int64(1) << self._findings
        self._findings += 1
        sizes = np.stack([table.data for table in tables], axis=1)
        starts, candidates = (np.asarray(part) for part in (tables[0].indptr, tables[0].indices))
        return InsideCounts(
            masks, sums, starts.astype(np.int64), candidates.astype(np.int32), sizes
        )


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
        block = joined(some, counter.features)
        # Rows that are taken out have whole ones again.
        self.block = replace(block, cells=block.cells.astype(counter.cell_type))
        self.masks = np.zeros(self.block.rows, np.int64)
        self._findings = 0

    def count(self, candidate: int) -> InsideCounts:
        """Return the counts of a new finding, and record it."""
        finding = int(self.counter.keys[candidate])
        rows = rows_in(self.block, self.counter.lattice, finding)
        parts = self.counter.parts(rows_of(self.block, rows), self.masks[rows], finding)
        self.masks[rows] |= np.int64(1) << self._findings
        self._findings += 1
        return inside_counts(parts, self.counter.keys.size)


def tables_of(
    held: csr_array, pattern: IntArray, sizes: IntArray, patterns: int
) -> list[csr_array]:
    """Return the sizes [patterns, candidates] of the candidates' parts, ascending in each pattern.

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
    return tables
