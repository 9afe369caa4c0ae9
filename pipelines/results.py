"""From tested slices to what is reported: corrections, labels, duplicates, intervals, order."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
from scipy.special import stdtrit

from slicebeam.metrics.counting_plan import plan_listed
from slicebeam.metrics.lattice import contains
from slicebeam.metrics.multiplicity import adjusted
from slicebeam.metrics.registry import metric
from slicebeam.pipelines.iterations import parts_of
from slicebeam.transforms.hash_slices import HashSlices, read_hashes

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from slicebeam.metrics.base import CellSpace, Metric
    from slicebeam.metrics.lattice import Keys
    from slicebeam.pipelines.config import SearchConfig
    from slicebeam.pipelines.iterations import Iterations, Searched
    from slicebeam.pipelines.preparation import Prepared
    from slicebeam.pipelines.runner import Engine
    from slicebeam.pipelines.work_folder import WorkFolder

CONFIDENCE = 0.95
# Slices up to this number are all saved unless --save-slices says otherwise.
SAVE_ALL_UP_TO = 1_000_000
# A child refines its parents when it is worse than each of them by this much, at this p.
REFINE_P = 0.01
REFINE_MARGIN = 0.02

# Interval formulas take some hundred bytes a slice while they are computed.
_SLICES_AT_A_TIME = 1 << 16

NO_LABEL, NEW, REFINES, INHERITED = range(4)
LABELS = (None, "new", "refines", "inherited")


@dataclass
class MetricResult:
    """The results of one metric for all kept slices; every array is [slices].

    Attributes
    ----------
    name : of the metric
    value, reference, complement, delta, low, high : of the metric; complement is NaN for baseline
    p, q, significant, reason : of the test
    label : position in ``LABELS``
    parent : key of the best parent, 0 where there is no label
    p_refine : of the refinement test, NaN where there is none
    """

    name: str
    value: NDArray[np.float64]
    reference: NDArray[np.float64]
    complement: NDArray[np.float64]
    delta: NDArray[np.float64]
    low: NDArray[np.float64]
    high: NDArray[np.float64]
    p: NDArray[np.float64]
    q: NDArray[np.float64]
    significant: NDArray[np.bool_]
    reason: NDArray[np.int8]
    label: NDArray[np.int8]
    parent: Keys
    p_refine: NDArray[np.float64]


@dataclass
class Results:
    """All kept slices, ordered by level and predicate.

    Attributes
    ----------
    keys : int64 [slices]
    levels : int64 [slices]
    counts : int64 [slices, cells]
    metrics : of each metric
    same_as : int64 [slices] key of the shortest significant slice with the same examples; the
        slice's own key where there is no other
    saved : ``tested`` or ``significant``: which slices were kept
    """

    keys: Keys
    levels: NDArray[np.int64]
    counts: NDArray[np.int64]
    metrics: list[MetricResult]
    same_as: Keys
    saved: str

    @cached_property
    def sizes(self) -> NDArray[np.int64]:
        """Examples of each slice [slices]."""
        sizes: NDArray[np.int64] = self.counts.sum(axis=1)
        return sizes


@dataclass(frozen=True)
class _Kept:
    """Slices as they stand in the parts."""

    keys: Keys
    counts: NDArray[np.int64]
    p: NDArray[np.float64]
    reasons: NDArray[np.int8]
    errors: NDArray[np.float64]

    def take(self, positions: NDArray[Any]) -> _Kept:
        return _Kept(
            self.keys[positions],
            self.counts[positions],
            self.p[positions],
            self.reasons[positions],
            self.errors[positions],
        )


def collect(
    config: SearchConfig,
    prepared: Prepared,
    searched: Searched,
    iterations: Iterations,
    work: WorkFolder,
    engine: Engine,
) -> Results:
    """Return the results of a search."""
    total = sum(searched.tested_per_level)
    saved = config.save_slices or ("tested" if total <= SAVE_ALL_UP_TO else "significant")
    kept, q = _load(config, prepared, searched, keep_all=saved == "tested")
    significant = q <= config.used_alpha
    levels = prepared.lattice.cross_sizes(kept.keys)
    if saved == "significant":
        chosen = np.flatnonzero(significant.any(axis=1) | (levels == 1))
    else:
        chosen = np.arange(kept.keys.size)
    # By level, then by predicate: an order that nothing but the data decides.
    chosen = chosen[np.lexsort((kept.keys[chosen], levels[chosen]))]
    kept, q, significant = kept.take(chosen), q[chosen], significant[chosen]
    levels = levels[chosen]
    parents = _ParentCounts(prepared, iterations, kept, np.any(significant, axis=1))
    called = _Called(config, prepared, kept, levels, q, significant, parents)
    metrics = [_metric_result(number, called) for number in range(len(config.metric))]
    same_as = _same_examples(kept, significant[:, 0], levels, prepared, work, engine)
    return Results(kept.keys, levels, kept.counts, metrics, same_as, saved)


def _load(
    config: SearchConfig, prepared: Prepared, searched: Searched, *, keep_all: bool
) -> tuple[_Kept, NDArray[np.float64]]:
    """Return the slices that may be reported, and their q-values [slices, metrics].

    A slice whose p exceeds alpha is not significant after any correction, and does not change the
    q-value of one that is, so that of very many slices only the others are kept in memory.
    """
    lattice, cells, metrics = prepared.lattice, prepared.space.size, len(config.metric)
    pieces: list[_Kept] = []
    for batch in parts_of(searched.parts):
        columns = {name: batch.column(name).to_numpy() for name in batch.schema.names}
        counts = np.stack([columns[f"c{cell}"] for cell in range(cells)], axis=1)
        p = np.stack([columns[f"p{i}"] for i in range(metrics)], axis=1)
        piece = _Kept(
            columns["key"],
            counts,
            p,
            np.stack([columns[f"reason{i}"] for i in range(metrics)], axis=1),
            np.stack([columns[f"se{i}"] for i in range(metrics)], axis=1),
        )
        wanted = ~np.isnan(p[:, 0])
        if not keep_all and config.used_correction not in ("bh", "by"):
            first = lattice.cross_sizes(piece.keys) == 1
            wanted &= (p <= config.used_alpha).any(axis=1) | first
        pieces.append(piece.take(np.flatnonzero(wanted)))
    if not pieces:
        empty = np.zeros((0, metrics))
        none = np.zeros(0, np.int64)
        return _Kept(
            none, np.zeros((0, cells), np.int64), empty, empty.astype(np.int8), empty
        ), empty
    kept = _Kept(
        *(
            np.concatenate([getattr(piece, name) for piece in pieces])
            for name in ("keys", "counts", "p", "reasons", "errors")
        )
    )
    levels = lattice.cross_sizes(kept.keys)
    tests = searched.tests_per_level
    q = [
        adjusted(kept.p[:, i], levels, tests, config.used_correction, len(tests))
        for i in range(metrics)
    ]
    return kept, np.stack(q, axis=1)


class _ParentCounts:
    """The counts of the parents of significant slices, counted where the search did not.

    Parameters
    ----------
    prepared, iterations : of the run
    kept : the slices whose counts are known
    needed : bool [slices] whose parents are asked for
    """

    def __init__(
        self,
        prepared: Prepared,
        iterations: Iterations,
        kept: _Kept,
        needed: NDArray[np.bool_],
    ) -> None:
        self.lattice = prepared.lattice
        order = np.argsort(kept.keys)
        self.keys, self.counts = kept.keys[order], kept.counts[order]
        missing = [np.zeros(0, np.int64)]
        levels = self.lattice.cross_sizes(kept.keys)
        for level in range(2, self.lattice.max_cross_size + 1):
            children = kept.keys[needed & (levels == level)]
            parents = list(self.lattice.parents(children))
            missing += [parent[~contains(self.keys, parent)] for parent in parents]
        unknown = np.unique(np.concatenate(missing))
        if unknown.size:
            self._count(unknown, prepared, iterations)

    def _count(self, unknown: Keys, prepared: Prepared, iterations: Iterations) -> None:
        none = np.zeros(unknown.size, np.int64)
        planned = plan_listed(unknown, none, none, self.lattice, iterations.budget)
        parts, _ = iterations.count("parents", planned, counts_only=True)
        keys, counts = [self.keys], [self.counts]
        for batch in parts_of(parts):
            keys.append(batch.column("key").to_numpy())
            cells = [batch.column(f"c{cell}").to_numpy() for cell in range(prepared.space.size)]
            counts.append(np.stack(cells, axis=1))
        order = np.argsort(np.concatenate(keys))
        self.keys, self.counts = np.concatenate(keys)[order], np.concatenate(counts)[order]

    def of(self, keys: Keys) -> NDArray[np.int64]:
        """Return the counts [slices, cells] of known slices."""
        return self.counts[np.searchsorted(self.keys, keys)]


@dataclass(frozen=True)
class _Called:
    """The kept slices, and which of them are significant in each metric [slices, metrics]."""

    config: SearchConfig
    prepared: Prepared
    kept: _Kept
    levels: NDArray[np.int64]
    q: NDArray[np.float64]
    significant: NDArray[np.bool_]
    parents: _ParentCounts


def _metric_result(number: int, called: _Called) -> MetricResult:
    config, prepared, kept = called.config, called.prepared, called.kept
    own = metric(config.metric[number])
    space, totals = prepared.space, np.array(prepared.totals, np.int64)
    value = own.value(kept.counts, space)
    reference = own.reference(kept.counts, totals, space)
    delta = value - reference
    low, high = _intervals(own, kept.counts, totals, space)
    errors = kept.errors[:, number]
    drawn = ~np.isnan(errors)
    if drawn.any():
        reach = stdtrit(config.used_replicates - 1, 0.5 + CONFIDENCE / 2) * errors
        # A symmetric interval may leave what a difference of two values can be.
        widest = own.range[1] - own.range[0]
        low = np.where(drawn, np.maximum(delta - reach, -widest), low)
        high = np.where(drawn, np.minimum(delta + reach, widest), high)
    if space.comparison == "baseline":
        complement = np.full(value.shape, np.nan)
    else:
        complement = own.complement(kept.counts, totals, space)
    label, parent, p_refine = _labels(number, called, delta)
    return MetricResult(
        own.name,
        value,
        reference,
        complement,
        delta,
        low,
        high,
        kept.p[:, number],
        called.q[:, number],
        called.significant[:, number],
        kept.reasons[:, number],
        label,
        parent,
        p_refine,
    )


def _intervals(
    own: Metric, counts: NDArray[np.int64], totals: NDArray[np.int64], space: CellSpace
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return the intervals (low, high) [slices] of the deltas, some slices at a time."""
    low, high = np.empty(len(counts)), np.empty(len(counts))
    for begin in range(0, len(counts), _SLICES_AT_A_TIME):
        some = slice(begin, begin + _SLICES_AT_A_TIME)
        low[some], high[some] = own.delta_interval(counts[some], totals, space, CONFIDENCE)
    return low, high


def _labels(
    number: int, called: _Called, delta: NDArray[np.float64]
) -> tuple[NDArray[np.int8], Keys, NDArray[np.float64]]:
    """Return label, best parent and p of the refinement test [slices].

    *new*: no slice above it is significant in the same direction. *refines*: it is worse than each immediate parent, by
    the test and by a margin. *inherited*: what its parents have explains it. The best parent is
    the one that explains it best: that with the largest p.
    """
    own, lattice = metric(called.config.metric[number]), called.prepared.lattice
    space, totals = called.prepared.space, np.array(called.prepared.totals, np.int64)
    kept, levels, significant = called.kept, called.levels, called.significant[:, number]
    label = np.where(significant, NEW, NO_LABEL).astype(np.int8)
    best = np.zeros(kept.keys.size, np.int64)
    p_refine = np.full(kept.keys.size, np.nan)
    # Only a slice that deviates the same way can explain one below it.
    upward = delta > 0
    called_above = {up: np.sort(kept.keys[significant & (upward == up)]) for up in (False, True)}
    for level in range(2, lattice.max_cross_size + 1):
        mine = np.flatnonzero(significant & (levels == level))
        if mine.size == 0:
            continue
        keys, counts = kept.keys[mine], kept.counts[mine]
        harm_up = upward[mine]
        worst_p, margin = np.full(mine.size, -1.0), np.full(mine.size, np.inf)
        for parent in lattice.parents(keys):
            above = called.parents.of(parent)
            # Whichever way the slice deviates, it must deviate further than its parent.
            worse = harm_up != own.higher_is_better
            p = np.where(
                worse,
                own.p_refine(counts, above, space, worse=True),
                own.p_refine(counts, above, space, worse=False),
            )
            parent_delta = own.delta(above, totals, space)
            ahead = np.where(harm_up, 1, -1) * (delta[mine] - parent_delta)
            better = p > worst_p
            best[mine] = np.where(better, parent, best[mine])
            worst_p, margin = np.maximum(worst_p, p), np.minimum(margin, ahead)
        p_refine[mine] = worst_p
        below = np.zeros(mine.size, bool)
        for ancestor in lattice.subsets(keys, range(1, level)):
            held = np.where(
                upward[mine],
                contains(called_above[True], ancestor),
                contains(called_above[False], ancestor),
            )
            below |= held
        refines = (worst_p < REFINE_P) & (margin >= REFINE_MARGIN)
        label[mine] = np.where(~below, NEW, np.where(refines, REFINES, INHERITED))
    return label, best, p_refine


def _same_examples(
    kept: _Kept,
    significant: NDArray[np.bool_],
    levels: NDArray[np.int64],
    prepared: Prepared,
    work: WorkFolder,
    engine: Engine,
) -> Keys:
    """Return for each slice the key of the shortest significant one with the same examples.

    Only slices with equal counts can be the same, so only those are hashed.
    """
    same = kept.keys.copy()
    mine = np.flatnonzero(significant)
    if mine.size < 2:
        return same
    _, group, members = np.unique(
        kept.counts[mine], axis=0, return_inverse=True, return_counts=True
    )
    alike = mine[members[group.reshape(-1)] > 1]
    if alike.size == 0:
        return same
    keys = np.sort(kept.keys[alike])
    folder = work.folder("hashes")
    if work.done("hashed") is None:
        transform = HashSlices(keys, prepared.lattice, prepared.shards, folder)
        engine.run(lambda pipeline: pipeline | "Hash slices" >> transform)
        work.finish("hashed", {})
    known, sums = read_hashes(folder)
    sums = sums[np.searchsorted(known, kept.keys[alike])]
    order = np.lexsort((kept.keys[alike], levels[alike], sums))
    begins = np.concatenate([[True], sums[order][1:] != sums[order][:-1]])
    shortest = kept.keys[alike][order][np.flatnonzero(begins)][np.cumsum(begins) - 1]
    same[alike[order]] = shortest
    return same


def report_order(results: Results, config: SearchConfig) -> NDArray[np.int64]:
    """Return the slices to report, the worst first.

    These are the significant slices of the first metric that are *new* or *refine*, each set of
    examples once, by the confidence bound of the delta that is nearer to no difference: slices
    that are surely bad come before slices that may be very bad.
    """
    first = results.metrics[0]
    own = metric(config.metric[0])
    shown = (first.label == NEW) | (first.label == REFINES)
    shown &= results.same_as == results.keys
    chosen = np.flatnonzero(shown)
    upward = np.where(first.delta[chosen] > 0, first.low[chosen], -first.high[chosen])
    worse = (first.delta[chosen] > 0) != own.higher_is_better
    # With --alternative both the worse slices come first.
    order = np.lexsort((results.keys[chosen], results.levels[chosen], -upward, ~worse))
    return chosen[order]
