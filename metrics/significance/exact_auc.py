"""AUC of slices from the scores themselves, not from buckets of them.

Examples come in ascending order of their score, in groups of which no score is in two. Whoever is
below has been counted by then, so that a pass keeps a few sums a slice and never all of its
examples. Where examples count as often as they are, all sums of pairs are whole numbers.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from slicebeam.metrics.significance.auc import Placements, placements

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from slicebeam.metrics.arrays import BoolArray, FloatArray, IntArray


# The placements come from a histogram of the slice's own: each of its cells has at most one part in
# so many of the slice's positives, and of its negatives, unless they have the same score.
PARTS = 256
# A stable sort of numbers of this type is a radix sort.
_RADIX = np.uint16


class ScoredRows(NamedTuple):
    """Rows of a group in ascending order of score: rank of the score, label, weights in fixed point or None."""

    rank: IntArray
    positive: BoolArray
    weights: IntArray | None


class _Runs(NamedTuple):
    """Neighbours in a slice with one score: begin, slice, rank, and run at which the slice begins [runs]."""

    at: IntArray
    slices: IntArray
    rank: IntArray
    first: IntArray


class Areas:
    """Exact AUC of slices and of their replicates, from groups of ascending scores: `begin`, then `add`.

    The result does not depend on where groups are cut, nor on the order of equal scores. `sizes` [slices, 2]
    and `of_all` [2] are negatives and positives: examples, or weights in fixed point.
    """

    def __init__(
        self, sizes: IntArray, of_all: IntArray, layers: int, *, is_weighted: bool
    ) -> None:
        self.sizes, self.of_all = sizes, of_all
        kind = np.float64 if is_weighted else np.int64
        slices = len(sizes)
        self._kind = kind
        # Negatives and positives of each slice so far.
        self._below = np.zeros((layers, slices, 2), np.int64)
        # Twice the pairs that a positive wins, ties by half.
        self._wins = np.zeros((layers, slices), kind)
        # Twice the pairs won of all positives against the slice's negatives, and the reverse.
        self._crossed = np.zeros((2, slices), kind)
        self._cells = np.zeros((slices, 2, 2 * PARTS), np.int64)
        self._below_all = np.zeros(2, np.int64)
        self._wins_all = np.zeros(1, kind)

    def begin(self, rows: ScoredRows) -> None:
        """Take all rows of the next group."""
        self._rows = rows
        ranks = int(rows.rank[-1]) + 1 if rows.rank.size else 0
        begins = np.searchsorted(rows.rank, np.arange(ranks))
        counts = _by_class(rows.positive, rows.weights, begins)
        before = np.cumsum(counts, axis=1) - counts + self._below_all[:, None]
        above = self.of_all[1] - before[1] - counts[1]
        # What an example of this score wins against all of the other class, ties by half, twice.
        self._against_negatives = (2 * before[0] + counts[0]).astype(self._kind)
        self._against_positives = (2 * above + counts[1]).astype(self._kind)
        won = counts[1].astype(self._kind) * self._against_negatives
        np.add.at(self._wins_all, np.zeros(won.size, np.int64), won)
        self._below_all = self._below_all + counts.sum(axis=1)

    def add(
        self, slices: IntArray, rows: IntArray, drawn: Sequence[NDArray[np.uint8]] | None = None
    ) -> None:
        """Add members of the group: their slices and rows [members], rows ascending within each slice.

        `drawn` says for each replicate how often a row of the group counts, uint8 [rows of the group].
        """
        if slices.size == 0:
            return
        few = len(self.sizes) <= np.iinfo(_RADIX).max
        order = np.argsort(slices.astype(_RADIX) if few else slices, kind="stable")
        slices, rows = slices[order], rows[order]
        rank = self._rows.rank[rows]
        opens = np.ones(slices.size, bool)
        opens[1:] = (slices[1:] != slices[:-1]) | (rank[1:] != rank[:-1])
        at = np.flatnonzero(opens)
        run_slices = slices[at]
        begins = np.ones(at.size, bool)
        begins[1:] = run_slices[1:] != run_slices[:-1]
        first = np.flatnonzero(begins)[np.cumsum(begins) - 1]
        runs = _Runs(at, run_slices, rank[at], first)
        positive = self._rows.positive[rows]
        own = None if self._rows.weights is None else self._rows.weights[rows]
        for layer, times in enumerate([None, *(drawn or ())]):
            weights = own
            if times is not None:
                often = times[rows].astype(np.int64)
                weights = often if own is None else own * often
            counts = _by_class(positive, weights, at)
            below = self._add_layer(layer, runs, counts)
            if layer == 0:
                self._add_own(runs, counts, below)

    def _add_layer(self, layer: int, runs: _Runs, counts: IntArray) -> IntArray:
        """Count pairs, and return the counts below each run in its slice [2, runs]."""
        # Sums over slices may wrap around; their differences within a slice do not.
        running = np.cumsum(counts, axis=1) - counts
        carried = self._below[layer, runs.slices].T
        below: IntArray = running - running[:, runs.first] + carried
        negatives, positives = counts
        won = positives.astype(self._kind) * (
            2 * below[0].astype(self._kind) + negatives.astype(self._kind)
        )
        # One after another, so that a sum of floats is the same wherever the groups are cut.
        np.add.at(self._wins[layer], runs.slices, won)
        last = np.append(np.flatnonzero(np.diff(runs.first)), runs.first.size - 1)
        self._below[layer, runs.slices[last]] = (below + counts).T[last]
        return below

    def _add_own(self, runs: _Runs, counts: IntArray, below: IntArray) -> None:
        negatives, positives = counts
        for crossed, mine, against in (
            (self._crossed[0], positives, self._against_negatives),
            (self._crossed[1], negatives, self._against_positives),
        ):
            np.add.at(crossed, runs.slices, mine.astype(self._kind) * against[runs.rank])
        # A run's place is its middle, so that one with many examples shares a cell with few others.
        whole = np.maximum(self.sizes[runs.slices].T, 1)
        share = (below + 0.5 * counts) / whole
        cells = np.minimum((PARTS * share).astype(np.int64), PARTS - 1).sum(axis=0)
        for label in (0, 1):
            place = (runs.slices * 2 + label) * (2 * PARTS) + cells
            np.add.at(self._cells.reshape(-1), place, counts[label])

    def values(self) -> FloatArray:
        """Return the AUC [slices, layers]; NaN where a class is empty."""
        negatives, positives = np.moveaxis(self._below, -1, 0)
        return _share(self._wins, negatives, positives).T

    def placements(self) -> Placements:
        """Return the exact AUC, and moments of the placements from the slice's own histogram."""
        return placements(self._cells)._replace(auc=self.values()[:, 0])

    def complements(self) -> FloatArray:
        """Return the AUC [slices] of the examples outside each slice; NaN where a class is empty."""
        # Of all pairs, those with a positive in the slice, with a negative in it, and with both.
        wins = self._wins_all - self._crossed[0] - self._crossed[1] + self._wins[0]
        others = self.of_all - self.sizes
        return _share(wins, others[:, 0], others[:, 1])


def _by_class(positive: BoolArray, weights: IntArray | None, at: IntArray) -> IntArray:
    """Return the negatives and positives [2, runs] of runs that begin there."""
    if at.size == 0:
        return np.zeros((2, 0), np.int64)
    if weights is None:
        ones = np.add.reduceat(positive, at, dtype=np.int64)
        every = np.diff(at, append=positive.size)
    else:
        ones = np.add.reduceat(np.where(positive, weights, 0), at)
        every = np.add.reduceat(weights, at)
    return np.stack([every - ones, ones])


def _share(wins: NDArray[np.generic], negatives: IntArray, positives: IntArray) -> FloatArray:
    pairs = 2.0 * negatives.astype(np.float64) * positives.astype(np.float64)
    known = pairs > 0
    share = np.asarray(wins, np.float64) / np.where(known, pairs, 1.0)
    # Sums of float weights may leave the range by their rounding.
    return np.where(known, np.clip(share, 0.0, 1.0), np.nan)
