"""The commands ``slicebeam edit …``. What they need is imported when they run."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated

import typer

from slicebeam.pipelines import options as opt
from slicebeam.pipelines.define.commands import DataOfSlices, Document
from slicebeam.pipelines.terminal_text import json_line
from slicebeam.transforms.plain_http import allow

if TYPE_CHECKING:
    from slicebeam.pipelines.changelist import SearchChangeList
    from slicebeam.pipelines.changelist_discovery import Edit
    from slicebeam.pipelines.define.new_slices import Base
    from slicebeam.pipelines.edits import Edited

app = typer.Typer(
    name="edit",
    help="Change the slices of a ChangeList; every edit can be undone.\n\n"
    "An edit is a new revision beside the document, which stays as it is.",
    invoke_without_command=True,
    rich_markup_mode=None,
)

OneSlice = Annotated[
    str,
    typer.Option(
        "--slice", metavar="<slice>", help="Its slice_id, the beginning of that, or its name."
    ),
]
NewName = Annotated[str, typer.Option("--name", help="What the slice is called.")]


@app.callback()
def _help(context: typer.Context) -> None:
    if context.invoked_subcommand is None:
        sys.stdout.write(f"{context.get_help()}\n")


@app.command()
def rename(
    changelist: Document,
    slice_: OneSlice,
    name: NewName,
    as_json: opt.AsJson = False,
    quiet: opt.Quiet = False,
) -> None:
    """Give a slice another name."""
    from slicebeam.pipelines.edits import find_slice, renamed

    base = _base(changelist)
    one = find_slice(base.document, slice_)
    edited = renamed(base.document, one.slice_id, name)
    _publish(base, edited, f"renamed slice {one.name!r}", quiet=quiet, as_json=as_json)


@app.command()
def describe(
    changelist: Document,
    slice_: OneSlice,
    text: Annotated[str, typer.Option(help="The description; empty to take it away.")],
    as_json: opt.AsJson = False,
    quiet: opt.Quiet = False,
) -> None:
    """Write the description of a slice."""
    from slicebeam.pipelines.edits import described, find_slice

    base = _base(changelist)
    one = find_slice(base.document, slice_)
    edited = described(base.document, one.slice_id, text)
    _publish(base, edited, f"described slice {one.name!r}", quiet=quiet, as_json=as_json)


@app.command()
def annotate(
    changelist: Document,
    slice_: OneSlice,
    note: Annotated[str, typer.Option(help="What is added to the notes.")],
    as_json: opt.AsJson = False,
    quiet: opt.Quiet = False,
) -> None:
    """Add a note to a slice."""
    from slicebeam.pipelines.edits import annotated, find_slice

    base = _base(changelist)
    one = find_slice(base.document, slice_)
    edited = annotated(base.document, one.slice_id, note)
    _publish(base, edited, f"added a note to slice {one.name!r}", quiet=quiet, as_json=as_json)


@app.command()
def remove(
    changelist: Document,
    slice_: OneSlice,
    as_json: opt.AsJson = False,
    quiet: opt.Quiet = False,
) -> None:
    """Remove a slice."""
    from slicebeam.pipelines.edits import find_slice, removed

    base = _base(changelist)
    one = find_slice(base.document, slice_)
    edited = removed(base.document, one.slice_id)
    _publish(base, edited, f"removed slice {one.name!r}", quiet=quiet, as_json=as_json)


@app.command()
def merge(
    changelist: Document,
    slices: Annotated[
        list[str],
        typer.Option("--slice", metavar="<slice>", help="One of the slices. Repeatable."),
    ],
    name: NewName,
    data: DataOfSlices = None,
    model: opt.ConfirmedModel = None,
    baseline_model: opt.ConfirmedBaselineModel = None,
    encoder: opt.ConfirmedEncoder = None,
    allow_http: opt.AllowHttp = False,
    runner_config: opt.RunnerConfig = "direct",
    runner_option: opt.RunnerOption = None,
    as_json: opt.AsJson = False,
    quiet: opt.Quiet = False,
) -> None:
    """Make one slice of several: the examples of any of them."""
    from slicebeam.pipelines.confirmation import Confirmed
    from slicebeam.pipelines.define.joining import merged_slices
    from slicebeam.pipelines.define.new_slices import Counting

    allow(allow_http)
    base = _base(changelist)
    confirmed = Confirmed(model, baseline_model, encoder)
    counting = Counting(tuple(data or ()), runner_config, tuple(runner_option or ()), confirmed)
    edited = merged_slices(base, slices, name, counting)
    _publish(base, edited, f"merged {len(slices)} slices", quiet=quiet, as_json=as_json)


@app.command()
def split(
    changelist: Document,
    slice_: OneSlice,
    where: Annotated[
        str,
        typer.Option(
            metavar="<predicate>",
            help="Those that satisfy it are one part, the others the other one.",
        ),
    ],
    name: Annotated[
        list[str] | None,
        typer.Option(
            metavar="<name>",
            help="Name of a part; twice, or left out.  [default: of slice and predicate]",
        ),
    ] = None,
    data: DataOfSlices = None,
    model: opt.ConfirmedModel = None,
    baseline_model: opt.ConfirmedBaselineModel = None,
    encoder: opt.ConfirmedEncoder = None,
    allow_http: opt.AllowHttp = False,
    runner_config: opt.RunnerConfig = "direct",
    runner_option: opt.RunnerOption = None,
    as_json: opt.AsJson = False,
    quiet: opt.Quiet = False,
) -> None:
    """Make two slices of one, by a predicate."""
    from slicebeam.pipelines.confirmation import Confirmed
    from slicebeam.pipelines.define.joining import split_slice
    from slicebeam.pipelines.define.new_slices import Counting
    from slicebeam.pipelines.edits import find_slice

    allow(allow_http)
    base = _base(changelist)
    one = find_slice(base.document, slice_)
    confirmed = Confirmed(model, baseline_model, encoder)
    counting = Counting(tuple(data or ()), runner_config, tuple(runner_option or ()), confirmed)
    edited = split_slice(base, one, where, tuple(name or ()), counting)
    _publish(base, edited, f"split slice {one.name!r}", quiet=quiet, as_json=as_json)


@app.command()
def undo(
    changelist: Document,
    as_json: opt.AsJson = False,
    quiet: opt.Quiet = False,
) -> None:
    """Reverse the last edit that has not been undone yet."""
    from slicebeam.pipelines.edits import undone

    base = _base(changelist)
    edited = undone(base.document)
    said = (edited.edit.note or "").replace("undoes", "undid", 1)
    _publish(base, edited, said, quiet=quiet, as_json=as_json)


@app.command()
def log(changelist: Document, as_json: opt.AsJson = False) -> None:
    """Print what was changed, in order."""
    base = _base(changelist)
    lines = map(_json_of, base.document.edits) if as_json else _lines(base.document)
    for line in lines:
        sys.stdout.write(f"{line}\n")


def _base(changelist: str) -> Base:
    from slicebeam.pipelines.define.new_slices import Base

    return Base.read(changelist)


def _publish(base: Base, edited: Edited, said: str, *, quiet: bool, as_json: bool) -> None:
    from slicebeam.pipelines.define.showing import show_revision

    show_revision(base.publish(edited), said, quiet=quiet, as_json=as_json)


def _json_of(edit: Edit) -> str:
    return json_line(edit.model_dump(mode="json", exclude_none=True))


def _lines(document: SearchChangeList) -> list[str]:
    from slicebeam.metrics.errors import printable
    from slicebeam.pipelines.edits import undone_numbers

    gone = undone_numbers(document.edits)
    lines = []
    for number, edit in enumerate(document.edits, 1):
        told = [f"{number:>3}", f"{edit.at:%Y-%m-%d %H:%M:%S}", f"{edit.op:<12}", edit.target]
        told += filter(None, [_what(edit), "(undone)" if number in gone else ""])
        lines.append(printable("  ".join(told)))
    return lines or ["nothing was changed"]


def _what(edit: Edit) -> str:
    """Return what an edit did, in a few words."""
    from slicebeam.transforms.predicates import shortened

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
