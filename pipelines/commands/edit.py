"""What the commands ``slicebeam edit …`` do, each with its validated options.

Each returns the revision that it published, which `show.define.show_revision` prints.
"""

# Every command gets what prints notes, whether it has any or not.
# ruff: noqa: ARG001

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from slicebeam.metrics.errors import printable
from slicebeam.pipelines.changelist.edits import (
    annotated,
    described,
    edit_text,
    find_slice,
    removed,
    renamed,
    undone,
    undone_numbers,
)
from slicebeam.pipelines.changelist.revisions import from_last
from slicebeam.pipelines.define.joining import merged_slices, split_slice
from slicebeam.pipelines.define.new_slices import Counting, EditSession, Revision

if TYPE_CHECKING:
    from collections.abc import Callable

    from slicebeam.pipelines.changelist.discovered import Edit
    from slicebeam.pipelines.config.document import (
        AnnotateConfig,
        DescribeConfig,
        DocumentConfig,
        LogConfig,
        MergeConfig,
        RenameConfig,
        SliceConfig,
        SplitConfig,
    )

    Note = Callable[[str], None]


@from_last
def rename(config: RenameConfig, note: Note) -> Revision:
    """Give a slice another name."""
    base = EditSession.read(config.changelist)
    one = find_slice(base.document, config.slice)
    edited = renamed(base.document, one.slice_id, config.name)
    return base.publish(edited, f"renamed slice {one.name!r}")


@from_last
def describe(config: DescribeConfig, note: Note) -> Revision:
    """Write the description of a slice."""
    base = EditSession.read(config.changelist)
    one = find_slice(base.document, config.slice)
    edited = described(base.document, one.slice_id, config.text)
    return base.publish(edited, f"described slice {one.name!r}")


@from_last
def annotate(config: AnnotateConfig, note: Note) -> Revision:
    """Add a note to a slice."""
    base = EditSession.read(config.changelist)
    one = find_slice(base.document, config.slice)
    edited = annotated(base.document, one.slice_id, config.note)
    return base.publish(edited, f"added a note to slice {one.name!r}")


@from_last
def remove(config: SliceConfig, note: Note) -> Revision:
    """Remove a slice."""
    base = EditSession.read(config.changelist)
    one = find_slice(base.document, config.slice)
    return base.publish(removed(base.document, one.slice_id), f"removed slice {one.name!r}")


@from_last
def merge(config: MergeConfig, note: Note) -> Revision:
    """Make one slice of several: the examples of any of them."""
    base = EditSession.read(config.changelist)
    counting = Counting.of(config)
    edited = merged_slices(base, config.slices, config.name, counting)
    return base.publish(edited, f"merged {len(config.slices)} slices", counting)


@from_last
def split(config: SplitConfig, note: Note) -> Revision:
    """Make two slices of one, by a predicate."""
    base = EditSession.read(config.changelist)
    one = find_slice(base.document, config.slice)
    counting = Counting.of(config)
    edited = split_slice(base, one, config.where, config.name, counting)
    return base.publish(edited, f"split slice {one.name!r}", counting)


@from_last
def undo(config: DocumentConfig, note: Note) -> Revision:
    """Reverse the last edit that has not been undone yet."""
    base = EditSession.read(config.changelist)
    edited = undone(base.document)
    return base.publish(edited, (edited.edit.note or "").replace("undoes", "undid", 1))


def log(config: LogConfig, note: Note) -> tuple[Edit, ...]:
    """Return the edits of a document, in order."""
    return tuple(EditSession.read(config.changelist).document.edits)


def show_log(edits: tuple[Edit, ...], _: LogConfig) -> None:
    """Print edits, in order."""
    sys.stdout.writelines(f"{line}\n" for line in _lines(edits))


def _lines(edits: tuple[Edit, ...]) -> list[str]:
    gone = undone_numbers(edits)
    lines = []
    for number, edit in enumerate(edits, 1):
        cells = [f"{number:>3}", f"{edit.at:%Y-%m-%d %H:%M:%S}", f"{edit.op:<12}", edit.target]
        cells += filter(None, [edit_text(edit), "(undone)" if number in gone else ""])
        lines.append(printable("  ".join(cells)))
    return lines or ["nothing was changed"]
