"""The pool in strata, and the counts of the queried items."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from slicebeam.metrics.arrays import FloatArray, IntArray


@dataclass(frozen=True)
class Strata:
    """A labelled pool of M items in S strata, for a confusion matrix of L labels by P predictions.

    Attributes
    ----------
    row : int64 [S], label (row of the matrix) of each stratum
    sizes : int64 [S], M_s, items of each stratum, at least 1
    shape : (L, P)
    old : int64 [S, P] or None
        How often the old predictions were each class, where they are known item by item.
    right : int64 [L], the prediction (column) that is right for each label; −1 where there is none
    weights : float64 [L, P] or None, W ≥ 0, what the error of each cell is multiplied by; None: 1
    """

    row: IntArray
    sizes: IntArray
    shape: tuple[int, int]
    right: IntArray
    old: IntArray | None = None
    weights: FloatArray | None = None

    @property
    def count(self) -> int:
        """S, the number of strata."""
        return int(self.sizes.size)

    @cached_property
    def share(self) -> FloatArray:
        """p_s, the share of each stratum: float64 [S]."""
        share: FloatArray = self.sizes / self.sizes.sum()
        return share

    @cached_property
    def label_share(self) -> FloatArray:
        """p_i, the share of each label: float64 [L]."""
        return self.members @ self.share

    @cached_property
    def members(self) -> FloatArray:
        """Float64 [L, S]: 1 where a stratum belongs to a label."""
        members: FloatArray = (self.row == np.arange(self.shape[0])[:, None]).astype(np.float64)
        return members

    @cached_property
    def old_shares(self) -> FloatArray:
        """Ō_s, shares of the old predictions within each stratum: float64 [S, P]."""
        if self.old is None:
            raise ValueError("the old predictions are not known for each item")
        shares: FloatArray = self.old / self.sizes[:, None]
        return shares

    @cached_property
    def old_matrix(self) -> FloatArray:
        """C°, Pr(label = i, old prediction = j): float64 [L, P]."""
        return self.members @ (self.share[:, None] * self.old_shares)

    @cached_property
    def right_cells(self) -> FloatArray:
        """1 for the cells of right predictions: float64 [L, P]."""
        right: FloatArray = (self.right[:, None] == np.arange(self.shape[1])).astype(np.float64)
        return right

    def accuracy(self, matrix: FloatArray) -> FloatArray:
        """Return the share of right predictions in matrices: float64 [...] of [..., L, P]."""
        accuracy: FloatArray = (matrix * self.right_cells).sum(axis=(-2, -1))
        return accuracy

    @cached_property
    def squared_weights(self) -> FloatArray:
        """W² of the cells that each stratum's answers fall into: float64 [S, P]."""
        if self.weights is None:
            return np.ones((self.count, self.shape[1]))
        return np.square(self.weights)[self.row]

    @cached_property
    def pair_weight(self) -> FloatArray:
        """The two largest W² of each stratum's cells together: float64 [S], 2 without weights.

        What an answer that changes adds to the squared error of its stratum, at most.
        """
        if self.weights is None:
            return np.full(self.count, 2.0)
        pair: FloatArray = np.sort(self.squared_weights, axis=1)[:, -2:].sum(axis=1)
        return pair


@dataclass
class Sample:
    """The counts of the queried items, in R independent runs.

    Attributes
    ----------
    asked : int64 [R, S], N_s, items of each stratum that were asked
    new : int64 [R, S, P], H, how often the new prediction was each class
    old : int64 [R, S, P], O, how often the old prediction was; 0 where these are not known
    both : int64 [R, S, P], how often both were
    squares : int64 [R, S], ‖H‖², the sum of the squares of the new predictions' counts
    products : float64 [R, S]
        Sum of the weight of the new prediction's cell times that of the old one's; 0 without
        ``weights``.
    weights : float64 [S, P] or None, weights of the cells that each stratum's answers fall into
    halves : Sample of 2S strata or None
        The same counts for each half of each stratum (2s and 2s + 1), where answers decided how many
        items were asked (`slicebeam.metrics.shift.halves`).
    """

    asked: IntArray
    new: IntArray
    old: IntArray
    both: IntArray
    squares: IntArray
    products: FloatArray
    halves: Sample | None = None
    weights: FloatArray | None = None

    @classmethod
    def empty(
        cls, runs: int, strata: int, predictions: int, weights: FloatArray | None = None
    ) -> Sample:
        """Return the counts before any query."""
        asked, squares = (np.zeros((runs, strata), np.int64) for _ in range(2))
        new, old, both = (np.zeros((runs, strata, predictions), np.int64) for _ in range(3))
        products = np.zeros((runs, strata))
        return cls(asked, new, old, both, squares, products, weights=weights)

    @property
    def calls(self) -> IntArray:
        """Queried items in each run: int64 [R]."""
        calls: IntArray = self.asked.sum(axis=1)
        return calls

    def add(self, stratum: IntArray, new: IntArray, old: IntArray | None = None) -> None:
        """Count answers: strata, new and old predictions, int64 [R, calls]; a negative stratum is not a call."""
        runs, strata, predictions = self.new.shape
        made = stratum >= 0
        place = (np.arange(runs)[:, None] * strata + stratum)[made]
        answers = new[made]
        np.add.at(self.asked.reshape(-1), place, 1)
        np.add.at(self.new.reshape(-1), place * predictions + answers, 1)
        # A pool may have so many cells that only those of the calls can be looked at each time.
        self.squares.reshape(-1)[place] = np.square(self.new.reshape(-1, predictions)[place]).sum(
            axis=1
        )
        if old is not None:
            before = old[made]
            same = before == answers
            np.add.at(self.old.reshape(-1), place * predictions + before, 1)
            np.add.at(self.both.reshape(-1), (place * predictions + answers)[same], 1)
            if self.weights is not None:
                row = stratum[made]
                product = self.weights[row, answers] * self.weights[row, before]
                np.add.at(self.products.reshape(-1), place, product)
