"""A few examples of the slices that the page shows first."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from slicebeam.metrics.errors import OptionError
from slicebeam.pipelines.changelist.document import SearchChangeList
from slicebeam.pipelines.define.document_data import FAILING, FIXED, RIGHT, open_data
from slicebeam.pipelines.show.worst_slices import shown_slices
from slicebeam.transforms.encode.column import python_values
from slicebeam.transforms.storage.storage import storage_path

if TYPE_CHECKING:
    from collections.abc import Iterator

    from slicebeam.metrics.arrays import IntArray
    from slicebeam.pipelines.changelist.document import ChangeList
    from slicebeam.pipelines.changelist.slices import Slice
    from slicebeam.pipelines.define.document_data import DocumentData

_LONGEST = 2_000


def examples_of(
    uri: str, document: ChangeList, data: tuple[str, ...], number: int
) -> dict[str, list[dict[str, Any]]]:
    """Return examples of the slices shown first; of a discovery those that the document has, of all it describes."""
    if not isinstance(document, SearchChangeList):
        raise OptionError("--examples: the document of a shift has no findings to show examples of")
    if document.discovery is not None and not data:
        return {one.slice_id: list(_of_document(one, number)) for one in document.described()}
    wanted = set(shown_slices(document))
    slices = [slice_ for slice_ in document.slices if slice_.slice_id in wanted]
    for path in data or document.dataset.uri:
        if not isinstance(storage_path(path, "--data"), Path):
            raise OptionError(
                f"--examples: {path} is not on this machine; name a copy that is with --data"
            )
    opened = open_data(uri, document, data or None)
    better = {finding.slice_id for finding in document.findings if finding.direction == "better"}
    return {
        slice_.slice_id: _read(opened, slice_, number, is_better=slice_.slice_id in better)
        for slice_ in slices
    }


def _of_document(one: Slice, number: int) -> Iterator[dict[str, Any]]:
    """Yield the examples that a discovery found typical, worst or best, by turns."""
    found = () if one.found is None else one.found.examples
    by_role: dict[str, list[Any]] = {}
    for example in found:
        by_role.setdefault(example.role, []).append(example)
    turns = max(map(len, by_role.values()), default=0)
    ordered = [some[at] for at in range(turns) for some in by_role.values() if at < len(some)]
    for example in ordered[:number]:
        fields = [(name, _text(value)) for name, value in example.display.items()]
        yield _entry(example.role, example.id, fields)


def _read(data: DocumentData, one: Slice, number: int, *, is_better: bool) -> list[dict[str, Any]]:
    # "Better" findings of two models begin with what the update fixed.
    first = (FIXED, RIGHT) if is_better else FAILING
    return entries(data, np.concatenate(data.tiers(one, first, "--examples"))[:number])


def entries(data: DocumentData, places: IntArray) -> list[dict[str, Any]]:
    """Return the role, the id and the fields, of which long values are cut, of some examples."""
    columns = list(dict.fromkeys([*data.shown, *data.outcome]))
    table = data.read(places, columns)
    values = {name: python_values(table.column(name)) for name in columns}
    return [
        _entry(
            "example" if data.roles is None else str(data.roles[place]),
            own_id,
            [(name, _text(values[name][at])) for name in columns],
        )
        for at, (place, own_id) in enumerate(zip(places, data.ids_of(places), strict=True))
    ]


def _entry(role: str, own_id: Any, fields: list[tuple[str, str]]) -> dict[str, Any]:
    return {"role": role, "fields": fields, **({} if own_id is None else {"id": own_id})}


def _text(value: Any) -> str:
    if value is None:
        return "missing"
    text = str(value)
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}…"
