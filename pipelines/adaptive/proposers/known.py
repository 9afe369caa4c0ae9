"""What a model should say on a test, as far as the test says it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from slicebeam.pipelines.adaptive.expectations import expected_of

if TYPE_CHECKING:
    from slicebeam.pipelines.adaptive.tree import Test


def known_of(test: Test) -> tuple[str, str]:
    """Return the expectation of a test and its value, which its label may imply; empty for none."""
    return expected_of(test.expectation, test.label, test.output, test.value)
