"""Counts how many examples of each cell are in each slice: tables, never a row a slice.

Three ways to count a feature tuple, chosen by cost (`slicebeam.metrics.counting_plan`):

``dense``   one ``bincount`` over packed codes gives all slices of the tuple at once
``sparse``  the distinct codes, where a table would be larger than the data
``inside``  only the examples of some base slices, each extended by other features
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal, NamedTuple

import numpy as np

from slicebeam.metrics.randomness import poisson_weights, splitmix64

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from numpy.typing import NDArray

    from slicebeam.metrics.lattice import Keys, Lattice

    Array = NDArray[np.int64]
    State = list[list[Array]]

Method = Literal["dense", "sparse", "inside"]

# Rows that are counted at a time: their packed codes stay in the second-level cache.
ROWS_AT_A_TIME = 1 << 16
# A lookup table up to this size is faster than a binary search, and small beside the tables.
_LOOKUP_CELLS = 1 << 18
# A table of more cells than this many times the rows is added to where the rows are.
_SPREAD_OUT = 4


class Ragged(NamedTuple):
    """A list column: the codes of row i are ``codes[offsets[i]:offsets[i + 1]]``."""

    offsets: NDArray[np.int64]
    codes: NDArray[np.int64]


@dataclass(frozen=True)
class Unit:
    """What is counted together.

    Attributes
    ----------
    features : the tuple (for ``inside``: of the base slices), ascending
    method : how it is counted
    extensions : for ``inside``, the features that are added to the base slices, one at a time
    bases : for ``inside``, the keys of the base slices, sorted
    candidates : the slices to report, in the order of their results; None for all that are
        not empty
    part, parts : for ``sparse``, which share of the codes (by their hash) is counted
    """

    features: tuple[int, ...]
    method: Method
    extensions: tuple[int, ...] = ()
    bases: Keys | None = None
    candidates: Keys | None = None
    part: int = 0
    parts: int = 1


@dataclass(frozen=True)
class Resampling:
    """Poisson resampling of examples: replicate b weighs example i by a hash of (seed, b, id)."""

    replicates: int
    seed: int


@dataclass
class RowBlock:
    """Consecutive rows of a shard.

    Attributes
    ----------
    rows : how many
    column : returns the codes of a feature: int64 [rows], or `Ragged`
    cells : int64 [rows] the outcome cell of each row
    ids : uint64 [rows] what identifies the row when it is resampled
    positions : uint64 [rows] the row's own number, which no other row has
    """

    rows: int
    column: Callable[[int], NDArray[np.int64] | Ragged]
    cells: NDArray[np.int64]
    ids: NDArray[np.uint64]
    positions: NDArray[np.uint64]


class _Coded(NamedTuple):
    """Packed codes; ``rows`` says whose they are, None for all rows in order."""

    code: NDArray[np.int64]
    rows: NDArray[np.int64] | None


def _extend(coded: _Coded, column: NDArray[np.int64] | Ragged, radix: int) -> _Coded:
    """Append the codes of one more feature."""
    if not isinstance(column, Ragged):
        values = column if coded.rows is None else column[coded.rows]
        return _Coded(coded.code * radix + values, coded.rows)
    rows = np.arange(coded.code.size) if coded.rows is None else coded.rows
    begins = column.offsets[rows]
    lengths = column.offsets[rows + 1] - begins
    repeated = np.repeat(np.arange(rows.size), lengths)
    first = np.cumsum(lengths) - lengths
    at = np.arange(repeated.size) - first[repeated] + begins[repeated]
    return _Coded(coded.code[repeated] * radix + column.codes[at], rows[repeated])


class Prefixes:
    """Packed codes of feature tuples, sharing those of common prefixes.

    Tuples that come in lexicographic order cost one multiply and add each.
    """

    def __init__(
        self, block: RowBlock, radices: NDArray[np.int64], start: NDArray[np.int64]
    ) -> None:
        self.block, self.radices = block, radices
        self.features: tuple[int, ...] = ()
        self.codes = [_Coded(start, None)]

    def coded(self, features: Sequence[int]) -> _Coded:
        """Return the packed codes of a feature tuple."""
        shared = 0
        for mine, other in zip(self.features, features, strict=False):
            if mine != other:
                break
            shared += 1
        del self.codes[shared + 1 :]
        for feature in features[shared:]:
            column = self.block.column(feature)
            self.codes.append(_extend(self.codes[-1], column, int(self.radices[feature])))
        self.features = tuple(features)
        return self.codes[-1]


def positions(
    wanted: NDArray[np.int64], cells: int
) -> Callable[[NDArray[np.int64]], NDArray[np.int64]]:
    """Return a function from codes to their positions among the wanted codes, -1 for others."""
    if cells <= _LOOKUP_CELLS:
        lookup = np.full(cells, -1, np.int32)
        lookup[wanted] = np.arange(wanted.size)
        return lookup.__getitem__
    order = np.argsort(wanted)
    ordered = wanted[order]

    def search(codes: NDArray[np.int64]) -> NDArray[np.int64]:
        at = np.minimum(np.searchsorted(ordered, codes), ordered.size - 1)
        return np.where(ordered[at] == codes, order[at], -1)

    return search


def selector_bytes(bases: int, cells: int) -> int:
    """Return the memory of what finds base slices by their codes in a table of so many cells."""
    return 4 * cells if cells <= _LOOKUP_CELLS else 24 * bases


def table_cells(features: Sequence[int], lattice: Lattice) -> int:
    """Return the number of cells of a tuple's table."""
    cells = 1
    for feature in features:
        cells *= int(lattice.radices[feature])
    return cells


@dataclass
class _Sparse:
    """Distinct codes with their counts: parts are merged when they outgrow the merged ones."""

    codes: list[NDArray[np.int64]] = field(default_factory=list)
    counts: list[NDArray[np.int64]] = field(default_factory=list)
    merged_size: int = 0
    size: int = 0

    def add(self, codes: NDArray[np.int64], counts: NDArray[np.int64]) -> None:
        self.codes.append(codes)
        self.counts.append(counts)
        self.size += codes.size
        if self.size > 2 * self.merged_size + ROWS_AT_A_TIME:
            self.merge()

    def merge(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        if len(self.codes) > 1:
            codes = np.concatenate(self.codes)
            order = np.argsort(codes)
            codes = codes[order]
            begins = np.flatnonzero(np.diff(codes, prepend=-1))
            stacked = np.concatenate(self.counts)[order]
            self.codes, self.counts = [codes[begins]], [np.add.reduceat(stacked, begins)]
            self.merged_size = self.size = begins.size
        return self.codes[0], self.counts[0]


def _count_into(
    table: NDArray[np.int64],
    code: NDArray[np.int64],
    rows: NDArray[np.int64] | None,
    weights: list[NDArray[np.uint8]],
) -> None:
    """Add the counts of codes to a table [layers, size]: the examples, then each replicate."""
    size = table.shape[1]
    drawn = (weight if rows is None else weight[rows] for weight in weights)
    if size > _SPREAD_OUT * code.size:
        np.add.at(table[0], code, 1)
        for layer, weight in zip(range(1, len(table)), drawn, strict=True):
            np.add.at(table[layer], code, weight.astype(np.int64))
        return
    table[0] += np.bincount(code, minlength=size)
    for layer, weight in zip(range(1, len(table)), drawn, strict=True):
        table[layer] += np.bincount(code, weight, minlength=size).astype(np.int64)


class Tables:
    """The counts of a block of units, summed over row blocks.

    Parameters
    ----------
    units : in lexicographic order of their features
    lattice : the features' radices
    cells : number of outcome cells
    resampling : replicates of the counts, or None
    """

    def __init__(
        self, units: Sequence[Unit], lattice: Lattice, cells: int, resampling: Resampling | None
    ) -> None:
        self.units, self.lattice, self.cells, self.resampling = units, lattice, cells, resampling
        self.layers = 1 + (resampling.replicates if resampling else 0)
        self.total = np.zeros((self.layers, cells), np.int64)
        self.tables: list[list[NDArray[np.int64] | _Sparse]] = [
            [self._empty(unit, size) for size in self._sizes(unit)] for unit in units
        ]
        self._selectors = [self._selector(unit) for unit in units]

    def _sizes(self, unit: Unit) -> list[int]:
        if unit.method == "inside":
            bases = 0 if unit.bases is None else unit.bases.size
            return [bases * int(self.lattice.radices[f]) for f in unit.extensions]
        return [table_cells(unit.features, self.lattice)]

    def _empty(self, unit: Unit, size: int) -> NDArray[np.int64] | _Sparse:
        if unit.method == "sparse":
            return _Sparse()
        return np.zeros((self.layers, self.cells * size), np.int64)

    def _selector(self, unit: Unit) -> Callable[[NDArray[np.int64]], NDArray[np.int64]] | None:
        if unit.bases is None:
            return None
        wanted = self.lattice.key_cells(unit.bases, unit.features)
        return positions(wanted, table_cells(unit.features, self.lattice))

    def add(self, block: RowBlock) -> None:
        """Count the rows of a block."""
        weights = self._weights(block)
        _count_into(self.total, block.cells, None, weights)
        with_cell = Prefixes(block, self.lattice.radices, block.cells)
        plain = Prefixes(block, self.lattice.radices, np.zeros(block.rows, np.int64))
        for unit, tables, select in zip(self.units, self.tables, self._selectors, strict=True):
            if unit.method == "dense":
                code, rows = with_cell.coded(unit.features)
                _count_into(tables[0], code, rows, weights)  # type: ignore[arg-type]
            elif unit.method == "sparse":
                self._add_sparse(unit, tables[0], plain.coded(unit.features), block, weights)  # type: ignore[arg-type]
            elif select is not None:
                self._add_inside(unit, tables, plain.coded(unit.features), select, block, weights)

    def _weights(self, block: RowBlock) -> list[NDArray[np.uint8]]:
        if self.resampling is None:
            return []
        replicates = range(self.resampling.replicates)
        seed = self.resampling.seed
        return [poisson_weights(seed, b, block.ids) for b in replicates]

    def _add_sparse(
        self,
        unit: Unit,
        table: _Sparse,
        coded: _Coded,
        block: RowBlock,
        weights: list[NDArray[np.uint8]],
    ) -> None:
        code, rows = coded
        if unit.parts > 1:
            mine = splitmix64(code.astype(np.uint64)) % np.uint64(unit.parts) == unit.part
            kept = np.flatnonzero(mine)
            code, rows = code[kept], kept if rows is None else rows[kept]
        if code.size == 0:
            return
        distinct, inverse = np.unique(code, return_inverse=True)
        cells = block.cells if rows is None else block.cells[rows]
        packed = cells * distinct.size + inverse
        counts = np.zeros((self.layers, self.cells * distinct.size), np.int64)
        _count_into(counts, packed, rows, weights)
        shaped = counts.reshape(self.layers * self.cells, distinct.size).T
        table.add(distinct, np.ascontiguousarray(shaped))

    def _add_inside(
        self,
        unit: Unit,
        tables: list[NDArray[np.int64] | _Sparse],
        coded: _Coded,
        select: Callable[[NDArray[np.int64]], NDArray[np.int64]],
        block: RowBlock,
        weights: list[NDArray[np.uint8]],
    ) -> None:
        position = select(coded.code)
        kept = np.flatnonzero(position >= 0)
        if kept.size == 0 or unit.bases is None:
            return
        rows = kept if coded.rows is None else coded.rows[kept]
        inside = _Coded(block.cells[rows] * unit.bases.size + position[kept], rows)
        for feature, table in zip(unit.extensions, tables, strict=True):
            radix = int(self.lattice.radices[feature])
            code, owners = _extend(inside, block.column(feature), radix)
            _count_into(table, code, owners, weights)  # type: ignore[arg-type]

    def state(self) -> State:
        """Return the sums: the totals [layers, cells], then the arrays of each unit."""
        state: State = [[self.total]]
        for tables in self.tables:
            arrays: list[Array] = []
            for table in tables:
                if isinstance(table, _Sparse):
                    arrays += table.merge() if table.codes else ()
                else:
                    arrays.append(table)
            state.append(arrays)
        return state


class SliceCounts(NamedTuple):
    """Counts of slices.

    Attributes
    ----------
    keys : int64 [slices]
    counts : int64 [slices, 1 + replicates, cells]
    nonempty : how many slices of the unit are not empty, reported or not
    """

    keys: Keys
    counts: NDArray[np.int64]
    nonempty: int

    @staticmethod
    def none(layers: int, cells: int) -> SliceCounts:
        """Return the counts of no slice."""
        return SliceCounts(np.zeros(0, np.int64), np.zeros((0, layers, cells), np.int64), 0)


@dataclass(frozen=True)
class CountReader:
    """Reads the counts of slices out of summed tables.

    Parameters
    ----------
    lattice : the features' radices
    cells : number of outcome cells
    layers : 1 + replicates
    min_size : where no candidates are listed, only slices of this size are reported
    """

    lattice: Lattice
    cells: int
    layers: int
    min_size: int

    def slices(self, units: Sequence[Unit], state: State) -> Iterator[SliceCounts]:
        """Yield the counts of each unit's slices."""
        for unit, arrays in zip(units, state[1:], strict=True):
            if unit.candidates is None:
                yield self._every_slice(unit, arrays)
            else:
                counts = self._listed(unit, arrays, unit.candidates)
                nonempty = int(np.count_nonzero(counts[:, 0].any(axis=1)))
                yield SliceCounts(unit.candidates, counts, nonempty)

    def _every_slice(self, unit: Unit, arrays: list[Array]) -> SliceCounts:
        if unit.method == "sparse":
            if not arrays:
                return SliceCounts.none(self.layers, self.cells)
            codes = arrays[0]
            by_cell = arrays[1].T.reshape(self.layers, self.cells, -1)
        else:
            by_cell = arrays[0].reshape(self.layers, self.cells, -1)
            codes = np.arange(by_cell.shape[2])
        sizes = by_cell[0].sum(axis=0)
        matched = self.lattice.matched(unit.features, codes)
        if matched is not None:
            sizes = np.where(matched, sizes, 0)
        kept = np.flatnonzero(sizes >= self.min_size)
        counts = np.ascontiguousarray(by_cell[:, :, kept].transpose(2, 0, 1))
        keys = self.lattice.cell_keys(unit.features, codes[kept])
        return SliceCounts(keys, counts, int(np.count_nonzero(sizes)))

    def _listed(self, unit: Unit, arrays: list[Array], candidates: Keys) -> NDArray[np.int64]:
        counts = np.zeros((candidates.size, self.layers, self.cells), np.int64)
        if unit.method == "inside":
            self._read_inside(unit, arrays, candidates, counts)
        elif unit.method == "dense":
            wanted = self.lattice.key_cells(candidates, unit.features)
            by_cell = arrays[0].reshape(self.layers, self.cells, -1)
            counts[:] = by_cell[:, :, wanted].transpose(2, 0, 1)
        elif arrays:
            wanted = self.lattice.key_cells(candidates, unit.features)
            codes = arrays[0]
            at = np.minimum(np.searchsorted(codes, wanted), codes.size - 1)
            found = codes[at] == wanted
            flat = arrays[1].reshape(codes.size, self.layers, self.cells)
            counts[found] = flat[at[found]]
        return counts

    def _read_inside(
        self, unit: Unit, arrays: list[Array], candidates: Keys, counts: NDArray[np.int64]
    ) -> None:
        """Fill in the counts of candidates: each has a base and one more predicate."""
        lattice = self.lattice
        digits = lattice.digits(candidates)
        owners = lattice.feature_of[digits]
        for feature, table in zip(unit.extensions, arrays, strict=True):
            mine = np.flatnonzero((owners == feature).any(axis=1))
            if mine.size == 0 or unit.bases is None:
                continue
            base_digits = np.where(owners[mine] == feature, 0, digits[mine])
            base_at = np.searchsorted(unit.bases, lattice.keys_of_sets(base_digits))
            code = np.where(owners[mine] == feature, digits[mine], 0).sum(axis=1)
            code -= lattice.offsets[feature] + 1
            cells = base_at * int(lattice.radices[feature]) + code
            by_cell = table.reshape(self.layers, self.cells, -1)
            counts[mine] = by_cell[:, :, cells].transpose(2, 0, 1)


def _merge_sparse(mine: list[Array], other: list[Array]) -> list[Array]:
    if not mine or not other:
        return mine or other
    table = _Sparse()
    for codes, counts in (mine, other):
        table.add(codes, counts)
    return list(table.merge())


def merge_states(units: Sequence[Unit], states: Iterable[State]) -> State:
    """Return the sum of `Tables.state` over disjoint rows."""
    merged: State | None = None
    for state in states:
        if merged is None:
            merged = state
            continue
        summed: State = [[merged[0][0] + state[0][0]]]
        for unit, mine, other in zip(units, merged[1:], state[1:], strict=True):
            if unit.method == "sparse":
                summed.append(_merge_sparse(mine, other))
            else:
                summed.append([a + b for a, b in zip(mine, other, strict=True)])
        merged = summed
    return [] if merged is None else merged
