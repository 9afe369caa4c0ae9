"""The comparison, its metrics, and the change in a metric: between two models, and since an earlier run."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Literal

from pydantic import Field

from slicebeam.pipelines.changelist.parts import Direction, Estimate, Part, Predicate, optional


class Model(Part):
    """A model: the one that is tested (after), or the one that it is compared with (before)."""

    key: Annotated[str, Field(pattern=r"^[A-Za-z0-9_.-]+$")]
    role: Literal["before", "after"]
    name: str
    prediction_field: str | None = None
    score_field: str | None = None
    model_uri: str | None = None
    loss_field: str | None = None


class Comparison(Part):
    """What a slice is compared with."""

    kind: Literal["overall", "baseline", "earlier"] = Field(
        description="with all examples, an old model, or the slice on earlier data"
    )
    before: str | None = None
    after: str


class MetricEntry(Part):
    """A metric; the primary one steered the search."""

    key: str
    name: str
    kind: Literal["pointwise", "aggregate"]
    range: tuple[float | None, float | None] = Field(description="bounds; null where there is none")
    higher_is_better: bool
    primary: bool
    counted: str | None = optional("which examples its denominator counts; absent: all")


class Moved(Part):
    """The examples that changed for the better, or for the worse, between two models."""

    n: int
    share: Estimate = Field(description="of the examples in the metric's denominator, not weighted")


class Change(Part):
    """One metric on a slice (or on all examples) and how it differs from what it is compared with."""

    metric: str
    n: int
    after: Estimate = Field(description="the metric of the model under test")
    before: Estimate | None = optional("baseline: the metric of the old model on the same examples")
    reference: float | None = optional("overall: the metric on all examples")
    complement: float | None = optional("overall: the metric on the other examples")
    delta: Estimate | None = optional("after minus before or reference; absent where neither is")
    inconsistency: float | None = optional("baseline: standard deviation of an example's change")
    improved: Moved | None = optional("baseline: wrong in the old model only; absent for losses")
    degraded: Moved | None = optional("baseline: wrong in the new model only; absent for losses")
    p_value: float | None = None
    p_adjusted: float | None = optional("the q-value; over all examples corrected over the metrics")
    test: str | None = optional("the test of the p-value")
    inputs: dict[str, float] | None = optional("the inputs of the test")
    reason: str | None = optional("why there is no test; the p-value is then 1")
    significant: bool = False
    direction: Direction = Field(description="of the delta in the metric's own direction")
    label: Literal["new", "refines", "inherited"] | None = optional("beside the slices above it")
    place: Annotated[int, Field(ge=1)] | None = optional("among those reported for the metric")

    @property
    def compared_with(self) -> float | None:
        """The value that it differs from: the old model's, or that over all examples."""
        return self.reference if self.before is None else self.before.value


class Confirmation(Part):
    """The examples that were reserved for measuring the findings, which the search left out."""

    share: float = Field(description="the option --confirm")
    column: str | None = optional("its hash decides; absent: that of an example's position")
    n: int
    overall: tuple[Change, ...] = Field(description="each metric over the reserved examples")


Status = Literal["new", "gone", "stays", "neither"]


class Difference(Part):
    """The difference of a number between two runs, tested as for independent samples."""

    difference: Estimate = Field(description="now minus then, with an interval")
    p_value: float = Field(description="two-sided, that nothing changed")
    p_adjusted: float
    significant: bool
    direction: Direction = Field(description="in the metric's own direction")


class OverallSince(Part):
    """A metric over all examples in this run and in an earlier one."""

    metric: str
    n_now: int
    n_then: int
    now: Estimate = Field(description="the metric of the model under test")
    then: Estimate
    value_change: Difference | None = optional("of the value; absent if it could not be tested")
    delta_now: Estimate | None = optional("baseline: the model under test minus the old one")
    delta_then: Estimate | None = None
    delta_change: Difference | None = optional("of the delta; absent if it could not be tested")
    reason: str | None = optional("why something could not be tested")


class Moment(Part):
    """A metric on a slice in one of two runs."""

    n: int
    value: float | None = None
    value_interval: Estimate | None = optional("the value with its interval; absent if unknown")
    delta: Estimate
    p_adjusted: float | None = None
    significant: bool


class SinceSlice(Part):
    """A slice in this run and in an earlier one, by one metric."""

    slice_id: str
    name: str
    metric: str
    predicate: Predicate | None = optional("absent for a slice that is defined in another way")
    status: Status = Field(description="new: significant now only; gone: then only; stays: both")
    now: Moment | None = None
    then: Moment | None = None
    missing: str | None = optional("why now or then is absent")
    difference: Estimate | None = optional("delta now minus delta then, as of independent examples")
    p_value: float | None = optional("two-sided, that the deltas are the same")
    p_adjusted: float | None = None
    significant: bool = optional("whether the delta changed", False)
    direction: Direction = optional("of the change in the metric's own direction", "none")
    value_change: Difference | None = optional("of the metric's value; absent if it was not tested")
    like: str | None = optional(
        "a slice above that changed alike and holds mostly the same examples"
    )


class MetricSince(Part):
    """How the slices changed since an earlier run, by one metric."""

    metric: str
    compared: int = Field(description="slices in both runs whose deltas were compared")
    new: int
    gone: int
    worse: int = Field(description="compared slices whose delta is significantly worse than then")
    better: int
    value_compared: int = Field(description="slices whose values were compared")
    value_worse: int = Field(description="those whose value is significantly worse than then")
    value_better: int


class Since(Part):
    """What changed since an earlier run; slices are matched by slice_id."""

    uri: str
    changelist_id: str
    created_at: datetime
    n: int = Field(description="examples of the earlier run")
    read_from: Literal["slices.parquet", "changelist.json"] = Field(description="all or listed")
    metric: str = Field(description="the first metric that both runs measured")
    summary: str = Field(description="the changes in plain words")
    overall: tuple[OverallSince, ...] = optional("each metric of both runs, over all examples", ())
    metrics: tuple[MetricSince, ...] = optional("counts of slices by each metric of both runs", ())
    compared: int = Field(description="slices in both runs, once for each metric, as below")
    corrected_for: str
    new: int
    gone: int
    worse: int = Field(description="compared slices whose delta is significantly worse than then")
    better: int
    warnings: tuple[str, ...] = ()
    slices: tuple[SinceSlice, ...] = Field(description="changed, or in both; at most a thousand")
