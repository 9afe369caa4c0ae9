"""A folder of outputs: its runs, newest first, and the value of one slice in each of them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import pyarrow.parquet as pq
from pydantic import Field

from slicebeam.metrics.errors import FileError, InputError, SlicebeamError
from slicebeam.pipelines.changelist.document import SearchChangeList
from slicebeam.pipelines.changelist.reading import (
    CHANGELIST,
    TABLE,
    file_of,
    opened_table,
    read_changelist,
)
from slicebeam.pipelines.page.answers import PageRequest
from slicebeam.pipelines.page.overview import overview_of
from slicebeam.pipelines.page.served import NAMED
from slicebeam.transforms.storage.storage import identity, storage_errors, storage_path

if TYPE_CHECKING:
    from collections.abc import Callable

    from slicebeam.pipelines.changelist.document import ChangeList
    from slicebeam.transforms.storage.storage import StoragePath

# Of a run, what the list shows; the names are those of `overview_of`.
_LISTED = (
    *("title", "summary", "command", "created_at", "dataset", "models", "comparison", "metrics"),
    *("global", "tests", "alternative", "gate"),
)
# Runs whose slices are looked up, the newest, and bytes of a table that is read for one slice.
_MOST_RUNS, _MOST_BYTES = 100, 200 << 20
# Readings that are kept.
_MOST_READ = 2_000
_VALUES = ("n", "value", "value_low", "value_high", "significant")


class OverRuns(PageRequest):
    """A slice whose value is wanted over the runs of a folder."""

    slice_id: Annotated[str, Field(max_length=100)]
    metric: str


class Runs:
    """The outputs that lie in a folder."""

    def __init__(self, folder: StoragePath) -> None:
        self.folder = folder
        # What was read of a document, by its name, what was read, and the state that it had.
        self._read: dict[tuple[str, str], tuple[list[int | str], dict[str, Any]]] = {}

    @classmethod
    def within(cls, uri: str) -> Runs | None:
        """Return the outputs in a folder; None where the path is an output itself."""
        path = storage_path(uri, NAMED)
        if not path.is_dir() or (path / CHANGELIST).is_file():
            return None
        runs = cls(path)
        if not runs.names():
            raise FileError(
                f"{NAMED} {uri}: neither this folder nor one in it has a {CHANGELIST}; name the "
                "--output of a run"
            )
        return runs

    def names(self) -> list[str]:
        """Return the names of the folders that are outputs."""
        with storage_errors(self.folder, "read"):
            return sorted(
                one.name
                for one in self.folder.iterdir()
                if not one.name.startswith(".") and (one / CHANGELIST).is_file()
            )

    def listing(self) -> list[dict[str, Any]]:
        """Return what is known of each run, the newest first."""
        return sorted(map(self._listed, self.names()), key=_age, reverse=True)

    def _listed(self, name: str) -> dict[str, Any]:
        def listed() -> dict[str, Any]:
            try:
                content = overview_of(self._document(name, with_slices=False), ())
            except SlicebeamError as error:
                return {"name": name, "error": str(error)}
            return {
                "name": name,
                "overview": {key: content[key] for key in _LISTED if key in content},
            }

        return self._once(name, "", listed)

    def _once(self, name: str, what: str, read: Callable[[], dict[str, Any]]) -> dict[str, Any]:
        """Return what is read of a run, whose documents are parsed again only where one has changed."""
        try:
            state = identity(storage_path(self.path(name)))
        except OSError:
            return read()
        held = self._read.get((name, what))
        if held is None or held[0] != state:
            self._read[name, what] = held = state, read()
            while len(self._read) > _MOST_READ:
                self._read.pop(next(iter(self._read)), None)
        return held[1]

    def over(self, request: OverRuns) -> list[dict[str, Any]]:
        """Return a slice's value in each of the newest runs, the oldest first, or why it has none."""
        newest = [one for one in self.listing() if "overview" in one][:_MOST_RUNS]
        return [self._moment(one, request) for one in reversed(newest)]

    def _document(self, name: str, *, with_slices: bool) -> ChangeList:
        return read_changelist(self.path(name), NAMED, with_slices=with_slices)

    def path(self, name: str) -> str:
        """Return the path of a run's first document."""
        return str(self.folder / name / CHANGELIST)

    def _moment(self, run: dict[str, Any], request: OverRuns) -> dict[str, Any]:
        name = run["name"]

        def value() -> dict[str, Any]:
            try:
                return self._value(name, request)
            except SlicebeamError as error:
                return {"missing": str(error)}

        held = self._once(name, f"{request.slice_id} {request.metric}", value)
        return {"name": name, "created_at": run["overview"]["created_at"], **held}

    def _value(self, name: str, request: OverRuns) -> dict[str, Any]:
        document = self._document(name, with_slices=True)
        for slice_ in document.slices:
            change = next((c for c in slice_.changes if c.metric == request.metric), None)
            if slice_.slice_id == request.slice_id and change is not None:
                value = change.after
                return {
                    "n": change.n,
                    "value": value.value,
                    "value_low": value.lo,
                    "value_high": value.hi,
                    "significant": change.significant,
                }
        if not isinstance(document, SearchChangeList):
            return {"missing": "the run tested no slices"}
        path = file_of(self.path(name), document, TABLE)
        if path.is_file() and int(identity(path)[0]) > _MOST_BYTES:
            return {
                "missing": "the table of this run is too large to look it up here; open the run"
            }
        with opened_table(self.path(name), document) as stream:
            if stream is None:
                return {"missing": "slices.parquet is not beside the document"}
            if not set(_VALUES) <= set(pq.read_schema(stream).names):
                raise InputError("slices.parquet is of an earlier version")
            stream.seek(0)
            wanted = [("slice_id", "==", request.slice_id), ("metric", "==", request.metric)]
            rows = pq.read_table(stream, columns=list(_VALUES), filters=wanted).to_pylist()
        return rows[0] if rows else {"missing": "the run did not test it"}


def _age(run: dict[str, Any]) -> tuple[str, str]:
    return run.get("overview", {}).get("created_at", ""), run["name"]
