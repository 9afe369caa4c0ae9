"""The line about features that do not look like a property of an example."""

from __future__ import annotations

import csv
import io
import shlex
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from slicebeam.pipelines.changelist.document import Dataset, FeatureHint

_LOOKS = {"output": "a model's output", "label": "the label", "id": "an id"}


def hint_lines(dataset: Dataset) -> Iterator[str]:
    """Yield the line with the flag that leaves the features out, if there are any."""
    if not dataset.hints:
        return
    kinds = dict.fromkeys(one.looks_like for one in dataset.hints)
    groups = {kind: [one for one in dataset.hints if one.looks_like == kind] for kind in kinds}
    looks = "; ".join(f"{_LOOKS[kind]} ({_described(some)})" for kind, some in groups.items())
    if len(dataset.hints) == len(dataset.domains):
        # Without them nothing would be left to slice by.
        yield f"All features look like {looks}."
        return
    if list(groups) == ["output"]:
        looks = f"{_LOOKS['output']}, by their names"
    yield (
        f"--exclude-features={shlex.quote(_listed([one.name for one in dataset.hints]))} leaves "
        f"out the columns that look like {looks}."
    )


def _described(hints: Sequence[FeatureHint]) -> str:
    return ", ".join(
        one.name if one.looks_like == "output" else f"{one.name}: {one.reason}" for one in hints
    )


def _listed(names: Sequence[str]) -> str:
    """Return names separated by commas, with quotes around those that have one."""
    row = io.StringIO()
    csv.writer(row, lineterminator="").writerow(names)
    return row.getvalue()
