"""Looks up which candidates a row is in, for all feature tuples of the candidates at once."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from slicebeam.metrics.counting.counting import table_cells
from slicebeam.metrics.counting.membership import Membership

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from slicebeam.metrics.arrays import BoolArray, IntArray
    from slicebeam.metrics.counting.counting import RowBlock
    from slicebeam.metrics.counting.lattice import Keys, Lattice

# Cells of the tables of all tuples; of more, a tree of predicates is walked.
_MOST_CELLS = 1 << 24
# Pairs of a row and a tuple that are looked up together: they stay in the cache.
_PAIRS_AT_A_TIME = 1 << 16


class _Group(NamedTuple):
    """Feature tuples that differ in their last feature only."""

    first: tuple[int, ...]  # the features before the last
    last: IntArray  # [tuples] features
    # [tuples, 1] where a value of 0 of each last feature lies in a row of the table
    begins: NDArray[np.int32]
    # [cells of the first features · width] candidates, −1 where there is none
    table: NDArray[np.int32]
    width: int  # values of all last features


class CandidateLookup:
    """Which of some slices each row of a block is in."""

    def __init__(self, keys: Keys, lattice: Lattice) -> None:
        tuples = lattice.by_tuple(keys)
        cells = {features: table_cells(features, lattice) for features in tuples}
        is_plain = not any(lattice.is_multi(one) for features in tuples for one in features)
        self._tree = None
        if not is_plain or sum(cells.values()) > _MOST_CELLS:
            self._tree = Membership(keys, lattice)
            return
        groups: dict[tuple[int, ...], list[int]] = {}
        for *first, last in sorted(tuples):
            groups.setdefault(tuple(first), []).append(last)
        self._groups = [
            self._group(first, lasts, keys, tuples, lattice) for first, lasts in groups.items()
        ]
        self._features = sorted({one for features in tuples for one in features})
        self._radices = lattice.radices.astype(np.int32)

    @staticmethod
    def _group(
        first: tuple[int, ...],
        lasts: list[int],
        keys: Keys,
        tuples: dict[tuple[int, ...], IntArray],
        lattice: Lattice,
    ) -> _Group:
        radices = lattice.radices[lasts]
        begins = np.cumsum(radices) - radices
        width = int(radices.sum())
        table = np.full((table_cells(first, lattice), width), -1, np.int32)
        for last, begin, radix in zip(lasts, begins.tolist(), radices.tolist(), strict=True):
            places = tuples[(*first, last)]
            cells = lattice.key_cells(keys[places], (*first, last))
            table[cells // radix, begin + cells % radix] = places
        last_features = np.array(lasts, np.int64)
        return _Group(first, last_features, begins.astype(np.int32)[:, None], table.ravel(), width)

    def pairs(self, block: RowBlock) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
        """Return rows and the candidates that they are in: int32 [pairs] each."""
        none = np.zeros(0, np.int32)
        rows, candidates = zip((none, none), *self.some_pairs(block), strict=True)
        return np.concatenate(rows), np.concatenate(candidates)

    def some_pairs(self, block: RowBlock) -> Iterator[tuple[NDArray[np.int32], NDArray[np.int32]]]:
        """Yield rows and the candidates that they are in, int32 [pairs] each, bit by bit."""
        if block.rows == 0:
            return
        if self._tree is not None:
            for _, slices, members in self._tree.of(block):
                yield members.astype(np.int32), slices.astype(np.int32)
            return
        codes = np.zeros((max(self._features) + 1, block.rows), np.int32)
        for feature in self._features:
            codes[feature] = block.stored(feature)
        for group in self._groups:
            step = max(1, _PAIRS_AT_A_TIME // group.last.size)
            for begin in range(0, block.rows, step):
                some = codes[:, begin : begin + step]
                own = self._candidates(group, some)
                held = np.flatnonzero(own >= 0)
                rows = (held % some.shape[1]).astype(np.int32)
                rows += np.int32(begin)
                yield rows, own[held]

    def _candidates(self, group: _Group, codes: NDArray[np.int32]) -> NDArray[np.int32]:
        """Return the candidate of each tuple and row [tuples · rows], −1 where there is none."""
        cell = codes[group.last]
        cell += group.begins
        if group.first:
            of_first = codes[group.first[0]].copy()
            for feature in group.first[1:]:
                of_first *= self._radices[feature]
                of_first += codes[feature]
            of_first *= np.int32(group.width)
            cell += of_first
        return np.asarray(group.table.take(cell.ravel(), mode="clip"))


def rows_in(block: RowBlock, lattice: Lattice, key: int) -> IntArray:
    """Return the rows of a block that are in a slice, ascending."""
    digits = lattice.digits(np.array([key], np.int64))[0]
    digits = digits[digits > 0]
    features = lattice.feature_of[digits].tolist()
    if any(lattice.is_multi(feature) for feature in features):
        members = Membership(np.array([key], np.int64), lattice).of(block)
        return np.sort(np.concatenate([np.zeros(0, np.int64), *(one.rows for one in members)]))
    codes = (digits - 1 - lattice.offsets[features]).tolist()
    held: BoolArray = block.stored(features[0]) == codes[0]
    for feature, code in zip(features[1:], codes[1:], strict=True):
        held &= block.stored(feature) == code
    return np.flatnonzero(held)
