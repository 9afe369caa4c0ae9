"""Terminal output for a defined slice."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from slicebeam.metrics.errors import printable
from slicebeam.pipelines.changelist.parts import Estimate
from slicebeam.pipelines.changelist.slices import Slice
from slicebeam.pipelines.config.document import DocumentConfig
from slicebeam.pipelines.show.result_notes import coverage_lines

if TYPE_CHECKING:
    from slicebeam.pipelines.define.new_slices import Revision


def show_revision(revision: Revision, _: DocumentConfig) -> None:
    """Print a summary of the edit, and the path of the revision."""
    edit = revision.document.edits[-1]
    for note in revision.notes:
        sys.stderr.write(f"note: {printable(note)}\n")
    is_list_edit = edit.coverage is not None or edit.op == "undo"
    explained = coverage_lines(revision.document, of_list=True) if is_list_edit else ()
    changed = (f"  {slice_line(slice_summary(slice_))}" for slice_ in revision.changed)
    for line in (revision.summary, *changed, *explained):
        sys.stdout.write(f"{printable(line)}\n")
    sys.stdout.write(f"{revision.path}\n")


def revision_json(revision: Revision) -> dict[str, Any]:
    """Return what ``--json`` prints of an edit."""
    edit = revision.document.edits[-1]
    return {
        "summary": revision.summary,
        "changelist": str(revision.path),
        "revision": revision.document.revision,
        "op": edit.op,
        "target": edit.target,
        "slices": [slice_summary(part) for part in revision.changed],
        "coverage": [part.model_dump(mode="json") for part in revision.document.coverage],
        "notes": list(revision.notes),
    }


def slice_summary(listed: Slice) -> dict[str, Any]:
    """Return what ``--json`` prints of a slice, by the primary metric."""
    change = listed.changes[0]
    delta = change.delta or Estimate()
    return {
        "slice_id": listed.slice_id,
        "slice": listed.name,
        "n": listed.size.n,
        "share": listed.size.share,
        "metric": change.metric,
        "value": change.after.value,
        "delta": delta.value,
        "lo": delta.lo,
        "hi": delta.hi,
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
