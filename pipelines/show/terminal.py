"""What a user sees: progress on stderr, the result on stdout."""

from __future__ import annotations

import os
import sys
import threading
import time
from typing import TYPE_CHECKING, Any, NamedTuple

from slicebeam.metrics.errors import printable
from slicebeam.pipelines.changelist.parts import Estimate
from slicebeam.pipelines.run.stage import Stage
from slicebeam.pipelines.search.since_overall import overall_json, overall_text
from slicebeam.pipelines.show.discovery import found_lines
from slicebeam.pipelines.show.terminal_text import guarded, json_line
from slicebeam.transforms.secrets.variables import redacted

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from rich.console import Console

    from slicebeam.pipelines.changelist.changes import Change
    from slicebeam.pipelines.changelist.document import SearchChangeList
    from slicebeam.pipelines.changelist.since import Since, SinceSlice
    from slicebeam.pipelines.changelist.slices import Slice
    from slicebeam.pipelines.config.common import DataConfig
    from slicebeam.pipelines.prepare.encoded_dataset import EncodedDataset
    from slicebeam.pipelines.run.published import Published
    from slicebeam.pipelines.search.iteration_records import IterationRecord, Progress
    from slicebeam.pipelines.show.event_log import EventLog

MOST_ROWS = 12
# Of several metrics each has a table: so many rows in all, and at least so many each.
MOST_ROWS_IN_ALL = 24
LEAST_ROWS = 4
MOST_COVERING = 5
MOST_CHANGES = 10
_LINE_SECONDS = 10.0
_POLL_SECONDS = 0.2
# Intervals are shown from this width; what is no terminal gets a width of its own.
WIDE = 100
_PIPED_WIDTH = 120


class Terminal:
    """Shows a run: a bar where stderr is a terminal, plain lines otherwise.

    Parameters
    ----------
    quiet : show nothing
    as_json : print the summary as JSON on stdout instead of the table
    events : is told what happens instead of the user, where a scheduler reads it
    """

    def __init__(
        self, *, quiet: bool = False, as_json: bool = False, events: EventLog | None = None
    ) -> None:
        self.quiet, self.as_json, self.events = quiet, as_json, events
        self._begun = time.monotonic()
        self._watch: _Watch | None = None
        self._console: Console | None = None

    def _stderr(self) -> Console:
        if self._console is None:
            from rich.console import Console

            self._console = guarded(Console(stderr=True, highlight=False, soft_wrap=True))
        return self._console

    def _say(self, text: str) -> None:
        if not self.quiet:
            seconds = time.monotonic() - self._begun
            self._stderr().print(f"[{seconds:6.1f} s] {text}", markup=False)

    def begin(self, config: DataConfig, files: Sequence[str], engine: str) -> None:
        """Take note of what runs."""
        if self.events is not None:
            self.events.begin(config, files, engine)

    def note(self, text: str) -> None:
        """Say something that the user should know."""
        if self.events is not None:
            self.events.note(text)
        else:
            self._say(printable(redacted(text)))

    def recorded(self, record: IterationRecord) -> None:
        """Take note of what an iteration did; the user is told when the next one begins."""
        if self.events is not None:
            self.events.recorded(record)

    def stage(self, stage: Stage) -> None:
        """Say what begins, and follow it where it counts something."""
        self.stop()
        if self.events is not None:
            self.events.stage(stage.text)
            if stage.done is not None:
                self._watch = _Watch(stage, events=self.events)
            return
        self._say(stage.text)
        if not self.quiet and stage.done is not None:
            self._watch = _Watch(stage, self._stderr())

    def prepared(self, prepared: EncodedDataset) -> None:
        """Say what was read."""
        if self.events is not None:
            self.events.prepared(prepared)
            return
        space = prepared.lattice.space()
        if prepared.given is not None:
            self._say(f"{prepared.rows:,} examples, {space:,} slices to check")
            return
        self._say(
            f"{prepared.rows:,} examples, {len(prepared.domains)} feature{'' if len(prepared.domains) == 1 else 's'}, "
            f"{prepared.lattice.singletons:,} singleton predicates, {space:,} conjunctions of up to "
            f"{prepared.lattice.max_cross_size}"
        )

    def progress(self, progress: Progress) -> None:
        """Show that an iteration begins, and how far it is until the next."""
        if self.events is not None:
            self.events.progress(progress)
            return
        found = f"{progress.significant:,} slices significant so far"
        text = f"iteration {progress.iteration}: {progress.candidates:,} candidates, {found}"
        unit = f"candidates counted, {found}"
        self.stage(Stage(text, progress.counted, unit, progress.candidates))

    def stop(self) -> None:
        """End the bar."""
        if self._watch is not None:
            self._watch.stop()
            self._watch = None

    def result(self, published: Published) -> None:
        """Print what was found."""
        self.stop()
        if self.quiet:
            return
        if self.as_json:
            sys.stdout.write(json_line(summary_json(published)) + "\n")
            return
        show(published)


class _Watch:
    """Follows a stage in a thread, since running a pipeline blocks."""

    def __init__(
        self, stage: Stage, console: Console | None = None, events: EventLog | None = None
    ) -> None:
        self.stage, self.console, self.events = stage, console, events
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def stop(self) -> None:
        self._ended.set()
        self._thread.join()

    def _run(self) -> None:
        if self.events is not None:
            while not self._ended.wait(_LINE_SECONDS):
                self.events.counted(self.stage, self._done())
        elif self.console is not None and self.console.is_terminal:
            self._bar(self.console)
        elif self.console is not None:
            self._lines(self.console)

    def _done(self) -> int:
        return self.stage.done() if self.stage.done is not None else 0

    def _besides(self) -> str:
        return self.stage.besides() if self.stage.besides is not None else ""

    def _bar(self, console: Console) -> None:
        from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn
        from rich.progress import Progress as Bar

        columns = (
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn(self.stage.unit + "{task.fields[besides]}"),
            TimeElapsedColumn(),
        )
        with Bar(*columns, console=console, transient=True) as bar:
            task = bar.add_task("", total=self.stage.total, besides="")
            while not self._ended.wait(_POLL_SECONDS):
                bar.update(task, completed=self._done(), besides=self._besides())

    def _lines(self, console: Console) -> None:
        total = "" if self.stage.total is None else f" of {self.stage.total:,}"
        while not self._ended.wait(_LINE_SECONDS):
            console.print(
                f"           {self._done():,}{total} {self.stage.unit}{self._besides()}",
                markup=False,
            )


def summary_json(published: Published) -> dict[str, Any]:
    """Return what ``--json`` prints."""
    document = published.changelist
    return {
        "summary": document.summary,
        "changelist": str(published.changelist_path),
        "slices": str(published.slices_path),
        "examples": document.dataset.n,
        "tested": sum(document.testing.tested_per_level),
        "significant": document.testing.significant,
        "degraded": document.testing.degraded,
        "metrics": [
            {
                "metric": one.metric,
                "value": change.after.value,
                "reference": _reference(change),
                "tested": one.tested,
                "significant": one.significant,
                "degraded": one.degraded,
                "reported": one.reported,
                "blind": one.blind,
            }
            for one, change in zip(document.testing.metrics, document.global_, strict=False)
        ],
        "expected_false": document.testing.expected_false,
        "reported": document.search.reported,
        "strategy": document.search.strategy,
        "left_out": {column.name: column.reason for column in document.dataset.left_out},
        "worst": [
            _slice_json(one, change) for table in _tables(document) for one, change in table.rows
        ],
        "drift": list(document.dataset.drift),
        "warnings": list(document.testing.warnings),
        "explanation": list(published.explanation),
    } | ({} if document.since is None else {"since": _since_json(document.since)})


def _since_json(since: Since) -> dict[str, Any]:
    names = ("summary", "changelist_id", "uri", "compared", "new", "gone", "worse", "better")
    facts: dict[str, Any] = {name: getattr(since, name) for name in names}
    facts["warnings"] = list(since.warnings)
    facts["overall"] = [overall_json(one) for one in since.overall]
    facts["metrics"] = [one.model_dump(mode="json") for one in since.metrics]
    facts["slices"] = [
        {
            "slice_id": one.slice_id,
            "slice": one.name,
            "metric": one.metric,
            "status": one.status,
            "value": None if one.now is None else one.now.value,
            "value_then": None if one.then is None else one.then.value,
            "value_significant": one.value_change is not None and one.value_change.significant,
            "delta": None if one.now is None else one.now.delta.value,
            "delta_then": None if one.then is None else one.then.delta.value,
            "difference": None if one.difference is None else one.difference.value,
            "q_value": one.p_adjusted,
            "significant": one.significant,
            "direction": one.direction,
        }
        for one in since.slices[:MOST_ROWS]
    ]
    return facts


def _slice_json(one: Slice, change: Change) -> dict[str, Any]:
    label = change.label or (one.refinement.label if one.refinement else None)
    delta = change.delta or Estimate()
    return {
        "slice_id": one.slice_id,
        "slice": one.name,
        "n": one.size.n,
        "metric": change.metric,
        "value": change.after.value,
        "reference": _reference(change),
        "delta": delta.value,
        "ci_low": delta.lo,
        "ci_high": delta.hi,
        "p_value": change.p_value,
        "q_value": change.p_adjusted,
        "significant": change.significant,
        "label": label,
        "phrases": [phrase.text for phrase in one.found.phrases] if one.found else [],
        "rank": one.rank,
        "explained": one.explained,
    }


def _reference(change: Change) -> float | None:
    return change.before.value if change.before is not None else change.reference


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
    for table in _tables(document):
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


class _Rows(NamedTuple):
    """What is shown of a metric: slices with its change on each, and how many more there are."""

    metric: str
    rows: list[tuple[Slice, Change]]
    rest: int


def _tables(document: SearchChangeList) -> list[_Rows]:
    """Return what is shown of each metric that has something, the worst slices first."""
    if not document.slices:
        return []
    tests = document.testing.metrics
    if len(tests) < 2:
        # Also of documents of earlier versions, which report by the first metric.
        rows = [(one, one.changes[0]) for one in document.slices[:MOST_ROWS]]
        return [_Rows(rows[0][1].metric, rows, document.search.reported - MOST_ROWS)]
    with_rows = [one for one in tests if one.reported]
    most = min(MOST_ROWS, max(LEAST_ROWS, MOST_ROWS_IN_ALL // max(len(with_rows), 1)))
    tables = []
    for one in with_rows:
        placed = [
            (change.place, each, change)
            for each in document.slices
            for change in each.changes
            if change.metric == one.metric and change.place is not None
        ]
        placed.sort(key=lambda row: row[0])
        shown = [(each, change) for _, each, change in placed[:most]]
        tables.append(_Rows(one.metric, shown, one.reported - len(shown)))
    return tables


def _table(shown: _Rows, document: SearchChangeList, *, wide: bool) -> Any:
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
        cells = [f"{one.size.n:,}", _number(change.after.value)]
        cells += [_number(_reference(change))] if baseline else []
        delta = change.delta or Estimate()
        cells.append(_signed(delta.value))
        if wide:
            has_interval = delta.lo is not None or delta.hi is not None
            interval = f"{_signed(delta.lo)} … {_signed(delta.hi)}"
            cells.append(interval if has_interval else "")
            cells.append("" if change.p_adjusted is None else f"{change.p_adjusted:.1e}")
        table.add_row(*cells, Text(one.name), style=None if change.significant else "dim")
    return table


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.3f}"


def _signed(value: float | None) -> str:
    return "" if value is None else f"{value:+.3f}"


def since_lines(document: SearchChangeList) -> list[str]:
    """Return what changed since an earlier run.

    The metrics over all examples come first, then a line for each slice, the worst first.
    """
    since = document.since
    if since is None:
        return []
    lines = [since.summary]
    lines += [f"  {overall_text(one)}" for one in since.overall]
    named = len(since.metrics) > 1
    most = max(LEAST_ROWS, MOST_CHANGES // max(len(since.metrics), 1))
    for metric in [one.metric for one in since.metrics] or [since.metric]:
        changed = [one for one in since.slices if one.metric in (metric, None)]
        for one in changed[:most]:
            what = _what_changed(one)
            if not what:
                break
            lines.append(_since_line(one, what, f"{metric}: " if named else ""))
        more = sum(bool(_what_changed(one)) for one in changed[most:])
        if more:
            lines.append(f"  and {more:,} more in changelist.json")
    return [*lines, *since.warnings, ""]


def _what_changed(one: SinceSlice) -> list[str]:
    words = {"degraded": "worse", "improved": "better"}
    what = {"new": ["new"], "gone": ["gone"]}.get(one.status, [])
    if one.significant:
        what.append(words.get(one.direction, "changed"))
    elif one.value_change is not None and one.value_change.significant:
        # The slice moved with all examples, or no further from them than chance allows.
        what.append(f"value {words.get(one.value_change.direction, 'changed')}")
    return what


def _since_line(one: SinceSlice, what: list[str], metric: str) -> str:
    moments = (one.then, one.now)
    values = [_number(None if at is None else at.value) for at in moments]
    deltas = [_signed(None if at is None else at.delta.value) for at in moments]
    return (
        f"  {', '.join(what):<11} {metric}{values[0] or '?':>5} → {values[1] or '?':<5}  "
        f"delta {deltas[0] or '?':>6} → {deltas[1] or '?':<6}  {one.name}"
    )


def notes(document: SearchChangeList) -> list[str]:
    """Return the lines about what stands behind the table, and what was left out."""
    testing, search = document.testing, document.search
    tested = sum(testing.tested_per_level)
    smallest = testing.min_slice_size
    of = f" of at least {smallest} examples" if smallest > 1 else ""
    tests = testing.test
    if len(testing.metrics) > 1:
        tests = "; ".join(f"{one.metric}: {one.test}" for one in testing.metrics)
    lines = [
        f"{tested:,} slices{of} tested ({search.strategy}; {tests}).",
        *_untested(document),
        testing.corrected_for,
    ]
    lines += document.dataset.drift
    lines += testing.warnings
    if testing.expected_false is not None:
        lines.append(
            f"If no slice differed, about {testing.expected_false:,.0f} would be called significant"
            f"{', over all metrics' if len(testing.metrics) > 1 else ''}."
        )
    if search.stopped == "iterations":
        lines.append("The search stopped after its iterations; more would visit further slices.")
    hidden = []
    if search.inherited:
        hidden.append(f"{search.inherited:,} significant slices that a slice above them explains")
    if search.duplicates:
        hidden.append(f"{search.duplicates:,} with the same examples as a shorter one")
    if hidden:
        lines.append(f"Not shown: {', '.join(hidden)}.")
    if search.saved_slices == "significant":
        lines.append("slices.parquet holds the significant slices and the singletons only.")
    sketched = [domain.name for domain in document.dataset.domains if domain.error]
    if sketched:
        lines.append(f"Bins and values from sketches, not exact: {', '.join(sketched)}.")
    lines += [f"Left out: {column.name}: {column.reason}." for column in document.dataset.left_out]
    return lines


def _untested(document: SearchChangeList) -> Iterator[str]:
    """Yield what was not tested of the slices that a check was given."""
    check = document.check
    if check is not None and check.too_small:
        yield f"Too small to be tested: {check.too_small:,} of the given slices."
    if check is not None and check.empty:
        yield f"Without any example in this data: {check.empty:,} of the given slices."
