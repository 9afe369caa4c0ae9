"""Counts a finding's examples by pattern, for all candidates, in tables as the search counts slices."""

from __future__ import annotations

from dataclasses import dataclass, field, fields, replace
from functools import cache, cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from slicebeam.metrics.counting.counting import (
    ROWS_AT_A_TIME,
    Coded,
    Margins,
    Ragged,
    RowBlock,
    SummedRows,
    SumReader,
    Tables,
    Unit,
)
from slicebeam.metrics.counting.counting_plan import Budget, blocks, whole_tuples
from slicebeam.metrics.counting.membership import CandidateLookup, rows_in
from slicebeam.metrics.counting.statistic_space import StatisticSpace
from slicebeam.metrics.findings.part_tables import PatternParts, added_pairs, merged, weights_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from numpy.typing import NDArray

    from slicebeam.metrics.arrays import BoolArray, IntArray
    from slicebeam.metrics.counting.lattice import Keys, Lattice


def taken_rows(
    block: RowBlock, rows: IntArray, features: Iterable[int], lattice: Lattice
) -> RowBlock:
    """Return some rows of a block, with codes of their own: the block is not kept.

    Codes stay in the width in which they are stored. Ids, positions and buckets are left out.
    """
    stored = {
        feature: _taken(
            block.column(feature) if lattice.is_multi(feature) else block.stored(feature), rows
        )
        for feature in features
    }
    return _block(block, rows, stored.__getitem__)


def rows_of(block: RowBlock, rows: IntArray) -> RowBlock:
    """Return some rows of a block that `taken_rows` or `joined` returned."""
    return _block(block, rows, cache(lambda feature: _taken(block.stored(feature), rows)))


def joined(some: list[RowBlock], features: Iterable[int]) -> RowBlock:
    """Return the rows of several blocks, at least one, that `taken_rows` returned, as one."""
    stored = {
        feature: _joined_column([one.stored(feature) for one in some]) for feature in features
    }

    def of(name: str, axis: int) -> Any:
        return np.concatenate([getattr(one, name) for one in some], axis=axis)

    rows = sum(one.rows for one in some)
    return _made(rows, stored.__getitem__, of("cells", 0), of("weights", 1), of("terms", 1))


def patterns_of(block: RowBlock, findings: Keys, lattice: Lattice) -> IntArray:
    """Return which findings each row of a block is in [rows], a bit for each."""
    masks = np.zeros(block.rows, np.int64)
    for number, key in enumerate(findings.tolist()):
        masks[rows_in(block, lattice, key)] |= np.int64(1) << number
    return masks


def _block(block: RowBlock, rows: IntArray, stored: Callable[[int], Any]) -> RowBlock:
    cells = block.cells[rows].astype(np.int64, copy=False)
    return _made(rows.size, stored, cells, block.weights[:, rows], block.terms[:, rows])


def _made(
    rows: int,
    stored: Callable[[int], Any],
    cells: NDArray[np.int64],
    weights: NDArray[np.int64],
    terms: NDArray[np.int64],
) -> RowBlock:
    @cache
    def column(feature: int) -> NDArray[np.int64] | Ragged:
        codes = stored(feature)
        return codes if isinstance(codes, Ragged) else codes.astype(np.int64)

    none = np.broadcast_to(np.uint64(0), rows)
    buckets = np.zeros((0, rows), np.int64)
    return RowBlock(rows, column, cells, none, none, weights, terms, buckets, stored)


def _taken(column: NDArray[Any] | Ragged, rows: IntArray) -> NDArray[Any] | Ragged:
    if not isinstance(column, Ragged):
        return column[rows]
    begins = column.offsets[rows]
    lengths = column.offsets[rows + 1] - begins
    ends = np.cumsum(lengths)
    at = np.arange(int(lengths.sum())) + np.repeat(begins - (ends - lengths), lengths)
    return Ragged(np.append(0, ends), column.codes[at])


def _joined_column(some: list[Any]) -> NDArray[Any] | Ragged:
    if not isinstance(some[0], Ragged):
        return np.concatenate(some)
    lengths = np.concatenate([np.diff(one.offsets) for one in some])
    return Ragged(np.append(0, np.cumsum(lengths)), np.concatenate([one.codes for one in some]))


# Patterns whose examples are counted together: each has a plane in every table.
_PATTERN_BITS = 6
# Examples of a pattern from which on planes take less time than looking each of them up.
_LEAST_IN_PLANE = 800
# All examples of such patterns from which on their tables take less time.
_LEAST_IN_PLANES = 3_000
# Examples of the finding that are held until they are counted.
_MOST_HELD = 1 << 20
# Pairs of a row and a candidate that need not be added up at once.
_MOST_PAIRS = 1 << 20
# Bytes of a list of codes, at most as a rule.
_LIST_BYTES = 48
# Plans are made for so many times more rows at a time and for an even number of bits, and used again.
_PLAN_STEP = 16


@dataclass
class InsideCounter:
    """Counts the examples of one finding after another."""

    keys: Keys  # [candidates] distinct, ascending
    lattice: Lattice  # of the candidates
    space: StatisticSpace  # the statistics that patterns are summed in, without score buckets
    counted: BoolArray  # [cells] which examples are in the metric's denominator
    memory: int  # bytes that tables may take
    _plans: dict[tuple[int, int], list[list[Unit]]] = field(default_factory=dict, repr=False)

    def __getstate__(self) -> dict[str, Any]:
        # What is made of the fields is made again where it is needed.
        return {one.name: getattr(self, one.name) for one in fields(self)} | {"_plans": {}}

    @cached_property
    def _lookup(self) -> CandidateLookup:
        return CandidateLookup(self.keys, self.lattice)

    @cached_property
    def features(self) -> tuple[int, ...]:
        """Return the features of the candidates."""
        return tuple(sorted({one for features in self._cells for one in features}))

    @property
    def row_bytes(self) -> int:
        """Return the bytes of a row that is held: its codes, cell, pattern, weights and terms."""
        codes = sum(
            _LIST_BYTES
            if self.lattice.is_multi(one)
            else np.min_scalar_type(int(self.lattice.radices[one])).itemsize
            for one in self.features
        )
        numbers = 1 + 2 * self.space.weighted + len(self.space.terms)
        return codes + self.cell_type.itemsize + 8 * numbers

    @property
    def cell_type(self) -> np.dtype[Any]:
        """Return the type that holds a row's cell in few bytes."""
        return np.min_scalar_type(self.space.cells - 1)

    @cached_property
    def _cells(self) -> dict[tuple[int, ...], tuple[IntArray, IntArray]]:
        """Return the candidates of each feature tuple, and their cells in its table."""
        return {
            features: (places, self.lattice.key_cells(self.keys[places], features))
            for features, places in self.lattice.by_tuple(self.keys).items()
        }

    def count(self, some: Iterable[RowBlock], finding: int, earlier: Keys) -> PatternParts:
        """Return the counts of the finding's examples in some blocks, given the keys before it."""
        held: list[RowBlock] = []
        parts, size = [self._nothing()], 0
        for block in some:
            rows = self.measured(block, rows_in(block, self.lattice, finding))
            if rows.size == 0:
                continue
            held.append(taken_rows(block, rows, self.features, self.lattice))
            size += rows.size
            if size >= _MOST_HELD:
                parts.append(self._parts_of_blocks(held, earlier))
                held, size = [], 0
        if held:
            parts.append(self._parts_of_blocks(held, earlier))
        return merged(parts)

    def measured(self, block: RowBlock, rows: IntArray) -> IntArray:
        """Return those of some rows of a block that are in the denominator."""
        rows = rows[self.counted[block.cells[rows]]]
        return rows[block.weights[0, rows] > 0] if self.space.weighted else rows

    def _parts_of_blocks(self, held: list[RowBlock], earlier: Keys) -> PatternParts:
        block = joined(held, self.features)
        return self.parts(block, patterns_of(block, earlier, self.lattice))

    def _nothing(self) -> PatternParts:
        none = np.zeros(0, np.int64)
        sizes = np.zeros((0, 2 if self.space.weighted else 1), np.int64)
        return PatternParts(
            none, np.zeros((0, self.space.raw_columns), np.int64), none, none, sizes
        )

    def parts(self, block: RowBlock, masks: IntArray) -> PatternParts:
        """Return the counts of a finding's examples, of masks [rows]: a bit for each earlier one."""
        masks, pattern = np.unique(masks, return_inverse=True)
        sums = np.zeros((1, self.space.raw_columns * masks.size), np.int64)
        SummedRows(block, self.space, []).add(sums, Coded(pattern, None))
        examples = np.bincount(pattern, minlength=masks.size)
        in_planes = np.argsort(-examples, kind="stable")[: 1 << _PATTERN_BITS]
        in_planes = in_planes[examples[in_planes] >= _LEAST_IN_PLANE]
        if examples[in_planes].sum() < _LEAST_IN_PLANES:
            in_planes = in_planes[:0]
        plane = np.full(masks.size, -1)
        plane[in_planes] = np.arange(in_planes.size)
        rest = np.flatnonzero(plane[pattern] < 0)
        rows = np.flatnonzero(plane[pattern] >= 0)
        pairs = [self._looked_up(rows_of(block, rest), pattern[rest], masks.size)]
        if rows.size:
            planes = self._in_planes(rows_of(block, rows), plane[pattern[rows]], in_planes.size)
            pairs += [(in_planes[own], candidate, sizes) for own, candidate, sizes in planes]
        return PatternParts(
            masks,
            sums.reshape(self.space.raw_columns, masks.size).T,
            *(np.concatenate(columns) for columns in zip(*pairs, strict=True)),
        )

    def _looked_up(
        self, block: RowBlock, pattern: IntArray, patterns: int
    ) -> tuple[IntArray, IntArray, IntArray]:
        """Return pattern, candidate and sizes of the candidates' parts, row by row."""
        rows, own = self._lookup.pairs(block)
        candidate = own.astype(np.int64)
        sizes = weights_of(block, self.space)
        pairs = pattern[rows], candidate, sizes[rows]
        if rows.size <= _MOST_PAIRS:
            return pairs
        return added_pairs(*pairs, patterns, self.keys.size)

    def _in_planes(
        self, block: RowBlock, plane: IntArray, planes: int
    ) -> Iterator[tuple[IntArray, IntArray, IntArray]]:
        """Yield plane, candidate and sizes of the candidates' parts, from tables with planes."""
        bits = (planes - 1).bit_length()
        space = StatisticSpace(
            tuple(f"bit {bit}" for bit in range(bits)), "overall", weighted=self.space.weighted
        )
        of_patterns = replace(block, cells=plane, terms=np.zeros((0, block.rows), np.int64))
        reader = SumReader(self.lattice, space, 1, 0)
        powers = [1, 2] if space.weighted else [0]
        for units in self._plan(block.rows, bits):
            tables = Tables(units, self.lattice, space, None)
            for begin in range(0, block.rows, ROWS_AT_A_TIME):
                end = min(begin + ROWS_AT_A_TIME, block.rows)
                whole = begin == 0 and end == block.rows
                tables.add(of_patterns if whole else rows_of(of_patterns, np.arange(begin, end)))
            state = tables.state()
            for unit, arrays in zip(units, state.tables, strict=True):
                if unit.method == "dense":
                    # Planes last: sums over the axes of features are sums of vectors.
                    by_power = arrays[0].reshape(
                        -1, space.cells, arrays[0].size // space.raw_columns
                    )
                    table = np.ascontiguousarray(np.moveaxis(by_power[powers, :planes], 2, 0))
                    margins, shape = (
                        Margins(unit.features, table, self.lattice, (1, 1)),
                        table.shape[1:],
                    )
                    read = [
                        (candidates, margins.of(features).reshape(-1, *shape)[cells])
                        for features in unit.reported
                        for candidates, cells in [self._cells[features]]
                    ]
                else:
                    (some,) = reader.slices([unit], replace(state, tables=[arrays]))
                    sizes = some.sums.reshape(some.keys.size, -1, space.cells)[:, powers, :planes]
                    read = [(np.searchsorted(self.keys, some.keys), sizes)]
                for candidates, sizes in read:
                    row, own = np.nonzero(sizes[:, 0])
                    yield own, candidates[row], sizes[row, :, own]

    def _plan(self, rows: int, bits: int) -> list[list[Unit]]:
        """Return the units that count all candidates, in blocks that fit the memory."""
        step = 1
        while step < rows:
            step *= _PLAN_STEP
        bits += bits % 2
        if (step, bits) not in self._plans:
            passes = 3 if self.space.weighted else 1
            budget = Budget(step, passes << bits, passes, 1, self.memory, block_seconds=np.inf)
            tuples = {features: self.keys[places] for features, (places, _) in self._cells.items()}
            planned = blocks(whole_tuples(tuples, self.lattice, budget), budget)
            self._plans[step, bits] = [[one.unit for one in some] for some in planned]
        return self._plans[step, bits]
