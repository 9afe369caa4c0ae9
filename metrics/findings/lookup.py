"""Looks up which candidates a row is in, for all feature tuples of the candidates at once."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from slicebeam.metrics.counting.counting import table_cells
from slicebeam.metrics.counting.membership import Membership

if TYPE_CHECKING:
    from slicebeam.metrics.arrays import BoolArray, IntArray
    from slicebeam.metrics.counting.counting import RowBlock
    from slicebeam.metrics.counting.lattice import Keys, Lattice

# Cells of the tables of all tuples; of more, a tree of predicates is walked.
_MOST_CELLS = 1 << 24
# Pairs of a row and a tuple that are looked up together: they stay in the cache.
_PAIRS_AT_A_TIME = 1 << 18


class _Tuples(NamedTuple):
    """Feature tuples of one length.

    Attributes
    ----------
    features : int64 [length, tuples]
    radices : int32 [length, tuples, 1]
    begins : int32 [tuples, 1] where the table of each begins among all cells
    """

    features: IntArray
    radices: Any
    begins: Any


class CandidateLookup:
    """Which of some slices each row of a block is in.

    Parameters
    ----------
    keys : int64 [candidates] distinct, ascending
    lattice : of the candidates
    """

    def __init__(self, keys: Keys, lattice: Lattice) -> None:
        tuples = lattice.by_tuple(keys)
        cells = {features: table_cells(features, lattice) for features in tuples}
        is_plain = not any(lattice.is_multi(one) for features in tuples for one in features)
        self._tree = None
        if not is_plain or sum(cells.values()) > _MOST_CELLS:
            self._tree = Membership(keys, lattice)
            return
        self._number = np.full(sum(cells.values()), -1, np.int32)
        self._tuples: list[_Tuples] = []
        begin = 0
        for length in sorted({len(features) for features in tuples}):
            some = [features for features in tuples if len(features) == length]
            begins = []
            for features in some:
                places = tuples[features]
                own = lattice.key_cells(keys[places], features)
                self._number[begin + own] = places
                begins.append(begin)
                begin += cells[features]
            which = np.array(some, np.int64).T
            radices = lattice.radices[which].astype(np.int32)[:, :, None]
            self._tuples.append(_Tuples(which, radices, np.array(begins, np.int32)[:, None]))
        self._features = sorted({one for features in tuples for one in features})

    def pairs(self, block: RowBlock) -> tuple[IntArray, IntArray]:
        """Return rows and the candidates that they are in: int64 [pairs] each."""
        rows, found = [np.zeros(0, np.int64)], [np.zeros(0, np.int64)]
        if block.rows == 0:
            return rows[0], found[0]
        if self._tree is not None:
            for _, slices, members in self._tree.of(block):
                rows.append(members)
                found.append(slices)
            return np.concatenate(rows), np.concatenate(found)
        codes = np.zeros((max(self._features) + 1, block.rows), np.int32)
        for feature in self._features:
            codes[feature] = block.stored(feature)
        for one in self._tuples:
            step = max(1, _PAIRS_AT_A_TIME // block.rows)
            for begin in range(0, one.features.shape[1], step):
                some = slice(begin, begin + step)
                cell = codes[one.features[0, some]]
                for which, radix in zip(one.features[1:, some], one.radices[1:, some], strict=True):
                    cell *= radix
                    cell += codes[which]
                cell += one.begins[some]
                number = self._number[cell]
                held = np.flatnonzero(number.ravel() >= 0)
                rows.append(held % block.rows)
                found.append(number.ravel()[held].astype(np.int64))
        return np.concatenate(rows), np.concatenate(found)


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
