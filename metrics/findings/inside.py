"""How many examples of a finding, and of each candidate, are in each pattern: counted, or held if few."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
from scipy.sparse import coo_array, csr_array, hstack

from slicebeam.metrics.arrays import BoolArray, FloatArray, IntArray, NDArray
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
from slicebeam.metrics.counting.lattice import Keys, Lattice
from slicebeam.metrics.counting.membership import Membership, rows_in
from slicebeam.metrics.counting.statistic_space import StatisticSpace
from slicebeam.metrics.measures.target_sums import InsideSums, Patterns, PatternSplit, TargetSums

Pairs = tuple[IntArray, IntArray, IntArray]

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
# Plans are made for rows of so many more bits at a time and an even number of bits, and used again.
_PLAN_BITS = 4
# Bytes of a pair of an example and a candidate, while the table of pairs is made.
PAIR_BYTES = 32
# Pairs that are summed at a time.
_BATCH_PAIRS = 1 << 17


class InsideCounts(NamedTuple):
    """Sums of a finding's examples, or of some, by the pattern that they had before: all whole numbers."""

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


@dataclass
class InsideCounter:
    """Counts the examples of one finding after another."""

    keys: Keys  # [candidates] distinct, ascending
    lattice: Lattice  # of the candidates
    space: StatisticSpace  # the statistics that patterns are summed in, without score buckets
    counted: BoolArray  # [cells] which examples are in the metric's denominator
    memory: int  # bytes that tables may take

    def __post_init__(self) -> None:
        features = np.unique(self.lattice.features(self.keys))
        self._features: list[int] = features[features >= 0].tolist()
        self._cell_type = np.min_scalar_type(self.space.cells - 1)
        self._plans: dict[tuple[int, int], list[list[Unit]]] = {}

    @cached_property
    def _membership(self) -> Membership:
        return Membership(self.keys, self.lattice)

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
        none, columns = np.zeros(0, np.int64), 2 if self.space.weighted else 1
        nothing = [np.zeros((0, width), np.int64) for width in (self.space.raw_columns, columns)]
        parts = [InsideCounts(none, nothing[0], none, none, nothing[1])]
        held: list[RowBlock] = []
        size = 0
        for block in examples:
            held.append(self._taken(block, rows_in(block, self.lattice, finding)))
            size += held[-1].rows
            if size >= _MOST_HELD:
                parts.append(self._counts(held, earlier))
                held, size = [], 0
        if size:
            parts.append(self._counts(held, earlier))
        return merged(parts)

    def _counts(self, held: list[RowBlock], earlier: Keys) -> InsideCounts:
        block = RowBlock.joined(held, self._features)
        in_earlier = patterns_of(block, earlier, self.lattice)
        masks, pattern, examples = np.unique(in_earlier, return_inverse=True, return_counts=True)
        sums = SummedRows(block, self.space, []).by(Coded(pattern, None), masks.size)
        in_planes = np.argsort(-examples, kind="stable")[: 1 << _PATTERN_BITS]
        in_planes = in_planes[examples[in_planes] >= _LEAST_IN_PLANE]
        if examples[in_planes].sum() < _LEAST_IN_PLANES:
            in_planes = in_planes[:0]
        plane = np.full(masks.size, -1)
        plane[in_planes] = np.arange(in_planes.size)
        of_row = plane[pattern]
        rest, rows = np.flatnonzero(of_row < 0), np.flatnonzero(of_row >= 0)
        # The others are looked up row by row.
        looked_up = self._rows(block, rest)
        candidate, at = self._membership.pairs(looked_up)
        weighted = self.space.weighted
        weights = looked_up.weights.T if weighted else np.ones((rest.size, 1), np.int64)
        by_row = pattern[rest][at], candidate, weights[at]
        pairs = [by_row if at.size <= _MOST_PAIRS else _added(*by_row)]
        if rows.size:
            planes = self._in_planes(self._rows(block, rows), of_row[rows], in_planes.size)
            pairs += [(in_planes[at], candidate, sizes) for at, candidate, sizes in planes]
        columns = map(np.concatenate, zip(*pairs, strict=True))
        return InsideCounts(masks, sums, *columns)

    def _rows(self, block: RowBlock, rows: IntArray) -> RowBlock:
        whole = rows.size == block.rows
        return block if whole else block.take(rows, self._features)

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
            for unit, counted in zip(units, state.tables, strict=True):
                if unit.method == "dense":
                    # Planes last: sums over the axes of features are sums of vectors.
                    width = counted.size // space.raw_columns
                    by_power = counted.reshape(-1, space.cells, width)
                    table = np.ascontiguousarray(np.moveaxis(by_power[powers, :planes], 2, 0))
                    margins = Margins(unit.features, table, self.lattice, (1, 1))
                    read = [
                        (candidates, margins.of(features).reshape(-1, *table.shape[1:])[cells])
                        for features in unit.reported
                        for candidates, cells in [self._cells[features]]
                    ]
                else:
                    (summed,) = reader.slices([unit], replace(state, tables=[counted]))
                    sizes = summed.sums.reshape(summed.keys.size, -1, space.cells)
                    read = [(np.searchsorted(self.keys, summed.keys), sizes[:, powers, :planes])]
                for candidates, sizes in read:
                    row, at = np.nonzero(sizes[:, 0])
                    yield at, candidates[row], sizes[row, :, at]

    def _plan(self, rows: int, bits: int) -> list[list[Unit]]:
        """Return the units that count all candidates, in blocks that fit the memory."""
        step = 1 << -(-(rows - 1).bit_length() // _PLAN_BITS) * _PLAN_BITS
        bits += bits % 2
        if (step, bits) not in self._plans:
            passes = 3 if self.space.weighted else 1
            budget = Budget(step, passes << bits, passes, 1, self.memory, block_seconds=np.inf)
            tuples = {features: self.keys[places] for features, (places, _) in self._cells.items()}
            planned = blocks(whole_tuples(tuples, self.lattice, budget), budget)
            self._plans[step, bits] = [[unit.unit for unit in block] for block in planned]
        return self._plans[step, bits]


class PartTables:
    """The candidates' parts of the patterns, as counts of each finding's examples are added."""

    def __init__(
        self, sizes: NDArray[Any], layout: TargetSums, count_inside: Callable[[int], InsideCounts]
    ) -> None:
        self.layout, self.count_inside = layout, count_inside
        self._inside: InsideCounts | None = None
        # A row for each candidate, a column for each pattern. Numbers of examples are whole numbers
        # that doubles hold.
        self._number: Any = None if layout.weighted else np.float64
        columns = np.asarray(sizes, self._number).T
        self._measure([csr_array(column[:, None]) for column in columns])

    def _measure(self, counts: list[csr_array]) -> None:
        """Take the sizes in their own units."""
        self._counts = counts
        self._tables = [
            table if scale == 1.0 else _with(table, table.data * scale)
            for table, scale in zip(self._counts, self.layout.size_scales, strict=False)
        ]

    def count(self, candidate: int, patterns: Patterns) -> InsideSums:  # noqa: ARG002
        """Return the sums of a candidate that becomes a finding."""
        self._inside = self.count_inside(candidate)
        return InsideSums(self._inside.masks, self._inside.sums)

    def split(self, by: PatternSplit) -> None:
        """Follow the patterns, which the candidate that was counted last has split."""
        inside, self._inside = self._inside, None
        if inside is None:
            raise ValueError("no candidate was counted")
        counts, at = [], (inside.candidate, inside.pattern)
        for table, column in zip(self._counts, inside.sizes.T, strict=True):
            sizes = np.asarray(column, self._number)
            taken = coo_array((sizes, at), (table.shape[0], by.inside.size)).tocsr()
            inner = table[:, by.inside]
            # Sums are taken in the order of the patterns.
            inner.sort_indices()
            rest = inner - taken
            if rest.data.size and rest.data.min() < 0:
                mask = inside.masks[rest.indices[np.argmin(rest.data)]]
                raise ValueError(
                    f"a candidate has fewer examples of pattern {mask} than the finding takes"
                )
            rest.eliminate_zeros()
            parts = [table[:, by.others], rest[:, by.kept], taken]
            counts.append(csr_array(hstack(parts, format="csr")))
        self._measure(counts)

    def weigh(self, by: FloatArray, power: int = 1) -> FloatArray:
        """Return Σ over patterns of the candidate's size there times `by` [patterns]: [candidates]."""
        return np.asarray(self._tables[power - 1 if self.layout.weighted else 0] @ by)

    def tables(self, chosen: IntArray) -> list[csr_array]:
        """Return each size column of a few candidates' parts [chosen, patterns]."""
        return [table[chosen] for table in self._tables]

    def parts(self, chosen: IntArray) -> FloatArray:
        """Return the sizes [chosen, patterns, size columns] of a few candidates' parts."""
        columns = [table.toarray() for table in self.tables(chosen)]
        return np.stack(columns, axis=2).astype(np.float64, copy=False)

    def within(self, chosen: IntArray, by: FloatArray, patterns: Patterns) -> FloatArray:
        """Return Σ of size·(1 − its share of the pattern)·`by` [chosen], by squared weights where there are weights."""
        table = self.tables(chosen)[-1]
        table.sort_indices()
        whole = patterns.layout.moment(patterns.sums, 2, 0)
        squared = _with(table, np.square(table.data, dtype=np.float64))
        return np.asarray(table @ by - squared @ (by / whole))


class HeldExamples(PartTables):
    """The same of all examples of the denominator, without weights, held with their candidates."""

    def __init__(
        self,
        blocks: Iterable[RowBlock],
        keys: Keys,
        lattice: Lattice,
        space: StatisticSpace,
        counted: BoolArray,
    ) -> None:
        membership = Membership(keys, lattice)
        none = np.zeros(0, np.int32)
        rows, slices = [none], [none]
        sums, measured = [np.zeros((0, space.raw_columns), np.int64)], [np.zeros(0, np.bool_)]
        number = 0
        for block in blocks:
            for _, candidates, members in membership.of(block):
                rows.append((members + number).astype(np.int32))
                slices.append(candidates.astype(np.int32, copy=False))
            measured.append(counted[block.cells])
            every = Coded(np.arange(block.rows), None)
            sums.append(SummedRows(block, space, []).by(every, block.rows))
            number += block.rows
        self.sums = np.concatenate(sums)
        row, candidate = np.concatenate(rows), np.concatenate(slices)
        in_denominator = np.concatenate(measured)
        if not in_denominator.all():
            row, candidate = row[in_denominator[row]], candidate[in_denominator[row]]
        ones = np.ones(row.size, np.int8)
        pairs = coo_array((ones, (candidate, row)), (keys.size, number))
        # No pair occurs twice; the rows of a candidate need no order.
        pairs.has_canonical_format = True
        self._rows_of = csr_array(pairs)
        self._batches = list(_batches(self._rows_of))
        self._taken = none
        self._follow(np.zeros(number, np.int64), 1)

    def _follow(self, pattern: IntArray, patterns: int) -> None:
        """Note the pattern of each row."""
        self._pattern, ends = pattern, np.arange(pattern.size + 1)
        ones = np.ones(pattern.size, np.int32)
        self._of_rows = csr_array((ones, pattern, ends), shape=(pattern.size, patterns))

    def count(self, candidate: int, patterns: Patterns) -> InsideSums:  # noqa: D102
        begin, end = self._rows_of.indptr[candidate : candidate + 2]
        self._taken = self._rows_of.indices[begin:end]
        held, at = np.unique(self._pattern[self._taken], return_inverse=True)
        sums = np.zeros((held.size, self.sums.shape[1]), np.int64)
        np.add.at(sums, at, self.sums[self._taken])
        # In the order of masks, as they are counted elsewhere.
        order = np.argsort(patterns.masks[held])
        return InsideSums(patterns.masks[held[order]], sums[order])

    def split(self, by: PatternSplit) -> None:  # noqa: D102
        number = np.zeros(by.others.size + by.inside.size, np.int64)
        number[by.others] = np.arange(by.others.size)
        number[by.inside[by.kept]] = by.others.size + np.arange(by.kept.size)
        taken, left = np.zeros(number.size, np.int64), by.others.size + by.kept.size
        taken[by.inside] = left + np.arange(by.inside.size)
        pattern = number[self._pattern]
        pattern[self._taken] = taken[self._pattern[self._taken]]
        self._follow(pattern, left + by.inside.size)

    def weigh(self, by: FloatArray, power: int = 1) -> FloatArray:  # noqa: ARG002, D102
        of_rows = by[self._pattern]
        return np.concatenate([np.zeros(0), *(batch @ of_rows for batch in self._batches)])

    def tables(self, chosen: IntArray) -> list[csr_array]:  # noqa: D102
        return [csr_array(self._rows_of[chosen] @ self._of_rows)]


def _with(table: csr_array, data: FloatArray) -> csr_array:
    return csr_array((data, table.indices, table.indptr), shape=table.shape)


def _batches(pairs: csr_array) -> Iterator[csr_array]:
    """Yield the rows of a table of ones some at a time, as float64: all share the same ones."""
    ends = pairs.indptr
    largest = int(np.diff(ends).max(initial=0))
    ones = np.ones(max(largest, min(_BATCH_PAIRS, pairs.nnz)))
    begin = 0
    while begin < ends.size - 1:
        end = int(np.searchsorted(ends, ends[begin] + ones.size, side="right")) - 1
        first, last = int(ends[begin]), int(ends[end])
        rows = ones[: last - first], pairs.indices[first:last], ends[begin : end + 1] - first
        yield csr_array(rows, shape=(end - begin, pairs.shape[1]))
        begin = end
