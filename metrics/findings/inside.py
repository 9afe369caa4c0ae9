"""Counts a finding's examples by pattern, for all candidates, in tables as the search counts slices."""

from __future__ import annotations

from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from scipy.sparse import coo_array

from slicebeam.metrics.counting.counting import (
    ROWS_AT_A_TIME,
    Coded,
    Margins,
    RowBlock,
    SummedRows,
    SumReader,
    Tables,
    Unit,
)
from slicebeam.metrics.counting.counting_plan import Budget, blocks, whole_tuples
from slicebeam.metrics.counting.membership import CandidateLookup, rows_in
from slicebeam.metrics.counting.statistic_space import StatisticSpace

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from numpy.typing import NDArray

    from slicebeam.metrics.arrays import BoolArray, IntArray
    from slicebeam.metrics.counting.lattice import Keys, Lattice

    Pairs = tuple[IntArray, IntArray, IntArray]


class InsideCounts(NamedTuple):
    """Sums of a finding's examples, or of some, by the pattern that they had before it was added.

    All are whole numbers, so that they add up to the same in any order: int64, or float64 below 2^53.
    """

    masks: IntArray  # [patterns] distinct, ascending
    sums: NDArray[Any]  # [patterns, raw columns] of all of these examples
    pattern: IntArray  # [pairs] position among the masks; a pair may come more than once
    candidate: IntArray  # [pairs]
    sizes: NDArray[Any]  # [pairs, size columns] examples, or their weights and squared weights


def merged(parts: Sequence[InsideCounts]) -> InsideCounts:
    """Return the counts of disjoint examples together."""
    masks = np.unique(np.concatenate([part.masks for part in parts]))
    sums = np.zeros((masks.size, parts[0].sums.shape[1]), np.int64)
    pattern = []
    for part in parts:
        at = np.searchsorted(masks, part.masks)
        np.add.at(sums, at, part.sums)
        pattern.append(at[part.pattern])
    candidate, sizes = (
        np.concatenate([getattr(part, name) for part in parts]) for name in ("candidate", "sizes")
    )
    return InsideCounts(masks, sums, np.concatenate(pattern), candidate, sizes)


def _added(pattern: IntArray, candidate: IntArray, sizes: IntArray) -> Pairs:
    """Return each pair once. By candidate, of which each has few patterns, sorting takes least."""
    tables = [coo_array((column, (candidate, pattern))).tocsr() for column in sizes.T]
    candidates = np.repeat(np.arange(tables[0].shape[0]), np.diff(tables[0].indptr))
    columns = np.stack([table.data for table in tables], axis=1)
    return tables[0].indices.astype(np.int64), candidates, columns


def patterns_of(block: RowBlock, findings: Keys, lattice: Lattice) -> IntArray:
    """Return which findings each row of a block is in [rows], a bit for each."""
    masks = np.zeros(block.rows, np.int64)
    for number, key in enumerate(findings.tolist()):
        masks[rows_in(block, lattice, key)] |= np.int64(1) << number
    return masks


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
        return {named.name: getattr(self, named.name) for named in fields(self)} | {"_plans": {}}

    @cached_property
    def _lookup(self) -> CandidateLookup:
        return CandidateLookup(self.keys, self.lattice)

    @cached_property
    def _features(self) -> tuple[int, ...]:
        """The features of the candidates."""
        return tuple(sorted({feature for features in self._cells for feature in features}))

    @property
    def row_bytes(self) -> int:
        """Bytes of a row that is held: its codes, cell, weights and terms."""
        codes = sum(
            _LIST_BYTES
            if self.lattice.is_multi(feature)
            else np.min_scalar_type(int(self.lattice.radices[feature])).itemsize
            for feature in self._features
        )
        numbers = 2 * self.space.weighted + len(self.space.terms)
        return codes + self._cell_type.itemsize + 8 * numbers

    @property
    def _cell_type(self) -> np.dtype[Any]:
        """The type that holds a row's cell in few bytes."""
        return np.min_scalar_type(self.space.cells - 1)

    @cached_property
    def _cells(self) -> dict[tuple[int, ...], tuple[IntArray, IntArray]]:
        """The candidates of each feature tuple, and their cells in its table."""
        return {
            features: (places, self.lattice.key_cells(self.keys[places], features))
            for features, places in self.lattice.by_tuple(self.keys).items()
        }

    def held(self, block: RowBlock) -> RowBlock:
        """Return the examples of the denominator in few bytes, to be counted again and again."""
        taken = self._taken(block, np.arange(block.rows))
        return replace(taken, cells=taken.cells.astype(self._cell_type))

    def _taken(self, block: RowBlock, rows: IntArray) -> RowBlock:
        """Return those of some rows of a block that are in the denominator."""
        rows = rows[self.counted[block.cells[rows]]]
        if self.space.weighted:
            rows = rows[block.weights[0, rows] > 0]
        return block.take(rows, self._features)

    def count(self, examples: Iterable[RowBlock], finding: int, earlier: Keys) -> InsideCounts:
        """Return the counts of the finding's examples in some blocks, given the keys before it."""
        held: list[RowBlock] = []
        parts, size = [self._nothing()], 0
        for block in examples:
            held.append(self._taken(block, rows_in(block, self.lattice, finding)))
            size += held[-1].rows
            if size >= _MOST_HELD:
                parts.append(self._counts(held, earlier))
                held, size = [], 0
        if size:
            parts.append(self._counts(held, earlier))
        return merged(parts)

    def _nothing(self) -> InsideCounts:
        none = np.zeros(0, np.int64)
        sizes = np.zeros((0, 2 if self.space.weighted else 1), np.int64)
        sums = np.zeros((0, self.space.raw_columns), np.int64)
        return InsideCounts(none, sums, none, none, sizes)

    def _counts(self, held: list[RowBlock], earlier: Keys) -> InsideCounts:
        block = RowBlock.joined(held, self._features)
        found_in = patterns_of(block, earlier, self.lattice)
        masks, pattern, examples = np.unique(found_in, return_inverse=True, return_counts=True)
        sums = np.zeros((1, self.space.raw_columns * masks.size), np.int64)
        SummedRows(block, self.space, []).add(sums, Coded(pattern, None))
        in_planes = np.argsort(-examples, kind="stable")[: 1 << _PATTERN_BITS]
        in_planes = in_planes[examples[in_planes] >= _LEAST_IN_PLANE]
        if examples[in_planes].sum() < _LEAST_IN_PLANES:
            in_planes = in_planes[:0]
        plane = np.full(masks.size, -1)
        plane[in_planes] = np.arange(in_planes.size)
        of_row = plane[pattern]
        rest, rows = np.flatnonzero(of_row < 0), np.flatnonzero(of_row >= 0)
        pairs = [self._looked_up(self._rows(block, rest), pattern[rest])]
        if rows.size:
            planes = self._in_planes(self._rows(block, rows), of_row[rows], in_planes.size)
            pairs += [(in_planes[at], candidate, sizes) for at, candidate, sizes in planes]
        columns = (np.concatenate(column) for column in zip(*pairs, strict=True))
        return InsideCounts(masks, sums.reshape(self.space.raw_columns, masks.size).T, *columns)

    def _rows(self, block: RowBlock, rows: IntArray) -> RowBlock:
        whole = rows.size == block.rows
        return block if whole else block.take(rows, self._features)

    def _looked_up(self, block: RowBlock, pattern: IntArray) -> Pairs:
        """Return pattern, candidate and sizes of the candidates' parts, row by row."""
        rows, candidate = self._lookup.pairs(block)
        weights = block.weights.T if self.space.weighted else np.ones((block.rows, 1), np.int64)
        pairs = pattern[rows], candidate.astype(np.int64), weights[rows]
        return pairs if rows.size <= _MOST_PAIRS else _added(*pairs)

    def _in_planes(self, block: RowBlock, plane: IntArray, planes: int) -> Iterator[Pairs]:
        """Yield plane, candidate and sizes of the candidates' parts, from tables with planes."""
        bits = (planes - 1).bit_length()
        names = tuple(f"bit {bit}" for bit in range(bits))
        space = StatisticSpace(names, "overall", weighted=self.space.weighted)
        of_patterns = replace(block, cells=plane, terms=np.zeros((0, block.rows), np.int64))
        reader = SumReader(self.lattice, space, 1, 0)
        powers = [1, 2] if space.weighted else [0]
        for units in self._plan(block.rows, bits):
            tables = Tables(units, self.lattice, space, None)
            for begin in range(0, block.rows, ROWS_AT_A_TIME):
                rows = np.arange(begin, min(begin + ROWS_AT_A_TIME, block.rows))
                tables.add(self._rows(of_patterns, rows))
            state = tables.state()
            for unit, arrays in zip(units, state.tables, strict=True):
                if unit.method == "dense":
                    # Planes last: sums over the axes of features are sums of vectors.
                    size = arrays[0].size // space.raw_columns
                    by_power = arrays[0].reshape(-1, space.cells, size)
                    table = np.ascontiguousarray(np.moveaxis(by_power[powers, :planes], 2, 0))
                    margins = Margins(unit.features, table, self.lattice, (1, 1))
                    read = [
                        (candidates, margins.of(features).reshape(-1, *table.shape[1:])[cells])
                        for features in unit.reported
                        for candidates, cells in [self._cells[features]]
                    ]
                else:
                    (summed,) = reader.slices([unit], replace(state, tables=[arrays]))
                    sizes = summed.sums.reshape(summed.keys.size, -1, space.cells)
                    read = [(np.searchsorted(self.keys, summed.keys), sizes[:, powers, :planes])]
                for candidates, sizes in read:
                    row, at = np.nonzero(sizes[:, 0])
                    yield at, candidates[row], sizes[row, :, at]

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
            self._plans[step, bits] = [[unit.unit for unit in block] for block in planned]
        return self._plans[step, bits]
