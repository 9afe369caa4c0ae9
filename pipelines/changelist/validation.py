"""The verdict of TensorFlow Model Analysis on the thresholds of an EvalConfig."""

from __future__ import annotations

from pydantic import Field

from slicebeam.pipelines.changelist.parts import Part


class FailedThreshold(Part):
    """A threshold that a metric does not meet on a slice."""

    metric: str = Field(description="TFMA's name of the number")
    slice: str
    slice_id: str | None = Field(default=None, description="absent for all examples")
    compared_with: str | None = Field(
        default=None, description="for two slices: the one whose value is subtracted"
    )
    value: float | None = Field(
        default=None,
        description="of the model under test, or its change from the old model; absent for undefined",
    )
    reason: str | None = Field(default=None, description="why there is no value")
    bounds: str = Field(description="the bounds in words")

    def __str__(self) -> str:
        value = "undefined" if self.value is None else f"{self.value:.6g}"
        value += "" if self.reason is None else f" ({self.reason})"
        against = "" if self.compared_with is None else f" minus {self.compared_with}"
        return (
            f"{self.metric} is {value} on {self.slice}{against}, but the threshold is {self.bounds}"
        )


class Validation(Part):
    """Whether TFMA finds the thresholds of an EvalConfig met."""

    passed: bool = Field(description="validation_ok of TFMA's ValidationResult")
    checked: int = Field(description="slices that TFMA compared with thresholds")
    failures: tuple[FailedThreshold, ...] = ()
    missing_slices: tuple[str, ...] = Field(
        default=(),
        description="slices that have a threshold but do not occur, which is also a failure",
    )

    def reasons(self) -> tuple[str, ...]:
        """Return why it is not passed, a line each."""
        missing = (f"TFMA has not checked the threshold for {name}" for name in self.missing_slices)
        return (*map(str, self.failures), *missing)
