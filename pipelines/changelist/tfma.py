"""Numbers that TensorFlow Model Analysis computed for the slices that a search found."""

from __future__ import annotations

from pydantic import Field

from slicebeam.pipelines.changelist.parts import Estimate, Part


class TfmaValue(Part):
    """A number of TFMA on a slice."""

    slice_id: str
    after: Estimate = Field(description="the metric of the model under test")
    before: Estimate | None = Field(
        default=None, description="for two models, that of the baseline"
    )
    delta: Estimate = Field(
        description="after minus before, or for one model minus the metric over all examples"
    )
    p_value: float | None = Field(
        default=None,
        description="two-sided, of a delta of 0, by TFMA's t distribution of the delta; not corrected, "
        "because the slices were chosen by other metrics",
    )


class TfmaMetric(Part):
    """A number of TFMA, over all examples and on the listed slices."""

    name: str = Field(
        description="TFMA's, with the class, rank or average that it is of, such as ndcg@topK:3"
    )
    output: str | None = Field(
        default=None, description="of a model of several outputs, which one it is"
    )
    replicates: int = Field(description="of TFMA's Poisson bootstrap; 0 where it has no intervals")
    overall: Estimate
    overall_before: Estimate | None = Field(
        default=None, description="for two models, the baseline's"
    )
    overall_delta: Estimate | None = Field(
        default=None, description="for two models, overall minus before"
    )
    slices: tuple[TfmaValue, ...]
