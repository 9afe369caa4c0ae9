"""Terminal output of a run: its progress on stderr, and its result on stdout."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from slicebeam.metrics.errors import counted, printable
from slicebeam.pipelines.changelist.testing import Gate, Iteration
from slicebeam.pipelines.run.stage import Stage
from slicebeam.pipelines.run.work_folder import DataOptions
from slicebeam.pipelines.show.event_log import EventLog
from slicebeam.pipelines.show.terminal_text import guarded_console
from slicebeam.transforms.storage.secrets import redacted

if TYPE_CHECKING:
    from rich.console import Console
    from typing_extensions import Self

    from slicebeam.pipelines.prepare.encoded_dataset import EncodedDataset

_LINE_SECONDS = 10.0
_POLL_SECONDS = 0.2


class Terminal:
    """Shows a run: a bar where stderr is a terminal, plain lines otherwise.

    A context, which ends the bar. ``events``: log for a scheduler, which gets everything in place of
    the terminal.
    """

    def __init__(self, *, quiet: bool = False, events: EventLog | None = None) -> None:
        self.quiet, self.events = quiet, events
        self._begun = time.monotonic()
        self._watch: _Watch | None = None
        self._console: Console | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def _stderr(self) -> Console:
        if self._console is None:
            self._console = guarded_console(stderr=True, soft_wrap=True)
        return self._console

    def _tell(self, event: str, shown: str, **facts: Any) -> None:
        """Write the facts of an event to the log, or show it where there is no log."""
        if self.events is not None:
            self.events.write(event, **facts)
        elif not self.quiet:
            self._stderr().print(f"[{time.monotonic() - self._begun:6.1f} s] {shown}")

    def begin(self, config: DataOptions, files: Sequence[str], engine: str) -> None:
        """Take note of what runs."""
        if self.events is not None:
            self.events.begin(config, files, engine)

    def note(self, text: str) -> None:
        """Say something that the user should know."""
        self._tell("note", printable(redacted(text)), text=text)

    def recorded(self, record: Iteration) -> None:
        """Record an iteration; the user sees it when the next one begins."""
        if self.events is not None:
            self.events.write("iteration", **vars(record))

    def stage(self, stage: Stage) -> None:
        """Say what begins, and follow it where it counts something."""
        self.stop()
        self._tell("stage", stage.text, text=stage.text)
        if stage.done is not None and not (self.quiet and self.events is None):
            self._watch = _Watch(stage, stage.done, self.events or self._stderr())

    def prepared(self, prepared: EncodedDataset) -> None:
        """Show the prepared data, and log the columns that are not features."""
        lattice, space, features = prepared.lattice, prepared.lattice.space(), len(prepared.domains)
        what = f"{counted(space, 'slice')} to check"
        if prepared.given is None:
            what = (
                f"{counted(features, 'feature')}, {lattice.singletons:,} singleton predicates, "
                f"{space:,} conjunctions of up to {lattice.max_cross_size}"
            )
        self._tell(
            "domains",
            f"{prepared.rows:,} examples, {what}",
            examples=prepared.rows,
            features=features,
            predicates=lattice.singletons,
            conjunctions=space,
            left_out={column.name: column.reason for column in prepared.left_out},
        )

    def progress(
        self, iteration: int, candidates: int, significant: int, counted: Callable[[], int]
    ) -> None:
        """Show that an iteration begins, and how far it is until the next."""
        if self.events is not None:
            facts = {"candidates": candidates, "significant": significant}
            self.events.write("iteration_begin", iteration=iteration, **facts)
            return
        so_far = f"{significant:,} slices significant so far"
        text = f"iteration {iteration}: {candidates:,} candidates, {so_far}"
        self.stage(Stage(text, counted, f"candidates counted, {so_far}", candidates))

    def stop(self) -> None:
        """End the bar."""
        if self._watch is not None:
            self._watch.stop()
            self._watch = None

    def judged(self, gate: Gate | None) -> int:
        """Say that a gate fails, though quiet, and return the exit code; the log says it by itself."""
        if gate is None:
            return 0
        if not gate.passed and self.events is None:
            sys.stderr.write(f"slicebeam: {printable(redacted(gate.line()))}\n")
        return gate.exit_code


class _Watch:
    """Follows a stage in a thread, since running a pipeline blocks."""

    def __init__(self, stage: Stage, done: Callable[[], int], shown_on: Console | EventLog) -> None:
        self.stage, self.done, self.shown_on = stage, done, shown_on
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def stop(self) -> None:
        self._ended.set()
        self._thread.join()

    def _run(self) -> None:
        stage, shown_on = self.stage, self.shown_on
        if not isinstance(shown_on, EventLog) and shown_on.is_terminal:
            self._bar(shown_on)
        total = "" if stage.total is None else f" of {stage.total:,}"
        while not self._ended.wait(_LINE_SECONDS):
            if isinstance(shown_on, EventLog):
                facts = {"text": stage.text, "total": stage.total, "unit": stage.unit}
                shown_on.write("progress", done=self.done(), **facts)
            else:
                line = f"{self.done():,}{total} {stage.unit}{self._besides()}"
                shown_on.print(f"           {line}")

    def _besides(self) -> str:
        return self.stage.besides() if self.stage.besides is not None else ""

    def _bar(self, console: Console) -> None:
        from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn
        from rich.progress import Progress as Bar

        text = TextColumn(self.stage.unit + "{task.fields[besides]}")
        columns = BarColumn(), MofNCompleteColumn(), text, TimeElapsedColumn()
        with Bar(*columns, console=console, transient=True) as bar:
            task = bar.add_task("", total=self.stage.total, besides="")
            while not self._ended.wait(_POLL_SECONDS):
                bar.update(task, completed=self.done(), besides=self._besides())
