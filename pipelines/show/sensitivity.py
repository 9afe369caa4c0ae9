"""The lines of a metric that is significantly worse nowhere: the nearest misses, and what would have been noticed."""

from __future__ import annotations

from typing import TYPE_CHECKING

from slicebeam.metrics.registry import metric
from slicebeam.pipelines.changelist.parts import Estimate
from slicebeam.pipelines.show.finding_numbers import Numbers

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from slicebeam.pipelines.changelist.document import SearchChangeList
    from slicebeam.pipelines.changelist.testing import NearMiss, Noticeable

_TEXT = Numbers([]).text


def sensitivity_lines(document: SearchChangeList) -> Iterator[str]:
    """Yield the lines of all metrics that are significantly worse nowhere."""
    for tested in document.testing.metrics:
        if tested.nearest:
            only = document.search.saved_slices == "significant"
            of = ", of single conditions" if only else ""
            yield f"Nearest to significantly worse in {tested.metric}{of}:"
            # Several metrics have a line each.
            shown = tested.nearest[: None if len(document.testing.metrics) == 1 else 1]
            yield from (f"  {_miss_text(miss)}" for miss in shown)
        if tested.noticeable:
            yield _noticeable_text(tested.metric, tested.noticeable)


def _miss_text(miss: NearMiss) -> str:
    change, delta = miss.change, miss.change.delta or Estimate()
    interval = "" if delta.lo is None else f" [{_TEXT(delta.lo)}, {_TEXT(delta.hi)}]"
    return (
        f"n {change.n:,}: {_TEXT(change.after.value)} against {_TEXT(change.compared_with)}, "
        f"{_TEXT(delta.value)}{interval}, q {_short(change.p_adjusted)}: {miss.name}"
    )


def _noticeable_text(name: str, falls: Sequence[Noticeable]) -> str:
    measured = metric(name)
    lower = "lower" if measured.higher_is_better else "higher"
    parts = [f"by {_short(fall.fall)} over all examples" for fall in falls if fall.n is None]
    of = f"on slices of {{}} {measured.counted or 'examples'}"
    for fall in falls:
        if fall.n is not None:
            parts.append(f"by {_short(fall.fall)} {of.format(f'{fall.n:,}')}")
            of = "of {}"
    return f"Noticed with a probability of {falls[0].power:.0%}: {name} {lower} {', '.join(parts)}."


def _short(number: float | None) -> str:
    return "" if number is None else f"{number:.2g}".removeprefix("0")
