"""Terminal output of metrics of TensorFlow Model Analysis."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from slicebeam.pipelines.show.terminal_text import FILES
from slicebeam.transforms.encode.predicates import shortened

if TYPE_CHECKING:
    from collections.abc import Iterator

    from slicebeam.pipelines.changelist.document import SearchChangeList
    from slicebeam.pipelines.changelist.parts import Estimate
    from slicebeam.pipelines.changelist.testing import TfmaMetric
    from slicebeam.pipelines.show.terminal_text import ResultPlaces

# A metric may have thousands of numbers, and a document a thousand slices.
_MOST_NUMBERS, _MOST_SLICES = 3, 10


def tfma_lines(document: SearchChangeList, places: ResultPlaces = FILES) -> Iterator[str]:
    """Yield the numbers over all examples, and on the findings or the first slices."""
    names = {one.slice_id: one.name for one in document.slices}
    first = list(dict.fromkeys(one.slice_id for one in document.findings)) or list(names)
    chosen = first[:_MOST_SLICES]
    numbers: dict[str, list[TfmaMetric]] = {}
    for number in document.tfma_metrics:
        # A metric may have many numbers: of classes, ranks and thresholds.
        numbers.setdefault(re.split(r"[@.\[]", number.name)[0], []).append(number)
    for metric, listed in numbers.items():
        for number in listed[:_MOST_NUMBERS]:
            drawn = (
                f", 95% intervals of {number.replicates} replicates" if number.replicates else ""
            )
            yield f"TFMA {number.name}: {_text(number.overall)} over all examples{drawn}"
            by_slice = {value.slice_id: value for value in number.slices}
            for slice_id in chosen:
                if (value := by_slice.get(slice_id)) is not None:
                    p = "" if value.p_value is None else f", p {value.p_value:.2g}"
                    before = "" if value.before is None else f", before {_text(value.before)}"
                    yield f"  {_text(value.after)}{before}{p}  {shortened(names[slice_id])}"
        if len(listed) > _MOST_NUMBERS:
            more = len(listed) - _MOST_NUMBERS
            yield f"and {more:,} more numbers of {metric} in {places.document}"
    if "tfma" in (document.files or {}):
        yield "slicebeam export tfma writes what TFMA computed, plots included, for its viewer"


def _text(estimate: Estimate) -> str:
    if estimate.value is None:
        return "undefined"
    if estimate.lo is None or estimate.hi is None:
        return f"{estimate.value:.4g}"
    return f"{estimate.value:.4g} [{estimate.lo:.4g}, {estimate.hi:.4g}]"
