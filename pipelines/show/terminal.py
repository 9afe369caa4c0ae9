"""Terminal output of a run: its progress on stderr, and its result on stdout."""

from __future__ import annotations

import sys
import threading
import time
from typing import TYPE_CHECKING

from slicebeam.metrics.errors import printable
from slicebeam.pipelines.run.stage import Stage
from slicebeam.pipelines.show.terminal_text import guarded
from slicebeam.transforms.secrets.variables import redacted

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.console import Console

    from slicebeam.pipelines.changelist.testing import Gate
    from slicebeam.pipelines.config.common import DataConfig
    from slicebeam.pipelines.config.run_options import Report
    from slicebeam.pipelines.prepare.encoded_dataset import EncodedDataset
    from slicebeam.pipelines.run.open_run import Published
    from slicebeam.pipelines.search.iteration_records import IterationRecord, Progress
    from slicebeam.pipelines.show.event_log import EventLog

_LINE_SECONDS = 10.0
_POLL_SECONDS = 0.2


class Terminal:
    """Shows a run: a bar where stderr is a terminal, plain lines otherwise.

    ``as_json``: print the summary as JSON on stdout instead of the table. ``events``: log for a
    scheduler, which gets everything in place of the terminal. ``report``: ``findings``, or ``all``
    for the table of the worst slices.
    """

    def __init__(
        self,
        *,
        quiet: bool = False,
        as_json: bool = False,
        events: EventLog | None = None,
        report: Report = "findings",
    ) -> None:
        self.report = report
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
        """Record an iteration; the user sees it when the next one begins."""
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
        """Show the prepared data."""
        if self.events is not None:
            self.events.prepared(prepared)
            return
        from slicebeam.pipelines.search.summary import counted

        lattice, space = prepared.lattice, prepared.lattice.space()
        what = f"{counted(space, 'slice')} to check"
        if prepared.given is None:
            what = (
                f"{counted(len(prepared.domains), 'feature')}, {lattice.singletons:,} singleton "
                f"predicates, {space:,} conjunctions of up to {lattice.max_cross_size}"
            )
        self._say(f"{prepared.rows:,} examples, {what}")

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
        if self.as_json:
            from slicebeam.pipelines.show.printed_json import printed_json
            from slicebeam.pipelines.show.terminal_text import print_json

            print_json(printed_json(published))
        elif not self.quiet:
            from slicebeam.pipelines.show.slice_tables import show

            show(published, self.report)

    def judged(self, gate: Gate | None) -> int:
        """Say that a gate fails, though quiet, and return the exit code; the log says it by itself."""
        if gate is None:
            return 0
        if not gate.passed and self.events is None:
            sys.stderr.write(f"slicebeam: {printable(redacted(gate.line()))}\n")
        return gate.exit_code


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
