"""Findings measured on reserved examples, which the search did not see: no selection to correct for."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from slicebeam.metrics.arrays import BoolArray, FloatArray, IntArray
from slicebeam.metrics.findings.conditional import (
    DeviationLaw,
    change_p_value,
    influence,
    pattern_variances,
    sum_p_value,
)
from slicebeam.metrics.findings.groups import CellSums, Covariance, GroupSums, with_finding
from slicebeam.metrics.findings.model import ExpectationModel, fit
from slicebeam.metrics.findings.target_sums import TargetSums
from slicebeam.metrics.kinds import Tail


class ConfirmedSlice(NamedTuple):
    """A finding on the reserved examples."""

    value: float  # mean target
    expected: float  # of the model of the findings before it, fitted to the reserved examples
    p_value: float  # conditional, in the finding's direction
    covariance: Covariance


class _Patterns(NamedTuple):
    """The examples by the findings that they are in."""

    masks: IntArray  # [patterns]
    sums: FloatArray  # [patterns, columns]
    of: IntArray  # [cells] the pattern of each cell


@dataclass(frozen=True, kw_only=True)
class ReservedSums:
    """The sums of the reserved examples by group and by the findings of one list that they are in."""

    group: IntArray  # [cells] from 0; all 0 where examples are independent
    masks: IntArray  # [cells] bit k is set where the examples are in finding k
    sums: FloatArray  # [cells, columns]
    layout: TargetSums
    tail: Tail
    law: DeviationLaw | None  # of all reserved examples; None for counts
    is_grouped: bool
    no_change: float | None = None  # the mean target of no change between two models; None of one
    are_counts: bool = False  # whether changes are −1, 0 and 1, without weights

    def measured(self, finding: int) -> ConfirmedSlice:
        """Return a finding that holds some examples, tested given those before it."""
        bit = 1 << finding
        inside = (self.masks & bit) > 0
        before, after = self._patterns(bit - 1), self._patterns(2 * bit - 1)
        layout, sums = self.layout, before.sums
        model, fitted = self._fit(before, finding), self._fit(after, finding + 1)
        part = np.zeros(sums.shape)
        np.add.at(part, before.of[inside], self.sums[inside])
        powers = (1, 2) if layout.weighted else (1,)
        sizes = np.stack([layout.moment(part, power, 0) for power in powers], axis=1)
        size, total = (float(layout.moment(part, 1, power).sum()) for power in (0, 1))
        acts = influence(model, layout.moment(sums, 1, 0), sizes[:, 0])
        variances = pattern_variances(model, sums, layout)
        p = sum_p_value(model, variances, sums, sizes, total, layout, self.law, self.tail)
        groups = self._groups(before.of, inside) if self.is_grouped else None
        if groups is None:
            p = max(p, self._change_p_value(part))
        else:
            of_model, no_change = groups.of_model(model), self.no_change
            p = max(p, groups.p_value(0, model, of_model, acts.slopes, no_change, self.tail))
        masks = (after.masks, after.sums), before.masks
        covariance = with_finding(fitted, layout, *masks, -acts.outside, groups)
        return ConfirmedSlice(
            total / size, float(sizes[:, 0] @ model.expected) / size, p, covariance
        )

    def _patterns(self, bits: int) -> _Patterns:
        masks, of = np.unique(self.masks & bits, return_inverse=True)
        sums = np.zeros((masks.size, self.sums.shape[1]))
        np.add.at(sums, of, self.sums)
        return _Patterns(masks, sums, of)

    def _fit(self, patterns: _Patterns, findings: int) -> ExpectationModel:
        weight, total = (self.layout.moment(patterns.sums, 1, power) for power in (0, 1))
        return fit(self.layout.kind, patterns.masks, findings, weight, total)

    def _change_p_value(self, part: FloatArray) -> float:
        """Return the p-value of the finding's own change; 0 of one model."""
        if self.no_change is None:
            return 0.0
        layout, none = self.layout, self.no_change
        size, first = (float(layout.moment(part, 1, power).sum()) for power in (0, 1))
        whole, both, squares = (float(layout.moment(part, 2, power).sum()) for power in (0, 1, 2))
        spread = squares - 2.0 * none * both + none**2 * whole
        return change_p_value(first - none * size, spread, self.tail, counts=self.are_counts)

    def _groups(self, pattern: IntArray, inside: BoolArray) -> GroupSums:
        size, total = (self.layout.moment(self.sums, 1, power) for power in (0, 1))
        own = np.flatnonzero(inside)
        held = CellSums(own, size[own], total[own])
        return GroupSums(self.group, pattern, size, total, [held])
