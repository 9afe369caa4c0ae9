"""Slices that are defined, named, noted, removed and brought back in the browser: each a revision.

What is written is what ``slicebeam define`` and ``slicebeam edit`` write.
"""

from __future__ import annotations

import re
import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import Field, RootModel, StringConstraints, model_validator

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
from slicebeam.pipelines.page.answers import PageRequest, RefusedError, get, post
from slicebeam.pipelines.page.slice_examples import data_check, table_slice

if TYPE_CHECKING:
    from starlette.routing import Route

    from slicebeam.pipelines.changelist.document import SearchChangeList
    from slicebeam.pipelines.define.counting import Counting, DefinedSlice
    from slicebeam.pipelines.define.new_slices import EditSession
    from slicebeam.pipelines.page.served import ServedOutput

# Edits of the journal that are listed, the last ones.
_LISTED = 100
# Revisions are written one after the other, so that none goes on from any but the last.
WRITING = threading.Lock()
_Name = Annotated[str, Field(max_length=500)]
_Text = Annotated[str, Field(max_length=20_000)]
_Words = Annotated[str, StringConstraints(strip_whitespace=True, min_length=1, max_length=10_000)]
_Rows = Annotated[tuple[Annotated[int, Field(ge=0)], ...], Field(max_length=10_000)]
# How errors of the command speak of what is a field in the page.
_FIELDS = re.compile(r"--where: |--(name|threshold|text-filter|ids|classifier)")


class _Based(PageRequest):
    """An edit, with the revision that its author sees: of another one it is refused."""

    revision: Annotated[int, Field(ge=0)]


class _OfSlice(_Based):
    slice_id: Annotated[str, Field(min_length=1, max_length=200)]


class _Rename(_OfSlice):
    op: Literal["rename"]
    name: _Name


class _Describe(_OfSlice):
    op: Literal["describe"]
    text: _Text


class _Note(_OfSlice):
    op: Literal["note"]
    note: _Text


class _Remove(_OfSlice):
    op: Literal["remove"]


class _Add(_OfSlice):
    """A slice of the table of all tested slices."""

    op: Literal["add"]


class _Undo(_Based):
    op: Literal["undo"]


class _Define(_Based):
    """A slice of a predicate, a text, or rows of the data that are marked."""

    op: Literal["define"]
    name: _Name
    where: _Words | None = None
    text: _Words | None = None
    threshold: Annotated[float | None, Field(ge=-1, le=1)] = None
    yes: _Rows = ()
    no: _Rows = ()

    @model_validator(mode="after")
    def _is_defined_once(self) -> _Define:
        if [self.where is None, self.text is None, not (self.yes or self.no)].count(False) != 1:
            raise ValueError("a slice needs one of where, text, and marked rows")
        return self


# Edits that need no data.
_Plain = _Rename | _Describe | _Note | _Remove | _Undo
_Edit = Annotated[_Plain | _Define | _Add, Field(discriminator="op")]
_SUMMARIES = {
    "rename": "renamed",
    "describe": "described",
    "note": "noted",
    "remove": "removed a slice",
    "undo": "undid the last edit",
    "define": "defined a slice",
    "add": "added a slice of the table",
}


class EditRequest(RootModel[_Edit]):
    """One edit; ``op`` says which."""


@dataclass
class Editing:
    """Writes revisions, one after the other."""

    served: ServedOutput

    def listed(self) -> dict[str, Any]:
        """Return the journal, the last edit that can be undone, and the columns of predicates."""
        document = self.served.search()
        edits = document.edits
        gone = undone_numbers(edits)
        names = {slice_.slice_id: slice_.name for slice_ in document.slices}
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
            "columns": sorted(domain.name for domain in document.dataset.domains),
            "has_words": document.discovery is not None and document.discovery.encoder != "none",
            "has_embeddings": document.discovery is not None,
            "has_ids": document.dataset.id_field is not None,
        }

    def write(self, request: EditRequest) -> dict[str, Any]:
        """Write an edit as the next revision; one of another revision than the last is refused."""
        from slicebeam.pipelines.define.new_slices import EditSession

        edit = request.root
        counting = self._counting() if isinstance(edit, _Define | _Add) else None
        with WRITING:
            now, document = self.served.latest(), self.served.search()
            if document.revision != edit.revision:
                raise RefusedError(
                    f"revision {document.revision} has come since you read {edit.revision}; look at "
                    "it and edit again",
                    409,
                )
            base = EditSession(now.uri, document)
            if isinstance(edit, _Define | _Add):
                edited = _counted(base, edit, counting)
            else:
                edited = _edited(document, edit)
            try:
                revision = base.publish(edited, _SUMMARIES[edit.op], counting)
            except SupersededError as error:
                raise RefusedError(
                    "another edit came meanwhile; look at it and edit again", 409
                ) from error
        self.served.look_again()
        return {
            "revision": revision.document.revision,
            "file": revision.path.name,
            "notes": list(revision.notes),
            "slices": [changed.slice_id for changed in revision.changed],
        }

    def _counting(self) -> Counting:
        from slicebeam.pipelines.define.counting import Counting

        config = self.served.config
        if config.data:
            checked = data_check(self.served, self.served.search())
            if checked.is_same is False:
                raise RefusedError(checked.said, 409)
        return Counting(config.data, confirmed=config.confirmed, other_data=True)


def _edited(document: SearchChangeList, edit: _Plain) -> SearchChangeList:
    if isinstance(edit, _Undo):
        return undone(document)
    slice_id = find_slice(document, edit.slice_id).slice_id
    if isinstance(edit, _Rename):
        return renamed(document, slice_id, edit.name.strip())
    if isinstance(edit, _Describe):
        return described(document, slice_id, edit.text)
    if isinstance(edit, _Note):
        return annotated(document, slice_id, edit.note)
    return removed(document, slice_id)


def _counted(base: EditSession, edit: _Define | _Add, counting: Any) -> SearchChangeList:
    """Count a slice on the data, and put it into the document."""
    from slicebeam.pipelines.define.counting import DefinedSlice

    if isinstance(edit, _Add):
        name, definition, _ = table_slice(base.uri, base.document, edit.slice_id)
        new = DefinedSlice(name, definition)
    else:
        new = _defined(base, edit, counting)
    (counted,) = base.counted([new], counting)
    return added(base.document, counted)


def _defined(base: EditSession, edit: _Define, counting: Counting) -> DefinedSlice:
    """Return a slice of a predicate, of words or of marked examples."""
    from slicebeam.pipelines.config.common import validated
    from slicebeam.pipelines.config.document import DefineConfig
    from slicebeam.pipelines.define.defining import defined, defined_by_marks

    marked = f"{len(edit.yes):,} marked examples"
    name = edit.name.strip() or (edit.where or edit.text or marked)
    options: dict[str, Any] = {"where": edit.where, "text_filter": edit.text}
    options |= {"threshold": edit.threshold, "changelist": base.uri, "name": name}
    try:
        check_name(base.document, name)
        if edit.where is None and edit.text is None:
            return defined_by_marks(base, name, counting, edit.yes, edit.no)
        return defined(base, validated(DefineConfig, options), counting, _no_payment)
    except InputError as error:
        # The page has fields, and no options.
        raise RefusedError(_FIELDS.sub(r"\1", str(error))) from error


def _no_payment(_: str) -> None:
    """Say nothing: the page defines no slice by a language model."""


def routes(served: ServedOutput) -> list[Route]:
    """Return the routes of edits."""
    editing = Editing(served)
    return [get("/edits", editing.listed), post("/edits", EditRequest, editing.write)]
