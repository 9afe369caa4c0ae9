"""Which slices to visit next: Algorithms 1 (iterative) and 2 (priority) of Liu, Rosen and Paul Suganthan (2022).

Batch visits every slice: the default where that is cheap by `batch_cost`, which never depends on machine or engine.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from fractions import Fraction
from math import comb, log, sqrt
from typing import TYPE_CHECKING, Any

import numpy as np
from scipy.special import ndtr, ndtri

from slicebeam.metrics.counting.lattice import Keys, Lattice, contains
from slicebeam.metrics.measures.registry import metric

if TYPE_CHECKING:
    from slicebeam.metrics.arrays import BoolArray, FloatArray, IntArray
    from slicebeam.metrics.counting.statistic_space import StatisticSpace
    from slicebeam.pipelines.config.slices import RunConfig

# Children that are generated at a time.
_CHILDREN_AT_A_TIME = 1 << 18
# A p-value that is 0 as a float counts as this.
_LEAST_P = 1e-300


@dataclass
class SearchState:
    """The results for the visited slices [slices], in the order of their keys, of the metric that steers."""

    min_size: int
    keys: Keys = field(default_factory=lambda: np.zeros(0, np.int64))  # int64 [slices], sorted
    sizes: IntArray = field(default_factory=lambda: np.zeros(0, np.int64))
    # NaN for a slice that is too small.
    p: FloatArray = field(default_factory=lambda: np.zeros(0))
    # By the first test, where replicates decide only of some.
    first_p: FloatArray = field(default_factory=lambda: np.zeros(0))
    delta: FloatArray = field(default_factory=lambda: np.zeros(0))
    significant: BoolArray = field(default_factory=lambda: np.zeros(0, bool))

    def add(self, keys: Keys, sizes: IntArray) -> None:
        """Add slices that were not known before, and are not tested yet."""
        order = np.argsort(keys)
        at = np.searchsorted(self.keys, keys[order])
        added: dict[str, Any] = {
            "keys": keys[order],
            "sizes": sizes[order],
            "p": np.nan,
            "first_p": np.nan,
        }
        for name, values in {**added, "delta": 0.0, "significant": False}.items():
            setattr(self, name, np.insert(getattr(self, name), at, values))

    def learn(
        self,
        keys: Keys,
        p: FloatArray,
        first_p: FloatArray | None = None,
        delta: FloatArray | None = None,
    ) -> None:
        """Record the tests of known slices; the arrays are as in the attributes."""
        at = np.searchsorted(self.keys, keys)
        self.p[at] = p
        self.first_p[at] = p if first_p is None else first_p
        if delta is not None:
            self.delta[at] = delta

    def size_of(self, keys: Keys) -> IntArray:
        """Return the sizes of known slices."""
        return self.sizes[np.searchsorted(self.keys, keys)]

    def closed(self, *, prune_significant: bool) -> BoolArray:
        """Return below which slices nothing is visited: small ones, and pruned ones."""
        small = self.sizes < self.min_size
        return small | self.significant if prune_significant else small


@dataclass(frozen=True)
class NextVisit:
    """The slices to visit next."""

    candidates: Keys  # int64 [slices], sorted
    bases: Keys  # int64 [slices] a known slice that the candidate adds one predicate to; 0 for none
    base_sizes: IntArray  # int64 [slices] examples of the base
    expected: float  # estimated number of nonempty candidates


class Strategy:
    """Proposes slices to visit; with ``prune_significant`` none within significant slices."""

    # Whether candidates were left when the iterations ended.
    is_stopped = False

    def __init__(self, lattice: Lattice, *, prune_significant: bool) -> None:
        self.lattice, self.prune_significant = lattice, prune_significant
        self.iteration = 0
        self.width = max(1, _CHILDREN_AT_A_TIME // lattice.base)

    def next(self, known: SearchState) -> NextVisit | None:
        """Return the candidates of the next iteration, None when there are none."""
        self.iteration += 1
        if self.iteration == 1:
            keys = self.lattice.singleton_keys()
            none = np.zeros(keys.size, np.int64)
            return NextVisit(keys, none, none, float(keys.size))
        return self._later(known)

    def _later(self, known: SearchState) -> NextVisit | None:
        raise NotImplementedError

    def _open_singles(self, closed: Keys) -> Keys:
        """Return the digits of the singletons that may be added to a slice."""
        singles = np.arange(1, self.lattice.base, dtype=np.int64)
        return singles[~contains(closed, self.lattice.singleton_keys())]

    def _without_closed(self, keys: Keys, closed: Keys, levels: range) -> BoolArray:
        """Return which slices have no closed ancestor on some levels."""
        kept = np.ones(keys.size, bool)
        for ancestor in self.lattice.subsets(keys, levels):
            kept &= ~contains(closed, ancestor)
        return kept

    @staticmethod
    def _visit(
        pieces: list[tuple[Keys, Keys]], known: SearchState, expected: float | None = None
    ) -> NextVisit | None:
        """Return the visit of candidates and their bases; None if there are none."""
        candidates, bases = (np.concatenate(some) for some in zip(*pieces, strict=True))
        if candidates.size == 0:
            return None
        order = np.argsort(candidates, kind="stable")
        candidates, bases = candidates[order], bases[order]
        number = float(candidates.size) if expected is None else expected
        return NextVisit(candidates, bases, known.size_of(bases), number)


class Iterative(Strategy):
    """Algorithm 1: level by level."""

    def _later(self, known: SearchState) -> NextVisit | None:
        level = self.iteration
        if level > self.lattice.max_cross_size:
            return None
        of_level = self.lattice.cross_sizes(known.keys) == level - 1
        is_closed = known.closed(prune_significant=self.prune_significant)
        parents, closed = known.keys[~is_closed & of_level], known.keys[is_closed]
        starts = range(0, parents.size, self.width)
        pieces = [self._children(parents[i : i + self.width], parents, closed) for i in starts]
        return self._visit(pieces, known) if pieces else None

    def _children(self, some: Keys, parents: Keys, closed: Keys) -> tuple[Keys, Keys]:
        """Return candidates and the parents that they extend by a later singleton.

        With one open parent and no closed ancestor a candidate has only open parents, since what is closed
        stays so: the parent without the last predicate reaches it, once.
        """
        lattice, level = self.lattice, self.iteration
        digits, singles = lattice.digits(some), self._open_singles(closed)
        last = lattice.feature_of[digits[:, level - 2]]
        row, column = np.nonzero(lattice.feature_of[singles][None, :] > last[:, None])
        grown = digits[row]
        grown[:, level - 1] = singles[column]
        keys = lattice.keys(grown)
        kept = np.ones(keys.size, bool)
        for parent in lattice.parents(keys):
            kept &= contains(parents, parent)
        keys, row = keys[kept], row[kept]
        # Parents are open, but a still larger slice may have become significant since.
        kept = self._without_closed(keys, closed, range(1, level - 1))
        return keys[kept], some[row[kept]]


class Priority(Strategy):
    """Algorithm 2: the children of the most promising slices, up to K that are not empty."""

    def __init__(
        self,
        lattice: Lattice,
        *,
        iterations: int,
        max_candidates: int | None,
        prune_significant: bool,
    ) -> None:
        super().__init__(lattice, prune_significant=prune_significant)
        self.iterations = iterations
        self.limit = np.inf if max_candidates is None else max_candidates
        self.popped: Keys = np.zeros(0, np.int64)

    def _later(self, known: SearchState) -> NextVisit | None:
        if self.iteration > self.iterations:
            self.limit = 1
            self.is_stopped = self._proposal(known) is not None
            return None
        return self._proposal(known)

    def _proposal(self, known: SearchState) -> NextVisit | None:
        """Pop slices of the queue until their children are K; None where they have none."""
        is_closed = known.closed(prune_significant=self.prune_significant)
        queue, closed = self._queue(known, ~is_closed), known.keys[is_closed]
        # The share of non-empty slices for each cross size; that of the last one seen.
        exact, levels = [Fraction(1)], self.lattice.cross_sizes(known.keys)
        for level in range(1, self.lattice.max_cross_size + 1):
            sizes = known.sizes[levels == level]
            nonempty = Fraction(int(np.count_nonzero(sizes)), max(sizes.size, 1))
            exact.append(nonempty if sizes.size else exact[-1])
        rates = np.array(list(map(float, exact)))
        # Sums of rounded rates may miss K by a little.
        limit = self.limit * (1 - 1e-9)
        step = min(64, self.width)
        pieces = [(np.zeros(0, np.int64), np.zeros(0, np.int64))]
        chosen = np.zeros(0, np.int64)
        counts = np.zeros(len(exact), np.int64)
        begin = 0
        while begin < queue.size and counts @ rates < limit:
            some = queue[begin : begin + step]
            keys, owner = self._children(some, known, closed, chosen)
            added = np.zeros((some.size, counts.size), np.int64)
            np.add.at(added, (owner, self.lattice.cross_sizes(keys)), 1)
            running = np.cumsum(added, axis=0) + counts
            end = min(1 + int(np.searchsorted(running @ rates, limit)), some.size)
            counts = running[end - 1]
            mine = owner < end
            pieces.append((keys[mine], some[owner[mine]]))
            chosen = np.sort(np.concatenate([chosen, keys[mine]]))
            self.popped = np.concatenate([self.popped, some[:end]])
            begin += end
            step = min(2 * step, self.width)
        self.popped = np.sort(self.popped)
        expected = sum(n * rate for n, rate in zip(counts.tolist(), exact, strict=True))
        return self._visit(pieces, known, float(expected))

    def _queue(self, known: SearchState, is_open: BoolArray) -> Keys:
        """Return the slices that can be extended, the most promising first, ties by predicate."""
        waiting = is_open & ~contains(self.popped, known.keys)
        waiting &= self.lattice.cross_sizes(known.keys) < self.lattice.max_cross_size
        keys = known.keys[waiting]
        if self.prune_significant:
            # As in the paper. Else the children of a slice that is much worse would fill the queue.
            return keys[np.lexsort((keys, known.first_p[waiting]))]
        return keys[np.lexsort((keys, -self._evidence(keys, known)))]

    def _evidence(self, keys: Keys, known: SearchState) -> FloatArray:
        """Return how many standard errors (difference over z) each slice is from its most similar known parent."""
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

    def _children(
        self, some: Keys, known: SearchState, closed: Keys, chosen: Keys
    ) -> tuple[Keys, IntArray]:
        """Return new candidates with the position of the base that reaches each first."""
        lattice = self.lattice
        digits, singles = lattice.digits(some), self._open_singles(closed)
        owners = lattice.feature_of[digits]
        free = np.ones((some.size, singles.size), bool)
        for position in range(lattice.max_cross_size):
            free &= lattice.feature_of[singles][None, :] != owners[:, position][:, None]
        row, column = np.nonzero(free)
        grown = digits[row]
        grown[np.arange(row.size), np.count_nonzero(grown, axis=1)] = singles[column]
        # Bases are in the order of the queue: the first one that reaches a slice has it.
        keys, first = np.unique(lattice.keys_of_sets(grown), return_index=True)
        kept = ~contains(known.keys, keys) & ~contains(chosen, keys)
        keys, owner = keys[kept], row[first[kept]]
        levels = lattice.cross_sizes(keys)
        kept = np.ones(keys.size, bool)
        for level in np.unique(levels).tolist():
            mine = np.flatnonzero(levels == level)
            kept[mine] = self._without_closed(keys[mine], closed, range(1, level))
        return keys[kept], owner[kept]


# The longest batch, in CPU seconds of one core, and the most bytes that its results may take.
MOST_SECONDS = 60.0
MOST_BYTES = 1 << 30
# Seconds, measured on one core. Adding an example to a feature tuple's share of a joint table, and making
# and reading one sum of a cell.
_TUPLE_ROW, _CELL_SUM = 1.3e-9, 1.9e-8
# Testing a slice for a metric of counts or means, and for one of ranks, whose sums are long.
_TEST_SLICE, _TEST_RANKED_SLICE = 5e-7, 9e-5
# How much the logarithm of a predicate's share varies.
_SPREAD = 0.4
# A result's numbers are copied while they are joined and sorted.
_COPIES = 3
# Of a part: besides its sums, a slice's key, and p-value, reasons and error for each metric.
_KEY_BYTES, _METRIC_BYTES = 8, 18


@dataclass(frozen=True)
class BatchCost:
    """What a batch costs."""

    seconds: float  # of one core, to count and test
    tested: int  # slices that are large enough
    bytes: int  # of the results that are held together

    @property
    def fits(self) -> bool:
        """Whether it is short and small enough to be the default."""
        return self.seconds <= MOST_SECONDS and self.bytes <= MOST_BYTES


def conjunctions_per_level(lattice: Lattice) -> list[int]:
    """Return how many conjunctions each level has."""
    counts: list[int] = []
    for level in range(1, lattice.max_cross_size + 1):
        counts.append(Lattice(lattice.sizes, level).space() - sum(counts))
    return counts


def test_seconds(config: RunConfig) -> float:
    """Return what testing a slice for all metrics takes."""
    ranked = sum(metric(name).needs.ranked for name in config.metric)
    return ranked * _TEST_RANKED_SLICE + (len(config.metric) - ranked) * _TEST_SLICE


def batch_cost(config: RunConfig, lattice: Lattice, space: StatisticSpace, rows: int) -> BatchCost:
    """Return what counting and testing every conjunction costs."""
    layers = 1 + (config.used_replicates if config.is_paper and config.resamples_examples else 0)
    seconds, tested = 0.0, 0.0
    for level, cells in enumerate(conjunctions_per_level(lattice), start=1):
        tuples = comb(len(lattice.sizes), level)
        seconds += tuples * rows * space.passes * layers * _TUPLE_ROW
        seconds += cells * space.raw_columns * layers * _CELL_SUM
        # Sizes of slices vary about their mean like products of as many shares.
        times = rows * tuples / (cells * config.used_min_slice_size) if cells else 0
        tested += cells * float(ndtr(log(times) / (_SPREAD * sqrt(level)))) if times else 0
    # These corrections need every p-value; the others only those up to alpha.
    kept = 1.0 if config.used_correction in ("bh", "by") else config.used_alpha
    size = _KEY_BYTES + 8 * space.columns + _METRIC_BYTES * len(config.metric)
    return BatchCost(
        seconds + tested * test_seconds(config),
        round(tested),
        round(tested * kept * size * _COPIES),
    )
