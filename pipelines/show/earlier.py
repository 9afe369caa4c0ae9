"""Why metrics moved since the earlier data, and how the data drifted, as lines."""

from __future__ import annotations

from typing import TYPE_CHECKING

from slicebeam.metrics.errors import counted
from slicebeam.pipelines.changelist.changes import LARGE_DRIFT, NO_DRIFT, ROUGH

if TYPE_CHECKING:
    from collections.abc import Iterator

    from slicebeam.pipelines.changelist.changes import EarlierData, WhyMoved
    from slicebeam.pipelines.changelist.document import SearchChangeList
    from slicebeam.pipelines.changelist.parts import Estimate

_MOST_VALUES, _MOST_DRIFTS = 3, 3


def _number(document: SearchChangeList, metric: str, value: float) -> str:
    """Return a change in points of a share, or in the metric's own unit."""
    limits = next(entry.range for entry in document.metrics if entry.key == metric)
    is_share = limits is not None and tuple(limits) == (0.0, 1.0)
    return f"{100 * value:+.1f}" if is_share else f"{value:+.3g}"


def moved_lines(document: SearchChangeList) -> Iterator[str]:
    """Yield why each metric is not what it was."""
    if document.earlier_data is None:
        return
    for moved in document.earlier_data.moved:
        yield from _lines_of(document, document.earlier_data, moved)


def _lines_of(document: SearchChangeList, earlier: EarlierData, moved: WhyMoved) -> Iterator[str]:
    def told(change: Estimate) -> str:
        numbers = [
            _number(document, moved.metric, end or 0.0)
            for end in (change.value, change.lo, change.hi)
        ]
        return f"{numbers[0]} [{numbers[1]}, {numbers[2]}]"

    number = _number(document, moved.metric, moved.change)
    rough = ", roughly: the data sets differ much" if moved.distance > ROUGH else ""
    yield f"Why {moved.metric} changed by {number} since then ({earlier.n:,} examples){rough}:"
    if moved.new_share > 0:
        values = ", ".join(moved.new_values[:_MOST_VALUES])
        more = ", …" if len(moved.new_values) > _MOST_VALUES else ""
        yield (
            f"  {_number(document, moved.metric, moved.new_kinds)}  by new kinds of examples, {moved.new_share:.1%} of "
            f"today's: hardly any had {values}{more} then"
        )
    if moved.mix is None or moved.model is None:
        rest = _number(document, moved.metric, moved.change - moved.new_kinds)
        yield f"  {rest}  by the mix of the data and by the model, which cannot be told apart: the data sets differ too much"
        return
    yield f"  {told(moved.mix)}  by the mix of the data"
    for part in moved.by_mix:
        more = "more" if (part.share_now or 0.0) > (part.share_then or 0.0) else "fewer"
        yield (
            f"      {told(part.change)}  {part.name}: {more} with {part.value} "
            f"({part.share_then or 0.0:.1%} → {part.share_now or 0.0:.1%})"
        )
    yield f"  {told(moved.model)}  by the model, on the same kinds of examples"
    for part in moved.by_model:
        yield f"      {told(part.change)}  {part.name}"


def drift_lines(document: SearchChangeList) -> Iterator[str]:
    """Yield how many features are distributed differently, and which most."""
    if document.earlier_data is None:
        return
    drift = document.earlier_data.drift
    if not drift:
        yield f"{NO_DRIFT[:1].upper()}{NO_DRIFT[1:]}."
        return
    significant = [feature for feature in drift if feature.significant]
    if not significant:
        yield f"The data has not drifted: no feature of {len(drift)} is distributed differently (q <= {document.testing.alpha:g})."
        return
    large = sum(feature.stability_index >= LARGE_DRIFT for feature in significant)
    largest = "; ".join(
        f"{feature.feature} {feature.stability_index:.2f} ({feature.value} {feature.share_then:.1%} → {feature.share_now:.1%})"
        for feature in significant[:_MOST_DRIFTS]
    )
    yield (
        f"{counted(len(significant), 'feature')} of {len(drift)} changed their distribution (q <= "
        f"{document.testing.alpha:g}), {large or 'none'} by a population stability index of {LARGE_DRIFT:g} or more; the "
        f"largest: {largest}."
    )
    for feature in drift:
        for values, when in ((feature.new_values, "had"), (feature.gone_values, "has now")):
            if values:
                listed = ", ".join(values[:_MOST_VALUES])
                others = ", …" if len(values) > _MOST_VALUES else ""
                yield f"{feature.feature}: no example {when} {listed}{others}{' then' if when == 'had' else ''}."
