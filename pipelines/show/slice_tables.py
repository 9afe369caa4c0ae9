"""The tables of the worst slices, on stdout."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, Any

from slicebeam.pipelines.search.gate import lead
from slicebeam.pipelines.search.summary import counted, overall_sentences
from slicebeam.pipelines.show.discovery import found_lines
from slicebeam.pipelines.show.finding_tables import (
    LEAST_LINES,
    MOST_LINES,
    all_findings,
    heading,
    hidden_columns,
    hidden_line,
    left_out_line,
    legend,
    lines_of,
    reason_line,
    table,
)
from slicebeam.pipelines.show.result_notes import (
    chance_line,
    coverage_lines,
    found_line,
    notes,
    parity_lines,
    sensitivity_lines,
    since_lines,
    tested_line,
    tfma_lines,
)
from slicebeam.pipelines.show.terminal_text import FILES, WIDE, console_of_stdout, table_of
from slicebeam.pipelines.show.worst_slices import MetricRows, change_cells, worst_slices

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.console import Console

    from slicebeam.pipelines.changelist.document import SearchChangeList
    from slicebeam.pipelines.config.run_options import Report
    from slicebeam.pipelines.run.open_run import Published
    from slicebeam.pipelines.show.finding_tables import FindingTables
    from slicebeam.pipelines.show.terminal_text import ResultPlaces

_LONGEST_LINE = 10_000


def show(published: Published, report: Report = "findings") -> None:
    """Print what was found, and where the files are."""
    show_slices(published.changelist, published.explanation, report)
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
    _print_findings(console, document, shown, places)
    for rows in worst_slices(document):
        if rows.metric in told:
            continue
        console.print()
        console.print(_table(rows, document, wide=console.width >= WIDE))
        if rows.rest > 0:
            console.print(f"and {rows.rest:,} more")
        if rows.folded:
            share = (
                "share more than half of their"
                if rows.folded > 1
                else "shares more than half of its"
            )
            console.print(f"Left out: {rows.folded:,} that {share} examples with a slice above.")
    reasons = (make(one) for one in lists for make in (reason_line, left_out_line))
    blocks = [
        list(dict.fromkeys(filter(None, [*coverage_lines(document, lists), *reasons]))),
        list(sensitivity_lines(document)),
        list(parity_lines(document)),
        list(tfma_lines(document, places)),
        found_lines(document),
        since_lines(document, places),
        notes(document, places, is_short=bool(told)),
    ]
    for lines in filter(None, blocks):
        console.print()
        for line in lines:
            console.print(line, style="dim" if lines is blocks[-1] else None)
    if explanation:
        console.print()
    for line in explanation:
        console.out(line, highlight=False)
    console.print()
    console.print(found_line(document) if told else tested_line(document))
    console.print(document.testing.corrected_for)
    if chance := chance_line(document):
        console.print(chance)


def _print_findings(
    console: Console, document: SearchChangeList, shown: list[FindingTables], places: ResultPlaces
) -> None:
    most = max(LEAST_LINES, MOST_LINES // max(len(shown), 1))
    # A line may be as long as it is where nobody set a width.
    width = console.width if console.is_terminal or "COLUMNS" in os.environ else None
    hidden = [] if width is None else hidden_columns(document, shown, width, most)
    for one in shown:
        console.print()
        console.print(heading(document, one))
        lines, held = lines_of(one.findings, most)
        _print_whole(console, table(document, one, width, lines, hidden))
        if rest := len(one.findings) - lines:
            of = f"with {1 - held:.0%} of the excess, n · |value - expected|"
            console.print(f"and {counted(rest, 'more finding')} {of}")
    if shown:
        console.print()
        for line in filter(None, (legend(document, shown, hidden), hidden_line(hidden, places))):
            console.print(line, style="dim")


def _print_whole(console: Console, table: Any) -> None:
    """Print a table on lines as long as it needs: where there is no terminal, or too narrow a one."""
    width = console.width
    as_long = console.options.update(max_width=_LONGEST_LINE)
    console.width = max(width, console.measure(table, options=as_long).maximum)
    console.print(table)
    console.width = width


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
