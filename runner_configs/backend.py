"""The interface of an engine to a run: it runs jobs and describes itself."""

from __future__ import annotations

import os
import re
import threading
import time
from collections import Counter
from concurrent.futures import Future, wait
from math import inf
from pathlib import Path
from typing import TYPE_CHECKING, Any

from slicebeam.metrics.errors import EngineError

if TYPE_CHECKING:
    from collections.abc import Callable

    Build = Callable[[Any], Any]

_SCHEME = re.compile(r"(?!file:)[a-zA-Z][a-zA-Z0-9+.-]+://")
# Seconds between two looks whether what a job needs is still there.
_PATIENCE = 0.5


def counts_of(result: Any) -> Counter[str]:
    """Return what a job of Beam's counted, by name: some runners report no committed counts."""
    counts: Counter[str] = Counter()
    for counter in result.metrics().query()["counters"]:
        value = counter.attempted if counter.committed is None else counter.committed
        counts[counter.key.metric.name] += value or 0
    return counts


class Backend:
    """One engine with its options; made once per run, and used for all its jobs."""

    name: str
    workers: int
    smallest_job_seconds: float = 0.0
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

    def run(self, build: Build, name: str) -> Counter[str]:
        """Run the pipeline that a function puts together, and return its counts."""
        raise NotImplementedError

    def sent_options(self, name: str) -> list[str]:  # noqa: ARG002
        """Return the options that a job is sent with, as flags."""
        return []

    def attach(self, name: str) -> Counter[str] | None:  # noqa: ARG002
        """Return the counts of a job that an earlier process of this run sent, None without one.

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


def run_aside(work: Callable[[], Any], watch: Callable[[], None], seconds: float = inf) -> Any:
    """Run a job in a thread, so that an interrupt or a lost worker ends the waiting for it.

    Beam would wait forever. `watch` is called meanwhile, and raises where waiting is in vain.
    """
    outcome: Future[Any] = Future()

    def run() -> None:
        try:
            outcome.set_result(work())
        except BaseException as error:  # noqa: BLE001  (handed to the caller)
            outcome.set_exception(error)

    end = time.monotonic() + seconds
    threading.Thread(target=run, daemon=True).start()
    while not wait([outcome], _PATIENCE).done:
        watch()
        if time.monotonic() > end:
            raise EngineError(
                f"the job was abandoned after {seconds:g} seconds; raise job_timeout, or look at "
                "the engine"
            )
    return outcome.result()
