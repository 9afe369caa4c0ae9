"""What a run says of the earlier data that it is compared with: why values moved, and how the data drifted."""

from __future__ import annotations

from pydantic import Field

from slicebeam.pipelines.changelist.parts import Estimate, Part, optional

# Data sets of this distance are compared roughly, and of a larger one than the second not at all.
ROUGH, TOO_FAR = 0.25, 1.0
# A population stability index from which on people call a drift large.
LARGE_DRIFT = 0.1
NO_DRIFT = "no feature could be tested for drift: each holds lists, or examples are grouped"


class MovedPart(Part):
    """A part of the change of a metric over all examples."""

    name: str = Field(description="features, a slice, or what is left")
    slice_id: str | None = optional("of a finding")
    change: Estimate
    value: str | None = optional("of features: the value whose share changed most")
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
    by_mix: tuple[MovedPart, ...] = optional("features that changed the mix, the largest first", ())
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
