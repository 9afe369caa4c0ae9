"""Findings expressed in their metric, and how much of the variance between examples slices explain.

The choice itself works on means of targets.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, NamedTuple

import numpy as np
from scipy.special import ndtri

from slicebeam.metrics.discovery.change import Coverage, of_slices
from slicebeam.metrics.findings import corrected
from slicebeam.metrics.findings.choice import SHOWN_FINDINGS, largest_intersections
from slicebeam.metrics.measures.metric import Slices
from slicebeam.metrics.measures.registry import metric
from slicebeam.metrics.measures.target_sums import membership
from slicebeam.metrics.significance.intervals import normal_quantile
from slicebeam.pipelines.changelist import slices as document
from slicebeam.pipelines.changelist.parts import CONFIDENCE, Confusion, SliceCoverage, finite
from slicebeam.pipelines.prepare.encoded_dataset import pass_over_shards
from slicebeam.transforms.count.finding_passes import CountListed, of_classes, without_buckets
from slicebeam.transforms.storage.storage import storage_path

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from slicebeam.metrics.arrays import IntArray
    from slicebeam.metrics.counting.lattice import Keys
    from slicebeam.metrics.counting.statistic_space import StatisticSpace
    from slicebeam.metrics.findings.choice import ChosenSlice, ConfirmedSlice
    from slicebeam.metrics.measures.metric import Metric, Target
    from slicebeam.metrics.measures.target_sums import TargetSums
    from slicebeam.pipelines.config.slices import RunConfig
    from slicebeam.pipelines.prepare.encoded_dataset import EncodedDataset
    from slicebeam.pipelines.run.engine import Engine
    from slicebeam.pipelines.run.work_folder import WorkFolder
    from slicebeam.pipelines.search.results import MetricResult
    from slicebeam.transforms.encode.shards import Scaling

# Numbers of examples, their targets, and the targets' squares.
_MOMENTS = ((1, 0), (1, 1), (2, 2))

Direction = Literal["worse", "better"]


@dataclass(frozen=True)
class FindingList:
    """The findings of one metric in one direction, which its model names."""

    positions: NDArray[np.int64]  # int64 [findings] of their slices among the results, by rank
    findings: tuple[document.Finding, ...]
    model: document.FindingModel


@dataclass(frozen=True)
class FindingTerms:
    """The targets that a metric averages over examples, and findings expressed in that metric."""

    measured: MetricResult
    target: Target
    direction: Direction
    space: StatisticSpace
    everything: NDArray[np.int64]  # int64 [raw columns] sums of all examples
    is_grouped: bool  # whether examples depend on each other, so that formulas do not hold

    @property
    def _own(self) -> Metric:
        return metric(self.measured.name)

    @property
    def upward(self) -> bool:
        """Whether the direction is that of large targets."""
        return self.target.upward == (self.direction == "worse")

    @property
    def is_change(self) -> bool:
        """Whether targets are changes between two models."""
        return self.space.comparison == "baseline"

    @property
    def are_counts(self) -> bool:
        """Whether targets are changes of −1, 0 and 1, without weights."""
        return self.is_change and not self._own.needs.values and not self.space.weighted

    @property
    def no_change(self) -> float | None:
        """The mean target of examples on which two models do not differ; None of one model."""
        if not self.is_change:
            return None
        at_zero, at_one = self._own.of_target(np.array([0.0, 1.0]), self.space).tolist()
        return -at_zero / (at_one - at_zero)

    def target_sums(self, sums: NDArray[np.int64]) -> NDArray[np.float64]:
        """Return the sums of targets from sums [sets, raw columns]."""
        return self._own.target_sums(Slices(sums, self.space))

    def finding(
        self, rank: int, one: ChosenSlice, position: int, slice_id: str, n: int
    ) -> document.Finding:
        """Return a finding as the document holds it."""
        value, expected, outside = self._own.of_target(
            np.array([one.value, one.expected, one.outside]), self.space
        ).tolist()
        difference = self._difference(one, value, expected)
        measured = self.measured
        ends = (measured.value_low, measured.value_high)
        if self.is_change:
            ends = (measured.ci_low, measured.ci_high)
        of_value = float(ends[0][position]), float(ends[1][position])
        low, high = self._interval(one, of_value, value, expected)
        return document.Finding(
            metric=self.measured.name,
            direction=self.direction,
            rank=rank,
            slice_id=slice_id,
            n=n,
            value=value,
            expected=expected,
            corrected=self._corrected(one, difference, (low, high), expected),
            difference=difference,
            interval=(finite(low), finite(high)),
            p_value=one.p_value,
            held_share=self._held_share(one.cumulative_size, one.cumulative_total),
            rate_outside=finite(outside),
        )

    def _corrected(
        self, one: ChosenSlice, difference: float, ends: tuple[float, float], expected: float
    ) -> document.CorrectedDifference:
        """Return the difference without what the selection adds, within the metric's range or what was observed."""
        z, c = -float(ndtri(one.p_value)), one.selected_above
        # In the unit of the metric.
        unit = abs(difference / (one.value - one.expected))
        found = corrected.difference(difference, ends, z, c, unit * one.null_error)
        low, high = self._own.range
        if self.is_change:
            low, high = low - high, high - low
        limits = min(low - expected, ends[0]), max(high - expected, ends[1])
        middle, *interval = np.clip(found, *limits).tolist()
        return document.CorrectedDifference(
            difference=middle, low=finite(interval[0]), high=finite(interval[1])
        )

    def _difference(
        self, one: ChosenSlice | ConfirmedSlice, value: float, expected: float
    ) -> float:
        """Return how far the metric is from what is expected; of means without the shift, which takes digits."""
        if self.target.layout.kind == "rate":
            return value - expected
        return one.value - one.expected

    def intersections(
        self, masks: NDArray[np.int64], sums: NDArray[np.float64]
    ) -> tuple[document.Intersection, ...]:
        """Return the largest sets of examples that are in the same findings."""
        layout = self.target.layout
        size = layout.moment(sums, 1, 0)
        sets = largest_intersections(masks, size, layout.moment(sums, 1, 1))
        values = self._own.of_target(sets.total / sets.size, self.space)
        return tuple(
            document.Intersection(
                findings=tuple(
                    rank for rank in range(1, SHOWN_FINDINGS + 1) if mask >> rank - 1 & 1
                ),
                share=share,
                value=finite(value),
            )
            for mask, share, value in zip(
                sets.masks.tolist(), (sets.size / size.sum()).tolist(), values.tolist(), strict=True
            )
        )

    def coverage(
        self, masks: NDArray[np.int64], sums: NDArray[np.float64], findings: int
    ) -> Coverage | None:
        """Return how much of the targets' variance the findings explain; None with weights."""
        layout = self.target.layout
        if layout.weighted:
            return None
        inside = membership(masks, findings).astype(np.float64)
        both = inside.T @ (layout.moment(sums, 1, 0)[:, None] * inside)
        return explained_variance(layout, both, inside.T @ sums, sums.sum(axis=0))

    def confirmed(
        self, one: ConfirmedSlice | None, slices: Slices, n: int
    ) -> document.ConfirmedDifference:
        """Return a finding, alone in ``slices``, as measured on n reserved examples; empty where they are too few."""
        if one is None:
            return document.ConfirmedDifference(examples=n)
        own, space = self._own, self.space
        value, expected = own.of_target(np.array([one.value, one.expected]), space).tolist()
        ends = (np.full(1, np.nan),) * 2
        if not self.is_grouped:
            interval = own.delta_interval if slices.is_paired else own.value_interval
            ends = interval(slices, CONFIDENCE)
        low, high = self._interval(one, (float(ends[0][0]), float(ends[1][0])), value, expected)
        difference = self._difference(one, value, expected)
        return document.ConfirmedDifference(
            examples=n,
            value=value,
            difference=difference,
            low=finite(low),
            high=finite(high),
            p_value=one.p_value,
        )

    def _interval(
        self,
        one: ChosenSlice | ConfirmedSlice,
        of_value: tuple[float, float],
        value: float,
        expected: float,
    ) -> tuple[float, float]:
        """Return the interval of the difference of value and expectation, from that of the value."""
        covariance = one.covariance
        z = float(normal_quantile(CONFIDENCE))
        if any(map(math.isnan, of_value)):
            of_value = self._around(one.value, z * math.sqrt(covariance.value))
        of_expected = self._around(one.expected, z * math.sqrt(covariance.expected))
        return covariance.interval_of_difference(value, of_value, expected, of_expected)

    def _around(self, mean: float, off: float) -> tuple[float, float]:
        """Return the metric of mean targets to both sides of one, the smaller first."""
        ends = np.array([mean - off, mean + off])
        if self.target.layout.kind == "rate":
            ends = np.clip(ends, 0.0, 1.0)
        low, high = sorted(self._own.of_target(ends, self.space).tolist())
        return low, high

    def _held_share(self, size: float, total: float) -> float | None:
        """Return the share of all targets that the findings hold, in their own unit."""
        if not self.target.is_share:
            return None
        layout = self.target.layout
        of_all = self.target_sums(self.everything[None])[0]
        if layout.kind == "rate":
            return finite(total / layout.moment(of_all, 1, 1).item())
        # Means are summed about a shift.
        shift = float(self._own.of_target(np.zeros(1), self.space)[0])
        whole = layout.moment(of_all, 1, 1).item() + shift * layout.moment(of_all, 1, 0).item()
        return finite((total + shift * size) / whole) if whole > 0 else None


def explained_variance(
    layout: TargetSums,
    both: NDArray[np.float64] | NDArray[np.int64],
    sums: NDArray[np.float64],
    of_all: NDArray[np.float64],
) -> Coverage:
    """Return how much of the targets' variance slices explain together."""
    n, total, squares = (float(layout.moment(of_all, *powers)) for powers in _MOMENTS)
    totals = layout.moment(sums, 1, 1)
    return of_slices(both, totals, int(n), total, squares - total**2 / n)


# Slices, the first ones of the document: the cost of a pass grows with their square.
MOST_COVERING = 200
# CPU time of an example and a slice, measured with as many slices.
_SECONDS_PER_MEMBERSHIP = 4e-9


class ListedCounts(NamedTuple):
    """What is counted of the slices that a document lists, in one pass."""

    coverage: tuple[SliceCoverage, ...] = ()
    confusions: tuple[
        Confusion, ...
    ] = ()  # of each slice; of none where there are no predicted classes


def count_listed(
    config: RunConfig,
    prepared: EncodedDataset,
    keys: Keys,
    work: WorkFolder,
    engine: Engine,
    sums: IntArray | None = None,
) -> ListedCounts:
    """Return how much the first slices explain, for each metric that averages over examples, and confusions.

    Nothing is explained with weights. Without the sums of the slices these are counted instead of confusions.
    """
    scaling = without_buckets(prepared.scaling)
    space = scaling.space
    targets = {
        own.name: target
        for own in map(metric, config.metric)
        if not space.weighted
        and own.undefined_reason(prepared.slices()) is None
        and (target := own.target(space)) is not None
    }
    with_classes = None if sums is None else of_classes(scaling)
    if not keys.size or not (targets or with_classes):
        return ListedCounts()
    first = min(keys.size, MOST_COVERING) if targets else 0
    counted, place = np.unique(
        np.array([one.counted for one in targets.values()]).reshape(-1, space.cells),
        axis=0,
        return_inverse=True,
    )
    # In the order of their keys, so that numbers are summed in the same order whatever the list is.
    order = np.append(np.argsort(keys[:first]), np.arange(first, keys.size))
    used = with_classes or scaling
    function = CountListed(
        keys[order if with_classes else order[:first]],
        prepared.lattice,
        used,
        np.tile(counted, (1, used.space.cells // space.cells)),
        first,
        sums_known=sums is not None and with_classes is None,
    )
    found = pass_over_shards(
        [storage_path(path) for path in prepared.shards],
        "coverage",
        function,
        work,
        engine,
        prepared.rows * function.keys.size * _SECONDS_PER_MEMBERSHIP,
        keeps=True,
    )
    both, own_sums, of_all = (
        np.sum([one[name] for one in found], axis=0) for name in ("both", "sums", "of_all")
    )
    own_sums = own_sums.reshape(-1, used.space.raw_columns)
    both = both.reshape(len(counted), first, first)
    sums = own_sums if sums is None else sums[order[:first]]
    everything = prepared.totals[None, : space.raw_columns]
    coverages = []
    for (name, target), at in zip(targets.items(), place.ravel().tolist(), strict=True):
        of_slices, (total,) = (
            metric(name).target_sums(Slices(one, space)) for one in (sums, everything)
        )
        one = explained_variance(target.layout, both[at], of_slices, total)
        coverages.append(
            SliceCoverage(metric=name, slices=first, r2=finite(one.r2), r2_expected=one.expected)
        )
    if with_classes is None:
        return ListedCounts(tuple(coverages))
    listed = own_sums[np.argsort(order)]
    return ListedCounts(tuple(coverages), confusions_of(with_classes, listed, of_all))


def confusions_of(scaling: Scaling, sums: IntArray, of_all: IntArray) -> tuple[Confusion, ...]:
    """Return the tables of slices (sums [slices, columns] of a scaling `of_classes`) and of all other examples."""
    space, tables = scaling.space, {}
    for old, suffix in ((False, ""), (True, "_before"))[: space.sides]:
        cell = space.code("label_class") * space.classes + space.code("predicted_class", old=old)
        for name, counted in (("inside", sums), ("outside", of_all - sums)):
            own = space.counts(counted)
            if space.weighted:
                own = np.ldexp(space.weights(counted), space.weight_exponent)
            table = np.zeros((space.classes**2, len(sums)), own.dtype)
            np.add.at(table, cell, own.T)
            tables[name + suffix] = table.T.reshape(-1, space.classes, space.classes).tolist()
    return tuple(
        Confusion(classes=scaling.classes, **dict(zip(tables, one, strict=True)))
        for one in zip(*tables.values(), strict=True)
    )
