"""What a notebook shows of a result: the verdict and the findings, without a script."""

from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING

from slicebeam.metrics.errors import printable
from slicebeam.pipelines.changelist.document import SearchChangeList
from slicebeam.pipelines.show.error_kinds import error_lines
from slicebeam.pipelines.show.finding_tables import (
    MOST_LINES,
    all_findings,
    columns,
    heading,
    lines_of,
)
from slicebeam.pipelines.show.result_notes import sensitivity_lines
from slicebeam.pipelines.show.worst_slices import change_cells, worst_slices

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from slicebeam.pipelines.changelist.document import ChangeList

_RIGHT, _LEFT = ' style="text-align:right"', ' style="text-align:left"'


def notebook_html(document: ChangeList) -> str:
    """Return the verdict and the findings of a document as HTML, whose texts are nothing but text."""
    parts = [_paragraph(document.summary)]
    if isinstance(document, SearchChangeList):
        parts += _tables(document)
        parts += map(_paragraph, sensitivity_lines(document))
    return "\n".join([*parts, _paragraph(".show() shows the whole page.")])


def _tables(document: SearchChangeList) -> Iterator[str]:
    """Yield the findings of each metric, and the worst slices of metrics that have none."""
    with_findings = set()
    names = {listed.slice_id: listed.name for listed in document.slices}
    for shown in all_findings(document):
        if shown.findings and document.check is None:
            lines, _ = lines_of(shown.findings, MOST_LINES)
            cells = columns(document, shown, lines)
            slices = [names.get(finding.slice_id, "") for finding in shown.findings[:lines]]
            rows = zip(*(column.cells for column in cells), slices, strict=True)
            yield _table(heading(document, shown), [column.header for column in cells], rows)
            yield from map(_paragraph, error_lines(document, shown.findings[:lines]))
            with_findings.add(shown.model.metric)
    for worst in worst_slices(document):
        if worst.metric not in with_findings:
            worst_rows = [
                (f"{change.n:,}", *change_cells(change)[:3], listed.name)
                for listed, change in worst.rows
            ]
            yield _table(f"{worst.metric}:", ["n", "value", "reference", "delta"], worst_rows)


def _table(title: str, headers: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    head = "".join(f"<th{_RIGHT}>{escape(name)}</th>" for name in headers)
    lines = [f"<table><caption{_LEFT}>{_text(title)}</caption><tr>{head}<th{_LEFT}>slice</th></tr>"]
    for *numbers, name in rows:
        cells = "".join(f"<td{_RIGHT}>{_text(number)}</td>" for number in numbers)
        lines.append(f"<tr>{cells}<td{_LEFT}>{_text(name)}</td></tr>")
    return "\n".join([*lines, "</table>"])


def _paragraph(text: str) -> str:
    return f"<p>{_text(text)}</p>"


def _text(text: str) -> str:
    return escape(printable(text))
