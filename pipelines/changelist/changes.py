"""The metrics and how they changed: between two models, since an earlier run, and from earlier data."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Literal

from pydantic import Field

from slicebeam.pipelines.changelist.parts import Direction, Estimate
from slicebeam.transforms.encode.definitions import Part, Predicate, optional

# Data sets of this distance are compared roughly, and of a larger one than the second not at all.
ROUGH, TOO_FAR = 0.25, 1.0
# A population stability index from which on people call a drift large.
LARGE_DRIFT = 0.1
NO_DRIFT = "no feature could be tested for drift: each holds lists, or examples are grouped"


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


def has_fallen(change: Change | Difference | None) -> bool:
    """Return whether a metric is significantly worse."""
    return change is not None and change.significant and change.direction == "degraded"


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


class MovedPart(Part):
    """A part of the change of a metric over all examples."""

    name: str = Field(description="features and findings, or a finding")
    slice_id: str | None = optional("of a finding")
    change: Estimate
    value: str | None = optional("of the mix: the value or finding whose share changed most")
    share_then: float | None = None
    share_now: float | None = None


class WhyMoved(Part):
    """Why a metric over all examples is not what it was: new kinds of examples, their mix, and the model."""

    metric: str
    then: float
    now: float
    change: float
    new_kinds: float = Field(
        description="by examples with a value that fewer than 20 examples had then; with mix and model it adds up to change"
    )
    new_share: float = Field(description="share of today's examples that have such a value")
    new_values: tuple[str, ...] = optional("these values, at most ten", ())
    distance: float = Field(
        description="squared Mahalanobis distance of the data sets; above 0.25 the split is rough, above 1 there is none"
    )
    mix: Estimate | None = optional(
        "by the mix of the data, on the kinds of examples that there were"
    )
    model: Estimate | None = optional("by the model, on the same kinds of examples")
    by_mix: tuple[MovedPart, ...] = optional(
        "features and findings that changed the mix, the largest first", ()
    )
    by_model: tuple[MovedPart, ...] = optional("the findings, by rank", ())


class FeatureDrift(Part):
    """How the distribution of a feature changed."""

    feature: str
    p_value: float
    p_adjusted: float = Field(description="by Holm's method over the features")
    significant: bool
    stability_index: float = Field(
        description="population stability index, less what is expected if nothing changed"
    )
    value: str = Field(description="whose share changed most")
    share_then: float
    share_now: float
    missing_then: float | None = optional("share of examples without a value, if any are")
    missing_now: float | None = None
    new_values: tuple[str, ...] = optional("values that no example had then, at most ten", ())
    gone_values: tuple[str, ...] = optional("values that no example has today, at most ten", ())


class EarlierData(Part):
    """The earlier data, and what changed since."""

    uri: tuple[str, ...]
    n: int = Field(description="examples")
    moved: tuple[WhyMoved, ...] = optional(
        "for each metric that is an average over examples; none with weights", ()
    )
    drift: tuple[FeatureDrift, ...] = optional("of each feature, the largest change first", ())
