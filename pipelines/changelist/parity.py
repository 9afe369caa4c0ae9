"""The largest gaps between groups of examples, for ``--parity``."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from slicebeam.pipelines.changelist.parts import Estimate, Part


class ParityGroup(Part):
    """A group, and its share in a measure."""

    name: str
    n: int = Field(
        description="the examples that the share is of, such as those with a positive label"
    )
    value: float


class ParityGap(Part):
    """How far the lowest and the highest group of a column are apart in a measure."""

    column: str
    kind: Literal["values", "bins"] = Field(description="what the groups are of the column")
    measure: Literal["prediction_rate", "true_positive_rate", "false_positive_rate", "accuracy"]
    model: Literal["before", "after"]
    groups: int = Field(description="number of groups that were compared")
    left_out: tuple[str, ...] = Field(
        (), description="groups with fewer than that many examples that the share is of"
    )
    least: int = Field(description="fewest examples of a group that is compared")
    lowest: ParityGroup | None = Field(None, description="absent with fewer than two groups")
    highest: ParityGroup | None = None
    gap: Estimate | None = Field(
        None, description="highest minus lowest; its interval allows for having chosen the pair"
    )
    p_value: float | None = Field(
        None,
        description="how often, if no group differed, some pair would be as far apart in standard errors "
        "as the farthest one is",
    )
