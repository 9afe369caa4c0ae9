"""The findings of a run, in tables that never shorten slices."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain
from statistics import median
from typing import TYPE_CHECKING

from slicebeam.metrics.errors import counted
from slicebeam.pipelines.changelist.document import SearchChangeList
from slicebeam.pipelines.changelist.slices import (
    ConfirmedDifference,
    CorrectedDifference,
    Finding,
    FindingModel,
)
from slicebeam.pipelines.show.error_kinds import error_lines

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table


# Of several lists each has a share of the lines, and at least so many.
MOST_LINES = 20
_LEAST_LINES = 5
_NARROWEST = 12
_BETWEEN_COLUMNS = 2
_AND = " & "
# The lines that hold this part of the excess are printed: of n · |value − expected|, summed.
_EXCESS = 0.9
_LONGEST_LINE = 10_000
# A value between 0 and 1, or a change of one, has so many at least.
_DECIMALS_OF_SHARES = 3
# Beyond these a number has an exponent.
_MOST_DECIMALS, _LONGEST = 7, 1e9
# Slices that tell as much as a finding of a change.
_MOST_NEAR = 3
_INFINITE = "∞"
# Columns for which a terminal needs so much more room than for the others and the longest condition.
_OPTIONAL, _ROOM, _ROOM_OF_OTHERS = ("expected", "observed", "held", "outside"), 10, 42
_WIDE_ENOUGH = 38


class Numbers:
    """How the numbers of a list are written: the second digit of the typical interval's width is the last."""

    def __init__(self, findings: Sequence[Finding]) -> None:
        ends = [(finding.corrected.low, finding.corrected.high) for finding in findings]
        numbers = [(finding.value, finding.expected, finding.rate_outside) for finding in findings]
        largest = max(
            (abs(number) for number in chain(*numbers, *ends) if number is not None), default=0.0
        )
        widths = [high - low for low, high in ends if low is not None and high is not None]
        typical = median(widths) if widths else largest / 10
        decimals = 1 - math.floor(math.log10(typical)) if typical > 0 else 0
        least = _DECIMALS_OF_SHARES if largest <= 1 else 0
        self._decimals = max(decimals, least)
        self._has_exponent = largest >= _LONGEST or self._decimals > _MOST_DECIMALS

    def text(self, value: float | None, *, signed: bool = False) -> str:
        """Return a value; nothing for None, and no zero before the decimal point."""
        if value is None:
            return ""
        if self._has_exponent:
            return f"{value:+.3e}" if signed else f"{value:.3e}"
        text = f"{value:{'+' if signed else ''},.{self._decimals}f}"
        return text.replace("0.", ".", 1) if text.lstrip("+-").startswith("0.") else text

    def difference(self, part: CorrectedDifference | ConfirmedDifference) -> str:
        """Return a difference with its interval, such as ``+.148 [+.139, +.158]``."""
        low = f"-{_INFINITE}" if part.low is None else self.text(part.low, signed=True)
        high = f"+{_INFINITE}" if part.high is None else self.text(part.high, signed=True)
        return f"{self.text(part.difference, signed=True)} [{low}, {high}]"


@dataclass(frozen=True)
class FindingTable:
    """The first findings of one metric in one direction: a column of texts for each number, and the slices."""

    heading: str
    model: FindingModel
    findings: Sequence[Finding]
    columns: dict[str, list[str]]
    names: list[str]
    below: list[str]


def finding_tables(document: SearchChangeList) -> list[FindingTable]:
    """Return the tables of all metrics and directions that have findings."""
    lists = [(model, model.listed(document.findings)) for model in document.finding_models]
    shown = [(model, findings) for model, findings in lists if findings]
    most = max(_LEAST_LINES, MOST_LINES // max(len(shown), 1))
    names = {slice_.slice_id: slice_.name for slice_ in document.slices}
    return [_finding_table(document, names, *of, most) for of in shown]


def _finding_table(
    document: SearchChangeList,
    names: dict[str, str],
    model: FindingModel,
    findings: Sequence[Finding],
    most: int,
) -> FindingTable:
    lines, held = lines_of(findings, most)
    first, rest = findings[:lines], len(findings) - lines
    below = []
    if rest:
        of = f"with {1 - held:.0%} of the excess, n · |value - expected|"
        below.append(f"and {counted(rest, 'more finding')} {of}")
    if kinds := error_lines(document, first):
        below += ["", *kinds]
    near = [[names[other] for other in row.near[:_MOST_NEAR] if other in names] for row in first]
    called = [
        names.get(row.slice_id, row.slice_id) + (f", or: {'; '.join(others)}" if others else "")
        for row, others in zip(first, near, strict=True)
    ]
    heading = _heading(document, model, findings)
    columns = _columns(document, model, findings, lines)
    return FindingTable(heading, model, findings, columns, called, below)


def _heading(document: SearchChangeList, model: FindingModel, findings: Sequence[Finding]) -> str:
    """Return the heading; the first finding is expected to have the value over all examples."""
    title = next(entry.name for entry in document.metrics if entry.key == model.metric)
    is_change = document.comparison.kind == "baseline"
    if is_change:
        title = f"Change of {title[:1].lower() if title[1:2].islower() else title[:1]}{title[1:]}"
    if document.comparison.kind == "earlier":
        return f"{title}, {model.direction} than then by more than the lines above explain:"
    over = ""
    if findings[0].rank == 1:
        overall = Numbers(findings).text(findings[0].expected, signed=is_change)
        over = f" (over all examples {overall})"
    return f"{title}, {model.direction} than expected{over}:"


def _columns(
    document: SearchChangeList, model: FindingModel, findings: Sequence[Finding], lines: int
) -> dict[str, list[str]]:
    numbers, is_change = Numbers(findings), document.comparison.kind == "baseline"
    text = partial(numbers.text, signed=is_change)
    cells: dict[str, Callable[[Finding], str]] = {
        "": lambda row: str(row.rank),
        "n": lambda row: f"{row.n:,}",
    }
    if document.comparison.kind == "earlier":
        cells["was"] = lambda row: text(row.before)
    cells["change" if is_change else "value"] = lambda row: text(row.value)
    cells["expected"] = lambda row: text(row.expected)
    cells["corrected [95%]"] = lambda row: numbers.difference(row.corrected)
    if document.confirmation is not None:
        cells["confirmed [95%]"] = lambda row: _confirmed(row.confirmed, numbers)
    cells["observed"] = lambda row: numbers.text(row.difference, signed=True)
    # On the better side none holds a part of all errors.
    if model.direction == "worse" and any(row.held_share is not None for row in findings):
        cells["held"] = lambda row: "" if row.held_share is None else f"{row.held_share:.0%}"
    if any(row.rate_outside is not None for row in findings):
        cells["outside"] = lambda row: text(row.rate_outside)
    return {header: list(map(cell, findings[:lines])) for header, cell in cells.items()}


def _confirmed(again: ConfirmedDifference | None, numbers: Numbers) -> str:
    """Return a difference on the reserved examples; their number where they are too few."""
    if again is None:
        return ""
    return f"n = {again.examples}" if again.difference is None else numbers.difference(again)


def lines_of(findings: Sequence[Finding], most: int) -> tuple[int, float]:
    """Return how many findings are printed, those with `_EXCESS` of the excess, and their part of it."""
    excess = [finding.n * abs(finding.difference) for finding in findings]
    total, held = sum(excess), 0.0
    for number, part in enumerate(excess, start=1):
        held += part
        if number == most or (number >= _LEAST_LINES and held >= _EXCESS * total):
            return number, held / total if total else 1.0
    return len(excess), 1.0


def print_findings(
    console: Console, document: SearchChangeList, shown: Sequence[FindingTable]
) -> None:
    """Print tables, and the legend of their columns."""
    if not shown:
        return
    # A line may be as long as it is where nobody set a width.
    width = console.width if console.is_terminal or "COLUMNS" in os.environ else None
    hidden: list[str] = []
    if width is not None:
        conditions = [text for part in shown for name in part.names for text in name.split(_AND)]
        longest = min(max(map(len, conditions)) + len("& "), _WIDE_ENOUGH)
        kept = max(0, (width - _ROOM_OF_OTHERS - longest) // _ROOM)
        hidden = [name for name in _OPTIONAL if any(name in part.columns for part in shown)][kept:]
    for part in shown:
        console.print()
        console.print(part.heading)
        table = _table(part, width, hidden)
        # It is on lines as long as it needs where there is no terminal, or too narrow a one.
        before, as_long = console.width, console.options.update(max_width=_LONGEST_LINE)
        console.width = max(before, console.measure(table, options=as_long).maximum)
        console.print(table)
        console.width = before
        for line in part.below:
            console.print(line)
    console.print()
    console.print(_legend(document, shown, hidden), style="dim")
    if hidden:
        names = " and ".join(filter(None, [", ".join(hidden[:-1]), hidden[-1]]))
        remedy = "see findings in the document, or widen the terminal"
        console.print(f"No room for {names}: {remedy}.", style="dim")


def _table(part: FindingTable, width: int | None, hidden: Sequence[str]) -> Table:
    """Return a table with a row for each finding; without a width each slice is on one line."""
    from rich import box
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, 1, 0, 0))
    kept = {name: cells for name, cells in part.columns.items() if name not in hidden}
    for name in kept:
        table.add_column(name, justify="right", no_wrap=True)
    names, room = part.names, None
    if width is not None:
        taken = sum(max(map(len, [name, *cells])) for name, cells in kept.items())
        room = max(width - taken - _BETWEEN_COLUMNS * len(kept), _NARROWEST)
        names = ["\n".join(wrapped(name, room)) for name in names]
    table.add_column("slice", overflow="fold", width=room)
    for cells in zip(*kept.values(), names, strict=True):
        table.add_row(*cells)
    return table


def wrapped(name: str, width: int) -> list[str]:
    """Return the text of a slice in lines of whole conditions; those that are too long stay whole.

    >>> wrapped("age < 22 & sex = Male & race = White", 24)
    ['age < 22 & sex = Male', '& race = White']
    """
    from rich.cells import cell_len

    first, *rest = name.split(_AND)
    lines = [first]
    for condition in rest:
        longer = f"{lines[-1]}{_AND}{condition}"
        if cell_len(longer) <= width:
            lines[-1] = longer
        else:
            lines.append(f"& {condition}")
    return lines


def _legend(
    document: SearchChangeList, shown: Sequence[FindingTable], hidden: Sequence[str]
) -> str:
    headers = {name for part in shown for name in part.columns if name not in hidden}
    metrics = dict.fromkeys(part.model.metric for part in shown)
    counts = {entry.key: entry.counted for entry in document.metrics}
    words = [f"n of {name}: {counts[name]}" for name in metrics if counts[name]]
    expected = "the value expected from the findings above"
    if "expected" in headers:
        words.append("expected: from the findings above")
        expected = "expected"
    most = "worst" if all(part.model.direction == "worse" for part in shown) else "most extreme"
    words.append(f"corrected: value - {expected}, without what selecting the {most} slices adds")
    if document.confirmation is not None:
        n = document.confirmation.n
        words.append(f"confirmed: the same on the {n:,} reserved examples, or how many are in it")
    if "observed" in headers:
        words.append("observed: with it")
    if "held" in headers:
        wholes = {part.model.whole for part in shown if "held" in part.columns}
        words.append(f"held: share of {' or '.join(sorted(wholes))} in the findings so far")
    if "outside" in headers:
        words.append("outside: value over the examples in no finding so far")
    return "; ".join(words) + "."
