"""The examples of a slice, from the data: what the models say of them, a page at a time."""

from __future__ import annotations

import json
import threading
from collections import OrderedDict
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pydantic import Field

from slicebeam.metrics.errors import SlicebeamError
from slicebeam.pipelines.changelist.reading import opened_table
from slicebeam.pipelines.page.answers import PageRequest, RefusedError, post
from slicebeam.pipelines.search.fingerprints import fingerprint_again, short
from slicebeam.transforms.encode.column import python_values
from slicebeam.transforms.encode.definitions import Predicate, PredicateDefinition
from slicebeam.transforms.storage.files import expand_paths
from slicebeam.transforms.storage.storage import identity, storage_path, written_whole

if TYPE_CHECKING:
    from starlette.routing import Route

    from slicebeam.metrics.arrays import IntArray
    from slicebeam.pipelines.changelist.document import SearchChangeList
    from slicebeam.pipelines.define.document_data import DocumentData
    from slicebeam.pipelines.page.served import ServedOutput
    from slicebeam.transforms.encode.definitions import AnyDefinition

_KEPT = "fingerprints.json"


@dataclass(frozen=True)
class DataCheck:
    """What is known of the data."""

    is_same: bool | None
    said: str


def data_check(served: ServedOutput, document: SearchChangeList) -> DataCheck:
    """Return whether the data is what a document is about; the first time reads all of it."""
    expected = document.dataset.fingerprint
    if document.discovery is not None:
        return DataCheck(
            None,
            "The fingerprint of a discovery's data needs all embeddings, and is not made again: "
            "the numbers of examples are compared.",
        )
    try:
        found = _fingerprint(served, document)
    except SlicebeamError as error:
        return DataCheck(None, f"The fingerprint of the data can't be made again: {error}")
    if found == expected:
        return DataCheck(True, "The data has the fingerprint that the document has.")
    return DataCheck(
        False,
        f"The data is not what the document is about: its fingerprint is {short(found)}, and that "
        f"of the document {short(expected)}. Name the data by --data.",
    )


def _fingerprint(served: ServedOutput, document: SearchChangeList) -> str:
    """Return the fingerprint of the data, made once for each state of its files."""
    files, kept = expand_paths(served.data), served.state / _KEPT
    states = [identity(storage_path(path, "--data")) for path in files]
    key = json.dumps([document.changelist_id, files, states])
    with suppress(OSError, ValueError, KeyError, TypeError):
        known = json.loads(kept.read_bytes())
        if known["of"] == key:
            return str(known["fingerprint"])
    found = fingerprint_again(served.uri, document, files, served.config.confirmed)
    with written_whole(kept) as stream:
        stream.write(json.dumps({"of": key, "fingerprint": found}).encode())
    return found


# Characters of a value that a page has at once, and that are sent at the most.
_SHOWN, _LONGEST = 500, 2_000_000
_PAGE, _SLICES = 20, 16
_WANTED = ("slice_id", "slice", "predicate", "n")
# What is worth a look first.
_ORDER = ("broken", "wrong", "both wrong", "fixed", "right", "both right")


class _OfSlice(PageRequest):
    """A slice of the document, or of the table of all tested slices."""

    slice_id: Annotated[str, Field(min_length=1, max_length=200)]


class _Page(_OfSlice):
    role: Annotated[str | None, Field(max_length=20)] = None
    offset: Annotated[int, Field(ge=0)] = 0


class _Cell(_OfSlice):
    row: Annotated[int, Field(ge=0)]
    column: Annotated[str, Field(max_length=1_000)]


@dataclass(frozen=True)
class _Members:
    """The examples of a slice, int64 [n], in the order in which they are shown."""

    name: str
    n: int
    rows: IntArray


@dataclass
class SliceExamples:
    """Reads the examples of slices; the last slices' members are held."""

    served: ServedOutput
    _lock: threading.Lock = field(default_factory=threading.Lock)
    # Of this revision; its slices may have other names, or be new, in the next.
    _of: tuple[str, int] | None = None
    _checked: DataCheck | None = None
    _members: OrderedDict[str, _Members] = field(default_factory=OrderedDict)

    def page(self, request: _Page) -> dict[str, Any]:
        """Return a page of the examples of a slice, and how many there are of each role."""
        with self._lock:
            data, checked = self._open()
            members = self._of_slice(data, request)
            rows = members.rows
            counts = {}
            if data.roles is not None:
                own = data.roles[rows]
                counts = {one: int((own == one).sum()) for one in _ORDER if (own == one).any()}
                if request.role is not None:
                    rows = rows[own == request.role]
            some = rows[request.offset : request.offset + _PAGE]
            return {
                "name": members.name,
                "n": members.n,
                "held": len(members.rows),
                "checked": checked.said,
                "is_same": checked.is_same,
                "roles": counts,
                "total": len(rows),
                "offset": request.offset,
                "per_page": _PAGE,
                "examples": _shown(data, some),
            }

    def cell(self, request: _Cell) -> dict[str, Any]:
        """Return all of a value that a page has the beginning of."""
        with self._lock:
            data, _ = self._open()
            if request.row not in self._of_slice(data, request).rows:
                raise RefusedError(f"row {request.row} is not in the slice", 404)
            if request.column not in (*data.shown, *data.outcome):
                raise RefusedError(f"there is no column {request.column[:100]!r} to show", 404)
            table = data.read(np.array([request.row]), [request.column])
            (value,) = python_values(table.column(0))
        text = _text(value)
        is_cut = len(text) > _LONGEST
        return {"text": text[:_LONGEST] + ("…" if is_cut else ""), "length": len(text)}

    def _open(self) -> tuple[DocumentData, DataCheck]:
        """Return the data, and whether it is what the last revision is about."""
        document = self.served.search()
        if self._checked is None or (self._of and self._of[0] != document.changelist_id):
            self._checked = data_check(self.served, document)
        if self._checked.is_same is False:
            said, self._checked = self._checked.said, None
            raise RefusedError(said, 409)
        if self._of != (document.changelist_id, document.revision):
            self._of = document.changelist_id, document.revision
            self._members.clear()
        return self.served.opened.of(self.served), self._checked

    def _of_slice(self, data: DocumentData, request: _OfSlice) -> _Members:
        if request.slice_id in self._members:
            self._members.move_to_end(request.slice_id)
            return self._members[request.slice_id]
        name, definition, n = self._defined(request)
        rows = np.concatenate(data.by_role(definition, _ORDER))
        found = self._members[request.slice_id] = _Members(name, n, rows)
        if len(self._members) > _SLICES:
            self._members.popitem(last=False)
        return found

    def _defined(self, request: _OfSlice) -> tuple[str, AnyDefinition, int]:
        """Return the name, the definition and the size of a slice of the document, or of the table."""
        document = self.served.search()
        for slice_ in document.slices:
            if slice_.slice_id == request.slice_id:
                return slice_.name, slice_.definition, slice_.size.n
        return table_slice(self.served.latest().uri, document, request.slice_id)


def table_slice(
    uri: str, document: SearchChangeList, slice_id: str
) -> tuple[str, PredicateDefinition, int]:
    """Return name, definition and size of a slice of the table, looked for row group by row group."""
    absent = RefusedError(f"slice {slice_id} is neither in the document nor in its table", 404)
    with opened_table(uri, document) as stream:
        if stream is None:
            raise absent
        table = pq.ParquetFile(stream)
        for group in range(table.num_row_groups):
            ids = table.read_row_group(group, columns=[_WANTED[0]]).column(0)
            place = pc.index(ids, slice_id).as_py()
            if place >= 0:
                rows = table.read_row_group(group, columns=list(_WANTED)).slice(place, 1)
                (row,) = rows.to_pylist()
                if row["predicate"] is None:
                    raise absent
                predicate = Predicate.model_validate_json(row["predicate"])
                return row["slice"], PredicateDefinition(predicate=predicate), row["n"]
    raise absent


def _shown(data: DocumentData, rows: IntArray) -> list[dict[str, Any]]:
    shown = [name for name in data.shown if name not in data.outcome]
    table = data.read(rows, [*shown, *data.outcome])
    values = {name: python_values(table.column(name)) for name in table.column_names}
    return [
        {
            "row": int(row),
            "id": None if own_id is None else str(own_id),
            "role": None if data.roles is None else str(data.roles[row]),
            "outcome": [
                {"is": said, **_cut(name, values[name][at])} for name, said in data.outcome.items()
            ],
            "fields": [_cut(name, values[name][at]) for name in shown],
        }
        for at, (row, own_id) in enumerate(zip(rows, data.ids_of(rows), strict=True))
    ]


def _cut(name: str, value: Any) -> dict[str, Any]:
    text = _text(value)
    return {"name": name, "text": text[:_SHOWN], "length": len(text)}


def _text(value: Any) -> str:
    return "missing" if value is None else str(value)


def routes(served: ServedOutput) -> list[Route]:
    """Return the routes of examples."""
    examples = SliceExamples(served)
    return [post("/examples", _Page, examples.page), post("/examples/cell", _Cell, examples.cell)]
