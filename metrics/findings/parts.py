"""How much of each candidate lies in each pattern: in tables, or by the examples of each candidate."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
from scipy.sparse import coo_array, csr_array, hstack

from slicebeam.metrics.counting.counting import Coded, RowBlock, SummedRows
from slicebeam.metrics.counting.membership import CandidateLookup
from slicebeam.metrics.findings.target_sums import InsideSums

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from numpy.typing import NDArray

    from slicebeam.metrics.arrays import BoolArray, FloatArray, IntArray
    from slicebeam.metrics.counting.lattice import Keys, Lattice
    from slicebeam.metrics.counting.statistic_space import StatisticSpace
    from slicebeam.metrics.findings.inside import InsideCounts
    from slicebeam.metrics.findings.target_sums import Patterns, PatternSplit, TargetSums

# Bytes of a pair of an example and a candidate, while the table of pairs is made.
PAIR_BYTES = 32
# Pairs that are summed at a time.
_BATCH_PAIRS = 1 << 17


class PartTables:
    """The candidates' parts of the patterns, as counts of each finding's examples are added."""

    def __init__(
        self, sizes: NDArray[Any], layout: TargetSums, count_inside: Callable[[int], InsideCounts]
    ) -> None:
        self.layout, self.count_inside = layout, count_inside
        self._inside: InsideCounts | None = None
        # A row for each candidate, a column for each pattern. Numbers of examples are whole numbers
        # that doubles hold.
        self._number: Any = None if layout.weighted else np.float64
        self._counts = [csr_array(column[:, None]) for column in np.asarray(sizes, self._number).T]
        self._measure()

    def _measure(self) -> None:
        """Take the sizes in their own units."""
        self._tables = [
            table if scale == 1.0 else _with(table, table.data * scale)
            for table, scale in zip(self._counts, self.layout.size_scales, strict=False)
        ]

    def count(self, candidate: int, patterns: Patterns) -> InsideSums:  # noqa: ARG002
        """Return the sums of a candidate that becomes a finding."""
        self._inside = self.count_inside(candidate)
        return InsideSums(self._inside.masks, self._inside.sums)

    def split(self, by: PatternSplit) -> None:
        """Follow the patterns, which the candidate that was counted last has split."""
        if self._inside is None:
            raise ValueError("no candidate was counted")
        inside, self._inside = self._inside, None
        at = inside.candidate, inside.pattern
        for number, table in enumerate(self._counts):
            sizes = np.asarray(inside.sizes[:, number], self._number)
            taken = coo_array((sizes, at), (table.shape[0], by.inside.size)).tocsr()
            inner = table[:, by.inside]
            # Sums are taken in the order of the patterns.
            inner.sort_indices()
            rest = inner - taken
            if rest.data.size and rest.data.min() < 0:
                mask = inside.masks[rest.indices[np.argmin(rest.data)]]
                raise ValueError(
                    f"a candidate has fewer examples of pattern {mask} than the finding takes"
                )
            rest.eliminate_zeros()
            parts = [table[:, by.others], rest[:, by.kept], taken]
            self._counts[number] = csr_array(hstack(parts, format="csr"))
        self._measure()

    def weigh(self, by: FloatArray, power: int = 1) -> FloatArray:
        """Return Σ over patterns of the candidate's size there times `by` [patterns]: [candidates]."""
        return np.asarray(self._table(power) @ by)

    def within(self, chosen: IntArray, by: FloatArray, patterns: Patterns) -> FloatArray:
        """Return Σ of size·(1 − its share of the pattern)·`by` over patterns: [chosen].

        By squared weights where there are weights.
        """
        return _of_shares(self._table(2)[chosen], by, patterns)

    def _table(self, power: int) -> csr_array:
        return self._tables[power - 1 if self.layout.weighted else 0]

    def parts(self, chosen: IntArray, patterns: int) -> FloatArray:  # noqa: ARG002
        """Return the sizes [chosen, patterns, size columns] of a few candidates' parts."""
        columns = [table[chosen].toarray() for table in self._tables]
        return np.stack(columns, axis=2).astype(np.float64, copy=False)


class HeldExamples:
    """The same of all examples of the denominator, without weights, held with their candidates."""

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
            for block_rows, candidates in lookup.some_pairs(block):
                np.add(block_rows, np.int32(number), out=block_rows)
                rows.append(block_rows)
                slices.append(candidates)
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
        moved = taken[self._pattern[self._inside]]
        self._pattern = number[self._pattern]
        self._pattern[self._inside] = moved

    def weigh(self, by: FloatArray, power: int = 1) -> FloatArray:  # noqa: ARG002
        """Return the same as `PartTables.weigh`."""
        of_rows = by[self._pattern]
        return np.concatenate([np.zeros(0), *(batch @ of_rows for batch in self._batches)])

    def within(self, chosen: IntArray, by: FloatArray, patterns: Patterns) -> FloatArray:
        """Return the same as `PartTables.within`."""
        rows = self._pattern.size
        ones = np.ones(rows, np.int32), self._pattern, np.arange(rows + 1)
        of_rows = csr_array(ones, shape=(rows, patterns.masks.size))
        return _of_shares(csr_array(self._rows_of[chosen] @ of_rows), by, patterns)

    def parts(self, chosen: IntArray, patterns: int) -> FloatArray:
        """Return the same as `PartTables.parts`."""
        rows = [self._rows(candidate) for candidate in chosen.tolist()]
        of = np.repeat(np.arange(chosen.size), [held.size for held in rows])
        cell = of * patterns + self._pattern[np.concatenate([*rows, np.zeros(0, np.int32)])]
        sizes = np.bincount(cell, minlength=chosen.size * patterns)
        return sizes.reshape(chosen.size, patterns, 1).astype(np.float64)


CandidateParts: TypeAlias = PartTables | HeldExamples


def _with(table: csr_array, data: FloatArray) -> csr_array:
    return csr_array((data, table.indices, table.indptr), shape=table.shape)


def _of_shares(table: csr_array, by: FloatArray, patterns: Patterns) -> FloatArray:
    """Return Σ of size·(1 − its share of the pattern)·`by` of a table [candidates, patterns]."""
    table.sort_indices()
    whole = patterns.layout.moment(patterns.sums, 2, 0)
    squared = _with(table, np.square(table.data, dtype=np.float64))
    return np.asarray(table @ by - squared @ (by / whole))


def _batches(pairs: csr_array) -> Iterator[csr_array]:
    """Yield the rows of a table of ones some at a time, as float64: all share the same ones."""
    ends = pairs.indptr
    largest = int(np.diff(ends).max(initial=0))
    ones = np.ones(max(largest, min(_BATCH_PAIRS, pairs.nnz)))
    begin = 0
    while begin < ends.size - 1:
        end = int(np.searchsorted(ends, ends[begin] + ones.size, side="right")) - 1
        held = slice(int(ends[begin]), int(ends[end]))
        rows = (
            ones[: held.stop - held.start],
            pairs.indices[held],
            ends[begin : end + 1] - held.start,
        )
        yield csr_array(rows, shape=(end - begin, pairs.shape[1]))
        begin = end
