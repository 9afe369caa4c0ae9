"""Slices that are defined, named, noted, removed and brought back in the browser: each a revision.

What is written is what ``slicebeam define`` and ``slicebeam edit`` write.
"""

from __future__ import annotations

import re
import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

from pydantic import Field, StringConstraints, model_validator

from slicebeam.metrics.errors import InputError
from slicebeam.pipelines.changelist.edits import (
    added,
    annotated,
    check_name,
    described,
    edit_text,
    find_slice,
    last_not_undone,
    removed,
    renamed,
    undone,
    undone_numbers,
)
from slicebeam.pipelines.changelist.revisions import SupersededError
from slicebeam.pipelines.page.answers import Given, RefusedError, reads, takes
from slicebeam.pipelines.page.slice_examples import table_slice

if TYPE_CHECKING:
    from collections.abc import Callable

    from starlette.routing import Route

    from slicebeam.pipelines.changelist.document import SearchChangeList
    from slicebeam.pipelines.changelist.edits import Edited
    from slicebeam.pipelines.define.new_slices import Counting, EditSession, Revision
    from slicebeam.pipelines.page.served import ServedOutput

# Edits of the journal that are listed, the last ones.
_LISTED = 100
# Revisions are written one after the other, so that none goes on from any but the last.
WRITING = threading.Lock()
_Name = Annotated[str, Field(max_length=500)]
# How errors of the command speak of what is a field in the page.
_FIELDS = re.compile(r"--where: |--(name|threshold|text-filter|ids|classifier)")


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


_Words = Annotated[str, StringConstraints(strip_whitespace=True, min_length=1, max_length=10_000)]
_Rows = Annotated[tuple[Annotated[int, Field(ge=0)], ...], Field(max_length=10_000)]


class _Defined(_Based):
    """A slice of a predicate, a text, or rows of the data that are marked."""

    name: _Name
    where: _Words | None = None
    text: _Words | None = None
    threshold: Annotated[float | None, Field(ge=-1, le=1)] = None
    yes: _Rows = ()
    no: _Rows = ()

    @model_validator(mode="after")
    def _is_defined_once(self) -> _Defined:
        if [self.where is None, self.text is None, not (self.yes or self.no)].count(False) != 1:
            raise ValueError("a slice needs one of where, text, and marked rows")
        return self


_Edit = TypeVar("_Edit", bound=_Based)


@dataclass
class Editing:
    """Writes revisions, one after the other."""

    served: ServedOutput

    def listed(self) -> dict[str, Any]:
        """Return the journal, the last edit that can be undone, and the columns of predicates."""
        document = self.served.search()
        edits = document.edits
        gone = undone_numbers(edits)
        names = {one.slice_id: one.name for one in document.slices}
        shown = [
            {
                "number": number,
                "at": one.at.isoformat(),
                "op": one.op,
                "slice": names.get(one.target) or edit_text(one) or one.target,
                "what": edit_text(one),
                "undone": number in gone,
            }
            for number, one in enumerate(edits, 1)
        ]
        return {
            "revision": document.revision,
            "edits": shown[-_LISTED:][::-1],
            "undoes": last_not_undone(edits),
            "columns": sorted(one.name for one in document.dataset.domains),
            "has_words": document.discovery is not None and document.discovery.encoder != "none",
            "has_embeddings": document.discovery is not None,
            "has_ids": document.dataset.id_field is not None,
        }

    def define(self, given: _Defined) -> dict[str, Any]:
        """Define a slice by a predicate, by words or by marked examples, and count it on the data."""
        from slicebeam.pipelines.config.common import validated
        from slicebeam.pipelines.config.document import DefineConfig
        from slicebeam.pipelines.define.defining import defined, defined_by_marks

        counting = self._counting()

        def counted(base: EditSession) -> Edited:
            marked = f"{len(given.yes):,} marked examples"
            name = given.name.strip() or (given.where or given.text or marked)
            options: dict[str, Any] = {"where": given.where, "text_filter": given.text}
            options |= {"threshold": given.threshold, "changelist": base.uri, "name": name}
            try:
                check_name(base.document, name)
                if given.where is None and given.text is None:
                    new = defined_by_marks(base, name, counting, given.yes, given.no)
                else:
                    new = defined(base, validated(DefineConfig, options), counting, _no_payment)
            except InputError as error:
                # The page has fields, and no options.
                raise RefusedError(_FIELDS.sub(r"\1", str(error))) from error
            (one,) = base.counted([new], counting)
            return added(base.document, one)

        return self.edited(given, counted, "defined a slice", counting)

    def add(self, given: _OfSlice) -> dict[str, Any]:
        """Put a slice of the table into the document, counted on the data."""
        from slicebeam.pipelines.define.new_slices import DefinedSlice

        counting = self._counting()

        def put(base: EditSession) -> Edited:
            name, definition, _ = table_slice(base.uri, base.document, given.slice_id)
            (one,) = base.counted([DefinedSlice(name, definition)], counting)
            return added(base.document, one)

        return self.edited(given, put, "added a slice of the table", counting)

    def _counting(self) -> Counting:
        from slicebeam.pipelines.define.new_slices import Counting

        config = self.served.config
        return Counting(config.data, confirmed=config.confirmed)

    def edited(
        self,
        given: _Based,
        edit: Callable[[EditSession], Edited],
        summary: str,
        counting: Counting | None = None,
    ) -> dict[str, Any]:
        """Write an edit as the next revision; one of another revision than the last is refused."""
        from slicebeam.pipelines.define.new_slices import EditSession

        with WRITING:
            now, document = self.served.latest(), self.served.search()
            if document.revision != given.revision:
                raise RefusedError(
                    f"revision {document.revision} has come since you read {given.revision}; look at "
                    "it and edit again",
                    409,
                )
            base = EditSession(now.uri, document)
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


def _no_payment(_: str) -> None:
    """Say nothing: the page defines no slice by a language model."""


def routes(served: ServedOutput) -> list[Route]:
    """Return the routes of edits."""
    editing = Editing(served)

    def edits(
        path: str, model: type[_Edit], edit: Callable[[SearchChangeList, _Edit], Edited], said: str
    ) -> Route:
        def answer(given: _Edit) -> dict[str, Any]:
            return editing.edited(given, lambda base: edit(base.document, given), said)

        return takes(f"/edits/{path}", model, answer)

    return [
        reads("/edits", editing.listed),
        edits(
            "rename", _Renamed, lambda of, to: renamed(of, _id(of, to), to.name.strip()), "renamed"
        ),
        edits(
            "describe", _Described, lambda of, to: described(of, _id(of, to), to.text), "described"
        ),
        edits("note", _Noted, lambda of, to: annotated(of, _id(of, to), to.note), "noted"),
        edits("remove", _OfSlice, lambda of, to: removed(of, _id(of, to)), "removed a slice"),
        edits("undo", _Based, lambda of, _: undone(of), "undid the last edit"),
        takes("/edits/define", _Defined, editing.define),
        takes("/edits/add", _OfSlice, editing.add),
    ]


def _id(document: SearchChangeList, given: _OfSlice) -> str:
    return find_slice(document, given.slice_id).slice_id
