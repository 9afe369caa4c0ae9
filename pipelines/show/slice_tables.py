"""The tables of the worst slices, on stdout."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, Any

from slicebeam.pipelines.changelist.parts import Estimate
from slicebeam.pipelines.show.discovery import found_lines
from slicebeam.pipelines.show.result_notes import notes, since_lines
from slicebeam.pipelines.show.terminal_text import guarded
from slicebeam.pipelines.show.worst_slices import (
    MetricRows,
    number_text,
    reference_of,
    signed_text,
    worst_slices,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.console import Console

    from slicebeam.pipelines.changelist.document import SearchChangeList
    from slicebeam.pipelines.run.published import Published

MOST_COVERING = 5
# Intervals are shown from this width; what is no terminal gets a width of its own.
WIDE = 100
_PIPED_WIDTH = 120


def console_of_stdout() -> Console:
    """Return what a result is printed by, which is wide where stdout is no terminal."""
    from rich.console import Console

    console = guarded(Console(highlight=False))
    if not console.is_terminal and "COLUMNS" not in os.environ:
        console.width = _PIPED_WIDTH
    return console


def show(published: Published) -> None:
    """Print what was found, and where the files are."""
    show_slices(published.changelist, published.explanation)
    # Paths are printed raw, so that no terminal width breaks them.
    for path in (published.changelist_path, published.slices_path):
        sys.stdout.write(f"{path}\n")


def show_slices(document: SearchChangeList, explanation: Sequence[str] = ()) -> None:
    """Print the table of the worst slices and what was left out."""
    console = console_of_stdout()
    console.print()
    console.print(document.summary, markup=False)
    for table in worst_slices(document):
        console.print()
        console.print(_table(table, document, wide=console.width >= WIDE))
        if table.rest > 0:
            console.print(f"and {table.rest:,} more", markup=False)
    cover = sorted((one for one in document.slices if one.rank), key=lambda one: one.rank or 0)
    if cover:
        console.print(
            "The slices that hold most of the excess that the worst reported slices hold together "
            "(share of it so far; no share of all errors):",
            markup=False,
        )
        for one in cover[:MOST_COVERING]:
            console.print(f"  {one.explained:4.0%}  {one.name} (n = {one.size.n:,})", markup=False)
        console.print()
    found = found_lines(document)
    for line in [*found, ""] if found else []:
        console.print(line, markup=False)
    for line in since_lines(document):
        console.print(line, markup=False)
    for line in notes(document):
        console.print(line, markup=False, style="dim")
    console.print()
    for line in explanation:
        console.out(line, highlight=False)
    if explanation:
        console.print()


def _table(shown: MetricRows, document: SearchChangeList, *, wide: bool) -> Any:
    from rich import box
    from rich.table import Table
    from rich.text import Text

    baseline = document.comparison.kind == "baseline"
    headers = ["n", shown.metric, *(["was"] if baseline else []), "delta"]
    if wide:
        headers += ["95% interval", "q"]
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for header in headers:
        table.add_column(header, justify="right", no_wrap=True)
    # Last, so that it has all the width that the numbers leave.
    table.add_column("slice", overflow="fold")
    for one, change in shown.rows:
        cells = [f"{one.size.n:,}", number_text(change.after.value)]
        cells += [number_text(reference_of(change))] if baseline else []
        delta = change.delta or Estimate()
        cells.append(signed_text(delta.value))
        if wide:
            has_interval = delta.lo is not None or delta.hi is not None
            interval = f"{signed_text(delta.lo)} … {signed_text(delta.hi)}"
            cells.append(interval if has_interval else "")
            cells.append("" if change.p_adjusted is None else f"{change.p_adjusted:.1e}")
        table.add_row(*cells, Text(one.name), style=None if change.significant else "dim")
    return table
