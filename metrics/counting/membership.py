"""Which rows are in listed slices, in how many groups these have rows, and which hold the same rows."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from slicebeam.metrics.arrays import IntArray
from slicebeam.metrics.counting.counting import Coded, RowBlock, extend, positions
from slicebeam.metrics.counting.lattice import Keys, Lattice
from slicebeam.metrics.randomness import splitmix64

if TYPE_CHECKING:
    from numpy.typing import NDArray

# Counting stops at this many distinct groups per slice.
ENOUGH_GROUPS = 100


@dataclass(frozen=True)
class _Node:
    """Conjunctions on one tuple of features that listed slices begin with."""

    number: int  # of the node
    feature: int  # the last feature of the tuple
    # finds the conjunction, or without children its slice, by the parent's conjunction and the
    # feature's code; -1 for none
    select: Callable[[IntArray], IntArray]
    slices: IntArray  # [conjunctions] the listed slice that ends here, or -1
    children: tuple[_Node, ...]  # nodes of one feature more


# Rows that are in slices of one feature tuple, once for each slice: the number of the tuple, below
# `Membership.numbers`, the positions of the slices in the list, and the rows of the block.
Members = tuple[int, IntArray, IntArray]


class Membership:
    """Which rows are in which of some slices: a tree of predicates, by feature tuples."""

    def __init__(self, keys: Keys, lattice: Lattice) -> None:
        self.lattice, self.numbers = lattice, 0
        digits = lattice.digits(keys)
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
            ends = (self._features[within, depth + 1 : depth + 2] < 0).all(axis=1)
            listed = np.full(wanted.size, -1)
            listed[position[ends]] = within[ends]
            number, self.numbers = self.numbers, self.numbers + 1
            children = self._nodes(within[~ends], position[~ends], wanted.size, depth + 1)
            select = positions(wanted, parents * radix, None if children else listed)
            nodes.append(_Node(number, feature, select, listed, children))
        return tuple(nodes)

    def of(self, block: RowBlock) -> Iterator[Members]:
        """Yield the members of each feature tuple's slices among the rows of a block."""
        yield from self._walk(self._roots, Coded(np.zeros(block.rows, np.int64), None), block)

    def pairs(self, block: RowBlock) -> tuple[IntArray, IntArray]:
        """Return the slices and rows [members] of all feature tuples."""
        none = np.zeros(0, np.int64)
        _, slices, rows = zip((0, none, none), *self.of(block), strict=True)
        return np.concatenate(slices), np.concatenate(rows)

    def _walk(self, nodes: tuple[_Node, ...], coded: Coded, block: RowBlock) -> Iterator[Members]:
        for node in nodes:
            radix = int(self.lattice.radices[node.feature])
            code, rows = extend(coded, block.stored(node.feature), radix)
            position = node.select(code)
            (kept,) = (position >= 0).nonzero()
            if not kept.size:
                continue
            at, rows = position[kept], kept if rows is None else rows[kept]
            if not node.children:
                yield node.number, at, rows
                continue
            slices = node.slices[at]
            (ended,) = (slices >= 0).nonzero()
            yield node.number, slices[ended], rows[ended]
            yield from self._walk(node.children, Coded(at.astype(np.int64), rows), block)


def distinct_groups(
    keys: Keys, lattice: Lattice, examples: Iterable[RowBlock]
) -> NDArray[np.uint64]:
    """Return the number of groups [slices]; `ENOUGH_GROUPS` means that or more."""
    sums, membership = np.zeros(keys.size, np.uint64), Membership(keys, lattice)
    # Slices and groups that were seen together, for each feature tuple.
    seen = [(np.zeros(0, np.int64), np.zeros(0, np.uint64))] * membership.numbers
    for block in examples:
        for number, slices, rows in membership.of(block):
            is_open = sums[slices] < ENOUGH_GROUPS
            seen_slices, seen_groups = seen[number]
            at = np.concatenate([seen_slices, slices[is_open]])
            groups = np.concatenate([seen_groups, block.ids[rows[is_open]]])
            order = np.lexsort((groups, at))
            at, groups = at[order], groups[order]
            first = (np.diff(at, prepend=-1) != 0) | (np.diff(groups, prepend=groups[:1]) != 0)
            at, groups = at[first], groups[first]
            changed, counted = np.unique(at, return_counts=True)
            sums[changed] = np.minimum(counted, ENOUGH_GROUPS)
            rest = sums[at] < ENOUGH_GROUPS
            seen[number] = at[rest], groups[rest]
    return sums


def rows_in(block: RowBlock, lattice: Lattice, key: int) -> IntArray:
    """Return the rows of a block that are in a slice, ascending."""
    return Membership(np.array([key]), lattice).pairs(block)[1]


def hash_sums(keys: Keys, lattice: Lattice, examples: Iterable[RowBlock]) -> NDArray[np.uint64]:
    """Return the sums [slices] of row hashes: slices with equal ones hold the same examples, but for 2^-64."""
    membership, sums = Membership(keys, lattice), np.zeros(keys.size, np.uint64)
    for block in examples:
        hashes = splitmix64(block.positions)
        for _, slices, rows in membership.of(block):
            np.add.at(sums, slices, hashes[rows])
    return sums
