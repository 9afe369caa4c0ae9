"""What a result shows: its tables on stdout, the part of the document that ``--json`` prints, and HTML."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Sequence
from html import escape
from typing import TYPE_CHECKING, Any

from slicebeam.metrics.errors import printable
from slicebeam.pipelines.changelist.document import ChangeList, SearchChangeList
from slicebeam.pipelines.config.run_options import Report, RunOptions
from slicebeam.pipelines.run.open_run import Published
from slicebeam.pipelines.search.summary import lead, overall_sentences
from slicebeam.pipelines.show.earlier import moved_lines
from slicebeam.pipelines.show.finding_tables import finding_tables, print_findings
from slicebeam.pipelines.show.result_notes import closing_lines, note_blocks, sensitivity_lines
from slicebeam.pipelines.show.terminal_text import WIDE, console_of_stdout, table_of
from slicebeam.pipelines.show.worst_slices import MOST_ROWS, MetricRows, change_cells, worst_slices

if TYPE_CHECKING:
    from rich.table import Table

    from slicebeam.pipelines.shift.run import PublishedShift

# What a document has besides: who made it of what, its history, and the domains of its features.
_NOT_PRINTED: dict[str, Any] = {
    **dict.fromkeys(("schema_version", "revision", "parent", "created_at", "provenance"), True),
    **dict.fromkeys(("files", "replaced_files", "edits", "finding_models"), True),
    "dataset": {"domains", "fingerprint"},
    "shift": {"focus": {"weights"}},
}

_RIGHT, _LEFT = ' style="text-align:right"', ' style="text-align:left"'


def show(published: Published, run_options: RunOptions) -> None:
    """Print what was found, and where the files are."""
    show_slices(published.changelist, published.explanation, run_options.report)
    # Paths are printed raw, so that no terminal width breaks them.
    document, slices = published.changelist_path, published.slices_path
    sys.stdout.write(f"Ids and all numbers: {document}; all slices: {slices}\n")


def show_slices(
    document: SearchChangeList, explanation: Sequence[str] = (), report: Report = "findings"
) -> None:
    """Print the findings, or the worst slices of metrics without any and of a check; and what was left out."""
    console = console_of_stdout()
    shown = finding_tables(document) if report == "findings" else []
    with_findings = {part.model.metric for part in shown} if document.check is None else set()
    console.print()
    # What was found is said below the findings.
    short = f"{lead(document)}{' '.join(overall_sentences(document.global_))}"
    for line in (short if with_findings else document.summary, *moved_lines(document)):
        console.print(line)
    print_findings(console, document, shown)
    for rows in worst_slices(document):
        if rows.metric not in with_findings:
            console.print()
            console.print(_worst_table(rows, document, wide=console.width >= WIDE))
            if rows.rest > 0:
                console.print(f"and {rows.rest:,} more")
    blocks = note_blocks(document, is_short=bool(with_findings))
    for lines in filter(None, blocks):
        console.print()
        for line in lines:
            console.print(line, style="dim" if lines is blocks[-1] else None)
    for line in ("", *explanation) if explanation else ():
        console.out(line, highlight=False)
    for line in ("", *closing_lines(document, has_findings=bool(with_findings))):
        console.print(line)


def _worst_table(shown: MetricRows, document: SearchChangeList, *, wide: bool) -> Table:
    was = [] if document.comparison.kind == "overall" else ["was"]
    more = ["95% interval", "q"] if wide else []
    rows = table_of("n", shown.metric, *was, "delta", *more, last="slice")
    for slice_, change in shown.rows:
        value, compared, *delta = change_cells(change)
        cells = [value, *([compared] if was else []), *delta[: None if wide else 1]]
        style = None if change.significant else "dim"
        rows.add_row(f"{slice_.size.n:,}", *cells, slice_.name, style=style)
    return rows


def printed_json(published: Published | PublishedShift) -> dict[str, Any]:
    """Return the part of a published document that is printed, with the slices of findings and the worst."""
    document = published.changelist
    cut: dict[str, Any] = {}
    if not isinstance(document, SearchChangeList):
        cut["slices"] = document.slices[:MOST_ROWS]
    elif document.adaptive is None:
        shown = {row.slice_id for table in worst_slices(document) for row, _ in table.rows}
        shown |= {finding.slice_id for finding in document.findings}
        cut["slices"] = tuple(row for row in document.slices if row.slice_id in shown)
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


def notebook_html(document: ChangeList) -> str:
    """Return the verdict and the findings of a document as HTML, whose texts are nothing but text."""
    parts = [_paragraph(document.summary)]
    if isinstance(document, SearchChangeList):
        parts += _html_tables(document)
        parts += map(_paragraph, sensitivity_lines(document))
    return "\n".join([*parts, _paragraph(".show() shows the whole page.")])


def _html_tables(document: SearchChangeList) -> Iterator[str]:
    """Yield the findings of each metric, and the worst slices of metrics that have none."""
    shown = finding_tables(document) if document.check is None else []
    for part in shown:
        rows = zip(*part.columns.values(), part.names, strict=True)
        yield _html_table(part.heading, list(part.columns), rows)
        yield from map(_paragraph, filter(None, part.below))
    with_findings = {part.model.metric for part in shown}
    for worst in worst_slices(document):
        if worst.metric not in with_findings:
            cells = [
                (f"{change.n:,}", *change_cells(change)[:3], listed.name)
                for listed, change in worst.rows
            ]
            yield _html_table(f"{worst.metric}:", ["n", "value", "reference", "delta"], cells)


def _html_table(title: str, headers: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
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
