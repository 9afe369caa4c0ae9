"""What the commands ``slicebeam edit …`` do, each with its validated options.

Each returns the revision that it published, which `show.define.show_revision` prints.
"""

from __future__ import annotations

import sys
from functools import partial
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
from slicebeam.pipelines.define.counting import Counting
from slicebeam.pipelines.define.joining import merged_slices, split_slice
from slicebeam.pipelines.define.new_slices import EditSession, Revision

if TYPE_CHECKING:
    from collections.abc import Callable

    from slicebeam.pipelines.changelist.discovered import Edit
    from slicebeam.pipelines.changelist.document import SearchChangeList
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


def _edited(
    config: SliceConfig, edit: Callable[[SearchChangeList, str], SearchChangeList], done: str
) -> Revision:
    """Publish an edit of one slice."""
    base = EditSession.read(config.changelist)
    target = find_slice(base.document, config.slice)
    return base.publish(edit(base.document, target.slice_id), f"{done} slice {target.name!r}")


@from_last
def rename(config: RenameConfig, _: Note) -> Revision:
    """Give a slice another name."""
    return _edited(config, partial(renamed, name=config.name), "renamed")


@from_last
def describe(config: DescribeConfig, _: Note) -> Revision:
    """Write the description of a slice."""
    return _edited(config, partial(described, text=config.text), "described")


@from_last
def annotate(config: AnnotateConfig, _: Note) -> Revision:
    """Add a note to a slice."""
    return _edited(config, partial(annotated, note=config.note), "added a note to")


@from_last
def remove(config: SliceConfig, _: Note) -> Revision:
    """Remove a slice."""
    return _edited(config, removed, "removed")


@from_last
def merge(config: MergeConfig, _: Note) -> Revision:
    """Make one slice of several: the examples of any of them."""
    base = EditSession.read(config.changelist)
    counting = Counting.of(config)
    edited = merged_slices(base, config.slices, config.name, counting)
    return base.publish(edited, f"merged {len(config.slices)} slices", counting)


@from_last
def split(config: SplitConfig, _: Note) -> Revision:
    """Make two slices of one, by a predicate."""
    base = EditSession.read(config.changelist)
    whole = find_slice(base.document, config.slice)
    counting = Counting.of(config)
    edited = split_slice(base, whole, config.where, config.name, counting)
    return base.publish(edited, f"split slice {whole.name!r}", counting)


@from_last
def undo(config: DocumentConfig, _: Note) -> Revision:
    """Reverse the last edit that has not been undone yet."""
    base = EditSession.read(config.changelist)
    edited = undone(base.document)
    return base.publish(edited, (edited.edits[-1].note or "").replace("undoes", "undid", 1))


def log(config: LogConfig, _: Note) -> tuple[Edit, ...]:
    """Return the edits of a document, in order."""
    return tuple(EditSession.read(config.changelist).document.edits)


def show_log(edits: tuple[Edit, ...], _: LogConfig) -> None:
    """Print edits, in order."""
    gone = undone_numbers(edits)
    for number, edit in enumerate(edits, 1):
        cells = [f"{number:>3}", f"{edit.at:%Y-%m-%d %H:%M:%S}", f"{edit.op:<12}", edit.target]
        cells += filter(None, [edit_text(edit), "(undone)" if number in gone else ""])
        sys.stdout.write(f"{printable('  '.join(cells))}\n")
    if not edits:
        sys.stdout.write("nothing was changed\n")
