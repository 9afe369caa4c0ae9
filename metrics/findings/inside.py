"""Counts a finding's examples by pattern, for all candidates in one pass over its rows."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from scipy.sparse import coo_array, csc_array

from slicebeam.metrics.counting.membership import Membership
from slicebeam.metrics.findings.overlap import InsideCounts

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from slicebeam.metrics.counting.counting import RowBlock
    from slicebeam.metrics.counting.lattice import Keys, Lattice
    from slicebeam.metrics.significance.tails import FloatArray, IntArray


class InsideCounter:
    """The candidates whose parts of findings are counted, over row blocks.

    Parameters
    ----------
    keys : int64 [candidates], distinct
    lattice : of the candidates
    singleton_sizes : as in `Membership`
    """

    def __init__(
        self, keys: Keys, lattice: Lattice, singleton_sizes: NDArray[np.int64] | None = None
    ) -> None:
        self.candidates = keys.size
        self._membership = Membership(keys, lattice, singleton_sizes)
        # Of each feature tuple the candidates that are on it, and the place of each among them.
        self._of_tuple: dict[int, IntArray] = {}
        self._place = np.zeros(keys.size, np.int64)

    def count(
        self, block: RowBlock, masks: IntArray, sums: FloatArray, sizes: FloatArray
    ) -> InsideCounts:
        """Return the counts of a block of rows, all of them in the finding.

        Parameters
        ----------
        block : RowBlock
            Its codes are read, nothing else.
        masks : int64 [rows]
            The pattern of each row before the finding is added.
        sums : float64 [rows, columns]
            What each row adds to its pattern: whole numbers.
        sizes : float64 [rows, size columns]
            What each row adds to the candidates that it is in: whole numbers.
        """
        distinct, pattern = np.unique(masks, return_inverse=True)
        patterns = distinct.size
        of_patterns = np.stack([_summed(pattern, column, patterns) for column in sums.T], axis=1)
        found: list[tuple[IntArray, IntArray, list[FloatArray]]] = []
        for members in self._membership.of(block):
            own = self._numbered(members.number, members.slices)
            cell = pattern[members.rows] * own.size + self._place[members.slices]
            if own.size * patterns > 4 * cell.size:
                cells, cell = np.unique(cell, return_inverse=True)
            else:
                cells = np.arange(own.size * patterns)
            counts = np.bincount(cell, minlength=cells.size)
            some = np.flatnonzero(counts)
            if sizes.shape[1] == 1 and _is_one(sizes):
                parts = [counts[some].astype(np.float64)]
            else:
                parts = [
                    _summed(cell, column[members.rows], cells.size)[some] for column in sizes.T
                ]
            at, place = np.divmod(cells[some], own.size)
            found.append((at, own[place], parts))
        return _arranged(distinct, of_patterns, found, self.candidates, sizes.shape[1])

    def _numbered(self, number: int, slices: IntArray) -> IntArray:
        """Return the candidates on a feature tuple that were met so far."""
        own = self._of_tuple.get(number, np.zeros(0, np.int64))
        fresh = np.setdiff1d(slices, own)
        if fresh.size:
            own = np.concatenate([own, fresh])
            self._of_tuple[number] = own
            self._place[own] = np.arange(own.size)
        return own


def _summed(at: IntArray, values: FloatArray, size: int) -> FloatArray:
    return np.bincount(at, values, size).astype(np.float64, copy=False)


def _is_one(sizes: FloatArray) -> bool:
    return bool((sizes == 1.0).all())


def _arranged(
    masks: IntArray,
    sums: FloatArray,
    found: list[tuple[IntArray, IntArray, list[FloatArray]]],
    candidates: int,
    columns: int,
) -> InsideCounts:
    """Return pairs of pattern and candidate in order, each once."""
    none = np.zeros(0, np.int64)
    at = np.concatenate([none, *(pattern for pattern, _, _ in found)]).astype(np.int32)
    held = np.concatenate([none, *(candidate for _, candidate, _ in found)]).astype(np.int32)
    tables = []
    for column in range(columns):
        values = np.concatenate([np.zeros(0), *(parts[column] for _, _, parts in found)])
        # By candidate first, so that each pattern's candidates are in order after the second step.
        by_candidate = csc_array(coo_array((values, (at, held)), shape=(masks.size, candidates)))
        tables.append(by_candidate.tocsr())
    first = tables[0]
    return InsideCounts(
        masks.astype(np.int64),
        sums,
        first.indptr.astype(np.int64),
        first.indices.astype(np.int32),
        np.stack([table.data for table in tables], axis=1),
    )


def merge(parts: list[InsideCounts], candidates: int) -> InsideCounts:
    """Return the counts of several blocks together, in whatever order they come.

    Parameters
    ----------
    parts : at least one
    candidates : their number
    """
    masks = np.unique(np.concatenate([part.masks for part in parts]))
    sums = np.zeros((masks.size, parts[0].sums.shape[1]))
    found = []
    for part in parts:
        at = np.searchsorted(masks, part.masks)
        np.add.at(sums, at, part.sums)
        pattern = np.repeat(at, np.diff(part.starts))
        found.append((pattern, part.candidates.astype(np.int64), list(part.sizes.T)))
    return _arranged(masks, sums, found, candidates, parts[0].sizes.shape[1])
