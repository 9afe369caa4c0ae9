"""The slice lattice as integers: a slice is one number, sets of slices are sorted arrays.

Singleton predicates are numbered feature by feature. A slice is the ascending tuple of these numbers
as the digits of one int64, the first the highest, so that keys are sorted by their predicates.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain, combinations
from math import comb

import numpy as np

from slicebeam.metrics.arrays import BoolArray, IntArray
from slicebeam.metrics.chunks import blocks
from slicebeam.metrics.errors import InputError

Keys = IntArray

# Slices whose features are looked up at a time: they take ten times the memory of the keys.
_KEYS_AT_A_TIME = 1 << 18


@dataclass(frozen=True)
class Lattice:
    """The slices of up to ``max_cross_size`` predicates on different features.

    Examples
    --------
    Two features: sex with two values, and age with three bins. Their conditions are numbered 1 to 5
    (0 means "no condition"), and there are 11 slices of one or two conditions:

    >>> lattice = Lattice(sizes=(2, 3), max_cross_size=2)
    >>> lattice.singletons, lattice.space()
    (5, 11)

    A slice is one integer, its key. Here are the first sex, and the second sex in the second age bin:

    >>> keys = lattice.keys_of_sets(np.array([[1, 0], [2, 4]]))
    >>> keys
    array([ 6, 16])
    >>> lattice.digits(keys)  # the numbers of the conditions: [slices, max_cross_size]
    array([[1, 0],
           [2, 4]])
    >>> lattice.features(keys)  # which feature each condition is on; -1 for none
    array([[ 0, -1],
           [ 0,  1]])

    Dropping one condition of a slice gives its parents, here the second sex and the second age bin:

    >>> [lattice.digits(parent).tolist() for parent in lattice.parents(keys[1:])]
    [[[2, 0]], [[4, 0]]]
    """

    sizes: tuple[int, ...]  # number of singleton predicates of each feature
    max_cross_size: int  # L, the largest number of predicates of a slice
    multi: tuple[bool, ...] = ()  # whether an example may satisfy several (list columns)
    unmatched: tuple[bool, ...] = ()  # whether an example may satisfy none (domains of other data)

    def __post_init__(self) -> None:
        if self.base**self.max_cross_size >= 2**63:
            raise InputError(
                f"{self.singletons:,} singleton predicates give more than 2^63 conjunctions of up to "
                f"{self.max_cross_size}; lower --max-cross-size, --top-values or --bins"
            )

    @cached_property
    def singletons(self) -> int:
        """Number of singleton predicates."""
        return sum(self.sizes)

    @property
    def base(self) -> int:
        """Base of the digits of a key: digit 0 means no predicate."""
        return self.singletons + 1

    @cached_property
    def offsets(self) -> IntArray:
        """Number of the first singleton of each feature [features + 1]."""
        return np.concatenate([[0], np.cumsum(self.sizes)]).astype(np.int64)

    @cached_property
    def feature_of(self) -> IntArray:
        """Feature of each digit [singletons + 1]; -1 for digit 0."""
        features = np.repeat(np.arange(len(self.sizes)), self.sizes)
        return np.concatenate([[-1], features]).astype(np.int64)

    @cached_property
    def radices(self) -> IntArray:
        """Number of codes of each feature: one more than predicates where none may hold."""
        extra = self.unmatched or (False,) * len(self.sizes)
        return np.array(self.sizes, np.int64) + np.array(extra, np.int64)

    def is_multi(self, feature: int) -> bool:
        """Return whether an example may satisfy several predicates of the feature."""
        return bool(self.multi) and self.multi[feature]

    @cached_property
    def _weights(self) -> IntArray:
        return np.array([self.base**i for i in reversed(range(self.max_cross_size))], np.int64)

    def keys(self, digits: IntArray) -> Keys:
        """Return the keys [slices] of digits [slices, up to L]; a row is ascending, zeros last."""
        return np.asarray(digits @ self._weights[: digits.shape[1]])

    def digits(self, keys: Keys) -> IntArray:
        """Return the digits [slices, L] of keys: singleton number + 1, then zeros."""
        digits: IntArray = keys[:, None] // self._weights[None, :]
        digits %= self.base
        return digits

    def keys_of_sets(self, digits: IntArray) -> Keys:
        """Return the keys [slices] of digits [slices, up to L] in any order."""
        # Zeros mean no predicate and come last, so they sort as the largest digit.
        ordered = np.sort(np.where(digits == 0, self.base, digits), axis=1)
        return self.keys(np.where(ordered == self.base, 0, ordered))

    def singleton_keys(self) -> Keys:
        """Return the keys of all slices of level 1."""
        return self.keys(np.arange(1, self.base, dtype=np.int64)[:, None])

    def cross_sizes(self, keys: Keys) -> IntArray:
        """Return the number of predicates [slices] of each slice."""
        # A digit after the first l is set where the key is not a multiple of the l-th weight.
        further = (keys % weight != 0 for weight in self._weights[:-1].tolist())
        return np.asarray(sum(further, start=(keys != 0).astype(np.int64)))

    def features(self, keys: Keys) -> IntArray:
        """Return the features [slices, L] of each slice, ascending, then -1."""
        return np.asarray(self.feature_of[self.digits(keys)])

    def feature_sets(self, keys: Keys) -> tuple[IntArray, IntArray]:
        """Return the number of each slice's feature tuple, and the tuples in lexicographic order."""
        base = len(self.sizes) + 1
        powers = np.array([base**i for i in reversed(range(self.max_cross_size))], np.int64)
        packed = np.empty(keys.size, np.int64)
        for now in blocks(keys.size, _KEYS_AT_A_TIME):
            packed[now] = (self.features(keys[now]) + 1) @ powers
        distinct = np.unique(packed)
        return np.searchsorted(distinct, packed), distinct[:, None] // powers % base - 1

    def by_tuple(self, keys: Keys) -> dict[tuple[int, ...], IntArray]:
        """Return where the slices of each feature tuple stand, the tuples in lexicographic order."""
        number, sets = self.feature_sets(keys)
        order = np.argsort(number, kind="stable")
        begins = np.searchsorted(number[order], np.arange(len(sets) + 1)).tolist()
        return {
            tuple(row[row >= 0].tolist()): order[begin:end]
            for row, begin, end in zip(sets, begins[:-1], begins[1:], strict=True)
        }

    def added(self, keys: Keys, bases: Keys) -> IntArray:
        """Return the digit [slices] of the predicate that each base lacks; 0 where it lacks none."""
        added = np.empty(keys.size, np.int64)
        for now in blocks(keys.size, _KEYS_AT_A_TIME):
            added[now] = (self.digits(keys[now]) - self.digits(bases[now])).sum(axis=1)
        return added

    def subsets(self, keys: Keys, sizes: Sequence[int]) -> Iterator[Keys]:
        """Yield, for slices of one cross size, the keys of every conjunction of some predicates."""
        digits = self.digits(keys)
        cross_size = int(self.cross_sizes(keys[:1]).sum())
        for size in sizes:
            for kept in combinations(range(cross_size), size):
                yield self.keys(digits[:, list(kept)])

    def parents(self, keys: Keys) -> Iterator[Keys]:
        """Yield, for slices of one cross size, the keys with one predicate dropped."""
        cross_size = int(self.cross_sizes(keys[:1]).sum())
        if cross_size > 1:
            yield from self.subsets(keys, [cross_size - 1])

    def tuples(self, cross_size: int) -> IntArray:
        """Return all tuples [tuples, cross_size] of different features, in lexicographic order."""
        chosen = combinations(range(len(self.sizes)), cross_size)
        rows = comb(len(self.sizes), cross_size)
        flat = np.fromiter(chain.from_iterable(chosen), np.int64, rows * cross_size)
        return flat.reshape(rows, cross_size)

    def space(self) -> int:
        """Return the number of conjunctions of all levels, empty slices included."""
        # Elementary symmetric polynomials of the sizes.
        ways = [1] + [0] * self.max_cross_size
        for size in self.sizes:
            for level in range(self.max_cross_size, 0, -1):
                ways[level] += ways[level - 1] * size
        return sum(ways[1:])

    def cell_keys(self, features: Sequence[int], cells: IntArray) -> Keys:
        """Return the keys of cells of the table of a feature tuple (row-major over its radices)."""
        codes = np.unravel_index(cells, tuple(self.radices[list(features)]))
        return self.keys(np.stack(codes, axis=1) + self.offsets[list(features)] + 1)

    def key_cells(self, keys: Keys, features: Sequence[int]) -> IntArray:
        """Return the cells of slices in a feature tuple's table; other predicates are passed over."""
        digits = self.digits(keys)
        owners = self.feature_of[digits]
        cells = np.zeros(keys.size, np.int64)
        for feature in features:
            code = np.where(owners == feature, digits, 0).sum(axis=1) - self.offsets[feature] - 1
            cells = cells * self.radices[feature] + code
        return cells

    def matched(self, features: Sequence[int], cells: IntArray) -> BoolArray | None:
        """Return which cells of a tuple's table are slices; None if all of them are."""
        radices, sizes = self.radices[list(features)], np.array(self.sizes)[list(features)]
        if (radices == sizes).all():
            return None
        return np.asarray((np.stack(np.unravel_index(cells, radices), axis=1) < sizes).all(axis=1))


def contains(haystack: Keys, needles: Keys) -> BoolArray:
    """Return which needles [slices] are in the sorted haystack."""
    if haystack.size == 0:
        return np.zeros(needles.shape, bool)
    at = np.minimum(np.searchsorted(haystack, needles), haystack.size - 1)
    return np.asarray(haystack[at] == needles)
