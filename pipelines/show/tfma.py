"""Terminal output of metrics of TensorFlow Model Analysis."""

from __future__ import annotations

from typing import TYPE_CHECKING

from slicebeam.pipelines.show.terminal_text import FILES
from slicebeam.transforms.encode.predicates import shortened

if TYPE_CHECKING:
    from collections.abc import Iterator

    from slicebeam.pipelines.changelist.document import SearchChangeList
    from slicebeam.pipelines.changelist.parts import Estimate
    from slicebeam.pipelines.show.terminal_text import ResultPlaces

# A metric may have thousands of numbers, and a document a thousand slices.
_MOST_NUMBERS, _MOST_SLICES = 3, 10


def tfma_lines(document: SearchChangeList, places: ResultPlaces = FILES) -> Iterator[str]:
    """Yield the numbers over all examples, and on the findings or the first slices."""
    names = {one.slice_id: one.name for one in document.slices}
    first = list(dict.fromkeys(one.slice_id for one in document.findings)) or list(names)
    chosen = first[:_MOST_SLICES]
    for metric in dict.fromkeys(one.metric for one in document.tfma_metrics):
        numbers = [one for one in document.tfma_metrics if one.metric == metric]
        for number in numbers[:_MOST_NUMBERS]:
            unit = f"95% intervals from {number.replicates} replicates of {number.unit}"
            yield f"{metric} {number.name}: {_text(number.overall)} over all examples ({unit})"
            by_slice = {one.slice_id: one for one in number.slices}
            for slice_id in chosen:
                if (one := by_slice.get(slice_id)) is not None:
                    p = "" if one.p_value is None else f", p {one.p_value:.2g}"
                    before = "" if one.before is None else f", before {_text(one.before)}"
                    yield f"  {_text(one.after)}{before}{p}  {shortened(names[slice_id])}"
        if len(numbers) > _MOST_NUMBERS:
            more = len(numbers) - _MOST_NUMBERS
            yield f"and {more:,} more numbers of {metric} in {places.document}"
    if "plots" in (document.files or {}):
        yield "plots are in plots.parquet; slicebeam export tfma writes them for TFMA's viewer"


def _text(estimate: Estimate) -> str:
    if estimate.value is None:
        return "undefined"
    if estimate.lo is None or estimate.hi is None:
        return f"{estimate.value:.4g}"
    return f"{estimate.value:.4g} [{estimate.lo:.4g}, {estimate.hi:.4g}]"
