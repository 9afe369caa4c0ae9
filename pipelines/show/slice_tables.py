"""The tables of the worst slices, on stdout."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from slicebeam.pipelines.search.gate import lead
from slicebeam.pipelines.search.summary import overall_sentences
from slicebeam.pipelines.show.earlier import moved_lines
from slicebeam.pipelines.show.finding_tables import all_findings, print_findings
from slicebeam.pipelines.show.result_notes import closing_lines, note_blocks
from slicebeam.pipelines.show.terminal_text import FILES, WIDE, console_of_stdout, table_of
from slicebeam.pipelines.show.worst_slices import MetricRows, change_cells, worst_slices

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from rich.console import Console

    from slicebeam.pipelines.changelist.document import SearchChangeList
    from slicebeam.pipelines.config.run_options import Report, RunOptions
    from slicebeam.pipelines.run.open_run import Published
    from slicebeam.pipelines.show.terminal_text import ResultPlaces


def show(published: Published, run_options: RunOptions) -> None:
    """Print what was found, and where the files are."""
    show_slices(published.changelist, published.explanation, run_options.report)
    # Paths are printed raw, so that no terminal width breaks them.
    document, slices = published.changelist_path, published.slices_path
    sys.stdout.write(f"Ids and all numbers: {document}; all slices: {slices}\n")


def show_slices(
    document: SearchChangeList,
    explanation: Sequence[str] = (),
    report: Report = "findings",
    places: ResultPlaces = FILES,
) -> None:
    """Print the findings, or the table of the worst slices, and what was left out.

    Metrics that have no findings, and slices that were given, have the table in any case. ``places``:
    where the lines say that more is.
    """
    console = console_of_stdout()
    lists = all_findings(document) if report == "findings" else []
    shown = [one for one in lists if one.findings]
    told = {one.model.metric for one in shown} if document.check is None else set()
    console.print()
    # What was found is said below the findings.
    short = f"{lead(document)}{' '.join(overall_sentences(document.global_))}"
    console.print(short if told else document.summary)
    _print_lines(console, moved_lines(document))
    print_findings(console, document, shown, places)
    for rows in worst_slices(document):
        if rows.metric in told:
            continue
        console.print()
        console.print(_table(rows, document, wide=console.width >= WIDE))
        if rows.rest > 0:
            console.print(f"and {rows.rest:,} more")
        if rows.folded:
            share, their = ("share", "their") if rows.folded > 1 else ("shares", "its")
            share = f"{share} more than half of {their} examples with a slice above"
            console.print(f"Left out: {rows.folded:,} that {share}.")
    blocks = note_blocks(document, lists, places, is_short=bool(told))
    for lines in filter(None, blocks):
        console.print()
        for line in lines:
            console.print(line, style="dim" if lines is blocks[-1] else None)
    if explanation:
        console.print()
    for line in explanation:
        console.out(line, highlight=False)
    console.print()
    _print_lines(console, closing_lines(document, has_findings=bool(told)))


def _print_lines(console: Console, lines: Iterable[str]) -> None:
    for line in lines:
        console.print(line)


def _table(shown: MetricRows, document: SearchChangeList, *, wide: bool) -> Any:
    was = ["was"] if document.comparison.kind == "baseline" else []
    more = ["95% interval", "q"] if wide else []
    rows = table_of("n", shown.metric, *was, "delta", *more, last="slice")
    for one, change in shown.rows:
        value, compared, *delta = change_cells(change)
        cells = [value, *([compared] if was else []), *delta[: None if wide else 1]]
        style = None if change.significant else "dim"
        rows.add_row(f"{one.size.n:,}", *cells, one.name, style=style)
    return rows
