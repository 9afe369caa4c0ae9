"""Sums the statistics of each slice, in one of three ways, chosen by `counting_plan`.

``dense``   a ``bincount`` over packed codes: all slices of a tuple, and as margins of some of it
``sparse``  the distinct codes of all slices of a tuple, where a table would be larger than the data
``listed``  only the examples of base slices, and of these only slices that are listed
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import takewhile
from math import prod
from typing import Any, Literal, NamedTuple

import numpy as np

from slicebeam.metrics.arrays import IntArray, NDArray, Ragged
from slicebeam.metrics.counting.lattice import Keys, Lattice
from slicebeam.metrics.counting.statistic_space import BUCKETS, THEN, StatisticSpace
from slicebeam.metrics.randomness import poisson_weights, splitmix64

Method = Literal["dense", "sparse", "listed"]

# Rows that are counted at a time: their packed codes stay in the second-level cache.
ROWS_AT_A_TIME = 1 << 16
# A lookup table up to this size is faster than a binary search, and small next to the tables.
_LOOKUP_CELLS = 1 << 18
# A table of more cells than this many times the rows is added to where the rows are.
_SPREAD_OUT = 1


@dataclass(frozen=True)
class Unit:
    """What is counted together."""

    features: tuple[int, ...]  # the tuple (for ``listed``: of the base slices), ascending
    method: Method  # how it is counted
    # for ``listed``, each candidate's base: the candidate itself, or without one of its predicates
    bases: Keys | None = None
    # the slices to report, in the order of their results; None for all that are not empty
    candidates: Keys | None = None
    part: int = 0  # for ``sparse``, which share of the codes (by their hash) is counted
    parts: int = 1
    # for ``dense``, the tuples whose slices are reported, each of some of the features; none for
    # the tuple itself
    margins: tuple[tuple[int, ...], ...] = ()

    @property
    def reported(self) -> tuple[tuple[int, ...], ...]:
        """The feature tuples whose slices are read from the table."""
        return self.margins or (self.features,)


@dataclass(frozen=True)
class Resampling:
    """Poisson resampling of examples: replicate b weighs example i by a hash of (seed, b, id)."""

    replicates: int
    seed: int

    def drawn(self, ids: NDArray[np.uint64]) -> list[NDArray[np.uint8]]:
        """Return how often each replicate has each example."""
        return [poisson_weights(self.seed, b, ids) for b in range(self.replicates)]


@dataclass
class RowBlock:
    """Consecutive rows of a shard."""

    rows: int
    # returns the codes of a feature in their stored width: [rows], or `Ragged`
    stored: Callable[[int], Any]
    cells: IntArray  # [rows] the outcome cell of each row
    ids: NDArray[np.uint64]  # [rows] what identifies the row when it is resampled
    positions: NDArray[np.uint64]  # [rows] the row's own number, which no other row has
    weights: IntArray  # [0 or 2, rows] weight and its square, in fixed point
    terms: IntArray  # [terms and total terms, rows] in fixed point
    buckets: IntArray  # [0, 1 or 2, rows] of each model's score: label, then score
    _columns: dict[int, IntArray | Ragged] = field(default_factory=dict, repr=False)

    def column(self, feature: int) -> IntArray | Ragged:
        """Return the codes of a feature, of which those of one example a row are int64."""
        if feature not in self._columns:
            codes = self.stored(feature)
            is_list = isinstance(codes, Ragged)
            self._columns[feature] = codes if is_list else codes.astype(np.int64, copy=False)
        return self._columns[feature]

    def take(self, rows: IntArray, features: Iterable[int], *, resampled: bool = False) -> RowBlock:
        """Return some rows with copies of a few columns, without positions and buckets."""
        stored = {feature: self.stored(feature).take(rows) for feature in features}
        cells = self.cells[rows].astype(np.int64, copy=False)
        ids = self.ids[rows] if resampled else np.broadcast_to(np.uint64(0), rows.size)
        return _taken(stored, cells, ids, self.weights[:, rows], self.terms[:, rows])

    @staticmethod
    def joined(blocks: Sequence[RowBlock], features: Iterable[int]) -> RowBlock:
        """Return the rows of several blocks, at least one, that `take` returned, as one."""
        stored: dict[int, Any] = {}
        for feature in features:
            columns: Any = [block.stored(feature) for block in blocks]
            if isinstance(columns[0], Ragged):
                lengths = np.concatenate([np.diff(column.offsets) for column in columns])
                codes = np.concatenate([column.codes for column in columns])
                stored[feature] = Ragged(np.append(0, np.cumsum(lengths)), codes)
            else:
                stored[feature] = np.concatenate(columns)
        each: Any = ((block.cells, block.ids, block.weights, block.terms) for block in blocks)
        return _taken(
            stored, *(np.concatenate(arrays, axis=-1) for arrays in zip(*each, strict=True))
        )


def _taken(
    stored: dict[int, Any], cells: IntArray, ids: Any, weights: IntArray, terms: IntArray
) -> RowBlock:
    positions, buckets = np.zeros(0, np.uint64), np.zeros((0, cells.size), np.int64)
    codes = stored.__getitem__
    return RowBlock(cells.size, codes, cells, ids, positions, weights, terms, buckets)


class Coded(NamedTuple):
    """Packed codes; ``rows`` says whose they are, None for all rows in order."""

    code: IntArray
    rows: IntArray | None


def extend(coded: Coded, column: IntArray | Ragged, radix: int) -> Coded:
    """Append the codes of one more feature."""
    if not isinstance(column, Ragged):
        values = column if coded.rows is None else column[coded.rows]
        return Coded(coded.code * radix + values, coded.rows)
    rows = np.arange(coded.code.size) if coded.rows is None else coded.rows
    taken = column.take(rows)
    at = np.repeat(np.arange(rows.size), np.diff(taken.offsets))
    return Coded(coded.code[at] * radix + taken.codes, rows[at])


class Prefixes:
    """Packed codes of feature tuples: in lexicographic order they cost one multiply and add each."""

    def __init__(self, block: RowBlock, radices: IntArray, start: IntArray) -> None:
        self.block, self.radices = block, radices
        self.features: tuple[int, ...] = ()
        self.codes = [Coded(start, None)]

    def coded(self, features: Sequence[int]) -> Coded:
        """Return the packed codes of a feature tuple."""
        pairs = zip(self.features, features, strict=False)
        shared = len(list(takewhile(lambda pair: pair[0] == pair[1], pairs)))
        del self.codes[shared + 1 :]
        for feature in features[shared:]:
            column = self.block.column(feature)
            self.codes.append(extend(self.codes[-1], column, int(self.radices[feature])))
        self.features = tuple(features)
        return self.codes[-1]


def positions(
    wanted: IntArray, cells: int, values: IntArray | None = None
) -> Callable[[IntArray], IntArray]:
    """Return a function from codes to the values of wanted codes, or their positions; -1 for others."""
    values = np.arange(wanted.size) if values is None else values
    if cells <= _LOOKUP_CELLS:
        lookup = np.full(cells, -1, np.int32)
        lookup[wanted] = values
        return lookup.__getitem__
    order = np.argsort(wanted)
    ordered, values = wanted[order], values[order]

    def search(codes: IntArray) -> IntArray:
        at = np.minimum(np.searchsorted(ordered, codes), ordered.size - 1)
        return np.where(ordered[at] == codes, values[at], -1)

    return search


def selector_bytes(bases: int, cells: int) -> int:
    """Return the memory of the lookup of base slices by code in a table of this many cells."""
    return 4 * cells if cells <= _LOOKUP_CELLS else 24 * bases


def table_cells(features: Sequence[int], lattice: Lattice) -> int:
    """Return the number of cells of a tuple's table."""
    return prod(int(lattice.radices[feature]) for feature in features)


def _distinct(parts: list[IntArray]) -> IntArray:
    """Return a row of ascending codes, and below them their sums: those of one code are added."""
    filled = [part for part in parts if part.size] or parts[:1]
    if len(filled) == 1:
        return filled[0]
    rows = np.concatenate(filled, axis=1)
    rows = rows[:, np.argsort(rows[0])]
    begins = np.flatnonzero(np.diff(rows[0], prepend=-1))
    summed = np.add.reduceat(rows, begins, axis=1)
    summed[0] = rows[0, begins]
    return summed


class SummedRows:
    """Adds the rows of a block to tables of sums."""

    def __init__(
        self, block: RowBlock, space: StatisticSpace, drawn: list[NDArray[np.uint8]]
    ) -> None:
        self.block, self.space, self.drawn = block, space, drawn

    def add(self, table: IntArray, coded: Coded, *, is_celled: bool = False) -> None:
        """Add rows to a table [layers, columns * size]; the cell may be the codes' first digit."""
        space, block = self.space, self.block
        code, rows = coded
        size = table.shape[1] // space.raw_columns
        with_cell = code if is_celled else _of(block.cells, rows) * size + code
        weights = [_of(weight, rows) for weight in block.weights]
        # What is added up: where, how much (None is 1), and in how many planes.
        columns = [(with_cell, values, space.cells) for values in (None, *weights)]
        columns += [(code, _of(term, rows), 1) for term in block.terms[: len(space.terms)]]
        if space.ranked:
            # An example of weight w counts w times in the distribution of its data set.
            counted = [weights[0] if weights else None] * len(block.buckets)
            if space.comparison == "earlier":
                then = space.holds(THEN)[_of(block.cells, rows)].astype(np.int64)
                counted = [of * weights[0] if weights else of for of in (1 - then, then)]
            for bucket, of in zip(block.buckets, counted, strict=True):
                columns.append((_of(bucket, rows) * size + code, of, 2 * BUCKETS))
        for layer, times in zip(table, [None, *self.drawn], strict=True):
            drawn = None if times is None else _of(times, rows).astype(np.int64)
            begin = 0
            for at, values, planes in columns:
                end = begin + planes * size
                times_each = drawn if values is None else _times(values, drawn)
                if times_each is None and end - begin <= _SPREAD_OUT * code.size:
                    layer[begin:end] += np.bincount(at, minlength=end - begin)
                else:
                    np.add.at(layer[begin:end], at, 1 if times_each is None else times_each)
                begin = end

    def by(self, coded: Coded, groups: int) -> IntArray:
        """Return the sums [groups, layers and columns] of rows by the number of their group."""
        columns = (1 + len(self.drawn)) * self.space.raw_columns
        table = np.zeros((1 + len(self.drawn), self.space.raw_columns * groups), np.int64)
        self.add(table, coded)
        return table.reshape(columns, groups).T


def _of(values: NDArray[Any], rows: IntArray | None) -> NDArray[Any]:
    return values if rows is None else values[rows]


def _times(values: IntArray, drawn: NDArray[Any] | None) -> IntArray:
    return values if drawn is None else values * drawn


class _Listed:
    """Candidates by the feature that each adds to its base, if any: all rows of the bases, of no candidate at place 0."""

    def __init__(self, unit: Unit, lattice: Lattice, tables: tuple[int, int]) -> None:
        if unit.candidates is None or unit.bases is None:
            raise TypeError("listed slices without candidates or bases")
        self.lattice, self._shape, self._size = lattice, tables, unit.candidates.size
        keys, bases = unit.candidates, unit.bases
        distinct, at = np.unique(bases, return_inverse=True)
        wanted = lattice.key_cells(distinct, unit.features)
        self._select = positions(wanted, table_cells(unit.features, lattice))
        added = lattice.added(keys, bases)
        owners = lattice.feature_of[added]
        self._parts = []
        for feature in np.unique(owners).tolist():
            mine = np.flatnonzero(owners == feature)
            radix, code = 1, at[mine]
            if feature >= 0:
                radix = int(lattice.radices[feature])
                code = code * radix + added[mine] - lattice.offsets[feature] - 1
            table = np.zeros((tables[0], tables[1] * (mine.size + 1)), np.int64)
            self._parts.append((feature, mine, positions(code, distinct.size * radix), table))

    def add(self, coded: Coded, sums: SummedRows) -> None:
        position = self._select(coded.code)
        kept = np.flatnonzero(position >= 0)
        if kept.size == 0:
            return
        of_kept = kept if coded.rows is None else coded.rows[kept]
        inside = Coded(position[kept].astype(np.int64), of_kept)
        for feature, _, place, table in self._parts:
            code, rows = inside
            if feature >= 0:
                column, radix = sums.block.column(feature), int(self.lattice.radices[feature])
                code, rows = extend(inside, column, radix)
            sums.add(table, Coded(place(code).astype(np.int64) + 1, rows))

    def merged(self) -> IntArray:
        sums = np.zeros((*self._shape, self._size), np.int64)
        for _, mine, _, table in self._parts:
            sums[:, :, mine] = table.reshape(*self._shape, -1)[:, :, 1:]
        return sums


class Tables:
    """The sums of a block of units, summed over row blocks.

    Six examples with one feature of two values; the cell of an example is 1 where the model is wrong.

    >>> from slicebeam.metrics.counting.lattice import Lattice
    >>> from slicebeam.metrics.counting.statistic_space import StatisticSpace
    >>> codes, wrong = np.array([0, 0, 0, 0, 1, 1]), np.array([1, 0, 0, 0, 1, 1])
    >>> ids, none = np.arange(6, dtype=np.uint64), np.zeros((0, 6), np.int64)
    >>> block = RowBlock(6, lambda feature: codes, wrong, ids, ids, none, none, none)
    >>> lattice, space = Lattice((2,), max_cross_size=1), StatisticSpace(("wrong",), "overall")
    >>> tables = Tables([Unit((0,), "dense")], lattice, space, resampling=None)
    >>> tables.add(block)
    >>> tables.state().totals  # right and wrong among all examples: int64 [1 + replicates, columns]
    array([[3, 3]])
    >>> tables.state().tables[0].reshape(space.raw_columns, 2).T  # right and wrong in either slice
    array([[3, 1],
           [0, 2]])
    """

    def __init__(
        self,
        units: Sequence[Unit],
        lattice: Lattice,
        space: StatisticSpace,
        resampling: Resampling | None,
    ) -> None:
        self.units, self.lattice, self.space, self.resampling = units, lattice, space, resampling
        self.layers = 1 + (resampling.replicates if resampling else 0)
        columns = space.raw_columns + len(space.total_terms)
        self.total = np.zeros((self.layers, columns), np.int64)
        shape = self.layers, space.raw_columns
        self.tables: list[Any] = []
        for unit in units:
            if unit.method == "listed":
                self.tables.append(_Listed(unit, lattice, shape))
            elif unit.method == "sparse":
                self.tables.append([np.zeros((1 + shape[0] * shape[1], 0), np.int64)])
            else:
                size = shape[1] * table_cells(unit.features, lattice)
                self.tables.append(np.zeros((shape[0], size), np.int64))

    def add(self, block: RowBlock) -> None:
        """Count the rows of a block."""
        draws = self.resampling
        sums = SummedRows(block, self.space, draws.drawn(block.ids) if draws else [])
        raw = self.space.raw_columns
        sums.add(self.total[:, :raw], Coded(np.zeros(block.rows, np.int64), None))
        for at, term in enumerate(block.terms[len(self.space.terms) :]):
            for layer, times in zip(self.total, [None, *sums.drawn], strict=True):
                layer[raw + at] += _times(term, times).sum()
        radices = self.lattice.radices
        plain = Prefixes(block, radices, np.zeros(block.rows, np.int64))
        with_cell = Prefixes(block, radices, block.cells) if self.space.cells > 1 else plain
        # Their codes are made once, with the cell as first digit.
        counts_only = not (self.space.terms or self.space.ranked)
        for unit, table in zip(self.units, self.tables, strict=True):
            is_celled = counts_only and unit.method == "dense"
            coded = (with_cell if is_celled else plain).coded(unit.features)
            if unit.method == "dense":
                sums.add(table, coded, is_celled=is_celled)
            elif unit.method == "sparse":
                self._add_sparse(unit, table, coded, sums)
            else:
                table.add(coded, sums)

    @staticmethod
    def _add_sparse(unit: Unit, parts: list[IntArray], coded: Coded, sums: SummedRows) -> None:
        code, rows = coded
        if unit.parts > 1:
            part = splitmix64(code.astype(np.uint64)) % np.uint64(unit.parts)
            kept = np.flatnonzero(part == unit.part)
            code, rows = code[kept], kept if rows is None else rows[kept]
        if code.size == 0:
            return
        distinct, inverse = np.unique(code, return_inverse=True)
        parts.append(np.vstack([distinct, sums.by(Coded(inverse, rows), distinct.size).T]))
        # Merged when they outgrow what is merged.
        if sum(part.shape[1] for part in parts[1:]) > parts[0].shape[1] + ROWS_AT_A_TIME:
            parts[:] = [_distinct(parts)]

    def state(self) -> UnitSums:
        """Return the sums."""
        made: dict[Method, Callable[[Any], IntArray]]
        made = {"dense": np.asarray, "sparse": _distinct, "listed": _Listed.merged}
        pairs = zip(self.units, self.tables, strict=True)
        tables = [made[unit.method](table) for unit, table in pairs]
        return UnitSums(self.total, tables, tuple(unit.method == "sparse" for unit in self.units))


@dataclass(frozen=True)
class UnitSums:
    """The sums of some units over some rows; those over disjoint rows add up."""

    totals: IntArray  # [layers, columns]
    tables: list[IntArray]  # of each unit
    # of each unit, whether its table has codes and below them their sums
    is_sparse: tuple[bool, ...]

    def __add__(self, other: UnitSums) -> UnitSums:
        both = zip(self.is_sparse, zip(self.tables, other.tables, strict=True), strict=True)
        tables = [_distinct([*pair]) if is_sparse else np.add(*pair) for is_sparse, pair in both]
        return UnitSums(self.totals + other.totals, tables, self.is_sparse)

    @property
    def nbytes(self) -> int:
        """Bytes of all arrays."""
        return self.totals.nbytes + sum(table.nbytes for table in self.tables)


class SliceSums(NamedTuple):
    """Sums of slices."""

    keys: Keys  # [slices]
    sums: IntArray  # [slices, 1 + replicates, raw columns]
    nonempty: int  # how many slices of the unit are not empty, reported or not


@dataclass(frozen=True)
class SumReader:
    """Reads the sums of slices out of summed tables."""

    lattice: Lattice
    space: StatisticSpace
    layers: int
    min_size: int

    def slices(self, units: Sequence[Unit], state: UnitSums) -> Iterator[SliceSums]:
        """Yield the sums of the slices of each unit, tuple by tuple."""
        for unit, table in zip(units, state.tables, strict=True):
            if unit.candidates is not None:
                sums = self._listed(unit, table, unit.candidates)
                nonempty = int(np.count_nonzero(self.space.sizes(sums[:, 0])))
                yield SliceSums(unit.candidates, sums, nonempty)
            elif unit.method == "sparse":
                columns = table[1:].reshape(*self._tables, table.shape[1])
                yield self._every_slice(unit.features, table[0], columns)
            else:
                margins = Margins(unit.features, table, self.lattice, self._tables)
                for features in unit.reported:
                    columns = margins.of(features)
                    yield self._every_slice(features, np.arange(columns.shape[2]), columns)

    @property
    def _tables(self) -> tuple[int, int]:
        return self.layers, self.space.raw_columns

    def _every_slice(
        self, features: tuple[int, ...], codes: IntArray, by_column: IntArray
    ) -> SliceSums:
        sizes = by_column[0, self.space.size_columns].sum(axis=0)
        matched = self.lattice.matched(features, codes)
        if matched is not None:
            sizes = np.where(matched, sizes, 0)
        kept = np.flatnonzero(sizes >= self.min_size)
        sums = np.ascontiguousarray(by_column[:, :, kept].transpose(2, 0, 1))
        keys = self.lattice.cell_keys(features, codes[kept])
        return SliceSums(keys, sums, int(np.count_nonzero(sizes)))

    def _listed(self, unit: Unit, table: IntArray, candidates: Keys) -> IntArray:
        if unit.method == "listed":
            return np.ascontiguousarray(table.transpose(2, 0, 1))
        sums = np.zeros((candidates.size, *self._tables), np.int64)
        margins = Margins(unit.features, table, self.lattice, self._tables)
        for features, mine in self.lattice.by_tuple(candidates).items():
            wanted = self.lattice.key_cells(candidates[mine], features)
            sums[mine] = margins.of(features)[:, :, wanted].transpose(2, 0, 1)
        return sums


class Margins:
    """The tables of some of the features of a joint table, as sums over its other axes."""

    def __init__(
        self, features: tuple[int, ...], table: IntArray, lattice: Lattice, tables: tuple[int, int]
    ) -> None:
        self._lattice, self._shape = lattice, tables
        self._made = {features: table.reshape(*tables, -1)}

    def of(self, features: tuple[int, ...]) -> IntArray:
        """Return the table [layers, columns, cells], summed from the smallest one known."""
        if features in self._made:
            return self._made[features]
        wanted = set(features)
        holding = (features for features in self._made if wanted.issubset(features))
        wider = min(holding, key=lambda features: self._made[features].size)
        table, radices = self._made[wider], self._lattice.radices
        # The widest axis first: it leaves the smallest table for the others.
        for gone in sorted(set(wider) - wanted, key=lambda feature: (-radices[feature], feature)):
            axis = wider.index(gone)
            before = int(radices[list(wider[:axis])].prod())
            table = table.reshape(*self._shape, before, int(radices[gone]), -1).sum(axis=3)
            table = table.reshape(*self._shape, -1)
            wider = wider[:axis] + wider[axis + 1 :]
            self._made[wider] = table
        return table
