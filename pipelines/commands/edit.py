"""What the commands ``slicebeam edit …`` do, each with its validated options.

Each returns the revision that it published, which `show.define.show_revision` prints.
"""

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
from slicebeam.pipelines.config.document import (
    AnnotateConfig,
    DescribeConfig,
    MergeConfig,
    RenameConfig,
    SliceConfig,
    SplitConfig,
)
from slicebeam.pipelines.define.counting import Counting
from slicebeam.pipelines.define.joining import merged_slices, split_slice
from slicebeam.pipelines.define.new_slices import EditSession, Revision

if TYPE_CHECKING:
    from collections.abc import Callable

    from slicebeam.pipelines.changelist.discovered import Edit
    from slicebeam.pipelines.config.document import DocumentConfig

    Note = Callable[[str], None]


@from_last
def edit(config: DocumentConfig, _: Note) -> Revision:
    """Make the edit that the options are of: undo, where they are of none."""
    base = EditSession.read(config.changelist)
    document = base.document
    if isinstance(config, MergeConfig):
        counting = Counting.of(config)
        merged = merged_slices(base, config.slices, config.name, counting)
        return base.publish(merged, f"merged {len(config.slices)} slices", counting)
    if not isinstance(config, SliceConfig | SplitConfig):
        edited = undone(document)
        return base.publish(edited, (edited.edits[-1].note or "").replace("undoes", "undid", 1))
    target = find_slice(document, config.slice)
    counted = None
    match config:
        case SplitConfig():
            counted, done = Counting.of(config), "split"
            edited = split_slice(base, target, config.where, config.name, counted)
        case RenameConfig():
            edited, done = renamed(document, target.slice_id, name=config.name), "renamed"
        case DescribeConfig():
            edited, done = described(document, target.slice_id, text=config.text), "described"
        case AnnotateConfig():
            edited = annotated(document, target.slice_id, note=config.note)
            done = "added a note to"
        case _:
            edited, done = removed(document, target.slice_id), "removed"
    return base.publish(edited, f"{done} slice {target.name!r}", counted)


def log(config: DocumentConfig, _: Note) -> tuple[Edit, ...]:
    """Return the edits of a document, in order."""
    return tuple(EditSession.read(config.changelist).document.edits)


def show_log(edits: tuple[Edit, ...], _: DocumentConfig) -> None:
    """Print edits, in order."""
    gone = undone_numbers(edits)
    for number, edit in enumerate(edits, 1):
        cells = [f"{number:>3}", f"{edit.at:%Y-%m-%d %H:%M:%S}", f"{edit.op:<12}", edit.target]
        cells += filter(None, [edit_text(edit), "(undone)" if number in gone else ""])
        sys.stdout.write(f"{printable('  '.join(cells))}\n")
    if not edits:
        sys.stdout.write("nothing was changed\n")
