"""The building blocks of a ChangeList."""

from __future__ import annotations

import math
from typing import Annotated, Any, Literal

from pydantic import Field

from slicebeam.transforms.encode.definitions import Part, optional

Sha256 = Annotated[str, Field(pattern=r"^sha256:[0-9a-f]{64}$")]
Count = Annotated[int, Field(ge=0)]
Probability = Annotated[float, Field(ge=0, le=1)]
Direction = Literal["improved", "degraded", "none"]
# Of the intervals of a search.
CONFIDENCE = 0.95


class Estimate(Part):
    """A value with its confidence interval."""

    value: float | None = None
    lo: float | None = None
    hi: float | None = None
    confidence: float | None = None

    def text(self, form: str = ".4g") -> str:
        """Return the value with its interval, if it has one, such as ``0.5 [0.4, 0.6]``."""
        if self.value is None:
            return "undefined"
        if self.lo is None or self.hi is None:
            return f"{self.value:{form}}"
        return f"{self.value:{form}} [{self.lo:{form}}, {self.hi:{form}}]"


def finite(value: float) -> float | None:
    """Return a number; None for NaN and infinities, which JSON lacks."""
    return float(value) if math.isfinite(value) else None


def estimate(value: float, low: float, high: float) -> Estimate:
    """Return a value with its interval, which a formula may give where there is no value."""
    if math.isnan(value):
        low = high = math.nan
    return Estimate(value=finite(value), lo=finite(low), hi=finite(high), confidence=CONFIDENCE)


class SliceCoverage(Part):
    """How much of the variance between examples slices of the document explain together."""

    metric: str
    slices: int = Field(description="how many of the listed slices, the first ones; at most 200")
    r2: float | None = optional("share of the variance of what the metric averages; absent if 0")
    r2_expected: float = Field(description="mean of r2 if membership said nothing")


Cells = tuple[tuple[int | float, ...], ...]


class Confusion(Part):
    """How often each class is predicted for each label, in a slice and in the other examples.

    A table has a row for each label and a column for each predicted class, in the order of the classes:
    numbers of examples, or sums of their weights.
    """

    classes: tuple[Any, ...] = Field(
        description="of labels and predictions, at most 10; null is the class below the threshold where no example "
        "has its name"
    )
    inside: Cells = Field(description="table of the slice")
    outside: Cells = Field(description="table of the other examples")
    inside_before: Cells | None = optional("of two models the tables of the old one")
    outside_before: Cells | None = None


class ParityGroup(Part):
    """A group, and its share in a measure."""

    name: str
    n: int = Field(description="examples that the share is of, such as those with a positive label")
    value: float


class ParityGap(Part):
    """How far the lowest and the highest group of a column are apart in a measure."""

    column: str
    kind: Literal["values", "bins"] = Field(description="what the groups are of the column")
    measure: Literal["prediction_rate", "true_positive_rate", "false_positive_rate", "accuracy"]
    model: Literal["before", "after"]
    groups: int = Field(description="number of groups that were compared")
    left_out: tuple[str, ...] = optional("groups with fewer than `least` of these examples", ())
    least: int = Field(description="fewest examples of a group that is compared")
    lowest: ParityGroup | None = optional("absent with fewer than two groups")
    highest: ParityGroup | None = None
    gap: Estimate | None = optional("highest minus lowest; the interval allows for the choice")
    p_value: float | None = optional("of the farthest pair in standard errors, if none differed")
