"""Edits of a ChangeList: each returns the changed document and its entry in the journal.

The entry holds the previous state, which undoes the edit.
"""

from __future__ import annotations

from datetime import datetime, timezone
from operator import itemgetter
from typing import TYPE_CHECKING, Any, NamedTuple

from pydantic import ValidationError

from slicebeam.metrics.errors import InputError, OptionError, shortened, unknown_name
from slicebeam.pipelines.changelist.discovered import Edit
from slicebeam.pipelines.changelist.slices import Finding, Slice

if TYPE_CHECKING:
    from collections.abc import Sequence

    from slicebeam.pipelines.changelist.document import SearchChangeList
    from slicebeam.pipelines.changelist.parts import Part

# What edits of one slice change in it.
_FIELDS = {
    "rename": "name",
    "describe": "description",
    "annotate": "notes",
    "attribute": "attribution",
}


class Edited(NamedTuple):
    """What an edit gives."""

    document: SearchChangeList
    edit: Edit


def find_slice(document: SearchChangeList, text: str) -> Slice:
    """Return the slice that a user means: by its id, its name, or the beginning of its id."""
    for field in ("slice_id", "name"):
        found = [one for one in document.slices if getattr(one, field) == text]
        if found:
            break
    else:
        found = [one for one in document.slices if text and one.slice_id.startswith(text)]
    if len(found) > 1:
        ids = ", ".join(one.slice_id for one in found[:3])
        more = ", …" if len(found) > 3 else ""
        raise OptionError(f"--slice {text!r} may be {ids}{more}; give the full id")
    if not found:
        if not document.slices:
            raise OptionError(f"--slice {text!r}: the document has no slices")
        known = [*(one.name for one in document.slices), *(one.slice_id for one in document.slices)]
        raise OptionError(f"--slice: {unknown_name('slice', text, known)}")
    return found[0]


def renamed(document: SearchChangeList, slice_id: str, name: str) -> Edited:
    """Give a slice another name; InputError where it is none, or another slice has it."""
    check_name(document, name, besides=slice_id)
    return _with_field(document, "rename", slice_id, name)


def described(document: SearchChangeList, slice_id: str, text: str) -> Edited:
    """Describe a slice; an empty text takes the description away."""
    _check_text("--text", text)
    return _with_field(document, "describe", slice_id, text.strip() or None)


def annotated(document: SearchChangeList, slice_id: str, note: str) -> Edited:
    """Add a note to a slice."""
    _check_text("--note", note)
    if not note.strip():
        raise OptionError("--note is empty; write one")
    notes = _slice(document, slice_id).notes
    return _with_field(document, "annotate", slice_id, [*notes, note.strip()])


def attributed(document: SearchChangeList, slice_id: str, attribution: Any) -> Edited:
    """Say how far words are true of a slice; ``attribution`` is an `Attribution`."""
    section = _json(attribution)
    return _with_field(document, "attribute", slice_id, section)


def added(document: SearchChangeList, new: Slice, note: str | None = None) -> Edited:
    """Add a slice, behind the others."""
    return _replaced(document, "add_slice", new.slice_id, (), (new,), note)


def removed(document: SearchChangeList, slice_id: str) -> Edited:
    """Remove a slice."""
    return _replaced(document, "remove_slice", slice_id, (slice_id,), ())


def merged(document: SearchChangeList, slice_ids: Sequence[str], new: Slice) -> Edited:
    """Put one slice in the place of several."""
    return _replaced(document, "merge", new.slice_id, slice_ids, (new,))


def split(document: SearchChangeList, slice_id: str, parts: Sequence[Slice]) -> Edited:
    """Put parts in the place of a slice."""
    return _replaced(document, "split", slice_id, (slice_id,), parts)


def undone(document: SearchChangeList) -> Edited:
    """Reverse the last edit that has not been undone yet."""
    number = last_not_undone(document.edits)
    if number is None:
        raise InputError("there is nothing to undo; the slices are as they were published")
    edit = document.edits[number - 1]
    try:
        if edit.op in _FIELDS:
            changed = _with_field(document, edit.op, edit.target, edit.before).document
        else:
            changed = _put_back(document, edit)
    except (KeyError, TypeError, ValidationError) as error:
        raise InputError(
            f"edit {number}, {edit.op}, can't be undone: its entry in the journal has changed; "
            "continue from an earlier revision"
        ) from error
    note = f"undoes edit {number}, {edit.op}"
    return Edited(changed, _edit("undo", edit.target, after={"undone": number}, note=note))


def last_not_undone(edits: Sequence[Edit]) -> int | None:
    """Return the number, from 1, of the last edit of a journal that is not undone."""
    gone = undone_numbers(edits)
    left = (
        number
        for number in range(len(edits), 0, -1)
        if edits[number - 1].op != "undo" and number not in gone
    )
    return next(left, None)


def undone_numbers(edits: Sequence[Edit]) -> set[int]:
    """Return the numbers, from 1, of the edits of a journal that were undone."""
    changes = (edit.after for edit in edits if edit.op == "undo")
    return {after["undone"] for after in changes if isinstance(after, dict) and "undone" in after}


def edit_text(edit: Edit) -> str:
    """Return what an edit wrote or took away, in a few words."""
    if edit.note:
        return edit.note
    if edit.op == "attribute" or edit.after is None:
        gone = edit.before if isinstance(edit.before, list) else []
        return ", ".join(repr(shortened(one["slice"]["name"])) for one in gone if "slice" in one)
    if isinstance(edit.after, str):
        return repr(shortened(edit.after))
    last = [edit.after] if isinstance(edit.after, dict) else edit.after
    last = last[-1:] if edit.op == "annotate" else last
    named = (one["name"] if isinstance(one, dict) else str(one) for one in last)
    return ", ".join(repr(shortened(one)) for one in named)


def check_name(document: SearchChangeList, name: str, *, besides: str | None = None) -> None:
    """Check that a text can name a slice, and that no other slice has it."""
    if not name.strip() or name != name.strip() or not name.isprintable():
        raise OptionError(
            f"--name {name!r} is not a name: write one line without leading or trailing spaces"
        )
    for one in document.slices:
        if one.slice_id != besides and name in (one.name, one.slice_id):
            raise OptionError(
                f"--name {shortened(name)!r}: slice {one.slice_id} has this name; choose another"
            )


def _check_text(option: str, text: str) -> None:
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise InputError(f"{option} is not UTF-8 text; write it again") from error


def _slice(document: SearchChangeList, slice_id: str) -> Slice:
    for one in document.slices:
        if one.slice_id == slice_id:
            return one
    raise unknown_name("slice", slice_id, [one.slice_id for one in document.slices])


def _with_field(document: SearchChangeList, op: str, slice_id: str, value: Any) -> Edited:
    """Set a field of one slice to a JSON value."""
    field, old = _FIELDS[op], _slice(document, slice_id)
    before = _json(old).get(field)
    if value == before:
        raise InputError(f"the {field} of slice {slice_id} is already this; nothing to change")
    new = Slice.model_validate({**_json(old), field: value})
    slices = tuple(new if one.slice_id == slice_id else one for one in document.slices)
    changed = document.model_copy(update={"slices": slices})
    return Edited(changed, _edit(op, slice_id, before, value))


def _replaced(
    document: SearchChangeList,
    op: str,
    target: str,
    gone: Sequence[str],
    new: Sequence[Slice],
    note: str | None = None,
) -> Edited:
    """Put new slices in the place of the first of those that go, or behind all others."""
    places = {one.slice_id: place for place, one in enumerate(document.slices)}
    positions = sorted(places[_slice(document, one).slice_id] for one in gone)
    left = [one for one in document.slices if one.slice_id not in gone]
    _check_new(left, new)
    at = positions[0] if positions else len(left)
    slices = (*left[:at], *new, *left[at:])
    before = [
        {"position": place, "slice": _json(document.slices[place])}
        | _findings_of(document, document.slices[place].slice_id)
        for place in positions
    ]
    after = [{"slice_id": one.slice_id, "name": one.name} for one in new]
    # How much the slices that are left explain is not known before they are counted.
    changed = document.model_copy(update={"slices": slices, "coverage": ()})
    changed = _with_findings(
        changed, [one for one in document.findings if one.slice_id not in gone]
    )
    edit = _edit(op, target, before or None, after or None, note)
    return Edited(changed, edit.model_copy(update={"coverage": document.coverage}))


def _findings_of(document: SearchChangeList, slice_id: str) -> dict[str, Any]:
    """Return the findings of a slice, if any, with their positions, as the journal has them."""
    found = [
        {"position": position, "finding": _json(one)}
        for position, one in enumerate(document.findings)
        if one.slice_id == slice_id
    ]
    return {"findings": found} if found else {}


def _with_findings(document: SearchChangeList, findings: Sequence[Finding]) -> SearchChangeList:
    """Return a document with others of its findings, which keep their ranks: they rest on all before."""
    models = []
    for model in document.finding_models:
        before, after = (
            {one.rank for one in model.listed(some)} for some in (document.findings, findings)
        )
        removed = tuple(sorted({*model.removed, *before} - after))
        models.append(model.model_copy(update={"removed": removed}))
    update = {"findings": tuple(findings), "finding_models": tuple(models)}
    return document.model_copy(update=update)


def _check_new(left: Sequence[Slice], new: Sequence[Slice]) -> None:
    known = {one.slice_id: one for one in left}
    for one in new:
        if one.slice_id in known:
            raise InputError(
                f"slice {one.slice_id}, {shortened(known[one.slice_id].name)!r}, has the same "
                "definition; nothing to add"
            )
        known[one.slice_id] = one


def _put_back(document: SearchChangeList, edit: Edit) -> SearchChangeList:
    """Return the slices as they were before an edit that took some away, or added some."""
    new = {edit.target} if edit.op in ("add_slice", "merge") else set()
    if edit.op == "split":
        new = {one["slice_id"] for one in edit.after}
    slices = [one for one in document.slices if one.slice_id not in new]
    for one in edit.before or ():
        slices.insert(one["position"], Slice.model_validate(one["slice"]))
    back = [entry for one in edit.before or () for entry in one.get("findings", ())]
    findings = list(document.findings)
    for entry in sorted(back, key=itemgetter("position")):
        findings.insert(entry["position"], Finding.model_validate(entry["finding"]))
    update = {"slices": tuple(slices), "coverage": edit.coverage or ()}
    return _with_findings(document.model_copy(update=update), findings)


def _json(part: Part) -> dict[str, Any]:
    return part.model_dump(mode="json", exclude_none=True)


def _edit(
    op: Any, target: str, before: Any = None, after: Any = None, note: str | None = None
) -> Edit:
    return Edit(
        at=datetime.now(timezone.utc), op=op, target=target, before=before, after=after, note=note
    )
