"""Findings expressed in their metric, and how much of the variance between examples slices explain.

The choice itself works on means of targets.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

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
from slicebeam.pipelines.changelist.parts import CONFIDENCE, SliceCoverage, finite
from slicebeam.pipelines.prepare.encoded_dataset import pass_over_shards
from slicebeam.transforms.count.finding_passes import CountOverlaps, without_buckets
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


def list_coverage(
    config: RunConfig,
    prepared: EncodedDataset,
    keys: Keys,
    work: WorkFolder,
    engine: Engine,
    sums: IntArray | None = None,
) -> tuple[SliceCoverage, ...]:
    """Return how much the slices explain, for each metric that averages over examples; nothing with weights."""
    scaling = without_buckets(prepared.scaling)
    space = scaling.space
    targets = {
        own.name: target
        for own in map(metric, config.metric)
        if prepared.space.comparison != "earlier"
        and own.undefined_reason(prepared.slices()) is None
        and (target := own.target(space)) is not None
    }
    if space.weighted or not targets or not keys.size:
        return ()
    counted, place = np.unique(
        [one.counted for one in targets.values()], axis=0, return_inverse=True
    )
    order = np.argsort(keys)
    function = CountOverlaps(
        keys[order], prepared.lattice, scaling, counted, sums_known=sums is not None
    )
    found = pass_over_shards(
        [storage_path(path) for path in prepared.shards],
        "coverage",
        function,
        work,
        engine,
        prepared.rows * keys.size * _SECONDS_PER_MEMBERSHIP,
        keeps=True,
    )
    if sums is None:
        # In the order of the keys, as all that is counted.
        sums = np.sum([one["sums"] for one in found], axis=0).reshape(keys.size, space.raw_columns)
    else:
        sums = sums[order]
    both = np.sum([one["both"] for one in found], axis=0).reshape(-1, keys.size, keys.size)
    everything = prepared.totals[None, : space.raw_columns]
    coverages = []
    for (name, target), at in zip(targets.items(), place.ravel().tolist(), strict=True):
        of_slices, (of_all,) = (
            metric(name).target_sums(Slices(one, space)) for one in (sums, everything)
        )
        one = explained_variance(target.layout, both[at], of_slices, of_all)
        coverages.append(
            SliceCoverage(
                metric=name, slices=keys.size, r2=finite(one.r2), r2_expected=one.expected
            )
        )
    return tuple(coverages)
