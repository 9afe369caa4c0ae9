"""Thresholds of metrics: which slice fails which, as TFMA's ``validate_metrics`` decides.

Source: tensorflow_model_analysis/evaluators/metrics_validator.py.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, NamedTuple

from slicebeam.pipelines.changelist.validation import FailedThreshold, Validation

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

# A slice as TFMA names it: columns and values, sorted. Of all examples it is empty.
SliceKey = tuple[tuple[str, "str | int | float"], ...]


def typed(value: str | float) -> str | int | float:
    """Return the number that a text stands for, as TFMA reads values.

    >>> typed("20"), typed("0.5"), typed("us")
    (20, 0.5, 'us')
    """
    if isinstance(value, (int, float)):
        return value
    try:
        return float(value) if "." in value else int(value)
    except ValueError:
        return value


@dataclass(frozen=True)
class SliceSpec:
    """A SlicingSpec: columns of which every value is a slice, and given values.

    Attributes
    ----------
    keys : columns, sorted
    values : columns with their values, sorted by column
    """

    keys: tuple[str, ...] = ()
    values: tuple[tuple[str, str | int | float], ...] = ()

    def applies(self, key: SliceKey) -> bool:
        """Return whether a slice is one of those that this describes."""
        if len(key) != len(self.keys) + len(self.values):
            return False
        given = dict(self.values)
        return all(
            typed(value) == given[column] if column in given else column in self.keys
            for column, value in key
        )

    def __str__(self) -> str:
        parts = [*self.keys, *(f"{name} = {value}" for name, value in self.values)]
        return " & ".join(parts) or "all examples"


@dataclass(frozen=True)
class CrossSpec:
    """A CrossSlicingSpec: slices whose metrics are subtracted from those of another one."""

    baseline: SliceSpec
    others: tuple[SliceSpec, ...] = ()

    def applies(self, baseline: SliceKey, other: SliceKey) -> bool:
        """Return whether thresholds for this hold of two slices."""
        return self.baseline.applies(baseline) and any(one.applies(other) for one in self.others)

    def compares(self, baseline: SliceKey, other: SliceKey) -> bool:
        """Return whether two slices are compared; without others, with all that are none."""
        if not self.others:
            return self.baseline.applies(baseline) and not self.baseline.applies(other)
        return self.applies(baseline, other)

    def __str__(self) -> str:
        others = ", ".join(map(str, self.others)) or "all others"
        return f"{self.baseline} against {others}"


@dataclass(frozen=True)
class Threshold:
    """A threshold of one metric.

    Attributes
    ----------
    metric : what the EvalConfig calls it
    kind : of the ``value``, or of the ``change`` from the old model
    scope : slices that it is for; None for every slice
    lower, upper : bounds of the value, both inclusive
    absolute, relative : of the change, the latter as a part of the old model's value
    direction : ``higher`` or ``lower`` is better
    """

    metric: str
    kind: Literal["value", "change"]
    scope: SliceSpec | CrossSpec | None = None
    lower: float | None = None
    upper: float | None = None
    absolute: float | None = None
    relative: float | None = None
    direction: Literal["higher", "lower"] | None = None

    def holds(self, value: float, before: float) -> bool:
        """Return whether a value passes; NaN never does.

        Parameters
        ----------
        before : the old model's value
        """
        if self.kind == "value":
            return (
                (self.lower is None or value >= self.lower)
                and (self.upper is None or value <= self.upper)
                and not (math.isnan(value))
            )
        change = value - before
        ratio = math.nan if math.isclose(before, 0.0) else change / before
        return self._better(change, self.absolute) and self._better(ratio, self.relative)

    def _better(self, change: float, bound: float | None) -> bool:
        if bound is None:
            return True
        return change >= bound if self.direction == "higher" else change <= bound

    @property
    def bounds(self) -> str:
        """Its bounds in words."""
        if self.kind == "value":
            parts = [f"at least {self.lower:g}"] if self.lower is not None else []
            parts += [f"at most {self.upper:g}"] if self.upper is not None else []
            return " and ".join(parts) or "a value"
        side = "at least" if self.direction == "higher" else "at most"
        parts = [f"{side} {self.absolute:+g}"] if self.absolute is not None else []
        parts += (
            [f"{side} {self.relative:+.6g} of the old value"] if self.relative is not None else []
        )
        return "a change of " + (" and ".join(parts) or "any size")


class Measured(NamedTuple):
    """What was measured on a slice.

    Attributes
    ----------
    name, slice_id : of the slice; no id for all examples
    values : by the EvalConfig's name of the metric: the value, and the old model's (NaN for none)
    """

    name: str
    slice_id: str | None
    values: Mapping[str, tuple[float, float]]


def validate(
    thresholds: Sequence[Threshold],
    crosses: Sequence[CrossSpec],
    slices: Mapping[SliceKey, Measured],
) -> Validation:
    """Return which thresholds fail on which slices.

    A threshold for slices that do not occur fails, too. On a slice without values (too small) every
    threshold for slices fails, whichever slices it is for, as in TFMA.
    """
    failures: list[FailedThreshold] = []
    checked: set[SliceSpec | CrossSpec | None] = set()
    compared = 0

    def judge(measured: Measured, other: Measured | None, chosen: Iterable[Threshold]) -> None:
        nonlocal compared
        seen = set()
        for one in chosen:
            if measured.values:
                checked.add(one.scope or SliceSpec())
            compared += 1
            value, before = _difference(measured, other, one.metric)
            # The same bounds may be given for several specs of one slice.
            same = (one.metric, one.kind, one.bounds)
            if one.holds(value, before) or same in seen:
                continue
            seen.add(same)
            failures.append(_failure(one, measured, other, value, before))

    for key, measured in slices.items():
        judge(
            measured,
            None,
            [
                one
                for one in thresholds
                if one.scope is None
                or (
                    isinstance(one.scope, SliceSpec)
                    and (one.scope.applies(key) or not measured.values)
                )
            ],
        )
    for key, other_key in _pairs(crosses, slices):
        judge(
            slices[key],
            slices[other_key],
            [
                one
                for one in thresholds
                if isinstance(one.scope, CrossSpec) and one.scope.applies(key, other_key)
            ],
        )
    missing = dict.fromkeys(
        str(one.scope or SliceSpec())
        for one in thresholds
        if (one.scope or SliceSpec()) not in checked
    )
    return Validation(
        passed=not failures and not missing,
        checked=compared,
        failures=tuple(failures),
        missing_slices=tuple(missing),
    )


def _pairs(
    crosses: Sequence[CrossSpec], slices: Mapping[SliceKey, Measured]
) -> list[tuple[SliceKey, SliceKey]]:
    pairs = [
        (key, other)
        for one in crosses
        for key in slices
        if one.baseline.applies(key)
        for other in slices
        if one.compares(key, other)
    ]
    return list(dict.fromkeys(pairs))


def _difference(measured: Measured, other: Measured | None, metric: str) -> tuple[float, float]:
    value, before = measured.values.get(metric, (math.nan, math.nan))
    if other is None:
        return value, before
    of_other, before_other = other.values.get(metric, (math.nan, math.nan))
    return value - of_other, before - before_other


def _failure(
    one: Threshold, measured: Measured, other: Measured | None, value: float, before: float
) -> FailedThreshold:
    return FailedThreshold(
        metric=one.metric,
        slice=measured.name,
        slice_id=measured.slice_id,
        compared_with=None if other is None else other.name,
        kind=one.kind,
        value=value if math.isfinite(value) else None,
        before=before if one.kind == "change" and math.isfinite(before) else None,
        reason=None if measured.values else "fewer examples than min_slice_size",
        bounds=one.bounds,
        lower_bound=one.lower,
        upper_bound=one.upper,
        absolute=one.absolute,
        relative=one.relative,
        direction=None if one.kind == "value" else one.direction,
    )
