"""The findings of a run, in a table that never shortens slices."""

from __future__ import annotations

import math
import os
from itertools import chain
from statistics import median
from typing import TYPE_CHECKING, NamedTuple

from slicebeam.metrics.errors import counted
from slicebeam.metrics.measures.registry import metric
from slicebeam.pipelines.show.terminal_text import FILES

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from rich.console import Console
    from rich.table import Table

    from slicebeam.pipelines.changelist.changes import MetricEntry
    from slicebeam.pipelines.changelist.document import SearchChangeList
    from slicebeam.pipelines.changelist.slices import Finding, FindingModel
    from slicebeam.pipelines.show.terminal_text import ResultPlaces

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


class Numbers:
    """How the numbers of a list of findings are written: all with the same decimals.

    The second digit of the typical interval's width is the last one.
    """

    def __init__(self, findings: Sequence[Finding]) -> None:
        ends = [(one.corrected.low, one.corrected.high) for one in findings]
        numbers = [(one.value, one.expected, one.rate_outside) for one in findings]
        largest = max((abs(one) for one in chain(*numbers, *ends) if one is not None), default=0.0)
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

    def difference(self, one: Finding) -> str:
        """Return the corrected difference with its interval, such as ``+.148 [+.139, +.158]``."""
        return self._with_ends(one.corrected.difference, one.corrected.low, one.corrected.high)

    def confirmed(self, one: Finding) -> str:
        """Return the same of the reserved examples; their number where they are too few."""
        again = one.confirmed
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


class FindingTables(NamedTuple):
    """The findings of one metric in one direction, how they were chosen, and the metric."""

    model: FindingModel
    findings: list[Finding]
    metric: MetricEntry

    @property
    def holds_shares(self) -> bool:
        """Whether it says what part of all errors findings hold: on the better side none does."""
        held = any(one.held_share is not None for one in self.findings)
        return held and self.model.direction == "worse"


class Column(NamedTuple):
    """A column of the table."""

    header: str
    cells: list[str]  # by rank
    is_optional: bool = False  # left out where the slices need its room

    @property
    def width(self) -> int:
        """Return its width in characters, with the space after it."""
        return max(map(len, [self.header, *self.cells])) + _BETWEEN_COLUMNS


def all_findings(document: SearchChangeList) -> list[FindingTables]:
    """Return the findings of each metric and direction."""
    metrics = {one.key: one for one in document.metrics}
    return [
        FindingTables(model, model.listed(document.findings), metrics[model.metric])
        for model in document.finding_models
    ]


def lines_of(findings: Sequence[Finding], most: int) -> tuple[int, float]:
    """Return how many findings are printed, and what part of the excess of all of them these hold.

    As many as hold `_EXCESS` of it, at least `_LEAST_LINES` and at most ``most``.
    """
    excess = [one.n * abs(one.difference) for one in findings]
    total, held = sum(excess), 0.0
    for number, part in enumerate(excess, start=1):
        held += part
        if number == most or (number >= _LEAST_LINES and held >= _EXCESS * total):
            return number, held / total if total else 1.0
    return len(excess), 1.0


def heading(document: SearchChangeList, shown: FindingTables) -> str:
    """Return the heading of findings; the first one is expected to have the value over all examples."""
    title, first, over = shown.metric.name, shown.findings[0], ""
    is_change = document.comparison.kind == "baseline"
    if is_change:
        title = f"Change of {title[:1].lower() if title[1:2].islower() else title[:1]}{title[1:]}"
    if document.comparison.kind == "earlier":
        return f"{title}, {shown.model.direction} than then by more than the lines above explain:"
    if first.rank == 1:
        overall = Numbers(shown.findings).text(first.expected, signed=is_change)
        over = f" (over all examples {overall})"
    return f"{title}, {shown.model.direction} than expected{over}:"


def list_lines(lists: Iterable[FindingTables]) -> Iterator[str]:
    """Yield why metrics have no findings, where they could have some, and which slices were not considered."""
    for model, findings, _ in lists:
        reason = None
        if model.stop == "not possible":
            reason = metric(model.metric).indivisible or model.reason
        elif not findings and model.candidates:
            some = f"{counted(model.candidates, 'slice')} significantly {model.direction}"
            reason = f"of {some} none differs clearly from the value expected of its examples"
        if reason is not None:
            yield f"No findings of {model.metric}: {reason}."
        if model.left_out:
            yield (
                f"The findings of {model.metric} were chosen from the {model.candidates:,} slices with "
                f"the strongest effects of their own; {model.left_out:,} others were not considered."
            )


def columns(document: SearchChangeList, shown: FindingTables, most: int) -> list[Column]:
    """Return the columns of numbers, of the first findings."""
    is_change = document.comparison.kind == "baseline"
    findings = shown.findings[:most]
    numbers = Numbers(shown.findings)
    values = [numbers.text(one.value, signed=is_change) for one in findings]
    expected = [numbers.text(one.expected, signed=is_change) for one in findings]
    was = []
    if document.comparison.kind == "earlier":
        was = [Column("was", [numbers.text(one.before) for one in findings])]
    found = [
        Column("", [str(one.rank) for one in findings]),
        Column("n", [f"{one.n:,}" for one in findings]),
        *was,
        Column("change" if is_change else "value", values),
        Column("expected", expected, is_optional=True),
        Column("corrected [95%]", [numbers.difference(one) for one in findings]),
    ]
    if document.confirmation is not None:
        found.append(Column("confirmed [95%]", [numbers.confirmed(one) for one in findings]))
    observed = [numbers.text(one.difference, signed=True) for one in findings]
    found.append(Column("observed", observed, is_optional=True))
    if shown.holds_shares:
        held = ["" if one.held_share is None else f"{one.held_share:.0%}" for one in findings]
        found.append(Column("held", held, is_optional=True))
    if any(one.rate_outside is not None for one in findings):
        outside = [numbers.text(one.rate_outside, signed=is_change) for one in findings]
        found.append(Column("outside", outside, is_optional=True))
    return found


def print_findings(
    console: Console, document: SearchChangeList, shown: list[FindingTables], places: ResultPlaces
) -> None:
    """Print a table for each list of findings, and the legend of their columns."""
    most = max(_LEAST_LINES, MOST_LINES // max(len(shown), 1))
    # A line may be as long as it is where nobody set a width.
    width = console.width if console.is_terminal or "COLUMNS" in os.environ else None
    hidden = [] if width is None else _hidden_columns(document, shown, width, most)
    for one in shown:
        console.print()
        console.print(heading(document, one))
        lines, held = lines_of(one.findings, most)
        _print_whole(console, _table(document, one, width, lines, hidden))
        if rest := len(one.findings) - lines:
            of = f"with {1 - held:.0%} of the excess, n · |value - expected|"
            console.print(f"and {counted(rest, 'more finding')} {of}")
    if shown:
        console.print()
        for line in filter(None, (_legend(document, shown, hidden), _hidden_line(hidden, places))):
            console.print(line, style="dim")


def _print_whole(console: Console, table: Table) -> None:
    """Print a table on lines as long as it needs: where there is no terminal, or too narrow a one."""
    width = console.width
    as_long = console.options.update(max_width=_LONGEST_LINE)
    console.width = max(width, console.measure(table, options=as_long).maximum)
    console.print(table)
    console.width = width


def _hidden_columns(
    document: SearchChangeList, lists: Sequence[FindingTables], width: int, most: int
) -> list[str]:
    """Return which columns are left out of all lists, so that the slices have enough room.

    Of several that can be left out the last one goes first.
    """
    hidden: list[str] = []
    for shown in lists:
        names = _names(document, shown.findings[:most])
        # A condition that does not begin a line has the sign before it.
        longest = max((len(one) + 2 for name in names for one in name.split(_AND)), default=0)
        room = width - min(longest, _WIDE_ENOUGH)
        kept = [one for one in columns(document, shown, most) if one.header not in hidden]
        while sum(one.width for one in kept) > room and any(one.is_optional for one in kept):
            last = max(at for at, one in enumerate(kept) if one.is_optional)
            hidden.append(kept.pop(last).header)
    return hidden


def _table(
    document: SearchChangeList,
    shown: FindingTables,
    width: int | None,
    most: int,
    hidden: Sequence[str],
) -> Table:
    """Return a table with a row for each finding; without a width each slice is on one line."""
    from rich import box
    from rich.table import Table

    findings = shown.findings[:most]
    names = [
        f"{name}{_near(document, one)}"
        for name, one in zip(_names(document, findings), findings, strict=True)
    ]
    kept = [one for one in columns(document, shown, most) if one.header not in hidden]
    taken = sum(one.width for one in kept)
    room = None if width is None else max(width - taken, _NARROWEST)
    own = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, 1, 0, 0))
    for column in kept:
        own.add_column(column.header, justify="right", no_wrap=True)
    own.add_column("slice", overflow="fold", width=room)
    rows = zip(*(one.cells for one in kept), strict=True)
    for cells, name in zip(rows, names, strict=True):
        own.add_row(*cells, name if room is None else "\n".join(wrapped(name, room)))
    return own


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
    document: SearchChangeList, shown: Sequence[FindingTables], hidden: Sequence[str]
) -> str:
    """Return the legend of the columns, other than those ``hidden`` for lack of space."""
    entries = [some.metric for some in shown if some.metric.counted]
    words = list(dict.fromkeys(f"n of {one.key}: {one.counted}" for one in entries))
    expected = "the value expected from the findings above"
    if "expected" not in hidden:
        words.append("expected: from the findings above")
        expected = "expected"
    most = "worst" if all(some.model.direction == "worse" for some in shown) else "most extreme"
    words.append(f"corrected: value - {expected}, without what selecting the {most} slices adds")
    if document.confirmation is not None:
        n = document.confirmation.n
        words.append(f"confirmed: the same on the {n:,} reserved examples, or how many are in it")
    if "observed" not in hidden:
        words.append("observed: with it")
    parts = {some.model.whole for some in shown if some.holds_shares}
    if "held" not in hidden and parts:
        words.append(f"held: share of {' or '.join(sorted(parts))} in the findings so far")
    if "outside" not in hidden:
        words.append("outside: value over the examples in no finding so far")
    return "; ".join(words) + "."


def _hidden_line(hidden: Sequence[str], places: ResultPlaces = FILES) -> str | None:
    """Return where the columns are for which there was no room."""
    if not hidden:
        return None
    listed = " and ".join(filter(None, [", ".join(hidden[:0:-1]), hidden[0]]))
    return f"No room for {listed}: see {places.findings}, or widen the terminal."


def _near(document: SearchChangeList, one: Finding) -> str:
    """Return the slices that tell nearly as much of a change."""
    names = {other.slice_id: other.name for other in document.slices}
    listed = [names[other] for other in one.near if other in names]
    return f", or: {'; '.join(listed[:_MOST_NEAR])}" if listed else ""


def _names(document: SearchChangeList, findings: Sequence[Finding]) -> list[str]:
    by_id = {one.slice_id: one.name for one in document.slices}
    return [by_id.get(one.slice_id, one.slice_id) for one in findings]
