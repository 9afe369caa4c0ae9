"""What ``--json`` prints: a part of the document, in its own words, and where the files are."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from slicebeam.pipelines.changelist.document import SearchChangeList
from slicebeam.pipelines.run.open_run import Published
from slicebeam.pipelines.show.worst_slices import MOST_ROWS, worst_slices

if TYPE_CHECKING:
    from slicebeam.pipelines.changelist.document import ChangeList
    from slicebeam.pipelines.shift.run import PublishedShift

# What a document has besides: who made it of what, its history, and the domains of its features.
_NOT_PRINTED: dict[str, Any] = {
    **dict.fromkeys(("schema_version", "revision", "parent", "created_at", "provenance"), True),
    **dict.fromkeys(("files", "replaced_files", "edits", "finding_models"), True),
    "dataset": {"domains", "fingerprint"},
    "shift": {"focus": {"weights"}},
}


def printed_json(published: Published | PublishedShift) -> dict[str, Any]:
    """Return the part of a published document that is printed, with ``document`` and ``table``, the paths.

    Of the slices those of the findings, and the worst of each metric; of a shift the first, of scored tests all.
    """
    document = published.changelist
    shown = _slices(document)
    cut: dict[str, Any] = {"slices": tuple(s for s in document.slices if s.slice_id in shown)}
    if document.since is not None:
        first = document.since.slices[:MOST_ROWS]
        cut["since"] = document.since.model_copy(update={"slices": first})
    content = document.model_copy(update=cut).model_dump(
        mode="json", by_alias=True, exclude_none=True, exclude=_NOT_PRINTED
    )
    files = {"document": str(published.changelist_path)}
    if isinstance(published, Published):
        files["table"] = str(published.slices_path)
        content["explanation"] = list(published.explanation)
    return files | content


def _slices(document: ChangeList) -> set[str]:
    """Return the ids of the slices that are printed."""
    if document.adaptive is not None:
        return {listed.slice_id for listed in document.slices}
    if not isinstance(document, SearchChangeList):
        return {listed.slice_id for listed in document.slices[:MOST_ROWS]}
    worst = {row.slice_id for table in worst_slices(document) for row, _ in table.rows}
    return worst | {finding.slice_id for finding in document.findings}
