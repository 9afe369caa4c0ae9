"""Finds the rows of listed slices, and counts their groups or sums hashes of them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from slicebeam.metrics.arrays import BoolArray, IntArray, NDArray
from slicebeam.metrics.counting.counting import (
    Coded,
    Margins,
    Prefixes,
    RowBlock,
    Unit,
    extend,
    positions,
    table_cells,
)
from slicebeam.metrics.counting.counting_plan import Budget, blocks, whole_tuples
from slicebeam.metrics.counting.lattice import Keys, Lattice
from slicebeam.metrics.randomness import splitmix64

# Counting stops at this many distinct groups per slice.
ENOUGH_GROUPS = 100
# Seconds, as those of tables, of looking a slice up: for all rows, since they come in blocks, and for
# those of its rarest predicate.
_BLOCK_ROW = 0.25e-9
_MEMBER_ROW = 8e-9

# Bytes of the tables of a block.
_BLOCK_BYTES = 1 << 25
# Feature tuples whose slices are looked up in one pass.
_TUPLES_AT_A_TIME = 512


@dataclass(frozen=True)
class _Node:
    """Conjunctions on one tuple of features that listed slices begin with."""

    number: int  # of the node
    feature: int  # the last feature of the tuple
    # finds the conjunction, -1 for none, by the parent's conjunction and the feature's code
    select: Callable[[IntArray], IntArray]
    slices: IntArray  # [conjunctions] the listed slice that ends here, or -1
    children: tuple[_Node, ...]  # nodes of one feature more


class Members(NamedTuple):
    """Rows that are in slices of one feature tuple; a row stands once for each slice it is in."""

    number: int  # of the tuple, below `Membership.numbers`
    slices: IntArray  # [members] position of the slice in the list
    rows: IntArray  # [members] row of the block


class Membership:
    """Which rows are in which of some slices: a tree of predicates, by feature tuples, the rarest one first."""

    def __init__(
        self, keys: Keys, lattice: Lattice, singleton_sizes: IntArray | None = None
    ) -> None:
        self.lattice, self.numbers = lattice, 0
        digits = lattice.digits(keys)
        if singleton_sizes is not None:
            sizes = np.where(digits > 0, singleton_sizes[digits], np.iinfo(np.int64).max)
            rarest_first = np.lexsort((digits, sizes), axis=1)
            digits = np.take_along_axis(digits, rarest_first, axis=1)
        self._features = lattice.feature_of[digits]
        self._codes = digits - 1 - lattice.offsets[self._features]
        every = np.arange(keys.size)
        self._roots = self._nodes(every, np.zeros(keys.size, np.int64), 1, 0)

    def _nodes(
        self, slices: IntArray, parent: IntArray, parents: int, depth: int
    ) -> tuple[_Node, ...]:
        """Return the nodes of slices that continue from their parents' conjunctions."""
        nodes = []
        features = self._features[slices, depth] if slices.size else slices
        for feature in np.unique(features).tolist():
            mine = features == feature
            within, radix = slices[mine], int(self.lattice.radices[feature])
            packed = parent[mine] * radix + self._codes[within, depth]
            wanted, position = np.unique(packed, return_inverse=True)
            ends = np.ones(within.size, bool)
            if depth + 1 < self._features.shape[1]:
                ends = self._features[within, depth + 1] < 0
            listed = np.full(wanted.size, -1)
            listed[position[ends]] = within[ends]
            number = self.numbers
            self.numbers += 1
            children = self._nodes(within[~ends], position[~ends], wanted.size, depth + 1)
            select = positions(wanted, parents * radix)
            nodes.append(_Node(number, feature, select, listed, children))
        return tuple(nodes)

    def of(self, block: RowBlock) -> Iterator[Members]:
        """Yield the members of each feature tuple's slices among the rows of a block."""
        yield from self._walk(self._roots, Coded(np.zeros(block.rows, np.int64), None), block)

    def _walk(self, nodes: tuple[_Node, ...], coded: Coded, block: RowBlock) -> Iterator[Members]:
        for node in nodes:
            radix = int(self.lattice.radices[node.feature])
            code, rows = extend(coded, block.column(node.feature), radix)
            position = node.select(code)
            kept = np.flatnonzero(position >= 0)
            at = position[kept].astype(np.int64)
            rows = kept if rows is None else rows[kept]
            slices = node.slices[at]
            ended = np.flatnonzero(slices >= 0)
            if ended.size:
                yield Members(node.number, slices[ended], rows[ended])
            if node.children:
                yield from self._walk(node.children, Coded(at, rows), block)


class DistinctGroups:
    """The number of groups of each slice, over row blocks; `ENOUGH_GROUPS` means that or more."""

    def __init__(
        self, keys: Keys, lattice: Lattice, singleton_sizes: IntArray | None = None
    ) -> None:
        self.keys = keys
        self.sums = np.zeros(keys.size, np.uint64)
        self._membership = Membership(keys, lattice, singleton_sizes)
        # Slices and groups that were seen together, for each feature tuple.
        self._seen = [(np.zeros(0, np.int64), np.zeros(0, np.uint64))] * self._membership.numbers

    def add(self, block: RowBlock) -> None:
        """Add the groups of a block's rows to the slices that hold them."""
        for number, slices, rows in self._membership.of(block):
            is_open = self.sums[slices] < ENOUGH_GROUPS
            seen_slices, seen_groups = self._seen[number]
            at = np.concatenate([seen_slices, slices[is_open]])
            groups = np.concatenate([seen_groups, block.ids[rows[is_open]]])
            order = np.lexsort((groups, at))
            at, groups = at[order], groups[order]
            first = (np.diff(at, prepend=-1) != 0) | (np.diff(groups, prepend=groups[:1]) != 0)
            at, groups = at[first], groups[first]
            changed, counted = np.unique(at, return_counts=True)
            self.sums[changed] = np.minimum(counted, ENOUGH_GROUPS)
            rest = self.sums[at] < ENOUGH_GROUPS
            self._seen[number] = at[rest], groups[rest]


class HashBlock(NamedTuple):
    """Slices that are hashed together."""

    keys: Keys  # [slices]
    # units of joint tables; the rows of slices that are in none of them are looked up
    tables: tuple[Unit, ...]
    seconds: float  # estimated work


def plan_hashes(
    keys: Keys, lattice: Lattice, rows: int, singleton_sizes: IntArray
) -> list[HashBlock]:
    """Return all slices in blocks that fit the memory: many of few tuples in tables, few looked up."""
    places = lattice.by_tuple(keys)
    digits = lattice.digits(keys)
    rarest = np.where(digits > 0, singleton_sizes[digits], rows).min(axis=1)
    alone = {
        features: mine.size * rows * _BLOCK_ROW + float(rarest[mine].sum()) * _MEMBER_ROW
        for features, mine in places.items()
    }
    budget = Budget(rows, 1, 1, 1, _BLOCK_BYTES, block_seconds=np.inf)
    worth_it = [
        planned
        for planned in whole_tuples(dict.fromkeys(places), lattice, budget)
        if planned.unit.method == "dense"
        and planned.seconds < sum(alone[features] for features in planned.unit.reported)
    ]

    def keys_of(tuples: Iterable[tuple[int, ...]]) -> Keys:
        # What is left of the places in the end is looked up.
        return np.concatenate([keys[places.pop(features)] for features in tuples])

    hashed = []
    for together in blocks(worth_it, budget):
        units = tuple(planned.unit for planned in together)
        mine = keys_of(features for unit in units for features in unit.reported)
        hashed.append(HashBlock(mine, units, sum(planned.seconds for planned in together)))
    others = list(places)
    for begin in range(0, len(others), _TUPLES_AT_A_TIME):
        now = others[begin : begin + _TUPLES_AT_A_TIME]
        block = HashBlock(keys_of(now), (), sum(alone[features] for features in now))
        if begin == 0 and hashed:
            # Looked up while the rows are read for tables anyway.
            last = hashed.pop()
            mine = np.concatenate([last.keys, block.keys])
            block = HashBlock(mine, last.tables, last.seconds + block.seconds)
        hashed.append(block)
    return hashed


class RowHashSums:
    """The sum modulo 2^64 of the row hashes of each slice: equal ones hold the same examples but for 2^-64."""

    def __init__(
        self,
        keys: Keys,
        lattice: Lattice,
        singleton_sizes: IntArray | None = None,
        tables: Sequence[Unit] = (),
    ) -> None:
        self.keys, self._lattice, self._tables = keys, lattice, tables
        self._summed = [np.zeros(table_cells(t.features, lattice), np.int64) for t in tables]
        self._places = lattice.by_tuple(keys)
        tabled = {features for table in tables for features in table.reported}
        others = [mine for features, mine in self._places.items() if features not in tabled]
        self._looked_up = np.concatenate([np.zeros(0, np.int64), *others])
        self._membership = Membership(keys[self._looked_up], lattice, singleton_sizes)
        self._sums = np.zeros(keys.size, np.int64)

    def add(self, block: RowBlock) -> None:
        """Add the hashes of a block's rows to the slices that hold them."""
        # Signed sums wrap around as unsigned ones do.
        hashes = splitmix64(block.positions).view(np.int64)
        prefixes = Prefixes(block, self._lattice.radices, np.zeros(block.rows, np.int64))
        for table, summed in zip(self._tables, self._summed, strict=True):
            code, rows = prefixes.coded(table.features)
            np.add.at(summed, code, hashes if rows is None else hashes[rows])
        for _, slices, rows in self._membership.of(block):
            np.add.at(self._sums, self._looked_up[slices], hashes[rows])

    @property
    def sums(self) -> NDArray[np.uint64]:
        """The sums [slices], in the order of the keys."""
        sums = self._sums.copy()
        for table, summed in zip(self._tables, self._summed, strict=True):
            margins = Margins(table.features, summed, self._lattice, (1, 1))
            for features in table.reported:
                mine = self._places[features]
                cells = self._lattice.key_cells(self.keys[mine], features)
                sums[mine] = margins.of(features)[0, 0, cells]
        return sums.view(np.uint64)


# Cells of the tables of all tuples; of more, a tree of predicates is walked.
_MOST_CELLS = 1 << 24
# Pairs of a row and a tuple that are looked up together: they stay in the cache.
_PAIRS_AT_A_TIME = 1 << 16


class _Group(NamedTuple):
    """Feature tuples that differ in their last feature only."""

    first: tuple[int, ...]  # the features before the last
    last: IntArray  # [tuples] features
    # [tuples, 1] where a value of 0 of each last feature lies in a row of the table
    begins: NDArray[np.int32]
    # [cells of the first features · width] candidates, −1 where there is none
    table: NDArray[np.int32]
    width: int  # values of all last features


class CandidateLookup:
    """Which of some slices each row of a block is in."""

    def __init__(self, keys: Keys, lattice: Lattice) -> None:
        tuples = lattice.by_tuple(keys)
        cells = {features: table_cells(features, lattice) for features in tuples}
        self._features = sorted({feature for features in tuples for feature in features})
        is_plain = not any(map(lattice.is_multi, self._features))
        self._tree = None
        if not is_plain or sum(cells.values()) > _MOST_CELLS:
            self._tree = Membership(keys, lattice)
            return
        groups: dict[tuple[int, ...], list[int]] = {}
        for *first, last in sorted(tuples):
            groups.setdefault(tuple(first), []).append(last)
        self._groups = []
        for prefix, lasts in groups.items():
            radices = lattice.radices[lasts]
            begins = np.cumsum(radices) - radices
            width = int(radices.sum())
            table = np.full((table_cells(prefix, lattice), width), -1, np.int32)
            for last, begin, radix in zip(lasts, begins.tolist(), radices.tolist(), strict=True):
                places = tuples[(*prefix, last)]
                cell = lattice.key_cells(keys[places], (*prefix, last))
                table[cell // radix, begin + cell % radix] = places
            at = begins.astype(np.int32)[:, None]
            group = _Group(prefix, np.array(lasts, np.int64), at, table.ravel(), width)
            self._groups.append(group)
        self._radices = lattice.radices.astype(np.int32)

    def some_pairs(self, block: RowBlock) -> Iterator[tuple[NDArray[np.int32], NDArray[np.int32]]]:
        """Yield rows and the candidates that they are in, int32 [pairs] each, bit by bit."""
        if block.rows == 0:
            return
        if self._tree is not None:
            for _, slices, members in self._tree.of(block):
                yield members.astype(np.int32), slices.astype(np.int32)
            return
        codes = np.zeros((max(self._features) + 1, block.rows), np.int32)
        for feature in self._features:
            codes[feature] = block.stored(feature)
        for group in self._groups:
            step = max(1, _PAIRS_AT_A_TIME // group.last.size)
            for begin in range(0, block.rows, step):
                now = codes[:, begin : begin + step]
                candidates = self._candidates(group, now)
                held = np.flatnonzero(candidates >= 0)
                rows = (held % now.shape[1]).astype(np.int32)
                rows += np.int32(begin)
                yield rows, candidates[held]

    def _candidates(self, group: _Group, codes: NDArray[np.int32]) -> NDArray[np.int32]:
        """Return the candidate of each tuple and row [tuples · rows], −1 where there is none."""
        cell = codes[group.last]
        cell += group.begins
        if group.first:
            of_first = codes[group.first[0]].copy()
            for feature in group.first[1:]:
                of_first *= self._radices[feature]
                of_first += codes[feature]
            of_first *= np.int32(group.width)
            cell += of_first
        return np.asarray(group.table.take(cell.ravel(), mode="clip"))


def rows_in(block: RowBlock, lattice: Lattice, key: int) -> IntArray:
    """Return the rows of a block that are in a slice, ascending."""
    digits = lattice.digits(np.array([key], np.int64))[0]
    digits = digits[digits > 0]
    features = lattice.feature_of[digits].tolist()
    if any(lattice.is_multi(feature) for feature in features):
        members = Membership(np.array([key], np.int64), lattice).of(block)
        return np.sort(np.concatenate([np.zeros(0, np.int64), *(held.rows for held in members)]))
    codes = (digits - 1 - lattice.offsets[features]).tolist()
    held: BoolArray = block.stored(features[0]) == codes[0]
    for feature, code in zip(features[1:], codes[1:], strict=True):
        held &= block.stored(feature) == code
    return np.flatnonzero(held)
