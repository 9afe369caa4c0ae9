"""The interface of an engine to a run: it runs jobs and describes itself."""

from __future__ import annotations

import os
import re
import threading
import time
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeoutError
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from slicebeam.metrics.errors import EngineError

if TYPE_CHECKING:
    from collections.abc import Callable

    Build = Callable[[Any], Any]

_SCHEME = re.compile(r"(?!file:)[a-zA-Z][a-zA-Z0-9+.-]+://")
# Seconds between two looks whether what a job needs is still there.
_PATIENCE = 0.5


class FinishedJob:
    """What Beam calls the result of a job: counts of ours, by name."""

    def __init__(self, counted: dict[str, int]) -> None:
        self._counted = counted

    def metrics(self) -> FinishedJob:
        """Return an object that can be queried for counts."""
        return self

    def query(self) -> dict[str, list[Any]]:
        """Return all counts."""
        from apache_beam.metrics.execution import MetricKey, MetricResult
        from apache_beam.metrics.metricbase import MetricName

        counters = [
            MetricResult(MetricKey("", MetricName("slicebeam", name)), value, None)
            for name, value in self._counted.items()
        ]
        return {"counters": counters}


class Backend:
    """One engine with its options; made once per run, and used for all its jobs."""

    name: str
    workers: int
    smallest_job_seconds: float = 0.0
    # Which of Beam's two kinds of counts this engine reports correctly.
    counters: Literal["committed", "attempted"] = "committed"
    log: Path = Path(os.devnull)
    note: Callable[[str], None] = staticmethod(lambda _: None)
    storage_hint: str = (
        "use gs:// or s3:// paths, or --runner-option shared_folder=true for a folder that is "
        "mounted at the same place on every machine"
    )

    def check(self) -> None:
        """Refuse, before the first job, what could not work."""

    def runs_on_other_machines(self) -> str | None:
        """Return where workers are that do not see this machine's files; None if nowhere."""
        return None

    def sees(self, path: str) -> bool:
        """Return whether workers on other machines see a path."""
        return bool(_SCHEME.match(path))

    def run(self, build: Build, name: str) -> Any:
        """Run the pipeline that a function puts together, and return Beam's result."""
        raise NotImplementedError

    def sent_options(self, name: str) -> list[str]:  # noqa: ARG002
        """Return the options that a job is sent with, as flags."""
        return []

    def attach(self, name: str) -> Any | None:  # noqa: ARG002
        """Return the result of a job that an earlier process of this run sent, None without one.

        For engines whose jobs continue without the process that sent them.
        """
        return None

    def end_earlier(self, name: str, but: str = "") -> None:
        """End the jobs that an earlier process of this run sent for a stage, except for one."""

    def cpu_seconds(self) -> float:
        """Return the CPU seconds so far of the processes that were started for it."""
        return 0.0

    def stop(self) -> None:
        """Stop everything that was started for it."""


def run_aside(
    work: Callable[[], Any], watch: Callable[[], None], seconds: float | None = None
) -> Any:
    """Run a job in a thread, so that an interrupt or a lost worker ends the waiting for it.

    Beam would wait forever. `watch` is called meanwhile, and raises where waiting is in vain.
    """
    outcome: Future[Any] = Future()

    def run() -> None:
        try:
            outcome.set_result(work())
        except BaseException as error:  # noqa: BLE001  (handed to the caller)
            outcome.set_exception(error)

    begun = time.monotonic()
    threading.Thread(target=run, daemon=True).start()
    while True:
        try:
            return outcome.result(timeout=_PATIENCE)
        except FutureTimeoutError:  # noqa: PERF203
            # The job's own error may be one too.
            if outcome.done():
                raise
            watch()
            if seconds is not None and time.monotonic() - begun > seconds:
                raise EngineError(
                    f"the job was abandoned after {seconds:g} seconds; raise job_timeout, or look "
                    "at the engine"
                ) from None
