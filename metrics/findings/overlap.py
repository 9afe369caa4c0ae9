"""How much of each candidate lies in each pattern, kept up to date as findings are added.

A pattern is the set of findings that an example is in. A new finding splits each pattern in two: the
examples inside it get one bit more. So only the finding's own examples are counted again.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from scipy.sparse import csc_array, hstack

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from slicebeam.metrics.findings.target_sums import TargetSums
    from slicebeam.metrics.significance.tails import FloatArray, IntArray

# Searching a candidate in every pattern takes so many looks; passing over all pairs takes one each.
_SEARCH_STEPS = 20


class InsideCounts(NamedTuple):
    """Sums of a finding's examples, by the pattern that they had before it was added.

    All are whole numbers (of units, for weights and targets of means) below 2^53, so that they add
    up to the same in any order.

    Attributes
    ----------
    masks : int64 [patterns] ascending
    sums : float64 [patterns, columns] of all examples of the finding, as `TargetSums` lays them out
    starts : int64 [patterns + 1] where the pairs of each pattern begin
    candidates : int32 [pairs] candidates that hold some of them, ascending within a pattern
    sizes : float64 [pairs, size columns] of the candidate's part
    """

    masks: IntArray
    sums: FloatArray
    starts: IntArray
    candidates: NDArray[np.int32]
    sizes: FloatArray


class Overlap:
    """The patterns, their sums, and the candidates' parts of them.

    Parameters
    ----------
    everything : float64 [columns]
        Sums of all examples.
    sizes : float64 [candidates, size columns]
        Of the candidates.
    layout : TargetSums

    Attributes
    ----------
    findings : number of findings added
    masks : int64 [patterns] distinct
    sums : float64 [patterns, columns] of all examples of each pattern
    """

    def __init__(self, everything: FloatArray, sizes: FloatArray, layout: TargetSums) -> None:
        self.layout, self.findings = layout, 0
        self._candidates = len(sizes)
        self.masks: IntArray = np.zeros(1, np.int64)
        self.sums = np.array(everything, np.float64)[None]
        # One column for each pattern.
        self._tables = [csc_array(column[:, None]) for column in np.asarray(sizes, np.float64).T]

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
            raise ValueError(f"the finding holds examples of pattern {missing[0]}, which has none")
        split = np.array([row_of[mask] for mask in masks.tolist()], dtype=np.int64)
        others = np.setdiff1d(np.arange(self.masks.size), split)
        left = self.sums[split] - inside.sums
        # Patterns that lie within the finding are gone; their candidates have nothing left there.
        kept = np.flatnonzero(left[:, 0] > 0)
        shape = self._candidates, masks.size
        pairs = inside.candidates, np.asarray(inside.starts, np.int32)
        for number, table in enumerate(self._tables):
            column = inside.sizes[:, number].copy()
            taken = csc_array((column, *pairs), shape=shape)
            rest = table[:, split] - taken
            if rest.data.size and rest.data.min() < 0:
                at = int(np.searchsorted(rest.indptr, int(np.argmin(rest.data)), side="right")) - 1
                raise ValueError(
                    f"a candidate has fewer examples of pattern {masks[at]} than the finding takes"
                )
            rest.eliminate_zeros()
            parts = [table[:, others], rest[:, kept], taken]
            self._tables[number] = csc_array(hstack(parts, format="csc"))
        self.sums = np.concatenate([self.sums[others], left[kept], inside.sums])
        bit = 1 << self.findings
        self.masks = np.concatenate([self.masks[others], masks[kept], masks | bit])
        self.findings += 1

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
        rows, ends = self._tables[0].indices, self._tables[0].indptr
        if some.size * self.masks.size * _SEARCH_STEPS < rows.size:
            row, pattern, found = self._searched(some)
        else:
            number = np.full(self._candidates, -1, np.int64)
            number[some] = np.arange(some.size)
            of_pair = number[rows]
            found = np.flatnonzero(of_pair >= 0)
            row = of_pair[found]
            pattern = np.searchsorted(ends, found, side="right") - 1
        parts = np.zeros((some.size, self.masks.size, len(self._tables)))
        for column, table in enumerate(self._tables):
            parts[row, pattern, column] = table.data[found]
        return parts

    def _searched(self, some: IntArray) -> tuple[IntArray, IntArray, IntArray]:
        """Return where a few candidates stand: their number, the pattern and the pair."""
        rows, ends = self._tables[0].indices, self._tables[0].indptr
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
