"""Why metrics moved since the earlier data, and how the data drifted, as lines."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from slicebeam.metrics.errors import counted
from slicebeam.pipelines.changelist.changes import LARGE_DRIFT, NO_DRIFT, ROUGH, WhyMoved
from slicebeam.pipelines.changelist.document import SearchChangeList
from slicebeam.pipelines.changelist.parts import Estimate

_MOST_VALUES, _MOST_DRIFTS = 3, 3


def moved_lines(document: SearchChangeList) -> Iterator[str]:
    """Yield why each metric is not what it was."""
    earlier = document.earlier_data
    for moved in () if earlier is None else earlier.moved:
        limits = next(entry.range for entry in document.metrics if entry.key == moved.metric)
        yield from _lines_of(moved, n=earlier.n if earlier else 0, is_share=limits == (0.0, 1.0))


def _lines_of(moved: WhyMoved, *, n: int, is_share: bool) -> Iterator[str]:
    def number(change: float | None) -> str:
        """Return a change in points of a share, or in the metric's own unit."""
        return f"{100 * (change or 0.0):+.1f}" if is_share else f"{change or 0.0:+.3g}"

    def with_interval(change: Estimate) -> str:
        return f"{number(change.value)} [{number(change.lo)}, {number(change.hi)}]"

    rough = ", roughly: the data sets differ much" if moved.distance > ROUGH else ""
    yield f"Why {moved.metric} changed by {number(moved.change)} since then ({n:,} examples){rough}:"
    if moved.new_share > 0:
        yield (
            f"  {number(moved.new_kinds)}  by new kinds of examples, {moved.new_share:.1%} of today's: "
            f"hardly any had {_first(moved.new_values)} then"
        )
    if moved.mix is None or moved.model is None:
        rest = number(moved.change - moved.new_kinds)
        yield f"  {rest}  by the mix of the data and by the model, which cannot be told apart: the data sets differ too much"
        return
    yield f"  {with_interval(moved.mix)}  by the mix of the data"
    for part in moved.by_mix:
        then, now = part.share_then or 0.0, part.share_now or 0.0
        more = "more" if now > then else "fewer"
        # A finding is its own value.
        of_value = "" if part.value == part.name else f" with {part.value}"
        change = with_interval(part.change)
        yield f"      {change}  {part.name}: {more}{of_value} ({then:.1%} → {now:.1%})"
    yield f"  {with_interval(moved.model)}  by the model, on the same kinds of examples"
    yield from (f"      {with_interval(part.change)}  {part.name}" for part in moved.by_model)


def _first(values: Sequence[str]) -> str:
    return ", ".join(values[:_MOST_VALUES]) + (", …" if len(values) > _MOST_VALUES else "")


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
        if feature.new_values:
            yield f"{feature.feature}: no example had {_first(feature.new_values)} then."
        if feature.gone_values:
            yield f"{feature.feature}: no example has now {_first(feature.gone_values)}."
