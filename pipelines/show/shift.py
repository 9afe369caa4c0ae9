"""Terminal output of a shift: the heat map of changes, plans, and measurements."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from slicebeam.pipelines.changelist.document import ShiftChangeList
from slicebeam.pipelines.changelist.shifted import Shift
from slicebeam.pipelines.config.run_options import RunOptions
from slicebeam.pipelines.shift.result import money
from slicebeam.pipelines.show.terminal_text import WIDE, console_of_stdout, table_of
from slicebeam.pipelines.show.worst_slices import change_cells

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

    from slicebeam.pipelines.shift.run import PublishedShift
    from slicebeam.pipelines.shift.simulated import BetterMethod, BudgetPlan, MethodQuality

# Cells and slices; a matrix of more classes is shown by its changed cells.
_MOST_SHOWN = 12
_NO_RESULT = "no result"


def show(published: PublishedShift, _: RunOptions) -> None:
    """Print what changed, and where the document is."""
    show_shift(published.changelist)
    # Paths are printed raw, so that no terminal width breaks them.
    sys.stdout.write(f"{published.changelist_path}\n")


def show_shift(document: ShiftChangeList) -> None:
    """Print what changed."""
    console = console_of_stdout()
    shift = document.shift
    console.print()
    console.print(document.summary)
    console.print()
    heat_map = _heat_map(shift, console)
    if heat_map is not None:
        console.print("New minus old share of all examples, in points (* changed):")
        console.print(heat_map)
    elif shift.changed:
        console.print(_cells(shift))
    if document.slices:
        console.print(_slices(document, wide=console.width >= WIDE))
        if len(document.slices) > _MOST_SHOWN:
            console.print(f"and {len(document.slices) - _MOST_SHOWN:,} more")
    for line in shift.warnings:
        console.print(f"warning: {line}", style="yellow")
    for line in _notes(document):
        console.print(line, style="dim")
    console.print()


def _name(value: Any) -> str:
    return _NO_RESULT if value is None else str(value)


def _heat_map(shift: Shift, console: Console) -> Table | None:
    from rich.text import Text

    if max(len(shift.labels), len(shift.predictions)) > _MOST_SHOWN:
        return None
    table = table_of("label", *map(_name, shift.predictions))
    changed = {(cell.label, cell.prediction) for cell in shift.changed}
    largest = max((abs(value) for row in shift.shift for value in row), default=0.0) or 1.0
    for label, row in zip(shift.labels, shift.shift, strict=True):
        cells = []
        for prediction, value in zip(shift.predictions, row, strict=True):
            star = "*" if (label, prediction) in changed else " "
            cells.append(Text(f"{100 * value:+.2f}{star}", style=_color(value / largest)))
        table.add_row(_name(label), *cells)
    unbounded = console.options.update(max_width=1000)
    return table if console.measure(table, options=unbounded).maximum <= console.width else None


def _color(strength: float) -> str:
    """Return red for less frequent predictions and blue for more frequent ones."""
    level = round(200 * min(1.0, abs(strength)))
    if level < 20:
        return "dim"
    hue = (255, 255 - level, 255 - level) if strength < 0 else (255 - level, 255 - level, 255)
    return "black on #{:02x}{:02x}{:02x}".format(*hue)


def _cells(shift: Shift) -> Table:
    table = table_of("label", "prediction", "shift (points)", "interval", "q")
    for cell in shift.changed[:_MOST_SHOWN]:
        ends = cell.shift.value, cell.shift.lo, cell.shift.hi
        points, low, high = (f"{100 * (end or 0):+.2f}" for end in ends)
        names = _name(cell.label), _name(cell.prediction)
        table.add_row(*names, points, f"{low} … {high}", f"{cell.p_adjusted:.1e}")
    return table


def _slices(document: ShiftChangeList, *, wide: bool) -> Table:
    calls = {slice_.slice_id: slice_.calls for slice_ in document.shift.slices}
    more = ["interval", "q"] if wide else []
    table = table_of("n", "calls", "accuracy", "was", "shift", *more, last="slice")
    for slice_ in document.slices[:_MOST_SHOWN]:
        change = slice_.changes[0]
        value, before, delta, *interval = change_cells(change)
        numbers = f"{slice_.size.n:,}", f"{calls[slice_.slice_id]:,}", value, before
        star = "*" if change.significant else " "
        cells = [*numbers, delta + star, *(interval if wide else []), slice_.name]
        table.add_row(*cells, style=None if change.significant else "dim")
    return table


def _notes(document: ShiftChangeList) -> Iterator[str]:
    shift = document.shift
    why = {
        "budget": "the budget was spent",
        "target_error": "the target error was reached",
        "pool": "every item was queried",
    }[shift.stopped]
    calls, replayed = shift.cost.calls, shift.cost.replayed
    paid = ""
    if document.models[1].model_uri is not None:
        paid = f" {replayed:,} answers were in the ledger, {calls - replayed:,} are new."
    queried = f"{calls:,} of {document.dataset.n:,} items were queried (--method {shift.method})"
    yield f"{queried}, until {why}.{paid}"
    weighted = "" if shift.focus is None else f", weighted by --focus {shift.focus.of}"
    bound = f"{shift.frobenius_bound:.4f} with {shift.confidence:.0%} confidence"
    yield f"The error of the matrix (Frobenius{weighted}) is below {bound}."
    if shift.reliance is not None:
        yield (
            f"The old predictions count with a weight of {shift.reliance:.2f}: 1 where few "
            "changed, 0 where they say nothing about the new ones."
        )
    if shift.focus is not None:
        yield f"Calls follow --focus {shift.focus.of}: cells without a weight are less certain."
    yield shift.corrected_for


def show_measured(measured: MethodQuality) -> None:
    """Print how good a method was."""
    console = console_of_stdout()
    console.print()
    console.print(
        f"--method {measured.method}, {measured.repeat:,} runs of {measured.budget:,} calls"
    )
    target = measured.calls_for_target
    needed = "not within the budget" if target is None else f"{target:,}"
    for text, value in (
        ("Frobenius error, root of the mean square", f"{measured.mse_frobenius**0.5:.5f}"),
        ("Frobenius error of 95 % of the runs, below", f"{measured.q95_frobenius:.5f}"),
        ("bias of the accuracy", f"{measured.accuracy_bias:+.5f}"),
        ("coverage of the accuracy's interval", f"{measured.accuracy_coverage:.3f}"),
        ("mean coverage of the cells' intervals", f"{measured.cell_coverage:.3f}"),
        (f"calls for an error of {measured.target_error:g} in 95 % of the runs", needed),
    ):
        console.print(f"  {text:<48}{value:>22}")


def show_plan(
    planned: Sequence[BudgetPlan], currency: str | None, better: Sequence[BetterMethod] = ()
) -> None:
    """Print what each budget would give, and where another method than ``plus`` gives more."""
    console = console_of_stdout()
    for churn in dict.fromkeys(row.churn for row in planned):
        console.print()
        console.print(
            "With a completely new API:"
            if churn is None
            else f"If {churn:.0%} of the predictions change:"
        )
        of_money = [] if currency is None else [currency]
        table = table_of("method", "calls", *of_money, "error (95 %)", "accuracy ±", "cells ±")
        for row in planned:
            if row.churn == churn:
                cost = [money(row.cost or 0) for _ in of_money]
                errors = row.q95_frobenius, row.accuracy_width / 2, row.cell_width / 2
                cells = [f"{error:.4f}" for error in errors]
                table.add_row(row.method, f"{row.budget:,}", *cost, *cells)
        console.print(table)
    console.print(
        "error: Frobenius error of the new matrix that 95 % of the runs stay below; ±: half the mean "
        "width of the intervals.",
        style="dim",
    )
    for other in better:
        churn = other.churn
        where = "With a completely new API" if churn is None else f"At a churn of {churn:.0%}"
        smaller = f"{1 - other.ratio:.0%} smaller than plus for the same calls"
        console.print(f"{where}, --method {other.method} has an error {smaller}.", style="yellow")
