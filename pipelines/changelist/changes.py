"""The comparison, its metrics, and the change in a metric."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from slicebeam.pipelines.changelist.parts import Estimate, Part


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

    kind: Literal["overall", "baseline"] = Field(
        description="overall: the slice against all examples, one model; baseline: the same slice, "
        "two models"
    )
    before: str | None = None
    after: str


class MetricEntry(Part):
    """A metric; the primary one steered the search."""

    key: str
    name: str
    kind: Literal["pointwise", "aggregate"]
    range: tuple[float | None, float | None] = Field(
        description="smallest and largest value; null where there is no bound"
    )
    higher_is_better: bool
    primary: bool
    counted: str | None = Field(
        default=None,
        description="the examples in the denominator of the metric, which n of a finding counts, "
        "such as those predicted positive; absent for all examples",
    )


class Moved(Part):
    """The examples that changed for the better, or for the worse, between two models."""

    n: int
    share: Estimate = Field(description="of the examples in the metric's denominator, not weighted")


class Change(Part):
    """One metric on a slice (or on all examples) and how it differs from what it is compared with."""

    metric: str
    n: int
    after: Estimate = Field(description="the metric of the model under test")
    before: Estimate | None = Field(
        default=None, description="baseline: the metric of the old model on the same examples"
    )
    reference: float | None = Field(default=None, description="overall: the metric on all examples")
    complement: float | None = Field(
        default=None, description="overall: the metric on the other examples"
    )
    delta: Estimate | None = Field(
        default=None,
        description="after minus before, or after minus reference; absent for all examples and one "
        "model",
    )
    inconsistency: float | None = Field(
        default=None, description="baseline: standard deviation of the change of an example"
    )
    improved: Moved | None = Field(
        default=None,
        description="baseline: examples that only the old model gets wrong; absent for losses",
    )
    degraded: Moved | None = Field(
        default=None,
        description="baseline: examples that only the new model gets wrong; absent for losses",
    )
    p_value: float | None = None
    p_adjusted: float | None = Field(
        default=None,
        description="the q-value of slices.parquet; over all examples corrected over the metrics",
    )
    test: str | None = Field(default=None, description="the test of the p-value")
    inputs: dict[str, float] | None = Field(default=None, description="the inputs of the test")
    reason: str | None = Field(
        default=None, description="why there is no test; the p-value is then 1"
    )
    significant: bool = False
    direction: Literal["improved", "degraded", "none"] = Field(
        description="of the delta in the metric's own direction"
    )
    label: Literal["new", "refines", "inherited"] | None = Field(
        default=None, description="whether the slice adds to those above it in this metric"
    )
    place: Annotated[int, Field(ge=1)] | None = Field(
        default=None,
        description="place among the slices reported for this metric, the worst first; absent if "
        "the slice is reported only for another metric",
    )


class Confirmation(Part):
    """The examples that were reserved for measuring the findings, which the search left out."""

    share: float = Field(description="the option --confirm")
    column: str | None = Field(
        default=None,
        description="its hash decides; absent where that of the position among all examples does",
    )
    n: int
    overall: tuple[Change, ...] = Field(description="each metric over the reserved examples")
