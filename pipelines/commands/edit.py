"""What the commands ``slicebeam edit …`` do, each with its validated options.

Each returns the revision that it published, which `show.define.show_revision` prints.
"""

from __future__ import annotations

import sys
from collections.abc import Callable

from slicebeam.metrics.errors import printable
from slicebeam.pipelines.changelist import edits
from slicebeam.pipelines.changelist.discovered import Edit
from slicebeam.pipelines.changelist.revisions import from_last
from slicebeam.pipelines.config import document as options
from slicebeam.pipelines.define.counting import Counting
from slicebeam.pipelines.define.joining import merged_slices, split_slice
from slicebeam.pipelines.define.new_slices import EditSession, Revision

Note = Callable[[str], None]


@from_last
def edit(config: options.DocumentConfig, _: Note) -> Revision:
    """Make the edit that the options are of: undo, where they are of none."""
    base = EditSession.read(config.changelist)
    document = base.document
    if isinstance(config, options.MergeConfig):
        counting = Counting.of(config)
        merged = merged_slices(base, config.slices, config.name, counting)
        return base.publish(merged, f"merged {len(config.slices)} slices", counting)
    if not isinstance(config, options.SliceConfig | options.SplitConfig):
        edited = edits.undone(document)
        return base.publish(edited, (edited.edits[-1].note or "").replace("undoes", "undid", 1))
    target = edits.find_slice(document, config.slice)
    counted = None
    match config:
        case options.SplitConfig():
            counted, done = Counting.of(config), "split"
            edited = split_slice(base, target, config.where, config.name, counted)
        case options.RenameConfig():
            edited, done = edits.renamed(document, target.slice_id, name=config.name), "renamed"
        case options.DescribeConfig():
            edited, done = edits.described(document, target.slice_id, text=config.text), "described"
        case options.AnnotateConfig():
            edited = edits.annotated(document, target.slice_id, note=config.note)
            done = "added a note to"
        case _:
            edited, done = edits.removed(document, target.slice_id), "removed"
    return base.publish(edited, f"{done} slice {target.name!r}", counted)


def log(config: options.DocumentConfig, _: Note) -> tuple[Edit, ...]:
    """Return the edits of a document, in order."""
    return tuple(EditSession.read(config.changelist).document.edits)


def show_log(journal: tuple[Edit, ...], _: options.DocumentConfig) -> None:
    """Print edits, in order."""
    gone = edits.undone_numbers(journal)
    for number, edit in enumerate(journal, 1):
        cells = [f"{number:>3}", f"{edit.at:%Y-%m-%d %H:%M:%S}", f"{edit.op:<12}", edit.target]
        cells += filter(None, [edits.edit_text(edit), "(undone)" if number in gone else ""])
        sys.stdout.write(f"{printable('  '.join(cells))}\n")
    if not journal:
        sys.stdout.write("nothing was changed\n")
