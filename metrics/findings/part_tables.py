"""The part of each candidate in each pattern, in tables that are kept up to date."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import numpy as np
from scipy.sparse import coo_array, csc_array, csr_array, hstack

from slicebeam.metrics.findings.target_sums import InsideSums

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    from slicebeam.metrics.arrays import FloatArray, IntArray
    from slicebeam.metrics.counting.counting import RowBlock
    from slicebeam.metrics.counting.statistic_space import StatisticSpace
    from slicebeam.metrics.findings.target_sums import Patterns, PatternSplit, TargetSums

# Searching a candidate in every pattern takes so many looks; passing over all pairs takes one each.
_SEARCH_STEPS = 20
# Cells of a table of patterns and candidates that is summed in place.
_MOST_CELLS = 1 << 24


class InsideCounts(NamedTuple):
    """Sums of a finding's examples, by the pattern that they had before it was added.

    All are whole numbers, so that they add up to the same in any order: int64, or float64 below 2^53.
    """

    of_all: InsideSums  # of all examples of the finding, in ascending order of masks
    starts: IntArray  # [patterns + 1] where the pairs of each pattern begin
    # [pairs] candidates that hold some of them, ascending within a pattern
    candidates: NDArray[np.int32]
    # [pairs, size columns] of the candidate's part, in the units of ``TargetSums.size_scales``
    sizes: NDArray[Any]


class CandidateParts(Protocol):
    """How much of each candidate lies in each pattern, by whatever means."""

    def count(self, candidate: int, patterns: Patterns) -> InsideSums:
        """Return the sums of a candidate that becomes a finding."""

    def split(self, by: PatternSplit) -> None:
        """Follow the patterns, which the candidate that was counted last has split."""

    def weigh(self, by: FloatArray, power: int = 1) -> FloatArray:
        """Return Σ over patterns of the candidate's size there times `by` [patterns]: [candidates]."""

    def within(self, some: IntArray, by: FloatArray, patterns: Patterns) -> FloatArray:
        """Return Σ of size·(1 − its share of the pattern)·`by` over patterns: [some].

        By squared weights where there are weights.
        """

    def parts(self, some: IntArray, patterns: int) -> FloatArray:
        """Return the sizes [some, patterns, size columns] of a few candidates' parts."""


class PartTables:
    """The candidates' parts of the patterns, as counts of each finding's examples are added."""

    def __init__(
        self, sizes: NDArray[Any], layout: TargetSums, count_inside: Callable[[int], InsideCounts]
    ) -> None:
        self.layout, self.count_inside = layout, count_inside
        self._candidates = len(sizes)
        self._inside: InsideCounts | None = None
        # One column for each pattern. Numbers of examples are whole numbers that doubles hold.
        self._number: Any = None if layout.weighted else np.float64
        columns = np.asarray(sizes, self._number).T
        self._counts = [csc_array(column[:, None]) for column in columns]
        self._measure()

    def _measure(self) -> None:
        """Take the sizes in their own units."""
        self._tables = [
            table
            if scale == 1.0
            else csc_array((table.data * scale, table.indices, table.indptr), shape=table.shape)
            for table, scale in zip(self._counts, self.layout.size_scales, strict=False)
        ]

    def count(self, candidate: int, patterns: Patterns) -> InsideSums:  # noqa: ARG002
        """Return the sums of a candidate that becomes a finding."""
        self._inside = self.count_inside(candidate)
        return self._inside.of_all

    def split(self, by: PatternSplit) -> None:
        """Follow the patterns, which the candidate that was counted last has split."""
        if self._inside is None:
            raise ValueError("no candidate was counted")
        inside, self._inside = self._inside, None
        shape = self._candidates, by.inside.size
        pairs = inside.candidates, np.asarray(inside.starts, np.int32)
        for number, table in enumerate(self._counts):
            column = np.array(inside.sizes[:, number], self._number)
            taken = csc_array((column, *pairs), shape=shape)
            rest = table[:, by.inside] - taken
            if rest.data.size and rest.data.min() < 0:
                at = int(np.searchsorted(rest.indptr, int(np.argmin(rest.data)), side="right")) - 1
                mask = inside.of_all.masks[at]
                raise ValueError(
                    f"a candidate has fewer examples of pattern {mask} than the finding takes"
                )
            rest.eliminate_zeros()
            parts = [table[:, by.others], rest[:, by.kept], taken]
            self._counts[number] = csc_array(hstack(parts, format="csc"))
        self._measure()

    def weigh(self, by: FloatArray, power: int = 1) -> FloatArray:
        """Return Σ over patterns of the candidate's size there times `by` [patterns]: [candidates]."""
        return np.asarray(self._tables[self._column(power)] @ by)

    def within(self, some: IntArray, by: FloatArray, patterns: Patterns) -> FloatArray:
        """Return Σ of size·(1 − its share of the pattern)·`by` over patterns: [some]."""
        return of_shares(self._tables[self._column(2)], by, patterns)[some]

    def _column(self, power: int) -> int:
        return power - 1 if self.layout.weighted else 0

    def parts(self, some: IntArray, patterns: int) -> FloatArray:
        """Return the sizes [some, patterns, size columns] of a few candidates' parts."""
        parts = np.zeros((some.size, patterns, len(self._tables)))
        for column, table in enumerate(self._tables):
            if some.size * patterns * _SEARCH_STEPS < table.indices.size:
                row, pattern, found = self._searched(some, table)
            else:
                number = np.full(self._candidates, -1, np.int64)
                number[some] = np.arange(some.size)
                of_pair = number[table.indices]
                found = np.flatnonzero(of_pair >= 0)
                row = of_pair[found]
                pattern = np.searchsorted(table.indptr, found, side="right") - 1
            parts[row, pattern, column] = table.data[found]
        return parts

    def _searched(self, some: IntArray, table: csc_array) -> tuple[IntArray, IntArray, IntArray]:
        """Return where a few candidates stand in a table: their number, the pattern and the pair."""
        rows, ends = table.indices, table.indptr
        low = np.tile(ends[:-1], some.size)
        end = np.tile(ends[1:], some.size)
        wanted = np.repeat(some, ends.size - 1)
        high, last = end.copy(), rows.size - 1
        while (low < high).any():
            middle = (low + high) // 2
            below = (rows[np.minimum(middle, last)] < wanted) & (low < high)
            low, high = np.where(below, middle + 1, low), np.where(below, high, middle)
        held = np.flatnonzero((low < end) & (rows[np.minimum(low, last)] == wanted))
        number, pattern = np.divmod(held, ends.size - 1)
        return number, pattern, low[held].astype(np.int64)


def of_shares(table: csc_array, by: FloatArray, patterns: Patterns) -> FloatArray:
    """Return Σ of size·(1 − its share of the pattern)·`by` of a table [candidates, patterns]."""
    whole = patterns.layout.moment(patterns.sums, 2, 0)
    squared = csc_array(
        (np.square(table.data, dtype=np.float64), table.indices, table.indptr), shape=table.shape
    )
    return np.asarray(table @ by - squared @ (by / whole))


class PatternParts(NamedTuple):
    """The contribution of some of a finding's examples to patterns and candidates."""

    masks: IntArray  # [patterns] distinct
    sums: IntArray  # [patterns, raw columns] of all of these examples
    pattern: IntArray  # [pairs] position among the masks
    candidate: IntArray  # [pairs]
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
