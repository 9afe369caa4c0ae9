"""How many examples changed for the better and for the worse between two models, for document and table."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from slicebeam.metrics.intervals.intervals import agresti_coull
from slicebeam.pipelines.changelist.changes import Moved
from slicebeam.pipelines.changelist.parts import Estimate
from slicebeam.pipelines.search.results import CONFIDENCE

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from slicebeam.metrics.metric import Metric, Movement, Slices
    from slicebeam.pipelines.changelist.changes import Change


def movements(own: Metric, slices: Slices, stretch: NDArray[np.float64]) -> list[dict[str, Any]]:
    """Return the fields of `Change` that say how examples changed on each slice.

    ``stretch``: [slices] as in `MetricResult`; only where it is 1 do examples vary independently,
    so that a share has an interval.
    """
    found = own.movement(slices)
    if found is None:
        return [{}] * len(slices)
    sigma = [value if np.isfinite(value) else None for value in found.inconsistency.tolist()]
    improved, degraded = (
        _moved(counts, found, stretch == 1.0) for counts in (found.improved, found.degraded)
    )
    names = ("inconsistency", "improved", "degraded")
    return [
        dict(zip(names, facts, strict=True))
        for facts in zip(sigma, improved, degraded, strict=True)
    ]


def _moved(
    counts: NDArray[np.int64] | None, found: Movement, independent: NDArray[np.bool_]
) -> list[Moved | None]:
    if counts is None or found.counted is None:
        return [None] * found.inconsistency.size
    low, high = agresti_coull(counts, found.counted, CONFIDENCE)
    rows = zip(
        *(one.tolist() for one in (counts, found.counted, low, high, independent)), strict=True
    )
    return [
        Moved(
            n=n,
            share=Estimate(value=n / of, lo=lo, hi=hi, confidence=CONFIDENCE)
            if knows
            else Estimate(value=n / of, confidence=CONFIDENCE),
        )
        if of
        else None
        for n, of, lo, hi, knows in rows
    ]


def movement_text(change: Change, counted: str | None) -> str | None:
    """Return how the examples changed between two models, in a sentence; None where that is not known."""
    if change.inconsistency is None:
        return None
    spread = f"inconsistency {change.inconsistency:.3g}"
    if change.improved is None or change.degraded is None:
        return f"The change of an example has a standard deviation of {change.inconsistency:.3g} (inconsistency)."
    improved, degraded = change.improved.share.value or 0.0, change.degraded.share.value or 0.0
    return f"{improved:.1%} of {counted or 'the examples'} improved, {degraded:.1%} degraded ({spread})."
