"""Whether a run passes its gate."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from slicebeam.pipelines.changelist.parts import Part

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
