"""The search strategies: which slices to visit next, given the results so far.

Iterative is Algorithm 1 and priority Algorithm 2 of Liu, Rosen and Paul Suganthan (2022), with
sets of slices as sorted arrays of keys. Batch visits every slice and needs no strategy.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from fractions import Fraction
from typing import TYPE_CHECKING

import numpy as np
from scipy.special import ndtri

from slicebeam.metrics.counting.lattice import contains

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from slicebeam.metrics.counting.lattice import Keys, Lattice

# Children that are generated at a time.
_CHILDREN_AT_A_TIME = 1 << 18
# A p-value that is 0 as a float counts as this.
_LEAST_P = 1e-300


@dataclass
class SearchState:
    """The results for the visited slices.

    Attributes
    ----------
    keys : int64 [slices], sorted
    sizes : int64 [slices] examples; 0 for an empty slice
    p : float64 [slices] p-value of the metric that steers; NaN for a slice that is too small
    first_p : float64 [slices] the same by the first test, where replicates decide only of some
    delta : float64 [slices] difference of that metric from its reference
    significant : bool [slices]
    """

    min_size: int
    keys: Keys = field(default_factory=lambda: np.zeros(0, np.int64))
    sizes: NDArray[np.int64] = field(default_factory=lambda: np.zeros(0, np.int64))
    p: NDArray[np.float64] = field(default_factory=lambda: np.zeros(0))
    first_p: NDArray[np.float64] = field(default_factory=lambda: np.zeros(0))
    delta: NDArray[np.float64] = field(default_factory=lambda: np.zeros(0))
    significant: NDArray[np.bool_] = field(default_factory=lambda: np.zeros(0, bool))

    def add(self, keys: Keys, sizes: NDArray[np.int64]) -> None:
        """Add slices that were not known before, and are not tested yet."""
        order = np.argsort(keys)
        at = np.searchsorted(self.keys, keys[order])
        self.keys = np.insert(self.keys, at, keys[order])
        self.sizes = np.insert(self.sizes, at, sizes[order])
        self.p = np.insert(self.p, at, np.nan)
        self.first_p = np.insert(self.first_p, at, np.nan)
        self.delta = np.insert(self.delta, at, 0.0)
        self.significant = np.insert(self.significant, at, False)

    def learn(
        self,
        keys: Keys,
        p: NDArray[np.float64],
        first_p: NDArray[np.float64] | None = None,
        delta: NDArray[np.float64] | None = None,
    ) -> None:
        """Record the tests of known slices; the arrays are as in the attributes."""
        at = np.searchsorted(self.keys, keys)
        self.p[at] = p
        self.first_p[at] = p if first_p is None else first_p
        if delta is not None:
            self.delta[at] = delta

    def size_of(self, keys: Keys) -> NDArray[np.int64]:
        """Return the sizes of known slices."""
        return self.sizes[np.searchsorted(self.keys, keys)]

    def barren(self, *, prune_significant: bool) -> Keys:
        """Return the slices below which nothing is visited: small ones, and pruned ones."""
        small = self.sizes < self.min_size
        return self.keys[small | self.significant if prune_significant else small]


@dataclass(frozen=True)
class NextVisit:
    """The slices to visit next.

    Attributes
    ----------
    candidates : int64 [slices], sorted
    bases : int64 [slices] a known slice that the candidate adds one predicate to; 0 for none
    base_sizes : int64 [slices] examples of the base
    expected : estimated number of nonempty candidates
    """

    candidates: Keys
    bases: Keys
    base_sizes: NDArray[np.int64]
    expected: float


def first_proposal(lattice: Lattice) -> NextVisit:
    """Return all singletons."""
    keys = lattice.singleton_keys()
    none = np.zeros(keys.size, np.int64)
    return NextVisit(keys, none, none, float(keys.size))


class Iterative:
    """Algorithm 1: level by level; with ``prune_significant`` nothing below significant slices."""

    def __init__(self, lattice: Lattice, *, prune_significant: bool) -> None:
        self.lattice, self.prune_significant = lattice, prune_significant
        self.level = 0

    def next(self, known: SearchState) -> NextVisit | None:
        """Return the candidates of the next level, None when there are none."""
        self.level += 1
        if self.level == 1:
            return first_proposal(self.lattice)
        if self.level > self.lattice.max_cross_size:
            return None
        levels = self.lattice.cross_sizes(known.keys)
        is_open = (levels == self.level - 1) & (known.sizes >= known.min_size)
        if self.prune_significant:
            is_open &= ~known.significant
        parents = known.keys[is_open]
        barren = known.barren(prune_significant=self.prune_significant)
        width = max(1, _CHILDREN_AT_A_TIME // self.lattice.base)
        found = [
            self._children(parents[i : i + width], parents, barren)
            for i in range(0, parents.size, width)
        ]
        if not found:
            return None
        candidates = np.concatenate([keys for keys, _ in found])
        bases = np.concatenate([keys for _, keys in found])
        if candidates.size == 0:
            return None
        sizes = known.size_of(bases)
        return NextVisit(candidates, bases, sizes, float(candidates.size))

    def _children(self, some: Keys, parents: Keys, barren: Keys) -> tuple[Keys, Keys]:
        """Return candidates and the parents that they extend by a later singleton.

        A candidate with one open parent and no barren ancestor has only open parents: each was
        either visited, and then is open, or not visited because of a barren ancestor of its own
        (what is barren stays so: more slices visited only lower the q-values of others). So it is
        found from the parent without its last predicate, once.
        """
        lattice = self.lattice
        digits = lattice.digits(some)
        last = digits[:, self.level - 2]
        singles = np.arange(1, lattice.base, dtype=np.int64)
        singles = singles[~contains(barren, lattice.singleton_keys())]
        later = lattice.feature_of[singles][None, :] > lattice.feature_of[last][:, None]
        row, column = np.nonzero(later)
        grown = digits[row]
        grown[:, self.level - 1] = singles[column]
        keys = lattice.keys(grown)
        kept = np.ones(keys.size, bool)
        for parent in lattice.parents(keys):
            kept &= contains(parents, parent)
        keys, row = keys[kept], row[kept]
        # Parents are open, but a still larger slice may have become significant since.
        kept = np.ones(keys.size, bool)
        for ancestor in lattice.subsets(keys, range(1, self.level - 1)):
            kept &= ~contains(barren, ancestor)
        return keys[kept], some[row[kept]]


class Priority:
    """Algorithm 2: the children of the most promising slices, up to K that are not empty.

    With ``prune_significant`` these are the ones with the lowest p-values, as in the paper. Without
    it they are the ones whose difference their parents explain least: the children of a slice that
    is much worse all have low p-values, and would fill the queue.
    """

    def __init__(
        self,
        lattice: Lattice,
        *,
        iterations: int,
        max_candidates: int | None,
        prune_significant: bool,
    ) -> None:
        self.lattice, self.prune_significant = lattice, prune_significant
        self.iterations, self.max_candidates = iterations, max_candidates
        self.iteration = 0
        self.popped: Keys = np.zeros(0, np.int64)
        # Whether candidates were left when the iterations ended.
        self.is_stopped = False

    def next(self, known: SearchState) -> NextVisit | None:
        """Return the candidates of the next iteration, None when there are none."""
        self.iteration += 1
        if self.iteration == 1:
            return first_proposal(self.lattice)
        if self.iteration > self.iterations:
            self.max_candidates = 1
            self.is_stopped = self._proposal(known) is not None
            return None
        return self._proposal(known)

    def _proposal(self, known: SearchState) -> NextVisit | None:
        """Pop slices of the queue until their children are K; None where they have none."""
        queue = self._queue(known)
        rates = self._nonempty_rates(known)
        barren = known.barren(prune_significant=self.prune_significant)
        width = max(1, _CHILDREN_AT_A_TIME // self.lattice.base)
        step = min(64, width)
        taken: list[tuple[Keys, Keys]] = []
        chosen = np.zeros(0, np.int64)
        counts = [0] * (self.lattice.max_cross_size + 1)
        begin = 0
        while begin < queue.size and not self._full(counts, rates):
            some = queue[begin : begin + step]
            keys, owner = self._children(some, known, barren, chosen)
            levels = self.lattice.cross_sizes(keys)
            end = self._last_base(counts, rates, levels, owner, some.size)
            mine = owner < end
            for level in range(1, len(counts)):
                counts[level] += int(np.count_nonzero(levels[mine] == level))
            taken.append((keys[mine], some[owner[mine]]))
            chosen = np.sort(np.concatenate([chosen, keys[mine]]))
            self.popped = np.concatenate([self.popped, some[:end]])
            begin += end
            step = min(2 * step, width)
        self.popped = np.sort(self.popped)
        if chosen.size == 0:
            return None
        candidates = np.concatenate([keys for keys, _ in taken])
        bases = np.concatenate([keys for _, keys in taken])
        order = np.argsort(candidates)
        candidates, bases = candidates[order], bases[order]
        expected = float(self._expected(counts, rates))
        return NextVisit(candidates, bases, known.size_of(bases), expected)

    def _queue(self, known: SearchState) -> Keys:
        """Return the slices that can be extended, the most promising first, ties by predicate."""
        waiting = known.sizes >= known.min_size
        if self.prune_significant:
            waiting &= ~known.significant
        waiting &= self.lattice.cross_sizes(known.keys) < self.lattice.max_cross_size
        waiting &= ~contains(self.popped, known.keys)
        keys = known.keys[waiting]
        if self.prune_significant:
            return keys[np.lexsort((keys, known.first_p[waiting]))]
        return keys[np.lexsort((keys, -self._evidence(keys, known)))]

    def _evidence(self, keys: Keys, known: SearchState) -> NDArray[np.float64]:
        """Return the z of each slice's difference from the most similar of its known parents.

        A slice's standard error is its difference over its own z, whatever the metric and the test.
        """
        at = np.searchsorted(known.keys, keys)
        z, delta = -ndtri(np.maximum(known.first_p[at], _LEAST_P)), known.delta[at]
        left = np.ones(keys.size)
        levels = self.lattice.cross_sizes(keys)
        for level in range(2, self.lattice.max_cross_size):
            mine = np.flatnonzero((levels == level) & (z > 0) & (delta != 0))
            for parents in self.lattice.parents(keys[mine]):
                is_known = contains(known.keys, parents)
                some = mine[is_known]
                of_parent = known.delta[np.searchsorted(known.keys, parents[is_known])]
                left[some] = np.minimum(left[some], 1 - of_parent / delta[some])
        return np.where(np.isnan(left), z, z * left)

    def _nonempty_rates(self, known: SearchState) -> list[Fraction]:
        """Return the share of non-empty slices for each cross size; that of the last one seen."""
        levels = self.lattice.cross_sizes(known.keys)
        rates = [Fraction(1)]
        for level in range(1, self.lattice.max_cross_size + 1):
            seen = int(np.count_nonzero(levels == level))
            nonempty = int(np.count_nonzero((levels == level) & (known.sizes > 0)))
            rates.append(Fraction(nonempty, seen) if seen else rates[-1])
        return rates

    @staticmethod
    def _expected(counts: list[int], rates: list[Fraction]) -> Fraction:
        return sum((n * rate for n, rate in zip(counts, rates, strict=True)), Fraction(0))

    def _full(self, counts: list[int], rates: list[Fraction]) -> bool:
        return self.max_candidates is not None and (
            self._expected(counts, rates) >= self.max_candidates
        )

    def _last_base(
        self,
        counts: list[int],
        rates: list[Fraction],
        levels: NDArray[np.int64],
        owner: NDArray[np.int64],
        bases: int,
    ) -> int:
        """Return how many of the bases are popped until K is reached."""
        if self.max_candidates is None:
            return bases
        added = np.zeros((bases, len(counts)), np.int64)
        np.add.at(added, (owner, levels), 1)
        running = np.cumsum(added, axis=0) + np.array(counts)
        estimate = running @ np.array([float(rate) for rate in rates])
        # Floating sums only narrow down where the exact comparison is made.
        first = int(np.searchsorted(estimate, self.max_candidates * (1 - 1e-9)))
        for base in range(first, bases):
            if self._full(running[base].tolist(), rates):
                return base + 1
        return bases

    def _children(
        self, some: Keys, known: SearchState, barren: Keys, chosen: Keys
    ) -> tuple[Keys, NDArray[np.int64]]:
        """Return new candidates with the position of the base that reaches each first."""
        lattice = self.lattice
        digits = lattice.digits(some)
        owners = lattice.feature_of[digits]
        singles = np.arange(1, lattice.base, dtype=np.int64)
        singles = singles[~contains(barren, lattice.singleton_keys())]
        free = np.ones((some.size, singles.size), bool)
        for position in range(lattice.max_cross_size):
            free &= lattice.feature_of[singles][None, :] != owners[:, position][:, None]
        row, column = np.nonzero(free)
        grown = digits[row]
        grown[np.arange(row.size), np.count_nonzero(grown, axis=1)] = singles[column]
        keys = lattice.keys_of_sets(grown)
        # Bases are in the order of the queue: the first one that reaches a slice has it.
        keys, first = np.unique(keys, return_index=True)
        owner = row[first]
        kept = ~contains(known.keys, keys) & ~contains(chosen, keys)
        keys, owner = keys[kept], owner[kept]
        levels = lattice.cross_sizes(keys)
        kept = np.ones(keys.size, bool)
        for level in np.unique(levels).tolist():
            mine = np.flatnonzero(levels == level)
            for ancestor in lattice.subsets(keys[mine], range(1, level)):
                kept[mine] &= ~contains(barren, ancestor)
        return keys[kept], owner[kept]
