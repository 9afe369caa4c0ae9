"""Edits of a ChangeList: each returns the changed document, whose journal ends with an entry that undoes it."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timezone
from operator import itemgetter
from typing import Any

from pydantic import ValidationError

from slicebeam.metrics.errors import InputError, OptionError, shortened, unknown_name
from slicebeam.pipelines.changelist.discovered import Edit
from slicebeam.pipelines.changelist.document import SearchChangeList
from slicebeam.pipelines.changelist.slices import Finding, Slice
from slicebeam.transforms.encode.definitions import Part

# What edits of one slice change in it.
_FIELDS = {
    "rename": "name",
    "describe": "description",
    "annotate": "notes",
    "attribute": "attribution",
}


def find_slice(document: SearchChangeList, text: str) -> Slice:
    """Return the slice that a user means: by its id, its name, or the beginning of its id."""
    slices = document.slices
    if not slices:
        raise OptionError(f"--slice {text!r}: the document has no slices")
    matching = (
        [slice_ for slice_ in slices if slice_.slice_id == text]
        or [slice_ for slice_ in slices if slice_.name == text]
        or [slice_ for slice_ in slices if text and slice_.slice_id.startswith(text)]
    )
    if not matching:
        names = [*(slice_.name for slice_ in slices), *(slice_.slice_id for slice_ in slices)]
        raise OptionError(f"--slice: {unknown_name('slice', text, names)}")
    if len(matching) > 1:
        ids = ", ".join(slice_.slice_id for slice_ in matching[:3])
        more = ", …" if len(matching) > 3 else ""
        raise OptionError(f"--slice {text!r} may be {ids}{more}; give the full id")
    return matching[0]


def renamed(document: SearchChangeList, slice_id: str, name: str) -> SearchChangeList:
    """Give a slice another name; OptionError where it is not one, or another slice has it."""
    check_name(document, name, besides=slice_id)
    return _with_field(document, "rename", slice_id, name)


def described(document: SearchChangeList, slice_id: str, text: str) -> SearchChangeList:
    """Describe a slice; an empty text takes the description away."""
    _check_text("--text", text)
    return _with_field(document, "describe", slice_id, text.strip() or None)


def annotated(document: SearchChangeList, slice_id: str, note: str) -> SearchChangeList:
    """Add a note to a slice."""
    _check_text("--note", note)
    if not note.strip():
        raise OptionError("--note is empty; write one")
    notes = find_slice(document, slice_id).notes
    return _with_field(document, "annotate", slice_id, [*notes, note.strip()])


def attributed(document: SearchChangeList, slice_id: str, attribution: Part) -> SearchChangeList:
    """Say how far words are true of a slice; ``attribution`` is an `Attribution`."""
    return _with_field(document, "attribute", slice_id, _json(attribution))


def added(document: SearchChangeList, new: Slice, note: str | None = None) -> SearchChangeList:
    """Add a slice, behind the others."""
    return _replaced(document, "add_slice", new.slice_id, (), (new,), note)


def removed(document: SearchChangeList, slice_id: str) -> SearchChangeList:
    """Remove a slice."""
    return _replaced(document, "remove_slice", slice_id, (slice_id,), ())


def merged(document: SearchChangeList, slice_ids: Sequence[str], new: Slice) -> SearchChangeList:
    """Put one slice in the place of several."""
    return _replaced(document, "merge", new.slice_id, slice_ids, (new,))


def split(document: SearchChangeList, slice_id: str, parts: Sequence[Slice]) -> SearchChangeList:
    """Put parts in the place of a slice."""
    return _replaced(document, "split", slice_id, (slice_id,), parts)


def undone(document: SearchChangeList) -> SearchChangeList:
    """Reverse the last edit that has not been undone yet."""
    number = last_not_undone(document.edits)
    if number is None:
        raise InputError("there is nothing to undo; the slices are as they were published")
    edit = document.edits[number - 1]
    try:
        if edit.op in _FIELDS:
            changed = _with_field(document, edit.op, edit.target, edit.before)
        else:
            changed = _put_back(document, edit)
    except (KeyError, TypeError, ValidationError) as error:
        raise InputError(
            f"edit {number}, {edit.op}, can't be undone: its entry in the journal has changed; "
            "continue from an earlier revision"
        ) from error
    note = f"undoes edit {number}, {edit.op}"
    reversal = _edit("undo", edit.target, after={"undone": number}, note=note)
    return changed.model_copy(update={"edits": (*document.edits, reversal)})


def last_not_undone(edits: Sequence[Edit]) -> int | None:
    """Return the number, from 1, of the last edit of a journal that is not undone."""
    gone = undone_numbers(edits)
    numbers = (number for number, edit in enumerate(edits, 1) if edit.op != "undo")
    return max((number for number in numbers if number not in gone), default=None)


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
        names = [entry["slice"]["name"] for entry in gone if "slice" in entry]
    elif isinstance(edit.after, list):
        last = edit.after[-1:] if edit.op == "annotate" else edit.after
        names = [entry["name"] if isinstance(entry, dict) else str(entry) for entry in last]
    else:
        names = [edit.after["name"] if isinstance(edit.after, dict) else edit.after]
    return ", ".join(repr(shortened(name)) for name in names)


def check_name(document: SearchChangeList, name: str, *, besides: str | None = None) -> None:
    """Check that a text can name a slice, and that no other slice has it."""
    if not name.strip() or name != name.strip() or not name.isprintable():
        raise OptionError(
            f"--name {name!r} is not a name: write one line without leading or trailing spaces"
        )
    for slice_ in document.slices:
        if slice_.slice_id != besides and name in (slice_.name, slice_.slice_id):
            raise OptionError(
                f"--name {shortened(name)!r}: slice {slice_.slice_id} has this name; choose another"
            )


def _check_text(option: str, text: str) -> None:
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise InputError(f"{option} is not UTF-8 text; write it again") from error


def _with_field(document: SearchChangeList, op: str, slice_id: str, value: Any) -> SearchChangeList:
    field, old = _FIELDS[op], find_slice(document, slice_id)
    content = _json(old)
    before = content.get(field)
    if value == before:
        raise InputError(f"the {field} of slice {slice_id} is already this; nothing to change")
    new = Slice.model_validate({**content, field: value})
    slices = tuple(new if slice_ is old else slice_ for slice_ in document.slices)
    edits = (*document.edits, _edit(op, slice_id, before, value))
    return document.model_copy(update={"slices": slices, "edits": edits})


def _replaced(
    document: SearchChangeList,
    op: str,
    target: str,
    gone: Sequence[str],
    new: Sequence[Slice],
    note: str | None = None,
) -> SearchChangeList:
    """Put new slices in the place of the first of those that go, or behind all others."""
    positions = sorted(document.slices.index(find_slice(document, name)) for name in gone)
    left = [slice_ for slice_ in document.slices if slice_.slice_id not in gone]
    names = {slice_.slice_id: slice_.name for slice_ in left}
    for slice_ in new:
        if slice_.slice_id in names:
            raise InputError(
                f"slice {slice_.slice_id}, {shortened(names[slice_.slice_id])!r}, has the same "
                "definition; nothing to add"
            )
    at = positions[0] if positions else len(left)
    before = []
    for position in positions:
        slice_ = document.slices[position]
        entry: dict[str, Any] = {"position": position, "slice": _json(slice_)}
        findings = [
            {"position": place, "finding": _json(finding)}
            for place, finding in enumerate(document.findings)
            if finding.slice_id == slice_.slice_id
        ]
        before.append(entry | ({"findings": findings} if findings else {}))
    after = [{"slice_id": slice_.slice_id, "name": slice_.name} for slice_ in new]
    edit = _edit(op, target, before or None, after or None, note)
    edit = edit.model_copy(update={"coverage": document.coverage})
    # How much the slices that are left explain is not known before they are counted.
    update = {"slices": (*left[:at], *new, *left[at:]), "coverage": ()}
    changed = document.model_copy(update={**update, "edits": (*document.edits, edit)})
    return _with_findings(changed, [f for f in document.findings if f.slice_id not in gone])


def _with_findings(document: SearchChangeList, findings: Sequence[Finding]) -> SearchChangeList:
    """Return a document with others of its findings, which keep their ranks: they rest on all before."""
    models = []
    for model in document.finding_models:
        before = {finding.rank for finding in model.listed(document.findings)}
        after = {finding.rank for finding in model.listed(findings)}
        removed_ranks = tuple(sorted({*model.removed, *before} - after))
        models.append(model.model_copy(update={"removed": removed_ranks}))
    update = {"findings": tuple(findings), "finding_models": tuple(models)}
    return document.model_copy(update=update)


def _put_back(document: SearchChangeList, edit: Edit) -> SearchChangeList:
    """Return the slices as they were before an edit that took some away, or added some."""
    new = {edit.target} if edit.op in ("add_slice", "merge") else set()
    if edit.op == "split":
        new = {part["slice_id"] for part in edit.after}
    slices = [slice_ for slice_ in document.slices if slice_.slice_id not in new]
    findings, gone = list(document.findings), edit.before or ()
    for entry in gone:
        slices.insert(entry["position"], Slice.model_validate(entry["slice"]))
    back = [entry for of_slice in gone for entry in of_slice.get("findings", ())]
    for entry in sorted(back, key=itemgetter("position")):
        findings.insert(entry["position"], Finding.model_validate(entry["finding"]))
    update = {"slices": tuple(slices), "coverage": edit.coverage or ()}
    return _with_findings(document.model_copy(update=update), findings)


def _json(part: Part) -> dict[str, Any]:
    return part.model_dump(mode="json", exclude_none=True)


def _edit(
    op: Any, target: str, before: Any = None, after: Any = None, note: str | None = None
) -> Edit:
    now = datetime.now(timezone.utc)
    return Edit(at=now, op=op, target=target, before=before, after=after, note=note)
