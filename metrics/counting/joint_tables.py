"""Which feature tuples are counted in one table: a joint table, of which theirs are margins.

Counting an example costs the same in a table of four features as in one of three, and the table of
four holds four tables of three, six of two and four of one as sums over its axes. So tables are
widened as long as what they save, a pass over the examples for each tuple that they cover, exceeds
what their cells cost.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import combinations
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from slicebeam.metrics.arrays import IntArray
    from slicebeam.metrics.counting.lattice import Lattice

    FeatureTuple = tuple[int, ...]

# Seconds, measured with numpy on one core; only their ratios matter for a choice. Of adding a row to a
# table, of another feature in its code, of making and merging a cell, and of adding one up.
TABLE_ROW = 3e-9
AXIS_ROW = 1e-9
TABLE_CELL = 2e-9
MARGIN_CELL = 1e-9
TABLE_UNIT = 30e-6

# Tuples that are looked at together: of all triples of 200 features there are a million.
_TUPLES_AT_A_TIME = 1 << 16


class JointTable(NamedTuple):
    """A table, and what is read from it."""

    features: FeatureTuple  # of the table, ascending
    # feature tuples that are its margins, or the table itself; the longest first
    tuples: tuple[FeatureTuple, ...]


@dataclass(frozen=True)
class TableCost:
    """What counting in tables costs, in seconds."""

    each: float  # a pass over all examples for one table
    axis: float  # what another feature adds to such a pass
    cell: float  # making and merging one cell
    margin: float  # adding up one cell for one of the tuples
    most_cells: int  # a table has no more


def table_cost(rows: int, passes: int, sums: int, most_cells: int) -> TableCost:
    """Return what counting in tables costs."""
    return TableCost(
        rows * passes * TABLE_ROW + TABLE_UNIT,
        rows * AXIS_ROW,
        sums * TABLE_CELL,
        sums * MARGIN_CELL,
        most_cells,
    )


def joint_tables(
    tuples: Iterable[FeatureTuple], lattice: Lattice, cost: TableCost
) -> Iterator[JointTable]:
    """Yield tables of which every tuple is read exactly once.

    The examples of a list column stand in several cells of its axis, or in none, so that nothing
    is summed over such an axis.

    Slices of one and two of three features, with 2, 3 and 4 values. Counting a million examples in
    six tables would take six passes; one table of all three features holds the other six as sums
    over its axes:

    >>> from slicebeam.metrics.counting.lattice import Lattice
    >>> lattice = Lattice(sizes=(2, 3, 4), max_cross_size=2)
    >>> wanted = [(0,), (1,), (2,), (0, 1), (0, 2), (1, 2)]
    >>> cost = table_cost(rows=1_000_000, passes=1, sums=2, most_cells=1 << 20)
    >>> for table in joint_tables(wanted, lattice, cost):
    ...     print(table.features, table.tuples)
    (0, 1, 2) ((0, 1), (0, 2), (1, 2), (0,), (1,), (2,))
    """
    by_length: dict[int, list[FeatureTuple]] = {}
    for features in tuples:
        by_length.setdefault(len(features), []).append(features)
    waiting = {features for some in by_length.values() for features in some}
    for length in sorted(by_length, reverse=True):
        longest = [features for features in by_length.pop(length) if features in waiting]
        for begin in range(0, len(longest), _TUPLES_AT_A_TIME):
            some = longest[begin : begin + _TUPLES_AT_A_TIME]
            waiting.difference_update(some)
            for members, covered in _covering(some, lattice, cost):
                shorter = [
                    part
                    for size in range(length - 1, 0, -1)
                    for part in _parts(members, size, lattice)
                    if part in waiting
                ]
                waiting.difference_update(shorter)
                yield JointTable(members, (*covered, *shorter))


def _parts(members: FeatureTuple, size: int, lattice: Lattice) -> Iterator[FeatureTuple]:
    """Yield the parts of a table's features that are margins of it."""
    lists = [feature for feature in members if lattice.is_multi(feature)]
    others = [feature for feature in members if not lattice.is_multi(feature)]
    if len(lists) <= size:
        for chosen in combinations(others, size - len(lists)):
            yield tuple(sorted((*lists, *chosen)))


def _covering(
    tuples: Sequence[FeatureTuple], lattice: Lattice, cost: TableCost
) -> list[tuple[FeatureTuple, list[FeatureTuple]]]:
    """Return tables, in lexicographic order, and which tuples of one length each covers.

    Greedy: the first tuple that is not covered yet is widened by the feature that saves most.
    """
    wanted = _Wanted(tuples, lattice)
    radices = lattice.radices
    widening = np.array([not lattice.is_multi(f) for f in range(len(radices))])
    tables = []
    for first in tuples:
        if not wanted.has(first):
            continue
        members = list(first)
        cells = int(radices[members].prod())
        # What a tuple costs that no other table covers.
        alone = cost.each + cells * (cost.cell + cost.margin)
        covered = 1
        gain = wanted.gain(list(_parts(first, len(first) - 1, lattice)))
        while True:
            free = widening & (cells * radices <= cost.most_cells)
            free[members] = False
            cell_seconds = cost.cell + (covered + gain) * cost.margin
            wider = cost.axis + cells * radices * cell_seconds
            saved = gain * alone - wider + cells * (cost.cell + covered * cost.margin)
            saved[~free] = -np.inf
            best = int(saved.argmax())
            if saved[best] <= 0:
                break
            cells *= int(radices[best])
            covered += int(gain[best])
            # Of the parts of one feature less than a tuple, those that hold the new feature.
            grown = tuple(sorted((*members, best)))
            parts = [p for p in _parts(grown, len(first) - 1, lattice) if best in p]
            gain += wanted.gain(parts)
            members = list(grown)
        table = tuple(members)
        own = [part for part in _parts(table, len(first), lattice) if wanted.has(part)]
        wanted.remove(own)
        tables.append((table, own))
    return sorted(tables)


class _Wanted:
    """Tuples of one length that no table covers yet, by all but one of their features."""

    def __init__(self, tuples: Sequence[FeatureTuple], lattice: Lattice) -> None:
        self._rows: dict[FeatureTuple, int] = {}
        self._features = len(lattice.sizes)
        partners: list[tuple[int, int]] = []
        for features in tuples:
            for position, feature in enumerate(features):
                rest = features[:position] + features[position + 1 :]
                partners.append((self._rows.setdefault(rest, len(self._rows)), feature))
        self._open = np.zeros((len(self._rows), self._features), bool)
        self._open[tuple(np.array(partners).T)] = True

    def has(self, features: FeatureTuple) -> bool:
        row = self._rows.get(features[1:])
        return row is not None and bool(self._open[row, features[0]])

    def gain(self, parts: Iterable[FeatureTuple]) -> IntArray:
        """Return how many tuples [features] a feature makes of some parts."""
        rows = [self._rows[part] for part in parts if part in self._rows]
        gained: IntArray = self._open[rows].sum(axis=0)
        return gained

    def remove(self, tuples: Iterable[FeatureTuple]) -> None:
        for features in tuples:
            for position, feature in enumerate(features):
                rest = features[:position] + features[position + 1 :]
                self._open[self._rows[rest], feature] = False
