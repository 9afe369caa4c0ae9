"""From tested slices to reported ones: corrections, labels, duplicates, intervals, order."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from scipy.special import stdtrit

from slicebeam.metrics.registry import metric
from slicebeam.metrics.significance.outcome_codes import METHODS, REASONS, Reason
from slicebeam.pipelines.changelist.parts import Estimate
from slicebeam.pipelines.prepare.exact_auc import put_whole
from slicebeam.pipelines.search.duplicates import same_examples
from slicebeam.pipelines.search.refinement_labels import NO_LABEL, ParentSums, labels, says_more
from slicebeam.pipelines.search.second_tests import q_values
from slicebeam.pipelines.search.slice_counter import parts_of
from slicebeam.transforms.count.tables import part_column

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    from slicebeam.metrics.counting.lattice import Keys
    from slicebeam.metrics.counting.statistic_space import StatisticSpace
    from slicebeam.metrics.metric import Metric, Slices
    from slicebeam.pipelines.config.slices import RunConfig
    from slicebeam.pipelines.prepare.encoded_dataset import EncodedDataset
    from slicebeam.pipelines.run.engine import Engine
    from slicebeam.pipelines.run.work_folder import WorkFolder
    from slicebeam.pipelines.search.iteration_records import SearchResult
    from slicebeam.pipelines.search.iterations import Iterations

CONFIDENCE = 0.95
# Slices up to this number are all saved unless --save-slices says otherwise.
SAVE_ALL_UP_TO = 1_000_000

# Interval formulas take some hundred bytes a slice while they are computed.
_SLICES_AT_A_TIME = 1 << 16


@dataclass
class MetricResult:
    """The results of one metric for all kept slices; every array is [slices].

    ``value``, ``reference``, ``complement``, ``delta``, ``low``, ``high``: of the metric; low and
    high are the ends of the interval of the delta; complement is NaN for baseline. ``value_low``,
    ``value_high``: interval of the value; NaN where stretch is. ``value_error``: how far the value,
    and for baseline the reference, may be off; 0 where both are exact. ``stretch``: how much wider
    intervals of values are than independent examples would make them; NaN where examples go
    together and the slice was not resampled.
    """

    name: str
    value: NDArray[np.float64]
    reference: NDArray[np.float64]
    complement: NDArray[np.float64]
    delta: NDArray[np.float64]
    low: NDArray[np.float64]
    high: NDArray[np.float64]
    value_low: NDArray[np.float64]
    value_high: NDArray[np.float64]
    stretch: NDArray[np.float64]
    p: NDArray[np.float64]
    q: NDArray[np.float64]
    significant: NDArray[np.bool_]
    reason: NDArray[np.int8]
    method: NDArray[np.int8]
    label: NDArray[np.int8]  # position in ``LABELS``
    parent: Keys  # key of the best parent, 0 without a label
    p_refine: NDArray[np.float64]  # of the refinement test, NaN if there is none
    value_error: NDArray[np.float64]
    complement_error: NDArray[np.float64]  # how far the complement may be off; NaN for baseline

    @property
    def gain(self) -> NDArray[np.float64]:
        """How much better than its reference the metric is [slices]; NaN where that is undefined."""
        return self.delta if metric(self.name).higher_is_better else -self.delta

    @property
    def worse(self) -> NDArray[np.bool_]:
        """On which slices [slices] the metric is worse than its reference."""
        return self.gain < 0


@dataclass(frozen=True)
class Tally:
    """How often each reason and method occurs among the tested slices, kept or not.

    ``reasons``: int64 [metrics, reasons] slices by their position in ``REASONS``; 0 for tested
    ones. ``methods``: int64 [metrics, methods] slices by their position in ``METHODS``; 0 for
    untested ones.
    """

    reasons: NDArray[np.int64]
    methods: NDArray[np.int64]

    @classmethod
    def of(cls, reason: NDArray[np.int8], method: NDArray[np.int8]) -> Tally:
        """Count the reasons and methods [slices, metrics] of some slices."""
        return cls(_counts(reason, len(REASONS)), _counts(method, len(METHODS)))

    def __add__(self, other: Tally) -> Tally:
        return Tally(self.reasons + other.reasons, self.methods + other.methods)


def _counts(codes: NDArray[np.int8], kinds: int) -> NDArray[np.int64]:
    columns = [np.bincount(column, minlength=kinds) for column in codes.T]
    return np.array(columns, np.int64).reshape(codes.shape[1], kinds)


@dataclass
class Results:
    """All kept slices, ordered by level and predicate.

    ``same_as``: int64 [slices] key of the shortest slice with the same examples that says more than
    those above it, in as many metrics as any; the slice's own key where there is no other.
    """

    keys: Keys  # int64 [slices]
    levels: NDArray[np.int64]  # int64 [slices]
    sums: NDArray[np.int64]  # int64 [slices, columns]
    space: StatisticSpace
    metrics: list[MetricResult]
    same_as: Keys
    saved: str  # ``tested`` or ``significant``: which slices were kept
    tally: Tally

    @cached_property
    def sizes(self) -> NDArray[np.int64]:
        """Examples of each slice [slices]."""
        return self.space.sizes(self.sums)

    @cached_property
    def significant(self) -> NDArray[np.bool_]:
        """Which slices are significant in any metric [slices]."""
        return np.any([one.significant for one in self.metrics], axis=0)

    @cached_property
    def says_more(self) -> NDArray[np.bool_]:
        """Which slices say more than those above them in any metric [slices]."""
        return np.any([says_more(one.label) for one in self.metrics], axis=0)


@dataclass(frozen=True)
class _Kept:
    """Slices as in the parts."""

    keys: Keys
    sums: NDArray[np.int64]
    p: NDArray[np.float64]
    reason: NDArray[np.int8]
    method: NDArray[np.int8]
    se: NDArray[np.float64]

    def take(self, positions: NDArray[Any]) -> _Kept:
        return _Kept(*(getattr(self, field.name)[positions] for field in fields(self)))


def finite(value: float) -> float | None:
    """Return a number; None for NaN and infinities, which JSON lacks."""
    return float(value) if math.isfinite(value) else None


def estimate(value: float, low: float, high: float) -> Estimate:
    """Return a value with its interval, which a formula may give where there is no value."""
    if math.isnan(value):
        low = high = math.nan
    return Estimate(value=finite(value), lo=finite(low), hi=finite(high), confidence=CONFIDENCE)


def direction_of(own: Metric, delta: float) -> Literal["improved", "degraded", "none"]:
    """Return the direction of a difference in a metric; none where it is 0 or undefined."""
    if not delta or math.isnan(delta):
        return "none"
    return "improved" if (delta > 0) == own.higher_is_better else "degraded"


def collect(
    config: RunConfig,
    prepared: EncodedDataset,
    searched: SearchResult,
    iterations: Iterations,
    work: WorkFolder,
    engine: Engine,
) -> Results:
    """Return the results of a search."""
    total = sum(searched.tested_per_level)
    saved = getattr(config, "save_slices", None) or (
        "tested" if total <= SAVE_ALL_UP_TO else "significant"
    )
    kept, q, tally = _load(config, prepared, searched, keep_all=saved == "tested")
    put_whole(kept.sums, prepared.of_all, prepared.space)
    significant = q <= config.used_alpha
    levels = prepared.lattice.cross_sizes(kept.keys)
    if saved == "significant":
        chosen = np.flatnonzero(significant.any(axis=1) | (levels == 1))
    else:
        chosen = np.arange(kept.keys.size)
    # By level, then by predicate: an order that only the data decides.
    chosen = chosen[np.lexsort((kept.keys[chosen], levels[chosen]))]
    kept, q, significant = kept.take(chosen), q[chosen], significant[chosen]
    levels = levels[chosen]
    parents = ParentSums(prepared, iterations, kept.keys, kept.sums, np.any(significant, axis=1))
    parents.make_exact(kept.keys, kept.sums, significant, iterations)
    called = SignificanceCalls(config, prepared, kept, levels, q, significant, parents)
    metrics = [_metric_result(number, called) for number in range(len(config.metric))]
    shown_in = np.sum([says_more(one.label) for one in metrics], axis=0)
    same_as = same_examples(
        kept.keys, kept.sums, np.any(significant, axis=1), shown_in, levels, prepared, work, engine
    )
    return Results(kept.keys, levels, kept.sums, prepared.space, metrics, same_as, saved, tally)


def collect_given(
    config: RunConfig, prepared: EncodedDataset, searched: SearchResult, iterations: Iterations
) -> Results:
    """Return the results of given slices: all of them, tested or not.

    A slice that is too small to be tested, or has no example, has p = 1 and a reason. Slices are not
    held against each other: there are no labels, and none counts as another's duplicate.
    """
    kept, q, _ = _load(config, prepared, searched, keep_all=True, keep_small=True)
    kept, q = _with_empty(kept, q, prepared.lattice.singleton_keys())
    put_whole(kept.sums, prepared.of_all, prepared.space)
    tally = Tally.of(kept.reason, kept.method)
    significant = q <= config.used_alpha
    parents = ParentSums(prepared, iterations, kept.keys, kept.sums, np.zeros(kept.keys.size, bool))
    levels = np.ones(kept.keys.size, np.int64)
    called = SignificanceCalls(config, prepared, kept, levels, q, significant, parents)
    metrics = [_metric_result(number, called) for number in range(len(config.metric))]
    for measured in metrics:
        measured.label[:] = NO_LABEL
        measured.parent[:] = 0
        # Some metrics have a value by convention where there is no example.
        empty = measured.reason == Reason.NO_EXAMPLES
        # Outside a slice without examples there are all examples.
        if prepared.space.comparison == "overall":
            measured.complement[empty] = measured.reference[empty]
        for values in (
            *(measured.value, measured.value_low, measured.value_high),
            *(measured.delta, measured.low, measured.high),
        ):
            values[empty] = np.nan
    predicates = prepared.given.membership.predicates if prepared.given is not None else ()
    sizes = np.array([len(conditions) for conditions in predicates], np.int64)
    own = kept.keys.copy()
    return Results(kept.keys, sizes, kept.sums, prepared.space, metrics, own, "tested", tally)


def _with_empty(
    kept: _Kept, q: NDArray[np.float64], keys: Keys
) -> tuple[_Kept, NDArray[np.float64]]:
    """Return all slices by key: those without an example are in no part."""
    at = np.searchsorted(keys, kept.keys)
    metrics = q.shape[1]

    def filled(values: NDArray[Any], empty: float) -> NDArray[Any]:
        whole = np.full((keys.size, *values.shape[1:]), empty, values.dtype)
        whole[at] = values
        return whole

    small = np.isnan(kept.p)
    reason = np.where(small, Reason.SMALL_SLICE, kept.reason).astype(np.int8)
    whole = _Kept(
        keys,
        filled(kept.sums, 0),
        filled(np.where(small, 1.0, kept.p), 1.0),
        filled(reason, Reason.NO_EXAMPLES),
        filled(kept.method, 0),
        filled(kept.se, np.nan),
    )
    return whole, filled(np.where(small, 1.0, q), 1.0).reshape(-1, metrics)


def _load(
    config: RunConfig,
    prepared: EncodedDataset,
    searched: SearchResult,
    *,
    keep_all: bool,
    keep_small: bool = False,
) -> tuple[_Kept, NDArray[np.float64], Tally]:
    """Return the slices that may be reported, their q-values [slices, metrics], and the tally.

    Slices too small to be tested are kept where `keep_small` is set, with p and q NaN.

    A slice whose p exceeds alpha is not significant after any correction, and does not change the
    q-value of one that is, so that of very many slices only the others are kept in memory.
    """
    lattice, columns, metrics = prepared.lattice, prepared.space.columns, len(config.metric)
    correction = config.used_correction
    pieces: list[_Kept] = []
    nothing = np.zeros((0, metrics), np.int8)
    tally = Tally.of(nothing, nothing)
    for batch in parts_of(searched.parts):
        each = {
            name: np.stack([part_column(batch, name, i) for i in range(metrics)], axis=1)
            for name in ("p", "reason", "method", "se")
        }
        sums = np.stack([batch.column(f"c{i}").to_numpy() for i in range(columns)], axis=1)
        piece = _Kept(batch.column("key").to_numpy(), sums, **each)
        is_large = ~np.isnan(piece.p[:, 0])
        tally += Tally.of(piece.reason[is_large], piece.method[is_large])
        wanted = is_large | keep_small
        if not keep_all and correction not in ("bh", "by"):
            first = lattice.cross_sizes(piece.keys) == 1
            wanted &= (piece.p <= config.used_alpha).any(axis=1) | first
        pieces.append(piece.take(np.flatnonzero(wanted)))
    if not pieces:
        empty = np.zeros((0, metrics))
        sums = np.zeros((0, columns), np.int64)
        kept = _Kept(np.zeros(0, np.int64), sums, empty, nothing, nothing, empty)
        return kept, empty, tally
    kept = _Kept(
        *(np.concatenate([getattr(piece, one.name) for piece in pieces]) for one in fields(_Kept))
    )
    levels = lattice.cross_sizes(kept.keys)
    q = np.full(kept.p.shape, np.nan)
    for i in range(metrics):
        tested = ~np.isnan(kept.p[:, i])
        q[tested, i] = q_values(config, kept.p[tested, i], levels[tested], searched.tests_per_level)
    return kept, q, tally


@dataclass(frozen=True)
class SignificanceCalls:
    """The kept slices, and which of them are significant in each metric [slices, metrics]."""

    config: RunConfig
    prepared: EncodedDataset
    kept: _Kept
    levels: NDArray[np.int64]
    q: NDArray[np.float64]
    significant: NDArray[np.bool_]
    parents: ParentSums


def _metric_result(number: int, called: SignificanceCalls) -> MetricResult:
    config, prepared, kept = called.config, called.prepared, called.kept
    own = metric(config.metric[number])
    slices = prepared.slices(kept.sums)
    value, reference, delta = own.value(slices), own.reference(slices), own.delta(slices)
    low, high = _pieces(slices, lambda some, _: own.delta_interval(some, CONFIDENCE))
    errors = kept.se[:, number]
    drawn = ~np.isnan(errors)
    stretch = np.ones(value.shape)
    if config.group:
        # Formulas take examples for independent; the replicates of groups say how far they are not.
        width = np.where(high > low, high - low, np.inf)
        reach = stdtrit(config.used_replicates - 1, 0.5 + CONFIDENCE / 2) * errors
        stretch = np.where(drawn, np.maximum(1.0, 2.0 * reach / width), np.nan)
        low, high = (np.where(drawn, end, np.nan) for end in (low, high))
    if drawn.any():
        reach = stdtrit(config.used_replicates - 1, 0.5 + CONFIDENCE / 2) * errors
        # A symmetric interval may leave what a difference of two values can be.
        widest = own.range[1] - own.range[0]
        ends = np.maximum(delta - reach, -widest), np.minimum(delta + reach, widest)
        if own.needs.ranked:
            # Replicates of few examples of a class vary too little; the formula allows for that.
            ends = np.minimum(ends[0], low), np.maximum(ends[1], high)
        low, high = (np.where(drawn, end, old) for end, old in zip(ends, (low, high), strict=True))
    complement = np.full(value.shape, np.nan) if slices.is_paired else own.complement(slices)
    # A formula may give an interval where the metric has no value.
    low, high = (np.where(np.isnan(delta), np.nan, end) for end in (low, high))
    significant = called.significant[:, number]
    label, parent, p_refine = labels(
        own, kept.keys, kept.sums, significant, delta, called.parents, prepared
    )
    return MetricResult(
        own.name,
        value,
        reference,
        complement,
        delta,
        low,
        high,
        *stretched_interval(own, slices, stretch),
        stretch,
        kept.p[:, number],
        called.q[:, number],
        called.significant[:, number],
        kept.reason[:, number],
        kept.method[:, number],
        label,
        parent,
        p_refine,
        *_errors(own, slices),
    )


def _errors(own: Metric, slices: Slices) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return how far value and reference, and the complement, may be off [slices]."""
    error = own.value_error(slices)
    if slices.is_paired:
        error = np.maximum(error, own.value_error(slices.old))
        return error, np.full(error.shape, np.nan)
    return error, own.complement_error(slices)


def _pieces(
    slices: Slices,
    interval: Callable[[Slices, slice], tuple[NDArray[np.float64], NDArray[np.float64]]],
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return intervals (low, high) [slices], some slices at a time."""
    low, high = np.empty(len(slices)), np.empty(len(slices))
    for begin in range(0, len(slices), _SLICES_AT_A_TIME):
        some = slice(begin, begin + _SLICES_AT_A_TIME)
        low[some], high[some] = interval(slices.rows(some), some)
    return low, high


def stretched_interval(
    own: Metric, slices: Slices, stretch: NDArray[np.float64]
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return the intervals (low, high) [slices] of the values."""

    def stretched(part: Slices, some: slice) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        value = own.value(part)
        low, high = (
            value + stretch[some] * (end - value) for end in own.value_interval(part, CONFIDENCE)
        )
        return low, high

    low, high = _pieces(slices, stretched)
    return np.maximum(low, own.range[0]), np.minimum(high, own.range[1])
