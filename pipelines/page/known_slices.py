"""Slices that are marked as known in the browser: entries of the file that ``--known`` names.

The next run with this file does not fail for them.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import date
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import Field

from slicebeam.pipelines.changelist.edits import find_slice
from slicebeam.pipelines.changelist.known import (
    KNOWN,
    known_in_run,
    read_known,
    slice_text,
    write_known,
)
from slicebeam.pipelines.changelist.testing import KnownSlice
from slicebeam.pipelines.page.answers import PageRequest, RefusedError, post
from slicebeam.pipelines.page.editing import WRITING
from slicebeam.transforms.storage.storage import storage_path

if TYPE_CHECKING:
    from starlette.routing import Route

    from slicebeam.pipelines.page.served import ServedOutput


class OfSlice(PageRequest):
    """A slice of the document."""

    slice_id: Annotated[str, Field(min_length=1, max_length=200)]


class MarkRequest(OfSlice):
    """Whether a slice is known, with a note and the last day on which that counts."""

    is_known: bool
    note: Annotated[str, Field(max_length=20_000)] = ""
    until: date | None = None


def entries_in(uri: str) -> tuple[KnownSlice, ...]:
    """Return the entries of a file, which need not exist yet."""
    return read_known(uri) if storage_path(uri, KNOWN).exists() else ()


@dataclass(frozen=True)
class Marking:
    """Reads and writes the file of known slices."""

    served: ServedOutput

    def of(self, request: OfSlice) -> dict[str, Any]:
        """Return the file, the entry of a slice, and the entries of slices that it is within; no file without --known."""
        uri = self.served.config.known
        if uri is None:
            return {"file": None, "entry": None, "within": []}
        document = self.served.search()
        slice_ = find_slice(document, request.slice_id)
        text, entry, within = slice_text(slice_), None, []
        for judged in known_in_run(document, entries_in(uri)):
            shown = {**judged.model_dump(mode="json"), "line": judged.line()}
            if judged.slice == text:
                entry = shown
            elif slice_.slice_id in judged.slices:
                within.append(shown)
        return {"file": uri, "entry": entry, "within": within}

    def mark(self, request: MarkRequest) -> dict[str, Any]:
        """Write or remove the entry of a slice."""
        uri = self.served.config.known
        if uri is None:
            raise RefusedError("start slicebeam serve with --known FILE to mark known slices", 409)
        text = slice_text(find_slice(self.served.search(), request.slice_id))
        with WRITING:
            entries = [entry for entry in entries_in(uri) if entry.slice != text]
            if request.is_known:
                note = request.note.strip() or None
                entries.append(KnownSlice(slice=text, note=note, until=request.until))
            write_known(uri, entries)
        return self.of(request)


def routes(served: ServedOutput) -> list[Route]:
    """Return the routes of known slices."""
    marking = Marking(served)
    return [post("/known/of", OfSlice, marking.of), post("/known", MarkRequest, marking.mark)]
