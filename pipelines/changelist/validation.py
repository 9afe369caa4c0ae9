"""Which thresholds of metrics failed."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from slicebeam.pipelines.changelist.parts import Part


class FailedThreshold(Part):
    """A threshold that a metric does not meet on a slice."""

    metric: str = Field(description="its name in the EvalConfig")
    slice: str
    slice_id: str | None = Field(None, description="absent for all examples")
    compared_with: str | None = Field(
        None, description="for two slices: the one whose value is subtracted"
    )
    kind: Literal["value", "change"] = Field(
        description="a bound of the value, or of the change from the old model"
    )
    value: float | None = Field(None, description="of the model under test; absent for undefined")
    before: float | None = Field(None, description="of the old model, for a change")
    reason: str | None = Field(None, description="why there is no value")
    bounds: str = Field(description="the bounds in words")
    lower_bound: float | None = None
    upper_bound: float | None = None
    absolute: float | None = None
    relative: float | None = None
    direction: Literal["higher", "lower"] | None = Field(None, description="which is better")

    def __str__(self) -> str:
        value = "undefined" if self.value is None else f"{self.value:.6g}"
        value += "" if self.reason is None else f" ({self.reason})"
        was = "" if self.before is None else f", was {self.before:.6g}"
        against = "" if self.compared_with is None else f" minus {self.compared_with}"
        return f"{self.metric} is {value}{was} on {self.slice}{against}, but the threshold is {self.bounds}"


class Validation(Part):
    """Whether the thresholds of an EvalConfig are met: what TFMA calls validation."""

    passed: bool
    checked: int = Field(description="thresholds compared with slices")
    failures: tuple[FailedThreshold, ...] = ()
    missing_slices: tuple[str, ...] = Field(
        (), description="slices that have a threshold but do not occur, which is also a failure"
    )

    def reasons(self) -> tuple[str, ...]:
        """Return why it is not passed, a line each."""
        missing = (f"a threshold is for {one}, which does not occur" for one in self.missing_slices)
        return (*map(str, self.failures), *missing)
