"""Slices that are defined, named, noted, removed and brought back in the browser: each a revision.

What is written is what ``slicebeam define --where`` and ``slicebeam edit`` write.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import Field

from slicebeam.metrics.errors import OptionError
from slicebeam.pipelines.changelist.document import SearchChangeList
from slicebeam.pipelines.changelist.edits import (
    added,
    annotated,
    check_name,
    described,
    find_slice,
    last_not_undone,
    removed,
    renamed,
    undone,
    undone_numbers,
)
from slicebeam.pipelines.changelist.revisions import SupersededError
from slicebeam.pipelines.serve.answers import Given, RefusedError, reads, takes
from slicebeam.pipelines.serve.table_slices import table_slice

if TYPE_CHECKING:
    from collections.abc import Callable

    from starlette.routing import Route

    from slicebeam.pipelines.changelist.edits import Edited
    from slicebeam.pipelines.define.new_slices import Counting, EditSession, Revision
    from slicebeam.pipelines.serve.served import ServedOutput

# Edits of the journal that are listed, the last ones.
_LISTED = 100
# Revisions are written one after the other, so that none goes on from any but the last.
WRITING = threading.Lock()
_Name = Annotated[str, Field(max_length=500)]


class _Based(Given):
    """An edit, with the revision that its author sees: of another one it is refused."""

    revision: Annotated[int, Field(ge=0)]


class _OfSlice(_Based):
    slice_id: Annotated[str, Field(min_length=1, max_length=200)]


class _Renamed(_OfSlice):
    name: _Name


class _Described(_OfSlice):
    text: Annotated[str, Field(max_length=20_000)]


class _Noted(_OfSlice):
    note: Annotated[str, Field(max_length=20_000)]


class _Defined(_Based):
    name: _Name
    where: Annotated[str, Field(min_length=1, max_length=10_000)]


@dataclass
class Editing:
    """Writes revisions, one after the other.

    Attributes
    ----------
    served : the output
    """

    served: ServedOutput

    def listed(self) -> dict[str, Any]:
        """Return the journal, the last edit that can be undone, and the columns of predicates."""
        document = self.served.latest().document
        if not isinstance(document, SearchChangeList):
            raise RefusedError("the document of a shift has no slices to edit", 404)
        edits = document.edits
        gone = undone_numbers(edits)
        names = {one.slice_id: one.name for one in document.slices}
        shown = [
            {
                "number": number,
                "at": one.at.isoformat(),
                "op": one.op,
                "slice": names.get(one.target) or _name_before(one.before) or one.target,
                "what": _what(one.after, one.note),
                "undone": number in gone,
            }
            for number, one in enumerate(edits, 1)
        ]
        return {
            "revision": document.revision,
            "edits": shown[-_LISTED:][::-1],
            "undoes": last_not_undone(edits),
            "columns": sorted(one.name for one in document.dataset.domains),
        }

    def rename(self, given: _Renamed) -> dict[str, Any]:
        """Give a slice another name."""
        return self._edited(
            given,
            lambda base: renamed(base.document, _id(base, given), given.name.strip()),
            "renamed",
        )

    def describe(self, given: _Described) -> dict[str, Any]:
        """Write the description of a slice; an empty one takes it away."""
        return self._edited(
            given, lambda base: described(base.document, _id(base, given), given.text), "described"
        )

    def note(self, given: _Noted) -> dict[str, Any]:
        """Add a note to a slice."""
        return self._edited(
            given, lambda base: annotated(base.document, _id(base, given), given.note), "noted"
        )

    def remove(self, given: _OfSlice) -> dict[str, Any]:
        """Remove a slice."""
        return self._edited(
            given, lambda base: removed(base.document, _id(base, given)), "removed a slice"
        )

    def undo(self, given: _Based) -> dict[str, Any]:
        """Reverse the last edit that has not been undone yet."""
        return self._edited(given, lambda base: undone(base.document), "undid the last edit")

    def define(self, given: _Defined) -> dict[str, Any]:
        """Define a slice by a predicate, and count it on the data."""
        from slicebeam.pipelines.define.new_slices import DefinedSlice
        from slicebeam.pipelines.define.predicates import column_types, predicate_definition

        counting = self._counting()

        def defined(base: EditSession) -> Edited:
            name = given.name.strip() or given.where.strip()
            check_name(base.document, name)
            columns = column_types(base.uri, base.document, base.data(counting))
            try:
                definition = predicate_definition(given.where, columns)
            except OptionError as error:
                # The page has a field, and no option.
                raise RefusedError(str(error).removeprefix("--where: ")) from error
            (one,) = base.counted([DefinedSlice(name, definition)], counting)
            return added(base.document, one)

        return self._edited(given, defined, "defined a slice", counting)

    def add(self, given: _OfSlice) -> dict[str, Any]:
        """Put a slice of the table into the document, counted on the data."""
        from slicebeam.pipelines.define.new_slices import DefinedSlice

        counting = self._counting()

        def put(base: EditSession) -> Edited:
            found = table_slice(base.uri, base.document, given.slice_id)
            new = DefinedSlice(found.name, found.definition)
            (one,) = base.counted([new], counting)
            return added(base.document, one)

        return self._edited(given, put, "added a slice of the table", counting)

    def _counting(self) -> Counting:
        from slicebeam.pipelines.define.new_slices import Counting

        config = self.served.config
        return Counting(config.data, confirmed=config.confirmed)

    def _edited(
        self,
        given: _Based,
        edit: Callable[[EditSession], Edited],
        summary: str,
        counting: Counting | None = None,
    ) -> dict[str, Any]:
        from slicebeam.pipelines.define.new_slices import EditSession

        with WRITING:
            now = self.served.latest()
            if not isinstance(now.document, SearchChangeList):
                raise RefusedError("the document of a shift has no slices to edit", 404)
            if now.document.revision != given.revision:
                raise RefusedError(
                    f"revision {now.document.revision} has come since you read {given.revision}; look at "
                    "it and edit again",
                    409,
                )
            base = EditSession(now.uri, now.document)
            try:
                revision: Revision = base.publish(edit(base), summary, counting)
            except SupersededError as error:
                raise RefusedError(
                    "another edit came meanwhile; look at it and edit again", 409
                ) from error
        return {
            "revision": revision.document.revision,
            "file": revision.path.name,
            "notes": list(revision.notes),
            "slices": [one.slice_id for one in revision.changed],
        }


def _id(base: EditSession, given: _OfSlice) -> str:
    return find_slice(base.document, given.slice_id).slice_id


def _name_before(before: Any) -> str:
    """Return the name of a slice that an edit removed, as it was then."""
    for one in before if isinstance(before, list) else []:
        if isinstance(one, dict) and isinstance(one.get("slice"), dict):
            return str(one["slice"].get("name", ""))
    return ""


def _what(after: Any, note: str | None) -> str:
    """Return what an edit wrote, in a line."""
    if note:
        return note
    if isinstance(after, str):
        return after
    last = after[-1] if isinstance(after, list) and after else after
    if isinstance(last, dict):
        return str(last.get("name") or last.get("text") or "")
    return "" if last is None else str(last)


def routes(served: ServedOutput) -> list[Route]:
    """Return the routes of edits."""
    editing = Editing(served)
    return [
        reads("/edits", editing.listed),
        takes("/edits/rename", _Renamed, editing.rename),
        takes("/edits/describe", _Described, editing.describe),
        takes("/edits/note", _Noted, editing.note),
        takes("/edits/remove", _OfSlice, editing.remove),
        takes("/edits/undo", _Based, editing.undo),
        takes("/edits/define", _Defined, editing.define),
        takes("/edits/add", _OfSlice, editing.add),
    ]
