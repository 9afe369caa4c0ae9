"""Examples that are few enough to be held: with the candidates that each is in, or with their codes."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
from scipy.sparse import coo_array, csc_array, csr_array

from slicebeam.metrics.counting.counting import Coded, RowBlock, SummedRows
from slicebeam.metrics.counting.membership import CandidateLookup, rows_in
from slicebeam.metrics.findings.inside import joined, rows_of, taken_rows
from slicebeam.metrics.findings.part_tables import inside_counts, of_shares
from slicebeam.metrics.findings.target_sums import InsideSums

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from numpy.typing import NDArray

    from slicebeam.metrics.arrays import BoolArray, FloatArray, IntArray
    from slicebeam.metrics.counting.lattice import Keys, Lattice
    from slicebeam.metrics.counting.statistic_space import StatisticSpace
    from slicebeam.metrics.findings.inside import InsideCounter
    from slicebeam.metrics.findings.part_tables import InsideCounts
    from slicebeam.metrics.findings.target_sums import Patterns, PatternSplit

# Bytes of a pair of an example and a candidate, while the table of pairs is made.
PAIR_BYTES = 32
# Pairs that are summed at a time.
_BATCH_PAIRS = 1 << 17


class HeldExamples:
    """All examples of the denominator, without weights, and which candidates each is in."""

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
        measured = [np.zeros(0, np.bool_)]
        number = 0
        for block in blocks:
            for some_rows, some_slices in lookup.some_pairs(block):
                np.add(some_rows, np.int32(number), out=some_rows)
                rows.append(some_rows)
                slices.append(some_slices)
            table = np.zeros((1, space.raw_columns * block.rows), np.int64)
            SummedRows(block, space, []).add(table, Coded(np.arange(block.rows), None))
            sums.append(table.reshape(space.raw_columns, block.rows).T)
            measured.append(counted[block.cells])
            number += block.rows
        self.sums = np.concatenate(sums)
        row, candidate = np.concatenate(rows), np.concatenate(slices)
        in_denominator = np.concatenate(measured)
        if not in_denominator.all():
            kept = in_denominator[row]
            row, candidate = row[kept], candidate[kept]
        ones = np.ones(row.size, np.int8)
        pairs = coo_array((ones, (candidate, row)), (keys.size, number))
        # No pair occurs twice; the rows of a candidate need no order.
        pairs.has_canonical_format = True
        self._rows_of = csr_array(pairs)
        self._batches = list(_batches(self._rows_of))
        self._pattern = np.zeros(number, np.int64)
        self._inside = none

    def _rows(self, candidate: int) -> NDArray[np.int32]:
        begin, end = self._rows_of.indptr[candidate : candidate + 2]
        return np.asarray(self._rows_of.indices[begin:end])

    def count(self, candidate: int, patterns: Patterns) -> InsideSums:
        """Return the sums of a candidate that becomes a finding."""
        self._inside = self._rows(candidate)
        held, at = np.unique(self._pattern[self._inside], return_inverse=True)
        sums = np.zeros((held.size, self.sums.shape[1]), np.int64)
        np.add.at(sums, at, self.sums[self._inside])
        # In the order of masks, as they are counted elsewhere.
        order = np.argsort(patterns.masks[held])
        return InsideSums(patterns.masks[held[order]], sums[order])

    def split(self, by: PatternSplit) -> None:
        """Follow the patterns, which the candidate that was counted last has split."""
        number = np.zeros(by.others.size + by.inside.size, np.int64)
        number[by.others] = np.arange(by.others.size)
        number[by.inside[by.kept]] = by.others.size + np.arange(by.kept.size)
        taken = np.zeros(number.size, np.int64)
        taken[by.inside] = by.others.size + by.kept.size + np.arange(by.inside.size)
        own = taken[self._pattern[self._inside]]
        self._pattern = number[self._pattern]
        self._pattern[self._inside] = own

    def weigh(self, by: FloatArray, power: int = 1) -> FloatArray:  # noqa: ARG002
        """Return Σ over patterns of the candidate's size there times `by` [patterns]: [candidates]."""
        of_rows = by[self._pattern]
        return np.concatenate([np.zeros(0), *(batch @ of_rows for batch in self._batches)])

    def within(self, some: IntArray, by: FloatArray, patterns: Patterns) -> FloatArray:
        """Return Σ of size·(1 − its share of the pattern)·`by` over patterns: [some]."""
        rows = self._pattern.size
        ones = np.ones(rows, np.int32), self._pattern, np.arange(rows + 1)
        of_rows = csr_array(ones, shape=(rows, patterns.masks.size))
        return of_shares(csc_array(self._rows_of[some] @ of_rows), by, patterns)

    def parts(self, some: IntArray, patterns: int) -> FloatArray:
        """Return the sizes [some, patterns, 1] of a few candidates' parts."""
        rows = [self._rows(candidate) for candidate in some.tolist()]
        of = np.repeat(np.arange(some.size), [one.size for one in rows])
        cell = of * patterns + self._pattern[np.concatenate([*rows, np.zeros(0, np.int32)])]
        sizes = np.bincount(cell, minlength=some.size * patterns)
        return sizes.reshape(some.size, patterns, 1).astype(np.float64)


def _batches(pairs: csr_array) -> Iterator[csr_array]:
    """Yield the rows of a table of ones some at a time, as float64: all share the same ones."""
    ends = pairs.indptr
    largest = int(np.diff(ends).max(initial=0))
    ones = np.ones(max(largest, min(_BATCH_PAIRS, pairs.nnz)))
    begin = 0
    while begin < ends.size - 1:
        end = int(np.searchsorted(ends, ends[begin] + ones.size, side="right")) - 1
        own = slice(int(ends[begin]), int(ends[end]))
        some = ones[: own.stop - own.start], pairs.indices[own], ends[begin : end + 1] - own.start
        yield csr_array(some, shape=(end - begin, pairs.shape[1]))
        begin = end


class HeldCodes:
    """The codes of all examples of the denominator, to count inside one finding after another."""

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
        parts = self.counter.parts(rows_of(self.block, rows), self.masks[rows])
        self.masks[rows] |= np.int64(1) << self._findings
        self._findings += 1
        return inside_counts(parts, self.counter.keys.size)
