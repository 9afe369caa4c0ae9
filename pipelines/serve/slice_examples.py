"""The examples of a slice, from the data: what the models say of them, a page at a time."""

from __future__ import annotations

import threading
from collections import OrderedDict
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
import pyarrow as pa
from pydantic import Field

from slicebeam.metrics.randomness import splitmix64
from slicebeam.pipelines.changelist.document import SearchChangeList
from slicebeam.pipelines.prepare.rows import read_rows
from slicebeam.pipelines.serve.answers import Given, RefusedError, takes
from slicebeam.pipelines.serve.data_check import DataChecker
from slicebeam.pipelines.serve.table_slices import table_slice
from slicebeam.transforms.encode.column_values import python_values

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray
    from starlette.routing import Route

    from slicebeam.metrics.arrays import IntArray
    from slicebeam.pipelines.changelist.discovered import AnyDefinition
    from slicebeam.pipelines.define.examples import Examples
    from slicebeam.pipelines.serve.data_check import DataCheck
    from slicebeam.pipelines.serve.served import ServedOutput

# Characters of a value that a page has at once, and that are sent at the most.
_SHOWN, _LONGEST = 500, 2_000_000
_PAGE, _SLICES = 20, 16
# What is worth a look first.
_ORDER = ("broken", "wrong", "both wrong", "fixed", "right", "both right")


class _OfSlice(Given):
    """A slice of the document, or of the table of all tested slices."""

    slice_id: Annotated[str, Field(min_length=1, max_length=200)]


class _Page(_OfSlice):
    role: Annotated[str | None, Field(max_length=20)] = None
    offset: Annotated[int, Field(ge=0)] = 0


class _Cell(_OfSlice):
    row: Annotated[int, Field(ge=0)]
    column: Annotated[str, Field(max_length=1_000)]


@dataclass(frozen=True)
class _Opened:
    """The examples of a revision of the document.

    Attributes
    ----------
    roles : of each example, whether the models are right; None where no class is predicted
    order : of the examples, which is random and always the same
    """

    document: SearchChangeList
    examples: Examples
    roles: NDArray[np.str_] | None
    order: IntArray
    checked: DataCheck

    @cached_property
    def columns(self) -> tuple[list[str], dict[str, str]]:
        """The columns that show an example, and those of label and predictions with what they are."""
        outcome = _outcome(self.document)
        shown = self.examples.rows(np.zeros(0, np.int64)).column_names
        return [name for name in shown if name not in outcome], outcome

    def read(self, rows: IntArray, columns: Sequence[str]) -> dict[str, list[Any]]:
        """Return the values of some examples by their columns."""
        wanted, place = np.unique(rows, return_inverse=True)
        if not wanted.size or not columns:
            return {name: [] for name in columns}
        table = read_rows(self.examples.source, wanted, columns).take(pa.array(place))
        return {name: python_values(table.column(name)) for name in columns}


@dataclass(frozen=True)
class _Members:
    """The examples of a slice, int64 [n], in the order in which they are shown."""

    name: str
    n: int
    rows: IntArray


@dataclass
class SliceExamples:
    """Reads the examples of slices; the last slices' members are held.

    Attributes
    ----------
    served : the output
    """

    served: ServedOutput
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _opened: _Opened | None = None
    _members: OrderedDict[str, _Members] = field(default_factory=OrderedDict)

    def __post_init__(self) -> None:
        self._checker = DataChecker(self.served)
        self.served.at_end.callback(self.close)

    def close(self) -> None:
        """Remove what was made of the data."""
        if self._opened is not None:
            self._opened.examples.close()

    def page(self, given: _Page) -> dict[str, Any]:
        """Return a page of the examples of a slice, and how many there are of each role.

        Raises
        ------
        RefusedError
            The data is not what the document is about, or there is no such slice.
        """
        with self._lock:
            opened = self._open()
            members = self._of_slice(opened, given)
            rows = members.rows
            counts = {}
            if opened.roles is not None:
                own = opened.roles[rows]
                counts = {one: int((own == one).sum()) for one in _ORDER if (own == one).any()}
                if given.role is not None:
                    rows = rows[own == given.role]
            some = rows[given.offset : given.offset + _PAGE]
            return {
                "name": members.name,
                "n": members.n,
                "held": len(members.rows),
                "checked": opened.checked.said,
                "is_same": opened.checked.is_same,
                "roles": counts,
                "total": len(rows),
                "offset": given.offset,
                "per_page": _PAGE,
                "examples": _shown(opened, some),
            }

    def cell(self, given: _Cell) -> dict[str, Any]:
        """Return all of a value that a page has the beginning of."""
        with self._lock:
            opened = self._open()
            if given.row not in self._of_slice(opened, given).rows:
                raise RefusedError(f"row {given.row} is not in the slice", 404)
            shown, outcome = opened.columns
            if given.column not in (*shown, *outcome):
                raise RefusedError(f"there is no column {given.column[:100]!r} to show", 404)
            (value,) = opened.read(np.array([given.row]), [given.column])[given.column]
        text = _text(value)
        is_cut = len(text) > _LONGEST
        return {"text": text[:_LONGEST] + ("…" if is_cut else ""), "length": len(text)}

    def _open(self) -> _Opened:
        """Return the examples of the last revision."""
        now = self.served.latest()
        document = now.document
        if not isinstance(document, SearchChangeList):
            raise RefusedError("the document of a shift has no slices with examples", 404)
        opened = self._opened
        if opened is not None and opened.document.changelist_id == document.changelist_id:
            if opened.document.revision != document.revision:
                # The same examples; slices may have other names, or be new.
                self._members.clear()
                self._opened = opened = replace(opened, document=document)
            return opened
        checked = self._checker.check(document)
        if checked.is_same is False:
            raise RefusedError(checked.said, 409)
        from slicebeam.pipelines.define.examples import open_examples
        from slicebeam.pipelines.page.examples import roles_of

        config = self.served.config
        examples = open_examples(now.uri, document, config.data or None, config.confirmed)
        order: IntArray = np.argsort(splitmix64(examples.hashes), kind="stable")
        self._members.clear()
        roles = roles_of(examples, document)
        self._opened = _Opened(document, examples, roles, order, checked)
        return self._opened

    def _of_slice(self, opened: _Opened, given: _OfSlice) -> _Members:
        if given.slice_id in self._members:
            self._members.move_to_end(given.slice_id)
            return self._members[given.slice_id]
        name, definition, n = self._defined(opened, given)
        member = opened.examples.counted(definition)
        rows = opened.order[member[opened.order]]
        if opened.roles is not None:
            own = opened.roles[rows]
            rank = np.select([own == one for one in _ORDER], range(len(_ORDER)), len(_ORDER))
            rows = rows[np.argsort(rank, kind="stable")]
        found = self._members[given.slice_id] = _Members(name, n, rows)
        if len(self._members) > _SLICES:
            self._members.popitem(last=False)
        return found

    def _defined(self, opened: _Opened, given: _OfSlice) -> tuple[str, AnyDefinition, int]:
        """Return the name, the definition and the size of a slice of the document, or of the table."""
        for one in opened.document.slices:
            if one.slice_id == given.slice_id:
                return one.name, one.definition, one.size.n
        found = table_slice(self.served.latest().uri, opened.document, given.slice_id)
        return found.name, found.definition, found.n


def _outcome(document: SearchChangeList) -> dict[str, str]:
    """Return the columns of the label and of what the models say, each with what it is."""
    found = {document.dataset.label_field: "label"}
    for role, said in (("before", "old"), ("after", "new")):
        for one in document.models:
            if one.role == role:
                found[one.prediction_field or one.score_field or one.loss_field] = said
    return {name: said for name, said in found.items() if name is not None}


def _shown(opened: _Opened, rows: IntArray) -> list[dict[str, Any]]:
    shown, outcome = opened.columns
    values = opened.read(rows, [*shown, *outcome])
    ids = [None] * len(rows)
    if opened.examples.id_field is not None:
        ids = opened.examples.ids.take(pa.array(rows)).to_pylist()
    return [
        {
            "row": int(row),
            "id": None if ids[at] is None else str(ids[at]),
            "role": None if opened.roles is None else str(opened.roles[row]),
            "outcome": [
                {"is": said, **_cut(name, values[name][at])} for name, said in outcome.items()
            ],
            "fields": [_cut(name, values[name][at]) for name in shown],
        }
        for at, row in enumerate(rows)
    ]


def _cut(name: str, value: Any) -> dict[str, Any]:
    text = _text(value)
    return {"name": name, "text": text[:_SHOWN], "length": len(text)}


def _text(value: Any) -> str:
    return "missing" if value is None else str(value)


def routes(served: ServedOutput) -> list[Route]:
    """Return the routes of examples."""
    examples = SliceExamples(served)
    return [takes("/examples", _Page, examples.page), takes("/examples/cell", _Cell, examples.cell)]
