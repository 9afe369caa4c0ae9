"""From tested slices to reported ones: corrections, labels, duplicates, intervals, names and order."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from scipy.special import stdtrit

from slicebeam.metrics.measures.metric import Metric, Slices
from slicebeam.metrics.measures.registry import metric, metric_on
from slicebeam.metrics.randomness import splitmix64
from slicebeam.metrics.significance.outcome_codes import METHODS, REASONS, Reason
from slicebeam.pipelines.changelist.parts import CONFIDENCE
from slicebeam.pipelines.prepare.exact_auc import put_whole
from slicebeam.pipelines.search.counter import SliceTable, tables_of
from slicebeam.pipelines.search.refinement_labels import (
    NO_LABEL,
    labels,
    parent_sums,
    same_examples,
    says_more,
)
from slicebeam.pipelines.search.significance import q_values

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from slicebeam.metrics.arrays import BoolArray, FloatArray, IntArray, NDArray, Pair
    from slicebeam.metrics.counting.lattice import Keys
    from slicebeam.pipelines.changelist.slices import Finding, FindingModel
    from slicebeam.pipelines.config.slices import RunConfig
    from slicebeam.pipelines.prepare.encoded_dataset import EncodedDataset
    from slicebeam.pipelines.search.iterations import SearchResult
    from slicebeam.transforms.encode.predicates import Singleton


# Slices up to this number are all saved unless --save-slices says otherwise.
SAVE_ALL_UP_TO = 1_000_000

# Interval formulas take some hundred bytes a slice while they are computed.
_SLICES_AT_A_TIME = 1 << 16


@dataclass
class MetricResult:
    """The results of one metric for all kept slices; every array is [slices], most are columns of slices.parquet."""

    name: str
    value: FloatArray
    reference: FloatArray
    complement: FloatArray  # NaN for baseline
    delta: FloatArray
    ci_low: FloatArray
    ci_high: FloatArray
    value_low: FloatArray
    value_high: FloatArray
    # How much wider intervals of values are than those of independent examples; NaN, as these, where
    # examples go together and the slice was not resampled.
    stretch: FloatArray
    p_value: FloatArray
    q_value: FloatArray
    significant: BoolArray
    reason: NDArray[np.int8]
    method: NDArray[np.int8]
    label: NDArray[np.int8]  # position in ``LABELS``
    parent: Keys  # key of the best parent, 0 without a label
    p_refine: FloatArray  # of the refinement test, NaN if there is none
    value_error: FloatArray  # how far the value, and for baseline the reference, may be off
    complement_error: FloatArray  # how far the complement may be off; NaN for baseline

    @property
    def gain(self) -> FloatArray:
        """How much better than its reference the metric is [slices]; NaN where that is undefined."""
        return self.delta if metric(self.name).higher_is_better else -self.delta

    @property
    def worse(self) -> BoolArray:
        """On which slices [slices] the metric is worse than its reference."""
        return self.gain < 0


class SliceNames:
    """The identity, the text and the predicate of slices; given slices without a predicate have their document's id."""

    def __init__(self, prepared: EncodedDataset) -> None:
        self.lattice, given = prepared.lattice, prepared.given
        # What the digits of a key stand for: singletons, or the conditions of given slices.
        conditions: Sequence[Sequence[Singleton]]
        if given is None:
            conditions = [
                (singleton,) for domain in prepared.domains for singleton in domain.singletons
            ]
            texts: Sequence[str] = [str(one) for (one,) in conditions]
            ids: list[str | None] = [None] * len(texts)
        else:
            conditions, texts = given.membership.predicates, given.texts
            ids = [slice_.slice_id for slice_ in given.wanted.slices]
        # Of a conjunction the sum of its conditions' identities is hashed.
        hashes = [sum(one.identity() for one in some) % 2**64 for some in conditions]
        json = [", ".join(one.json_text() for one in some) for some in conditions]
        self._hashes = np.array([0, *hashes], np.uint64)
        self._texts = pa.array([None, *texts], pa.string())
        self._json = pa.array([None, *json], pa.string())
        self._ids = None if given is None else pa.array([None, *ids], pa.string())

    def ids(self, keys: Keys) -> pa.Array:
        """Return the ids [slices]: 16 hexadecimal digits from the singletons, in any order; null for key 0, no slice."""
        digits = self._numbers(keys).astype(">u8").tobytes().hex().encode("ascii")
        texts = np.frombuffer(digits, dtype="S16").astype(str)
        ids = pa.array(texts, pa.string(), mask=keys == 0)
        return ids if self._ids is None else pc.coalesce(self._ids.take(pa.array(keys)), ids)

    def has_id(self, keys: Keys, slice_id: str) -> BoolArray:
        """Return which slices [slices] have an id, given as its 16 hexadecimal digits."""
        found: BoolArray = self._numbers(keys) == np.uint64(int(slice_id, 16))
        return found

    def _numbers(self, keys: Keys) -> NDArray[np.uint64]:
        sums = self._hashes[self.lattice.digits(keys)].sum(axis=1, dtype=np.uint64)
        return splitmix64(sums)

    def texts(self, keys: Keys) -> pa.Array:
        """Return the predicates [slices] as a reader would say them."""
        return self._joined(keys, self._texts, " & ")

    def predicates(self, keys: Keys) -> pa.Array:
        """Return the predicates [slices] as JSON texts; null where none describes the slice."""
        joined = self._joined(keys, self._json, ", ")
        texts = pc.binary_join_element_wise('{"all": [', joined, "]}", "")
        if self._ids is None:
            return texts
        has_id = self._ids.take(pa.array(keys)).is_valid()
        return pc.if_else(has_id, pa.scalar(None, pa.string()), texts)

    def _joined(self, keys: Keys, texts: pa.Array, separator: str) -> pa.Array:
        digits = self.lattice.digits(keys)
        columns = [texts.take(pa.array(digits[:, i])) for i in range(digits.shape[1])]
        return pc.binary_join_element_wise(*columns, separator, null_handling="skip")


@dataclass
class Results:
    """The results of a run: all kept slices, ordered by level and predicate, and what they came from."""

    config: RunConfig
    prepared: EncodedDataset
    searched: SearchResult
    names: SliceNames
    keys: Keys  # int64 [slices]
    levels: IntArray  # int64 [slices]
    sums: IntArray  # int64 [slices, columns]
    metrics: list[MetricResult]
    same_as: Keys  # int64 [slices] the slice to show that has the same examples; else itself
    saved: Literal["tested", "significant"]  # which slices were kept
    # int64 [metrics, codes] numbers of slices, kept or not, by `REASONS` and `METHODS`, 0 for none.
    reasons: IntArray
    methods: IntArray

    @cached_property
    def sizes(self) -> IntArray:
        """Examples of each slice [slices]."""
        return self.prepared.space.sizes(self.sums)

    @cached_property
    def significant(self) -> BoolArray:
        """Which slices are significant in any metric [slices]."""
        return np.any([one.significant for one in self.metrics], axis=0)

    @cached_property
    def says_more(self) -> BoolArray:
        """Which slices say more than those above them in any metric [slices]."""
        return np.any([says_more(one.label) for one in self.metrics], axis=0)


@dataclass(frozen=True)
class FindingList:
    """The findings of one metric in one direction, which its model names."""

    positions: IntArray  # int64 [findings] of their slices among the results, by rank
    findings: tuple[Finding, ...]
    model: FindingModel


def direction_of(own: Metric, delta: float) -> Literal["improved", "degraded", "none"]:
    """Return the direction of a difference in a metric; none where it is 0 or undefined."""
    if not delta or math.isnan(delta):
        return "none"
    return "improved" if (delta > 0) == own.higher_is_better else "degraded"


def collect(searched: SearchResult, names: SliceNames) -> Results:
    """Return the results of a search, or of all given slices, which are not held against each other."""
    counter = searched.second_tests.counter
    config, prepared = counter.config, counter.prepared
    lattice, given = prepared.lattice, prepared.given
    total = sum(searched.tested_per_level)
    saved: Any = "tested" if given is not None else getattr(config, "save_slices", None)
    saved = saved or ("tested" if total <= SAVE_ALL_UP_TO else "significant")
    kept, codes = _load(config, prepared, searched, keep_all=saved == "tested")
    if given is not None:
        # Slices without an example are in no part.
        keys, small = lattice.singleton_keys(), np.isnan(kept["p"])
        columns = {name: np.where(small, 1.0, kept[name]) for name in ("p", "q")}
        columns["reason"] = np.where(small, Reason.SMALL_SLICE, kept["reason"]).astype(np.int8)
        of_empty = {"p": 1.0, "q": 1.0, "reason": Reason.NO_EXAMPLES, "se": np.nan}
        for name, values in {**kept.columns, **columns}.items():
            columns[name] = np.full(
                (keys.size, *values.shape[1:]), of_empty.get(name, 0), values.dtype
            )
            columns[name][np.searchsorted(keys, kept.keys)] = values
        kept = SliceTable(keys, columns)
        codes = _codes(kept["reason"], REASONS), _codes(kept["method"], METHODS)
    put_whole(kept["sums"], prepared.of_all, prepared.space)
    levels = lattice.cross_sizes(kept.keys)
    if saved == "significant":
        chosen = np.flatnonzero((kept["q"] <= config.used_alpha).any(axis=1) | (levels == 1))
    else:
        chosen = np.arange(kept.keys.size)
    # By level, then by predicate: an order that only the data decides.
    chosen = chosen[np.lexsort((kept.keys[chosen], levels[chosen]))]
    kept, levels = kept.take(chosen), levels[chosen]
    keys, sums, significant = kept.keys, kept["sums"], kept["q"] <= config.used_alpha
    parents = parent_sums(searched.second_tests, kept, significant)
    metrics = [
        _metric_result(config, prepared, number, kept, parents)
        for number in range(len(config.metric))
    ]
    if given is not None:
        for measured in metrics:
            measured.label[:] = NO_LABEL
            measured.parent[:] = 0
            empty = measured.reason == Reason.NO_EXAMPLES
            # Outside a slice without examples there are all examples.
            if prepared.space.comparison == "overall":
                measured.complement[empty] = measured.reference[empty]
            # Some metrics have a value by convention where there is no example.
            for name in ("value", "value_low", "value_high", "delta", "ci_low", "ci_high"):
                getattr(measured, name)[empty] = np.nan
        levels = np.array(list(map(len, given.membership.predicates)), np.int64)
        same_as = keys.copy()
    else:
        shown_in = np.sum([says_more(one.label) for one in metrics], axis=0)
        same_as = same_examples(kept, np.asarray(significant.any(axis=1)), shown_in, counter)
    return Results(
        config, prepared, searched, names, keys, levels, sums, metrics, same_as, saved, *codes
    )


def _load(
    config: RunConfig, prepared: EncodedDataset, searched: SearchResult, *, keep_all: bool
) -> tuple[SliceTable, tuple[IntArray, IntArray]]:
    """Return the slices that may be reported, and `Results.reasons` and `Results.methods`.

    Columns: ``sums`` [slices, columns], ``p``, ``q``, ``reason``, ``method`` and ``se`` [slices, metrics].
    """
    lattice, metrics = prepared.lattice, range(len(config.metric))
    no_codes = np.zeros((0, len(metrics)), np.int8)
    kinds = {"p": np.float64, "reason": np.int8, "method": np.int8, "se": np.float64}
    columns: dict[str, NDArray[Any]] = {name: no_codes.astype(kind) for name, kind in kinds.items()}
    columns["sums"] = np.zeros((0, prepared.space.columns), np.int64)
    pieces = [SliceTable(np.zeros(0, np.int64), columns)]
    reasons, methods = _codes(no_codes, REASONS), _codes(no_codes, METHODS)
    for table in tables_of(searched.parts):
        columns = {name: table.stacked(name, metrics) for name in kinds}
        columns |= table.counts(prepared.space).columns
        is_large = ~np.isnan(columns["p"][:, 0])
        reasons = reasons + _codes(columns["reason"][is_large], REASONS)
        methods = methods + _codes(columns["method"][is_large], METHODS)
        # Those to check are kept if they are too small, with p and q NaN.
        wanted = is_large | (prepared.given is not None)
        if not keep_all and config.used_correction not in ("bh", "by"):
            # With a larger p they are not significant, and change no other q-value.
            first = lattice.cross_sizes(table.keys) == 1
            wanted &= (columns["p"] <= config.used_alpha).any(axis=1) | first
        pieces.append(SliceTable(table.keys, columns).take(np.flatnonzero(wanted)))
    kept = SliceTable.joined(pieces)
    levels, q = lattice.cross_sizes(kept.keys), np.full(kept["p"].shape, np.nan)
    for i in metrics:
        p = kept["p"][:, i]
        tested = ~np.isnan(p)
        q[tested, i] = q_values(config, p[tested], levels[tested], searched.tests_per_level)
    return SliceTable(kept.keys, {**kept.columns, "q": q}), (reasons, methods)


def _codes(codes: NDArray[np.int8], meanings: tuple[str, ...]) -> IntArray:
    """Count codes [slices, metrics] by metric and meaning."""
    counts = [np.bincount(column, minlength=len(meanings)) for column in codes.T]
    return np.array(counts, np.int64)


def _metric_result(
    config: RunConfig, prepared: EncodedDataset, number: int, kept: SliceTable, parents: SliceTable
) -> MetricResult:
    own = metric_on(config.metric[number], prepared.space)
    slices = prepared.slices(kept["sums"])
    value, delta = own.value(slices), own.delta(slices)
    low, high = _pieces(slices, lambda part: own.delta_interval(part, CONFIDENCE))
    errors = kept["se"][:, number]
    drawn = ~np.isnan(errors)
    stretch = np.ones(value.shape)
    reach = stdtrit(config.used_replicates - 1, 0.5 + CONFIDENCE / 2) * errors
    if config.group:
        # Formulas take examples for independent; the replicates of groups say how far they are not.
        width = np.where(high > low, high - low, np.inf)
        stretch = np.where(drawn, np.maximum(1.0, 2.0 * reach / width), np.nan)
        low, high = (np.where(drawn, end, np.nan) for end in (low, high))
    if drawn.any():
        # A symmetric interval may leave what a difference of two values can be.
        widest = own.range[1] - own.range[0]
        ends = np.maximum(delta - reach, -widest), np.minimum(delta + reach, widest)
        if own.needs.ranked:
            # Replicates of few examples of a class vary too little; the formula allows for that.
            ends = np.minimum(ends[0], low), np.maximum(ends[1], high)
        low, high = (np.where(drawn, end, old) for end, old in zip(ends, (low, high), strict=True))
    # A formula may give an interval where the metric has no value.
    low, high = (np.where(np.isnan(delta), np.nan, end) for end in (low, high))
    value_low, value_high = stretched_interval(own, slices, stretch)
    value_error = own.value_error(slices)
    complement = complement_error = np.full(value.shape, np.nan)
    if slices.is_paired:
        value_error = np.maximum(value_error, own.value_error(slices.old))
    else:
        complement, complement_error = own.complement(slices), own.complement_error(slices)
    q = kept["q"][:, number]
    significant = q <= config.used_alpha
    label, parent, p_refine = labels(own, kept, significant, delta, parents, prepared)
    return MetricResult(
        name=own.name,
        value=value,
        value_low=value_low,
        value_high=value_high,
        value_error=value_error,
        reference=own.reference(slices),
        complement=complement,
        complement_error=complement_error,
        delta=delta,
        ci_low=low,
        ci_high=high,
        stretch=stretch,
        p_value=kept["p"][:, number],
        q_value=q,
        significant=significant,
        reason=kept["reason"][:, number],
        method=kept["method"][:, number],
        label=label,
        parent=parent,
        p_refine=p_refine,
    )


def _pieces(slices: Slices, interval: Callable[[Slices], Pair]) -> Pair:
    """Return intervals (low, high) [slices], some slices at a time."""
    low, high = np.empty(len(slices)), np.empty(len(slices))
    for begin in range(0, len(slices), _SLICES_AT_A_TIME):
        some = slice(begin, begin + _SLICES_AT_A_TIME)
        low[some], high[some] = interval(slices.rows(some))
    return low, high


def stretched_interval(own: Metric, slices: Slices, stretch: FloatArray) -> Pair:
    """Return the intervals (low, high) [slices] of the values."""
    value = own.value(slices)
    ends = _pieces(slices, lambda part: own.value_interval(part, CONFIDENCE))
    low, high = (value + stretch * (end - value) for end in ends)
    return np.maximum(low, own.range[0]), np.minimum(high, own.range[1])


# The document lists this many slices at most; all of them are in slices.parquet.
MOST_REPORTED = 1000


@dataclass(frozen=True)
class Reported:
    """The slices that a run reports, as positions in its `Results`, the worst of each metric first."""

    positions: (
        IntArray  # each slice once: those of the first metric, then those only of the second, …
    )
    by_metric: tuple[IntArray, ...]

    def listed(self, needed: IntArray, most: int = MOST_REPORTED) -> IntArray:
        """Return at most ``most`` positions in their order, as many of each metric as of any; those needed are among them."""
        others = np.setdiff1d(needed, self.positions)
        every = np.concatenate([self.positions, others])
        if every.size <= most:
            return every
        last = max(int(one.max(initial=0)) for one in (every, *self.by_metric))
        best = np.full(last + 1, every.size)
        for order in self.by_metric:
            best[order] = np.minimum(best[order], np.arange(order.size))
        best[needed] = -1
        return every[np.sort(np.argsort(best[every], kind="stable")[:most])]


def joined(orders: Sequence[IntArray]) -> Reported:
    """Return the reported slices from the order of each metric."""
    every = np.concatenate(orders)
    _, first = np.unique(every, return_index=True)
    return Reported(every[np.sort(first)], tuple(orders))


def said_by(results: Results, measured: MetricResult) -> IntArray:
    """Return the positions of the slices that say more in a metric, each set of examples once."""
    return np.flatnonzero(says_more(measured.label) & (results.same_as == results.keys))


def worst_first(results: Results, measured: MetricResult) -> IntArray:
    """Return the slices to report, each set of examples once: those first that are surely worst, by the nearer interval end."""
    chosen = said_by(results, measured)
    delta = measured.delta[chosen]
    upward = np.where(delta > 0, measured.ci_low[chosen], -measured.ci_high[chosen])
    # With --alternative both the worse slices come first.
    order = np.lexsort(
        (results.keys[chosen], results.levels[chosen], -upward, ~measured.worse[chosen])
    )
    return chosen[order]


def given_order(results: Results) -> Reported:
    """Return all given slices: significant ones first, by the nearer interval end, the worse before the better."""
    orders, significant = [], []
    for measured in results.metrics:
        worse = measured.worse
        nearer = np.where(measured.delta > 0, measured.ci_low, -measured.ci_high)
        harm = np.where(np.isnan(nearer), -np.inf, np.where(worse, 1, -1) * nearer)
        # Nothing says of a slice without a delta that it is worse, whichever way is better.
        last = np.isnan(measured.delta)
        order = np.lexsort((results.keys, -harm, ~worse, last, ~measured.significant))
        orders.append(order)
        significant.append(order[measured.significant[order]])
    return Reported(joined([*significant, orders[0]]).positions, tuple(orders))
