"""Counts a finding's examples by pattern, for all candidates in one pass over its rows."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from scipy.sparse import coo_array, csr_array

from slicebeam.metrics.findings.overlap import InsideCounts

if TYPE_CHECKING:
    from slicebeam.metrics.counting.counting import RowBlock
    from slicebeam.metrics.counting.membership import Membership
    from slicebeam.metrics.significance.tails import FloatArray, IntArray


class HeldRows:
    """Which candidates each row of a block is in, to count inside one finding after another.

    Parameters
    ----------
    block : RowBlock
        Its codes are read, nothing else. Every row takes 4 bytes for each candidate that it is in.
    membership : Membership
        Of the candidates.
    candidates : their number
    """

    def __init__(self, block: RowBlock, membership: Membership, candidates: int) -> None:
        rows, slices = [np.zeros(0, np.int32)], [np.zeros(0, np.int32)]
        for members in membership.of(block):
            rows.append(members.rows.astype(np.int32))
            slices.append(members.slices.astype(np.int32))
        pairs = np.concatenate(rows), np.concatenate(slices)
        ones = np.ones(pairs[0].size, np.int8)
        self._table = csr_array(coo_array((ones, pairs), shape=(block.rows, candidates)))

    def count(
        self, rows: IntArray, masks: IntArray, sums: FloatArray, sizes: FloatArray
    ) -> InsideCounts:
        """Return the counts of the rows of a finding.

        Parameters
        ----------
        rows : int64 [rows]
            Rows of the block that are in the finding, and in the denominator, each once.
        masks : int64 [rows]
            Their patterns before the finding is added.
        sums : float64 [rows, columns]
            What each row adds to its pattern: whole numbers.
        sizes : float64 [rows, size columns]
            What each row adds to the candidates that it is in: whole numbers above 0.
        """
        distinct, pattern = np.unique(masks, return_inverse=True)
        held = self._table[rows].astype(np.float64)
        of_patterns = np.stack(
            [np.bincount(pattern, column, distinct.size) for column in sums.T], axis=1
        ).astype(np.float64, copy=False)
        tables = []
        for column in sizes.T:
            at = pattern, np.arange(rows.size)
            of_rows = csr_array(coo_array((column, at), shape=(distinct.size, rows.size)))
            tables.append(of_rows @ held)
        return _arranged(distinct, of_patterns, tables)


def count_inside(
    block: RowBlock,
    membership: Membership,
    candidates: int,
    masks: IntArray,
    sums: FloatArray,
    sizes: FloatArray,
) -> InsideCounts:
    """Return the counts of a block of rows that are all in the finding.

    Parameters
    ----------
    block, membership, candidates : as in `HeldRows`
    masks, sums, sizes : as in `HeldRows.count`
    """
    held = HeldRows(block, membership, candidates)
    return held.count(np.arange(block.rows), masks, sums, sizes)


def _arranged(masks: IntArray, sums: FloatArray, tables: list[csr_array]) -> InsideCounts:
    """Return counts [patterns, candidates] as pairs in ascending order."""
    # There and back puts the candidates of each pattern in order, in linear time.
    ordered = [table.tocsc().tocsr() for table in tables]
    return InsideCounts(
        masks.astype(np.int64),
        sums,
        ordered[0].indptr.astype(np.int64),
        ordered[0].indices.astype(np.int32),
        np.stack([table.data for table in ordered], axis=1),
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
    at = []
    for part in parts:
        row = np.searchsorted(masks, part.masks)
        np.add.at(sums, row, part.sums)
        at.append(np.repeat(row, np.diff(part.starts)))
    pairs = np.concatenate(at), np.concatenate([part.candidates for part in parts])
    sizes = np.concatenate([part.sizes for part in parts])
    shape = masks.size, candidates
    tables = [csr_array(coo_array((column, pairs), shape=shape)) for column in sizes.T]
    return _arranged(masks, sums, tables)
