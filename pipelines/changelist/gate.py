"""Whether a run passes its gate, and the thresholds of an EvalConfig."""

from __future__ import annotations

from typing import Literal

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


_PASSES = {
    "worse": "nothing is significantly worse",
    "failing": "no topic fails",
    None: "all thresholds are met",
}
# The document has all reasons, a sentence the first ones.
_MOST_REASONS = 3


class Gate(Part):
    """Whether a run passes: what the exit code and the first word of the summary say too."""

    fail_on: Literal["worse", "failing"] | None = Field(
        default=None, description="the option --fail-on; absent where only thresholds are checked"
    )
    passed: bool
    exit_code: Literal[0, 1, 2] = Field(
        description="0 passed, 1 something is worse, 2 something could not be tested"
    )
    reasons: tuple[str, ...] = Field(default=(), description="why it fails; none if it passes")
    tolerated: str | None = Field(default=None, description="the option --tolerance, by metric")

    def line(self) -> str:
        """Return PASS or FAIL with the reasons, in a line."""
        if self.passed:
            by_more = f" by more than is tolerated ({self.tolerated})" if self.tolerated else ""
            return f"PASS: {_PASSES[self.fail_on]}{by_more}"
        more = len(self.reasons) - _MOST_REASONS
        shown = "; ".join(self.reasons[:_MOST_REASONS])
        return f"FAIL: {shown}{f'; and {more:,} more' if more > 0 else ''}"
