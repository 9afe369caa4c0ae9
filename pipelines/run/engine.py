"""Runs pipelines on the configured engine, and says what a run cost."""

from __future__ import annotations

import os
import re
import tempfile
import time
from dataclasses import astuple, dataclass
from pathlib import Path
from pkgutil import resolve_name
from typing import TYPE_CHECKING, Any

from slicebeam.metrics.errors import InputError
from slicebeam.runner_configs.in_process import InProcess
from slicebeam.runner_configs.job_log import for_user, is_interrupt, logged_to, own_labels
from slicebeam.runner_configs.options import (
    DirectOptions,
    RunnerConfig,
    runner_config,
    shipped_configs,
)
from slicebeam.transforms.storage.secrets import redact_file, redacted

if TYPE_CHECKING:
    from collections import Counter
    from collections.abc import Callable, Sequence

    from typing_extensions import Self

    from slicebeam.runner_configs.backend import Backend

__all__ = ["Cost", "Engine", "RunnerConfig", "runner_config", "shipped_configs", "start_engine"]


@dataclass(frozen=True)
class Cost:
    """What a pipeline run cost."""

    cpu_seconds: float = 0.0  # of this process and of those that it started
    wall_seconds: float = 0.0
    shuffled_bytes: int = 0  # of tables sent between workers

    def __add__(self, more: Cost) -> Cost:
        return Cost(*map(sum, zip(astuple(self), astuple(more), strict=True)))


class Engine:
    """Runs pipelines one after another; a context, which ends what was started for them."""

    def __init__(self, config: RunnerConfig, name: str = "") -> None:
        # What the document calls it, where it is not all that does the work.
        self.config, self._name = config, name
        self.log = Path(os.devnull)
        self.run_id = ""
        self._resumes = False
        self._backend = _backend(config)
        self._driver = InProcess(DirectOptions())
        self._is_checked = self._is_log_temporary = False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        self._backend.stop()
        redact_file(self.log)
        if self._is_log_temporary and kind is None:
            self.log.unlink(missing_ok=True)

    def log_to(
        self,
        log: object,
        run_id: str = "",
        *,
        resumes: bool = False,
        note: Callable[[str], None] | None = None,
    ) -> None:
        """Let processes of the engine write to a file, and name its jobs after the run; before the first pipeline."""
        if note is not None:
            self._backend.note = note
        self._resumes = resumes
        if isinstance(log, Path):
            self.log = log
        else:
            # In object storage no process can write to it: a temporary file, kept only where a run fails.
            descriptor, name = tempfile.mkstemp(prefix="slicebeam-", suffix=".log")
            os.close(descriptor)
            self.log, self._is_log_temporary = Path(name), True
        self.run_id = run_id
        self._backend.log = self._driver.log = self.log

    @property
    def name(self) -> str:
        """What the document calls the engine."""
        return self._name or redacted(self._backend.name)

    @property
    def workers(self) -> int:
        """How many can work at once."""
        return self._backend.workers

    def job_name(self, stage: str, run: str | None = None) -> str:
        """Return the name of a stage's job: the same again for the same run and stage."""
        parts = (
            "slicebeam",
            self.run_id if run is None else run,
            re.sub(r"[^a-z0-9]+", "-", stage.lower()).strip("-"),
        )
        return "-".join(filter(None, parts))

    def sent_options(self, stage: str, run: str) -> list[str]:
        """Return Beam's options of a stage's job as flags, with variables by name."""
        return list(map(redacted, self._backend.sent_options(self.job_name(stage, run))))

    def sends(self, seconds: float | None) -> bool:
        """Return whether work of this duration goes to the engine, or is too small for a job."""
        return seconds is None or seconds >= self._backend.smallest_job_seconds

    @property
    def elsewhere(self) -> str | None:
        """What works on other machines; None where everything is on this one."""
        return self._backend.runs_on_other_machines()

    def check_storage(self, paths: Sequence[object]) -> None:
        """Refuse paths that the engine's workers cannot see."""
        elsewhere = self.elsewhere
        if elsewhere is None:
            return
        for path in map(str, paths):
            if not self._backend.sees(path):
                where = "elsewhere" if "://" in path else "on this machine"
                raise InputError(
                    f"{path} is {where}, and the workers of {elsewhere} do not see it; "
                    f"{self._backend.storage_hint}"
                )

    def end_earlier(self, stage: str, but: str = "") -> None:
        """End the jobs that an earlier process of a resumed run left, for a stage."""
        if self._resumes:
            self._check()
            self._backend.end_earlier(self.job_name(stage), self.job_name(but) if but else "")

    def run(self, build: Callable[[Any], Any], stage: str, seconds: float | None = None) -> Cost:
        """Run a pipeline for a stage, in this process where it takes fewer estimated ``seconds`` than what a job costs."""
        self._check()
        backend = self._backend if self.sends(seconds) else self._driver
        cost = self._cost(lambda name: backend.run(build, name), stage)
        if cost is None:
            raise TypeError("an engine without a result")
        return cost

    def attach(self, stage: str) -> Cost | None:
        """Wait for the job that an earlier process of a resumed run sent for a stage; None if there is none."""
        if not self._resumes:
            return None
        self._check()
        return self._cost(self._backend.attach, stage)

    def _cost(self, work: Callable[[str], Counter[str] | None], stage: str) -> Cost | None:
        """Return the cost of a function that returns the counts of a job; None if it returns None."""
        begun, cpu = time.perf_counter(), self._cpu_seconds()
        try:
            with logged_to(self.log), own_labels():
                counts = work(self.job_name(stage))
        except Exception as error:
            if is_interrupt(error):
                raise KeyboardInterrupt from error
            known_log = None if str(self.log) == os.devnull else self.log
            raise for_user(error, known_log) from error
        if counts is None:
            return None
        wall = time.perf_counter() - begun
        return Cost(self._cpu_seconds() - cpu, wall, counts["shuffled_bytes"])

    def _check(self) -> None:
        if not self._is_checked:
            self._backend.check()
            self._is_checked = True

    def _cpu_seconds(self) -> float:
        return time.process_time() + self._backend.cpu_seconds()


def start_engine(name: str, options: Any, beam: Any = ()) -> Engine:
    """Return the engine; its worker processes start while this one imports."""
    return Engine(runner_config(name, options, beam))


def _backend(config: RunnerConfig) -> Backend:
    """Return the engine of its options."""
    kind, is_direct = resolve_name(config.backend), isinstance(config.options, DirectOptions)
    backend: Backend = kind(config.options) if is_direct else kind(config.options, config.runner)
    return backend
