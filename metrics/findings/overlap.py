"""The part of each candidate in each pattern, updated as findings are added.

A pattern is the set of findings that an example is in. A new finding splits each pattern in two: the
examples inside it get one bit more. So only the finding's own examples are counted again.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from scipy.sparse import csc_array, hstack

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    from slicebeam.metrics.arrays import FloatArray, IntArray
    from slicebeam.metrics.findings.target_sums import TargetSums

# Searching a candidate in every pattern takes so many looks; passing over all pairs takes one each.
_SEARCH_STEPS = 20


class InsideCounts(NamedTuple):
    """Sums of a finding's examples, by the pattern that they had before it was added.

    All are whole numbers, so that they add up to the same in any order: int64, or float64 below 2^53.

    Attributes
    ----------
    masks : int64 [patterns] ascending
    sums : [patterns, raw columns] of all examples of the finding: what `find` was given ``moments``
        of, or the columns of `TargetSums` themselves
    starts : int64 [patterns + 1] where the pairs of each pattern begin
    candidates : int32 [pairs] candidates that hold some of them, ascending within a pattern
    sizes : [pairs, size columns] of the candidate's part, in the units of ``TargetSums.size_scales``
    """

    masks: IntArray
    sums: NDArray[Any]
    starts: IntArray
    candidates: NDArray[np.int32]
    sizes: NDArray[Any]


class Overlap:
    """The patterns, their sums, and the candidates' parts of them.

    Parameters
    ----------
    everything : [raw columns]
        Sums of all examples.
    sizes : [candidates, size columns]
        Of the candidates, in the units of the counts.
    moments : callable
        Makes float64 [patterns, columns], as `TargetSums` lays them out, of raw sums.

    Attributes
    ----------
    moments : as given
    findings : number of findings added
    masks : int64 [patterns] distinct
    raw : [patterns, raw columns] sums of all examples of each pattern
    sums : float64 [patterns, columns] their moments
    """

    def __init__(
        self,
        everything: NDArray[Any],
        sizes: NDArray[Any],
        layout: TargetSums,
        moments: Callable[[NDArray[Any]], FloatArray],
    ) -> None:
        self.layout, self.findings = layout, 0
        self._candidates, self.moments = len(sizes), moments
        self.masks: IntArray = np.zeros(1, np.int64)
        self.raw = np.array(everything)[None]
        # One column for each pattern. Numbers of examples are whole numbers that doubles hold.
        self._number: Any = None if layout.weighted else np.float64
        columns = np.asarray(sizes, self._number).T
        self._counts = [csc_array(column[:, None]) for column in columns]
        self._measure()

    def _measure(self) -> None:
        """Take the sums and the sizes in their own units."""
        self.sums = self.moments(self.raw)
        self._tables = [
            table
            if scale == 1.0
            else csc_array((table.data * scale, table.indices, table.indptr), shape=table.shape)
            for table, scale in zip(self._counts, self.layout.size_scales, strict=False)
        ]

    def add(self, inside: InsideCounts) -> None:
        """Add a finding.

        Raises
        ------
        ValueError
            If its examples are in a pattern that there is not, or are more than there are.
        """
        row_of = {mask: row for row, mask in enumerate(self.masks.tolist())}
        masks = np.asarray(inside.masks, np.int64)
        missing = [mask for mask in masks.tolist() if mask not in row_of]
        if missing:
            raise ValueError(
                f"the finding holds examples of pattern {missing[0]}, which has no examples"
            )
        split = np.array([row_of[mask] for mask in masks.tolist()], dtype=np.int64)
        others = np.setdiff1d(np.arange(self.masks.size), split)
        left = self.raw[split] - inside.sums
        # Patterns that lie within the finding are gone; their candidates have nothing left there.
        kept = np.flatnonzero(self.layout.moment(self.moments(left), 1, 0) > 0)
        shape = self._candidates, masks.size
        pairs = inside.candidates, np.asarray(inside.starts, np.int32)
        for number, table in enumerate(self._counts):
            column = np.array(inside.sizes[:, number], self._number)
            taken = csc_array((column, *pairs), shape=shape)
            rest = table[:, split] - taken
            if rest.data.size and rest.data.min() < 0:
                at = int(np.searchsorted(rest.indptr, int(np.argmin(rest.data)), side="right")) - 1
                raise ValueError(
                    f"a candidate has fewer examples of pattern {masks[at]} than the finding takes"
                )
            rest.eliminate_zeros()
            parts = [table[:, others], rest[:, kept], taken]
            self._counts[number] = csc_array(hstack(parts, format="csc"))
        self.raw = np.concatenate([self.raw[others], left[kept], inside.sums])
        bit = 1 << self.findings
        self.masks = np.concatenate([self.masks[others], masks[kept], masks | bit])
        self.findings += 1
        self._measure()

    def weigh(self, by: FloatArray, power: int = 1) -> FloatArray:
        """Return Σ over patterns of the candidate's size there times `by` [patterns]: [candidates].

        Parameters
        ----------
        by : float64 [patterns]
        power : of the weights: 2 sums their squares; the same without weights
        """
        return np.asarray(self._tables[self._column(power)] @ by)

    def within(self, by: FloatArray) -> FloatArray:
        """Return Σ of size·(1 − its share of the pattern)·`by` over patterns: [candidates].

        By squared weights where there are weights.
        """
        table = self._tables[self._column(2)]
        whole = self.layout.moment(self.sums, 2, 0)
        squared = csc_array((table.data**2, table.indices, table.indptr), shape=table.shape)
        return np.asarray(table @ by - squared @ (by / whole))

    def _column(self, power: int) -> int:
        return power - 1 if self.layout.weighted else 0

    def parts(self, some: IntArray) -> FloatArray:
        """Return the sizes [some, patterns, size columns] of a few candidates' parts."""
        parts = np.zeros((some.size, self.masks.size, len(self._tables)))
        for column, table in enumerate(self._tables):
            if some.size * self.masks.size * _SEARCH_STEPS < table.indices.size:
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
        wanted = np.repeat(some, self.masks.size)
        high, last = end.copy(), rows.size - 1
        while (low < high).any():
            middle = (low + high) // 2
            below = (rows[np.minimum(middle, last)] < wanted) & (low < high)
            low, high = np.where(below, middle + 1, low), np.where(below, high, middle)
        held = np.flatnonzero((low < end) & (rows[np.minimum(low, last)] == wanted))
        number, pattern = np.divmod(held, self.masks.size)
        return number, pattern, low[held].astype(np.int64)
