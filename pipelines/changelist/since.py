"""What changed since an earlier run."""

from __future__ import annotations

from datetime import datetime
from typing import Literal

from pydantic import Field

from slicebeam.pipelines.changelist.parts import Estimate, Part, Predicate

Status = Literal["new", "gone", "stays", "neither"]


class Difference(Part):
    """The difference of a number between two runs, tested as for independent samples."""

    difference: Estimate = Field(description="now minus then, with an interval")
    p_value: float = Field(description="two-sided, that nothing changed")
    p_adjusted: float
    significant: bool
    direction: Literal["improved", "degraded", "none"] = Field(
        description="in the metric's own direction"
    )


class OverallSince(Part):
    """A metric over all examples in this run and in an earlier one."""

    metric: str
    n_now: int
    n_then: int
    now: Estimate = Field(description="the metric of the model under test")
    then: Estimate
    value_change: Difference | None = Field(
        default=None, description="of the value; absent if it could not be tested"
    )
    delta_now: Estimate | None = Field(
        default=None, description="baseline: the model under test minus the old one"
    )
    delta_then: Estimate | None = None
    delta_change: Difference | None = Field(
        default=None, description="of the delta; absent if it could not be tested"
    )
    reason: str | None = Field(default=None, description="why something could not be tested")


class Moment(Part):
    """A metric on a slice in one of two runs."""

    n: int
    value: float | None = None
    value_interval: Estimate | None = Field(
        default=None, description="the value with its interval; absent if unknown"
    )
    delta: Estimate
    p_adjusted: float | None = None
    significant: bool


class SinceSlice(Part):
    """A slice in this run and in an earlier one, by one metric."""

    slice_id: str
    name: str
    metric: str | None = Field(default=None, description="absent in documents of earlier versions")
    predicate: Predicate | None = Field(
        default=None, description="absent for a slice that is defined in another way"
    )
    status: Status = Field(
        description="of its significance: new is significant now only, gone was significant then "
        "only, stays is both"
    )
    now: Moment | None = None
    then: Moment | None = None
    missing: str | None = Field(default=None, description="why now or then is absent")
    difference: Estimate | None = Field(
        default=None,
        description="delta now minus delta then, with an interval for independent examples",
    )
    p_value: float | None = Field(
        default=None, description="two-sided, that the deltas are the same"
    )
    p_adjusted: float | None = None
    significant: bool = Field(default=False, description="whether the delta changed")
    direction: Literal["improved", "degraded", "none"] = Field(
        default="none", description="of the change in the metric's own direction"
    )
    value_change: Difference | None = Field(
        default=None,
        description="of the metric's value itself; absent where it could not be tested",
    )


class MetricSince(Part):
    """How the slices changed since an earlier run, by one metric."""

    metric: str
    compared: int = Field(description="slices in both runs whose deltas were compared")
    new: int
    gone: int
    worse: int = Field(
        description="compared slices whose delta is significantly worse than in the earlier run"
    )
    better: int
    value_compared: int = Field(description="slices whose values were compared")
    value_worse: int = Field(
        description="those whose value is significantly worse than in the earlier run"
    )
    value_better: int


class Since(Part):
    """What changed since an earlier run; slices are matched by slice_id."""

    uri: str
    changelist_id: str
    created_at: datetime
    n: int = Field(description="examples of the earlier run")
    read_from: Literal["slices.parquet", "changelist.json"] = Field(
        description="whether all tested slices of the earlier run were known, or its reported ones"
    )
    metric: str = Field(description="the first metric that both runs measured")
    summary: str = Field(description="the changes in plain words")
    overall: tuple[OverallSince, ...] = Field(
        default=(), description="each metric that both runs measured, over all examples"
    )
    metrics: tuple[MetricSince, ...] = Field(
        default=(), description="counts of slices by each metric that both runs measured"
    )
    compared: int = Field(
        description="slices in both runs whose deltas were compared, once for each metric; so "
        "are the following counts"
    )
    corrected_for: str
    new: int
    gone: int
    worse: int = Field(
        description="compared slices whose delta is significantly worse than in the earlier run"
    )
    better: int
    warnings: tuple[str, ...] = ()
    slices: tuple[SinceSlice, ...] = Field(
        description="those that are new, gone, worse or better, and those that both runs report "
        "or check, metric by metric; at most a thousand"
    )
