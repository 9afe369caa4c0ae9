"""Terminal output for a defined slice."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from slicebeam.metrics.errors import printable
from slicebeam.pipelines.show.result_notes import list_coverage_lines
from slicebeam.pipelines.show.terminal_text import print_json

if TYPE_CHECKING:
    from collections.abc import Mapping

    from slicebeam.pipelines.changelist.slices import Slice
    from slicebeam.pipelines.config.document import DocumentConfig
    from slicebeam.pipelines.define.new_slices import Revision


def show_revision(revision: Revision, config: DocumentConfig) -> None:
    """Print a summary of the edit, and the path of the revision."""
    edit = revision.document.edits[-1]
    if config.as_json:
        summary = {
            "summary": revision.summary,
            "changelist": str(revision.path),
            "revision": revision.document.revision,
            "op": edit.op,
            "target": edit.target,
            "slices": [slice_summary(one) for one in revision.changed],
            "coverage": [one.model_dump(mode="json") for one in revision.document.coverage],
            "notes": list(revision.notes),
        }
        print_json(summary)
    elif not config.quiet:
        for note in revision.notes:
            sys.stderr.write(f"note: {printable(note)}\n")
        is_list_edit = edit.coverage is not None or edit.op == "undo"
        explained = list_coverage_lines(revision.document) if is_list_edit else []
        changed = (f"  {slice_line(slice_summary(one))}" for one in revision.changed)
        for line in (revision.summary, *changed, *explained):
            sys.stdout.write(f"{printable(line)}\n")
        sys.stdout.write(f"{revision.path}\n")


def slice_summary(one: Slice) -> dict[str, Any]:
    """Return what ``--json`` prints of a slice, by the primary metric."""
    change = one.changes[0]
    delta = change.delta
    return {
        "slice_id": one.slice_id,
        "slice": one.name,
        "n": one.size.n,
        "share": one.size.share,
        "metric": change.metric,
        "value": change.after.value,
        "delta": None if delta is None else delta.value,
        "lo": None if delta is None else delta.lo,
        "hi": None if delta is None else delta.hi,
    }


def slice_line(summary: Mapping[str, Any]) -> str:
    """Return the line of a `slice_summary`."""
    text = "{slice_id}  {slice}: {n:,} examples ({share:.1%})".format(**summary)
    if summary["value"] is not None:
        text += f", {summary['metric']} {summary['value']:.4g}"
    if summary["delta"] is not None:
        text += f", {summary['delta']:+.4g}"
    if summary["lo"] is not None and summary["hi"] is not None:
        text += f" [{summary['lo']:+.4g}, {summary['hi']:+.4g}]"
    return text
