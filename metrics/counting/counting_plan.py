"""Plans how slices are counted, a method for each tuple: by numbers alone, the same on every engine."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain, combinations
from typing import Any

import numpy as np

from slicebeam.metrics.arrays import BoolArray, IntArray
from slicebeam.metrics.counting.counting import Unit, selector_bytes, table_cells
from slicebeam.metrics.counting.lattice import Keys, Lattice

FeatureTuple = tuple[int, ...]

# Estimated work of a block: each block reads the codes again, and is what a stopped run resumes at.
BLOCK_SECONDS = 1.0

# Seconds, measured with numpy on one core; only their ratios matter for the choice. Of adding a row to
# a table, of another feature in its code, of making and merging a cell, and of adding one up.
TABLE_ROW = 3e-9
AXIS_ROW = 1e-9
TABLE_CELL = 2e-9
MARGIN_CELL = 1e-9
TABLE_UNIT = 30e-6
_SPARSE_ROW = 90e-9
_SELECT_ROW = 5e-9
_INSIDE_ROW = 15e-9

# Tuples that are looked at together: of all triples of 200 features there are a million.
_TUPLES_AT_A_TIME = 1 << 16
# Bytes that sparse counting takes, over those of its result.
_SPARSE_COPIES = 8
# A table of more cells than this many times the rows is counted sparsely.
_CELLS_PER_ROW = 8
_SMALL_TABLE = 1 << 16
# A joint table has at most so many sums: more would not stay in the cache, and the tables of a
# block share the memory.
_MOST_JOINT_SUMS = 1 << 18
_JOINT_SHARE = 8


@dataclass(frozen=True)
class Budget:
    """What a plan must respect."""

    rows: int  # examples
    columns: int  # statistics that are summed
    passes: int  # statistics that an example is added to: its cell, its values
    layers: int  # 1 + replicates
    memory: int  # bytes that the tables of a block may take
    block_seconds: float = BLOCK_SECONDS  # estimated work of a block

    @property
    def sums(self) -> int:
        """How many sums every example is added to."""
        return self.passes * self.layers

    @property
    def cell_bytes(self) -> int:
        """Bytes of one cell of a feature tuple's table."""
        return 8 * self.columns * self.layers

    def fits(self, cells: int) -> bool:
        """Return whether a tuple with this many cells is counted in a table."""
        small = cells <= _SMALL_TABLE + _CELLS_PER_ROW * self.rows
        return small and cells * self.cell_bytes <= self.memory

    def whole(self, cells: int) -> float:
        """Return the seconds of counting all slices of a tuple."""
        if not self.fits(cells):
            return self.rows * _SPARSE_ROW * self.sums + TABLE_UNIT
        tables = cells * self.columns * self.layers * TABLE_CELL
        return self.rows * self.sums * TABLE_ROW + tables + TABLE_UNIT

    @property
    def select(self) -> float:
        """The seconds of looking up which rows are in some slices of a tuple."""
        return self.rows * _SELECT_ROW

    def inside(self, rows: Any) -> Any:
        """Return the seconds of adding selected rows to a table."""
        return rows * _INSIDE_ROW * self.sums + TABLE_UNIT


@dataclass(frozen=True)
class PlannedUnit:
    """A unit with its estimated cost in seconds and memory in bytes."""

    unit: Unit
    seconds: float
    bytes: int


def whole_tuples(
    tuples: Mapping[FeatureTuple, Keys | None], lattice: Lattice, budget: Budget
) -> Iterator[PlannedUnit]:
    """Yield the units that count all slices of feature tuples, or some: joint tables, or what takes less memory."""
    cells_of = {features: table_cells(features, lattice) for features in tuples}
    fitting = [features for features, cells in cells_of.items() if budget.fits(cells)]
    for features, margins in joint_tables(fitting, lattice, budget):
        listed = [keys for part in margins if (keys := tuples[part]) is not None]
        keys = np.concatenate(listed) if listed else None
        unit = Unit(features, "dense", candidates=keys, margins=margins)
        cells = table_cells(features, lattice)
        seconds = budget.whole(cells) + len(features) * budget.rows * AXIS_ROW
        yield PlannedUnit(unit, seconds, cells * budget.cell_bytes)
    for features, cells in cells_of.items():
        keys = tuples[features]
        if budget.fits(cells):
            continue
        if keys is not None:
            yield from plan_within(keys, keys, np.full(keys.size, budget.rows), lattice, budget)
            continue
        # As many codes wait to be merged as are merged, and merging copies and sorts all of them.
        needed = _SPARSE_COPIES * min(cells, budget.rows) * (8 + budget.cell_bytes)
        parts = -(-needed // budget.memory)
        seconds = budget.rows * _SPARSE_ROW * budget.sums / parts + budget.select
        for part in range(parts):
            unit = Unit(features, "sparse", part=part, parts=parts)
            yield PlannedUnit(unit, seconds, needed // parts)


def plan_all(lattice: Lattice, budget: Budget) -> Iterator[PlannedUnit]:
    """Yield the units that count every slice of every level."""
    levels = range(1, min(lattice.max_cross_size, len(lattice.sizes)) + 1)
    tuples = {tuple(row): None for level in levels for row in lattice.tuples(level).tolist()}
    yield from whole_tuples(tuples, lattice, budget)


def plan_listed(
    candidates: Keys, bases: Keys, base_sizes: IntArray, lattice: Lattice, budget: Budget
) -> Iterator[PlannedUnit]:
    """Yield the units that count candidates, each of a base (0 for none) and one predicate, at the least cost."""
    if candidates.size == 0:
        return
    inside = _cheaper_inside(candidates, bases, base_sizes, lattice, budget)
    whole = np.sort(candidates[~inside])
    tuples = {features: whole[places] for features, places in lattice.by_tuple(whole).items()}
    yield from whole_tuples(tuples, lattice, budget)
    yield from plan_within(candidates[inside], bases[inside], base_sizes[inside], lattice, budget)


def _cheaper_inside(
    candidates: Keys, bases: Keys, base_sizes: IntArray, lattice: Lattice, budget: Budget
) -> BoolArray:
    """Return for which candidates counting inside bases, selected once for all of a feature tuple, costs less."""
    group_of, groups = lattice.feature_sets(candidates)
    order = np.lexsort((bases, group_of))
    is_same = (np.diff(group_of[order]) == 0) & (np.diff(bases[order]) == 0)
    first = order[np.append(True, ~is_same)]
    selected = np.bincount(group_of[first], base_sizes[first], minlength=len(groups))
    cells = [table_cells(row[row >= 0].tolist(), lattice) for row in groups]
    saved = np.array(list(map(budget.whole, cells))) - budget.inside(selected)
    has_base = np.bincount(group_of[first], bases[first] == 0, minlength=len(groups)) == 0
    inside: BoolArray = (saved > 0) & has_base
    base_set_of, base_sets = lattice.feature_sets(bases[first])
    links = np.unique(np.stack([base_set_of, group_of[first]], axis=1), axis=0)
    links = links[inside[links[:, 1]]]
    # Without links bincount would give integers.
    gain = np.bincount(links[:, 0], saved[links[:, 1]], minlength=len(base_sets)).astype(np.float64)
    gain -= budget.select * (1 + np.count_nonzero(base_sets >= 0, axis=1))
    inside[links[gain[links[:, 0]] <= 0, 1]] = False
    return np.asarray(inside[group_of])


def plan_within(
    candidates: Keys, bases: Keys, base_sizes: IntArray, lattice: Lattice, budget: Budget
) -> Iterator[PlannedUnit]:
    """Yield the units that count candidates within their bases, themselves or parents: tables hold no other slices."""
    width = max(1, budget.memory // 2 // budget.cell_bytes)
    feature_of = lattice.feature_of[lattice.added(candidates, bases)]
    order = np.lexsort((candidates, bases))
    for features, places in lattice.by_tuple(bases[order]).items():
        overhead = table_cells(features, lattice)
        for begin in range(0, places.size, width):
            mine = order[places[begin : begin + width]]
            distinct, first = np.unique(bases[mine], return_index=True)
            selected = budget.inside(min(int(base_sizes[mine][first].sum()), budget.rows))
            added, times = np.unique(feature_of[mine], return_counts=True)
            size = mine.size * budget.cell_bytes + selector_bytes(distinct.size, overhead)
            for feature, listed in zip(added.tolist(), times.tolist(), strict=True):
                radix = int(lattice.radices[feature]) if feature >= 0 else 1
                size += budget.cell_bytes + selector_bytes(listed, distinct.size * radix)
            unit = Unit(features, "listed", bases=bases[mine], candidates=candidates[mine])
            yield PlannedUnit(unit, budget.select + added.size * selected, size)


def balanced(units: Sequence[PlannedUnit], budget: Budget, workers: int) -> Budget:
    """Return the budget of blocks that keep all workers at work until the end."""
    seconds = sum(planned.seconds for planned in units)
    if seconds < BLOCK_SECONDS:
        return budget
    blocks_each = -int(-seconds // (workers * BLOCK_SECONDS))
    return replace(budget, block_seconds=seconds / (workers * blocks_each))


def blocks(units: Iterable[PlannedUnit], budget: Budget) -> Iterator[list[PlannedUnit]]:
    """Group units into blocks: each fits the memory and is about ``block_seconds`` of work."""
    block: list[PlannedUnit] = []
    size, seconds = 0, 0.0
    for planned in units:
        full = size + planned.bytes > budget.memory or seconds >= budget.block_seconds
        if block and full:
            yield block
            block, size, seconds = [], 0, 0.0
        block.append(planned)
        size += planned.bytes
        seconds += planned.seconds
    if block:
        yield block


def joint_tables(
    tuples: Iterable[FeatureTuple], lattice: Lattice, budget: Budget
) -> Iterator[tuple[FeatureTuple, tuple[FeatureTuple, ...]]]:
    """Yield tables and the tuples that are read from each, as itself or margins, the longest first.

    Slices of one and two of three features, with 2, 3 and 4 values, of a million examples:

    >>> from slicebeam.metrics.counting.lattice import Lattice
    >>> lattice = Lattice(sizes=(2, 3, 4), max_cross_size=2)
    >>> wanted = [(0,), (1,), (2,), (0, 1), (0, 2), (1, 2)]
    >>> budget = Budget(rows=1_000_000, columns=2, passes=1, layers=1, memory=1 << 30)
    >>> list(joint_tables(wanted, lattice, budget))
    [((0, 1, 2), ((0, 1), (0, 2), (1, 2), (0,), (1,), (2,)))]
    """
    # They are widened as long as a pass over the examples for each tuple costs more than their cells. Nothing
    # is summed over a list column, of which an example stands in several cells, or none.
    by_length: dict[int, list[FeatureTuple]] = {}
    for features in tuples:
        by_length.setdefault(len(features), []).append(features)
    waiting = {features for same in by_length.values() for features in same}
    for length in sorted(by_length, reverse=True):
        longest = [features for features in by_length.pop(length) if features in waiting]
        for begin in range(0, len(longest), _TUPLES_AT_A_TIME):
            now = longest[begin : begin + _TUPLES_AT_A_TIME]
            waiting.difference_update(now)
            for members, covered in _covering(now, lattice, budget):
                sizes = range(length - 1, 0, -1)
                parts = chain.from_iterable(_parts(members, size, lattice) for size in sizes)
                shorter = [part for part in parts if part in waiting]
                waiting.difference_update(shorter)
                yield members, (*covered, *shorter)


def _parts(members: FeatureTuple, size: int, lattice: Lattice) -> Iterator[FeatureTuple]:
    """Yield the parts of a table's features that are margins of it."""
    lists = [feature for feature in members if lattice.is_multi(feature)]
    others = [feature for feature in members if not lattice.is_multi(feature)]
    if len(lists) <= size:
        for chosen in combinations(others, size - len(lists)):
            yield tuple(sorted((*lists, *chosen)))


def _covering(
    tuples: Sequence[FeatureTuple], lattice: Lattice, budget: Budget
) -> list[tuple[FeatureTuple, list[FeatureTuple]]]:
    """Return tables in order, and the tuples of one length each covers: greedily widened by what saves most."""
    wanted, radices = _Wanted(tuples, lattice), lattice.radices
    sums = budget.columns * budget.layers
    by_memory = budget.memory // _JOINT_SHARE // budget.cell_bytes
    most_cells = min(_MOST_JOINT_SUMS // sums, by_memory)
    per_cell, per_margin = sums * TABLE_CELL, sums * MARGIN_CELL
    per_table, per_axis = budget.whole(0), budget.rows * AXIS_ROW
    widening = np.array([not lattice.is_multi(f) for f in range(len(radices))])
    tables = []
    for first in tuples:
        if not wanted.has(first):
            continue
        members: list[int] = list(first)
        cells = int(radices[members].prod())
        # What a tuple costs that no other table covers.
        alone = per_table + cells * (per_cell + per_margin)
        covered = 1
        gain = wanted.gain(_parts(first, len(first) - 1, lattice))
        while True:
            free = widening & (cells * radices <= most_cells)
            free[members] = False
            cell_seconds = per_cell + (covered + gain) * per_margin
            wider = per_axis + cells * radices * cell_seconds
            saved = gain * alone - wider + cells * (per_cell + covered * per_margin)
            saved[~free] = -np.inf
            best = int(saved.argmax())
            if saved[best] <= 0:
                break
            cells *= int(radices[best])
            covered += int(gain[best])
            # Of the parts of one feature less than a tuple, those that hold the new feature.
            members = sorted((*members, best))
            parts = _parts(tuple(members), len(first) - 1, lattice)
            gain += wanted.gain(part for part in parts if best in part)
        table = tuple(members)
        held = [part for part in _parts(table, len(first), lattice) if wanted.has(part)]
        wanted.remove(held)
        tables.append((table, held))
    return sorted(tables)


class _Wanted:
    """Tuples of one length that no table covers yet, by all but one of their features."""

    def __init__(self, tuples: Sequence[FeatureTuple], lattice: Lattice) -> None:
        self._rows: dict[FeatureTuple, int] = {}
        partners = [
            (self._rows.setdefault(rest, len(self._rows)), feature)
            for features in tuples
            for feature, rest in _without_each(features)
        ]
        self._open = np.zeros((len(self._rows), len(lattice.sizes)), bool)
        self._open[tuple(np.array(partners).T)] = True

    def has(self, features: FeatureTuple) -> bool:
        row = self._rows.get(features[1:])
        return row is not None and bool(self._open[row, features[0]])

    def gain(self, parts: Iterable[FeatureTuple]) -> IntArray:
        """Return how many tuples [features] a feature makes of some parts."""
        rows = [self._rows[part] for part in parts if part in self._rows]
        return np.asarray(self._open[rows].sum(axis=0))

    def remove(self, tuples: Iterable[FeatureTuple]) -> None:
        for features in tuples:
            for feature, rest in _without_each(features):
                self._open[self._rows[rest], feature] = False


def _without_each(features: FeatureTuple) -> Iterator[tuple[int, FeatureTuple]]:
    """Yield each feature of a tuple, and the others."""
    for position, feature in enumerate(features):
        yield feature, features[:position] + features[position + 1 :]
