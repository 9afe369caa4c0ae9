"""Finds the rows of listed slices: a tree of predicates, of which each node sees its parent's rows."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from slicebeam.metrics.counting.counting import Coded, extend, positions

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from slicebeam.metrics.arrays import IntArray
    from slicebeam.metrics.counting.counting import RowBlock
    from slicebeam.metrics.counting.lattice import Keys, Lattice


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
    """Which rows are in which of some slices."""

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
            some, radix = slices[mine], int(self.lattice.radices[feature])
            packed = parent[mine] * radix + self._codes[some, depth]
            wanted, position = np.unique(packed, return_inverse=True)
            ends = np.ones(some.size, bool)
            if depth + 1 < self._features.shape[1]:
                ends = self._features[some, depth + 1] < 0
            listed = np.full(wanted.size, -1)
            listed[position[ends]] = some[ends]
            number = self.numbers
            self.numbers += 1
            children = self._nodes(some[~ends], position[~ends], wanted.size, depth + 1)
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
