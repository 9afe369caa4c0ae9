"""The findings of a run, in a table that never shortens slices."""

from __future__ import annotations

import math
import os
from dataclasses import dataclass
from functools import cached_property, partial
from itertools import chain
from statistics import median
from typing import TYPE_CHECKING, NamedTuple

from slicebeam.metrics.errors import counted
from slicebeam.metrics.measures.registry import metric
from slicebeam.pipelines.show.error_kinds import error_lines

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from rich.console import Console
    from rich.table import Table

    from slicebeam.pipelines.changelist.changes import MetricEntry
    from slicebeam.pipelines.changelist.document import SearchChangeList
    from slicebeam.pipelines.changelist.slices import Finding, FindingModel

# Of several lists each has a share of the lines, and at least so many.
MOST_LINES = 20
_LEAST_LINES = 5
# The column of slices is as wide as the longest condition, or so wide: columns make room for it.
_WIDE_ENOUGH = 38
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
_OPTIONAL = ("expected", "observed", "held", "outside")


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

    def difference(self, finding: Finding) -> str:
        """Return the corrected difference with its interval, such as ``+.148 [+.139, +.158]``."""
        return self._with_ends(
            finding.corrected.difference, finding.corrected.low, finding.corrected.high
        )

    def confirmed(self, finding: Finding) -> str:
        """Return the same of the reserved examples; their number where they are too few."""
        again = finding.confirmed
        if again is None:
            return ""
        if again.difference is None:
            return f"n = {again.examples}"
        return self._with_ends(again.difference, again.low, again.high)

    def _with_ends(self, difference: float, low: float | None, high: float | None) -> str:
        ends = (
            f"-{_INFINITE}" if low is None else self.text(low, signed=True),
            f"+{_INFINITE}" if high is None else self.text(high, signed=True),
        )
        return f"{self.text(difference, signed=True)} [{', '.join(ends)}]"


class Column(NamedTuple):
    """A column of the table."""

    header: str
    cells: list[str]  # by rank

    @property
    def is_optional(self) -> bool:
        """Whether it is left out where the slices need its room."""
        return self.header in _OPTIONAL

    @property
    def width(self) -> int:
        """Return its width in characters, with the space after it."""
        return max(map(len, [self.header, *self.cells])) + _BETWEEN_COLUMNS


@dataclass(frozen=True)
class FindingTables:
    """The findings of one metric in one direction."""

    document: SearchChangeList
    model: FindingModel

    @cached_property
    def findings(self) -> list[Finding]:
        """The findings, by rank."""
        return self.model.listed(self.document.findings)

    @property
    def metric(self) -> MetricEntry:
        """The metric."""
        return next(entry for entry in self.document.metrics if entry.key == self.model.metric)

    @property
    def is_change(self) -> bool:
        """Whether values are changes between two models."""
        return self.document.comparison.kind == "baseline"

    @property
    def holds_shares(self) -> bool:
        """Whether it says what part of all errors findings hold: on the better side none does."""
        held = any(finding.held_share is not None for finding in self.findings)
        return held and self.model.direction == "worse"

    def names(self, most: int) -> list[str]:
        """Return the names of the first findings."""
        by_id = {slice_.slice_id: slice_.name for slice_ in self.document.slices}
        names = []
        for finding in self.findings[:most]:
            near = [by_id[other] for other in finding.near[:_MOST_NEAR] if other in by_id]
            also = f", or: {'; '.join(near)}" if near else ""
            names.append(f"{by_id.get(finding.slice_id, finding.slice_id)}{also}")
        return names

    def heading(self) -> str:
        """Return the heading; the first finding is expected to have the value over all examples."""
        title, first, over = self.metric.name, self.findings[0], ""
        if self.is_change:
            lower = title[:1].lower() if title[1:2].islower() else title[:1]
            title = f"Change of {lower}{title[1:]}"
        if self.document.comparison.kind == "earlier":
            return (
                f"{title}, {self.model.direction} than then by more than the lines above explain:"
            )
        if first.rank == 1:
            overall = Numbers(self.findings).text(first.expected, signed=self.is_change)
            over = f" (over all examples {overall})"
        return f"{title}, {self.model.direction} than expected{over}:"

    def columns(self, most: int) -> list[Column]:
        """Return the columns of numbers, of the first findings."""
        findings, numbers = self.findings[:most], Numbers(self.findings)
        text = partial(numbers.text, signed=self.is_change)
        is_earlier = self.document.comparison.kind == "earlier"
        cells: dict[str, Callable[[Finding], str]] = {
            "": lambda row: str(row.rank),
            "n": lambda row: f"{row.n:,}",
            **({"was": lambda row: text(row.before)} if is_earlier else {}),
            "change" if self.is_change else "value": lambda row: text(row.value),
            "expected": lambda row: text(row.expected),
            "corrected [95%]": numbers.difference,
        }
        if self.document.confirmation is not None:
            cells["confirmed [95%]"] = numbers.confirmed
        cells["observed"] = lambda row: numbers.text(row.difference, signed=True)
        if self.holds_shares:
            cells["held"] = lambda row: "" if row.held_share is None else f"{row.held_share:.0%}"
        if any(finding.rate_outside is not None for finding in findings):
            cells["outside"] = lambda row: text(row.rate_outside)
        return [Column(header, list(map(cell, findings))) for header, cell in cells.items()]


def all_findings(document: SearchChangeList) -> list[FindingTables]:
    """Return the findings of each metric and direction."""
    return [FindingTables(document, model) for model in document.finding_models]


def lines_of(findings: Sequence[Finding], most: int) -> tuple[int, float]:
    """Return how many findings are printed, those with `_EXCESS` of the excess, and their part of it."""
    excess = [finding.n * abs(finding.difference) for finding in findings]
    total, held = sum(excess), 0.0
    for number, part in enumerate(excess, start=1):
        held += part
        if number == most or (number >= _LEAST_LINES and held >= _EXCESS * total):
            return number, held / total if total else 1.0
    return len(excess), 1.0


def list_lines(lists: Iterable[FindingTables]) -> Iterator[str]:
    """Yield why metrics have no findings, where they could have some, and which slices were not considered."""
    for shown in lists:
        model, reason = shown.model, None
        if model.stop == "not possible":
            reason = metric(model.metric).indivisible or model.reason
        elif not shown.findings and model.candidates:
            slices = f"{counted(model.candidates, 'slice')} significantly {model.direction}"
            reason = f"of {slices} none differs clearly from the value expected of its examples"
        if reason is not None:
            yield f"No findings of {model.metric}: {reason}."
        if model.left_out:
            yield (
                f"The findings of {model.metric} were chosen from the {model.candidates:,} slices with "
                f"the strongest effects of their own; {model.left_out:,} others were not considered."
            )


def print_findings(console: Console, shown: list[FindingTables]) -> None:
    """Print a table for each list of findings, and the legend of their columns."""
    most = max(_LEAST_LINES, MOST_LINES // max(len(shown), 1))
    # A line may be as long as it is where nobody set a width.
    width = console.width if console.is_terminal or "COLUMNS" in os.environ else None
    hidden = [] if width is None else _hidden_columns(shown, width, most)
    for table in shown:
        console.print()
        console.print(table.heading())
        lines, held = lines_of(table.findings, most)
        _print_whole(console, _table(table, width, lines, hidden))
        if rest := len(table.findings) - lines:
            of = f"with {1 - held:.0%} of the excess, n · |value - expected|"
            console.print(f"and {counted(rest, 'more finding')} {of}")
        kinds = error_lines(table.document, table.findings[:lines])
        for line in ["", *kinds] if kinds else []:
            console.print(line)
    if shown:
        console.print()
        for line in filter(None, (_legend(shown, hidden), _hidden_line(hidden))):
            console.print(line, style="dim")


def _print_whole(console: Console, table: Table) -> None:
    """Print a table on lines as long as it needs: where there is no terminal, or too narrow a one."""
    width = console.width
    as_long = console.options.update(max_width=_LONGEST_LINE)
    console.width = max(width, console.measure(table, options=as_long).maximum)
    console.print(table)
    console.width = width


def _hidden_columns(lists: Sequence[FindingTables], width: int, most: int) -> list[str]:
    """Return which columns are left out of all lists so that slices have enough room, the last ones first."""
    hidden: list[str] = []
    for shown in lists:
        # A condition that does not begin a line has the sign before it.
        conditions = [part for name in shown.names(most) for part in name.split(_AND)]
        longest = max((len(condition) + 2 for condition in conditions), default=0)
        room = width - min(longest, _WIDE_ENOUGH)
        kept = [column for column in shown.columns(most) if column.header not in hidden]
        while sum(part.width for part in kept) > room and any(part.is_optional for part in kept):
            last = max(at for at, part in enumerate(kept) if part.is_optional)
            hidden.append(kept.pop(last).header)
    return hidden


def _table(shown: FindingTables, width: int | None, most: int, hidden: Sequence[str]) -> Table:
    """Return a table with a row for each finding; without a width each slice is on one line."""
    from rich import box
    from rich.table import Table

    kept = [column_ for column_ in shown.columns(most) if column_.header not in hidden]
    taken = sum(column_.width for column_ in kept)
    room = None if width is None else max(width - taken, _NARROWEST)
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, 1, 0, 0))
    for column in kept:
        table.add_column(column.header, justify="right", no_wrap=True)
    table.add_column("slice", overflow="fold", width=room)
    rows = zip(*(column_.cells for column_ in kept), strict=True)
    for cells, name in zip(rows, shown.names(most), strict=True):
        table.add_row(*cells, name if room is None else "\n".join(wrapped(name, room)))
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


def _legend(shown: Sequence[FindingTables], hidden: Sequence[str]) -> str:
    """Return the legend of the columns, other than those ``hidden`` for lack of space."""
    entries = [table.metric for table in shown if table.metric.counted]
    words = list(dict.fromkeys(f"n of {entry.key}: {entry.counted}" for entry in entries))
    expected = "the value expected from the findings above"
    if "expected" not in hidden:
        words.append("expected: from the findings above")
        expected = "expected"
    most = "worst" if all(table.model.direction == "worse" for table in shown) else "most extreme"
    words.append(f"corrected: value - {expected}, without what selecting the {most} slices adds")
    if (confirmation := shown[0].document.confirmation) is not None:
        n = confirmation.n
        words.append(f"confirmed: the same on the {n:,} reserved examples, or how many are in it")
    if "observed" not in hidden:
        words.append("observed: with it")
    parts = {table.model.whole for table in shown if table.holds_shares}
    if "held" not in hidden and parts:
        words.append(f"held: share of {' or '.join(sorted(parts))} in the findings so far")
    has_outside = any(
        finding.rate_outside is not None for table in shown for finding in table.findings
    )
    if "outside" not in hidden and has_outside:
        words.append("outside: value over the examples in no finding so far")
    return "; ".join(words) + "."


def _hidden_line(hidden: Sequence[str]) -> str | None:
    """Return where the columns are for which there was no room."""
    if not hidden:
        return None
    listed = " and ".join(filter(None, [", ".join(hidden[:0:-1]), hidden[0]]))
    return f"No room for {listed}: see findings in the document, or widen the terminal."
