"""The pool in strata, and the counts of the queried items."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np

from slicebeam.metrics.arrays import FloatArray, IntArray, ratio


@dataclass(frozen=True)
class Strata:
    """A labelled pool of M items in S strata, for a confusion matrix of L labels by P predictions."""

    row: IntArray  # [S] label (row of the matrix)
    sizes: IntArray  # [S] M_s, items, at least 1
    shape: tuple[int, int]  # L, P
    right: IntArray  # [L] the prediction (column) that is right for each label; −1: none
    old: IntArray | None = None  # [S, P] old predictions of each class, if known item by item
    weights: FloatArray | None = None  # [L, P] W ≥ 0, the factor of each cell's error; None: 1

    @property
    def count(self) -> int:
        """S, the number of strata."""
        return int(self.sizes.size)

    @cached_property
    def share(self) -> FloatArray:
        """p_s, the share of each stratum."""
        return np.asarray(self.sizes / self.sizes.sum())

    @cached_property
    def label_share(self) -> FloatArray:
        """p_i, the share of each label."""
        return self.members @ self.share

    @cached_property
    def members(self) -> FloatArray:
        """Float64 [L, S]: 1 where a stratum belongs to a label."""
        return np.asarray((self.row == np.arange(self.shape[0])[:, None]).astype(np.float64))

    @cached_property
    def old_shares(self) -> FloatArray:
        """Ō_s, shares of the old predictions within each stratum."""
        if self.old is None:
            raise ValueError("the old predictions are not known for each item")
        return np.asarray(self.old / self.sizes[:, None])

    @cached_property
    def old_matrix(self) -> FloatArray:
        """C°, Pr(label = i, old prediction = j)."""
        return self.members @ (self.share[:, None] * self.old_shares)

    @cached_property
    def right_cells(self) -> FloatArray:
        """1 for the cells of right predictions."""
        return np.asarray((self.right[:, None] == np.arange(self.shape[1])).astype(np.float64))

    def accuracy(self, matrix: FloatArray) -> FloatArray:
        """Return the share of right predictions [...] in matrices [..., L, P]."""
        return np.asarray((matrix * self.right_cells).sum(axis=(-2, -1)))

    @cached_property
    def squared_weights(self) -> FloatArray:
        """W² of the cells that each stratum's answers fall into."""
        if self.weights is None:
            return np.ones((self.count, self.shape[1]))
        return np.square(self.weights)[self.row]

    @cached_property
    def pair_weight(self) -> FloatArray:
        """The two largest W² of each stratum's cells: what a changed answer adds at most [S]."""
        if self.weights is None:
            return np.full(self.count, 2.0)
        return np.asarray(np.sort(self.squared_weights, axis=1)[:, -2:].sum(axis=1))


@dataclass
class Sample:
    """The counts of the queried items, in R independent runs."""

    asked: IntArray  # [R, S] N_s, items that were asked
    new: IntArray  # [R, S, P] H, how often the new prediction was each class
    old: IntArray  # [R, S, P] O, how often the old prediction was; 0 where these are not known
    both: IntArray  # [R, S, P] how often both were
    squares: IntArray  # [R, S] ‖H‖²
    # [R, S] Σ weight of the new prediction's cell · that of the old one's; 0 without ``weights``
    products: FloatArray
    # of 2S strata: the halves (2s and 2s + 1) of each stratum, where answers decided how many were asked
    halves: Sample | None = None
    weights: FloatArray | None = None  # [S, P] of the cells that each stratum's answers fall into
    is_adapted: bool = False  # whether a stratum's own answers decided how many more were asked

    @classmethod
    def empty(
        cls, runs: int, strata: int, predictions: int, weights: FloatArray | None = None
    ) -> Sample:
        """Return the counts before any query."""
        asked, squares = (np.zeros((runs, strata), np.int64) for _ in range(2))
        new, old, both = (np.zeros((runs, strata, predictions), np.int64) for _ in range(3))
        products = np.zeros((runs, strata))
        return cls(asked, new, old, both, squares, products, weights=weights)

    def add(self, stratum: IntArray, new: IntArray, old: IntArray | None = None) -> None:
        """Count answers: strata, new and old predictions, int64 [R, calls]; a negative stratum is not a call."""
        runs, strata, predictions = self.new.shape
        made = stratum >= 0
        place = (np.arange(runs)[:, None] * strata + stratum)[made]
        answers = new[made]
        np.add.at(self.asked.reshape(-1), place, 1)
        np.add.at(self.new.reshape(-1), place * predictions + answers, 1)
        # A pool may have so many cells that only those of the calls can be looked at each time.
        counts = self.new.reshape(-1, predictions)[place]
        self.squares.reshape(-1)[place] = np.square(counts).sum(axis=1)
        if old is not None:
            before = old[made]
            same = before == answers
            np.add.at(self.old.reshape(-1), place * predictions + before, 1)
            np.add.at(self.both.reshape(-1), (place * predictions + answers)[same], 1)
            if self.weights is not None:
                row = stratum[made]
                product = self.weights[row, answers] * self.weights[row, before]
                np.add.at(self.products.reshape(-1), place, product)


class Counts(NamedTuple):
    """The counts of a `Sample`, as float64, as if so many items had been drawn uniformly."""

    asked: FloatArray
    new: FloatArray
    old: FloatArray
    both: FloatArray
    products: FloatArray


def differences(counts: Counts | Sample, factor: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Return the sums [R, S, P] of 1[new = j] − λ·1[old = j], and of its square, for λ [R, 1, 1]."""
    counted = counts.new - factor * counts.old
    squares = counts.new - 2 * factor * counts.both + np.square(factor) * counts.old
    return counted, squares


def half_sizes(sizes: IntArray) -> IntArray:
    """Return the sizes of the halves 2s and 2s + 1 of each stratum."""
    return np.stack([(sizes + 1) // 2, sizes // 2], axis=1).reshape(-1)


def counts_of(strata: Strata, sample: Sample) -> Counts:
    """Return the inputs of the estimate; of halves that are random samples of their stratum.

    With α the first half's share of its items, a stratum's means are α and 1 − α of the halves', as of n items drawn
    alike, 1/n = α²/N₁ + (1 − α)²/N₂. A half without an answer counts nothing.
    """
    if sample.halves is None:
        return Counts(*(getattr(sample, name).astype(np.float64) for name in Counts._fields))
    halves = sample.halves
    runs = halves.asked.shape[0]
    asked = halves.asked.reshape(runs, -1, 2).astype(np.float64)
    part = half_sizes(strata.sizes).reshape(-1, 2) / strata.sizes[:, None]
    part = np.where(asked > 0, part, 0)
    part = ratio(part, part.sum(axis=2, keepdims=True), otherwise=0.0)
    inverse = ratio(np.square(part), asked, otherwise=0.0).sum(axis=2)
    alike = ratio(np.ones_like(inverse), inverse, otherwise=0.0)
    weights = (alike[:, :, None] * part / np.maximum(asked, 1))[..., None]

    def weighted(counts: IntArray | FloatArray) -> FloatArray:
        return np.asarray((counts.reshape(runs, strata.count, 2, -1) * weights).sum(axis=2))

    new, old, both = (weighted(cells) for cells in (halves.new, halves.old, halves.both))
    return Counts(alike, new, old, both, weighted(halves.products)[:, :, 0])
