"""Runs pipelines on the configured engine, and says what a run cost."""

from __future__ import annotations

import logging
import os
import re
import threading
import time
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeoutError
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from slicebeam.metrics import errors
from slicebeam.metrics.errors import EngineError, InputError, SlicebeamError, unknown_name
from slicebeam.pipelines.worker_processes import WorkerProcesses

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from typing_extensions import Self

# An engine hands an exception of a worker on as text, with the step's name and a traceback.
_REMOTE_ERROR = re.compile(
    r"(?:slicebeam\.metrics\.errors\.)(InputError|EngineError): (.+?)(?= \[while running|\n|$)"
)
# Seconds between two looks whether the worker processes are there.
_PATIENCE = 0.5
_STEP = re.compile(r" \[while running '.*?'\]", re.DOTALL)


class DirectOptions(BaseModel):
    """Options of the in-process engine.

    Attributes
    ----------
    workers : processes that count at once; 1 stays in this process
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    workers: Annotated[int, Field(ge=1, le=256)] = 1


class RunnerConfig(BaseModel):
    """A file of ``runner_configs/``: the engine and its options."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    runner: Literal["direct"]
    options: DirectOptions = DirectOptions()


@dataclass(frozen=True)
class Cost:
    """What a pipeline run cost.

    Attributes
    ----------
    cpu_seconds : of this process and of its workers
    wall_seconds : elapsed
    shuffled_bytes : of tables that were sent between workers
    """

    cpu_seconds: float = 0.0
    wall_seconds: float = 0.0
    shuffled_bytes: int = 0


def shipped_configs() -> list[str]:
    """Return the names of the engines that come with the package."""
    from slicebeam import runner_configs

    folder = Path(next(iter(runner_configs.__path__)))
    return sorted(path.stem for path in folder.glob("*.yaml"))


def runner_config(name: str, overrides: Sequence[str]) -> RunnerConfig:
    """Return the engine of a file, or of one that comes with the package.

    Parameters
    ----------
    name : path of a YAML file, or ``direct``, ``direct_multi`` …
    overrides : ``key=value`` options

    Raises
    ------
    InputError
        The file is missing or wrong; an option is unknown or has a bad value.
    """
    import yaml

    if name in shipped_configs():
        from slicebeam import runner_configs

        path = Path(next(iter(runner_configs.__path__))) / f"{name}.yaml"
    else:
        path = Path(name)
    try:
        content = yaml.safe_load(path.read_text("utf-8"))
    except FileNotFoundError as error:
        raise unknown_name("runner-config", name, shipped_configs()) from error
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        reason = " ".join(str(error).split())
        raise InputError(f"--runner-config {name}: no readable YAML ({reason})") from error
    if not isinstance(content, dict):
        raise InputError(f"--runner-config {name}: a mapping of 'runner' and 'options' is expected")
    for key in content:
        if key not in RunnerConfig.model_fields:
            raise InputError(f"{name}: {unknown_name('key', str(key), RunnerConfig.model_fields)}")
    options = dict(content.get("options") or {})
    for override in overrides:
        key, equals, value = override.partition("=")
        if not equals:
            raise InputError(f"--runner-option {override!r}: write it as key=value")
        options[key] = value
    for key in options:
        if key not in DirectOptions.model_fields:
            known = DirectOptions.model_fields
            raise InputError(f"runner {name}: {unknown_name('option', str(key), known)}")
    try:
        return RunnerConfig.model_validate({**content, "options": options})
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(map(str, first["loc"]))
        raise InputError(
            f"--runner-config {name}, {place} {first['input']!r}: "
            f"{first['msg'].replace('Input should', 'it must')}"
        ) from error


class Engine:
    """Runs pipelines one after another; a context, which ends its worker processes.

    Parameters
    ----------
    config : the engine and its options
    """

    def __init__(self, config: RunnerConfig) -> None:
        self.config = config
        self.log = Path(os.devnull)
        # They import for a second what they need: meanwhile this process does its own.
        self._processes = WorkerProcesses(self.workers) if self.workers > 1 else None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._processes is not None:
            self._processes.stop()

    def log_to(self, log: Path) -> None:
        """Let worker processes write to a file; before the first pipeline."""
        self.log = log

    @property
    def name(self) -> str:
        """What the document calls the engine."""
        return "direct" if self.workers == 1 else f"direct, {self.workers} processes"

    @property
    def workers(self) -> int:
        """How many can work at once."""
        return self.config.options.workers

    def run(self, build: Callable[[Any], Any]) -> Cost:
        """Run the pipeline that ``build`` puts together.

        Raises
        ------
        SlicebeamError
            What a worker reported, in its own words; anything else is an `EngineError`.
        """
        import apache_beam as beam

        begun, cpu = time.perf_counter(), self._cpu_seconds()
        pipeline = beam.Pipeline(runner=self._runner(), options=self._options())
        build(pipeline)
        try:
            with _quiet():
                if self._processes is None:
                    result = pipeline.run()
                else:
                    result = _run_aside(pipeline, self._processes)
        except Exception as error:
            # An interrupt in the runner's own thread arrives as an error of the worker.
            if "KeyboardInterrupt" in str(error):
                raise KeyboardInterrupt from error
            raise _for_user(error) from error
        return Cost(
            self._cpu_seconds() - cpu,
            time.perf_counter() - begun,
            _counter(result, "shuffled_bytes"),
        )

    def _cpu_seconds(self) -> float:
        workers = self._processes.cpu_seconds() if self._processes is not None else 0.0
        return time.process_time() + workers

    def _options(self) -> Any:
        from apache_beam.options.pipeline_options import PipelineOptions

        return PipelineOptions([f"--direct_num_workers={self.workers}"])

    def _runner(self) -> Any:
        # Made explicitly: DirectRunner would first look for another runner's binary on the web.
        from apache_beam.runners.portability.fn_api_runner.fn_runner import FnApiRunner

        if self._processes is None:
            return FnApiRunner()
        from apache_beam.transforms.environments import ExternalEnvironment

        return FnApiRunner(
            default_environment=ExternalEnvironment(self._processes.address(self.log))
        )


@contextmanager
def _quiet() -> Iterator[None]:
    """Keep what the engine logs, from its threads too, away from the user's terminal.

    A worker's traceback is logged before its exception arrives, which tells the same in a line.
    """
    logger, hook = logging.getLogger("apache_beam"), threading.excepthook
    level = logger.level
    logger.setLevel(logging.CRITICAL)
    threading.excepthook = lambda _: None
    try:
        yield
    except KeyboardInterrupt:
        # Threads that wait for what was ended will still complain, and stay quiet.
        raise
    except BaseException:
        logger.setLevel(level)
        threading.excepthook = hook
        raise
    logger.setLevel(level)
    threading.excepthook = hook


def _run_aside(pipeline: Any, processes: WorkerProcesses) -> Any:
    """Run a pipeline in a thread, so that an interrupt or a lost worker ends the waiting for it.

    Beam would wait for ever.
    """
    outcome: Future[Any] = Future()

    def work() -> None:
        try:
            outcome.set_result(pipeline.run())
        except BaseException as error:  # noqa: BLE001  (handed to the caller)
            outcome.set_exception(error)

    threading.Thread(target=work, daemon=True).start()
    while True:
        try:
            return outcome.result(timeout=_PATIENCE)
        except FutureTimeoutError:  # noqa: PERF203
            # The pipeline's own error may be one too.
            if outcome.done():
                raise
            processes.check()


def _counter(result: Any, name: str) -> int:
    found = result.metrics().query()["counters"]
    return sum(
        counter.committed or counter.attempted or 0
        for counter in found
        if counter.key.metric.name == name
    )


def _for_user(error: BaseException) -> SlicebeamError:
    """Return the error that a worker raised for the user, found in what the engine made of it."""
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, SlicebeamError):
            return type(cause)(_STEP.sub("", str(cause)))
        cause = cause.__cause__
    found = _REMOTE_ERROR.search(str(error))
    if found:
        kind: type[SlicebeamError] = getattr(errors, found.group(1))
        return kind(found.group(2))
    lines = [line for line in _STEP.sub("", str(error)).splitlines() if line.strip()]
    return EngineError(
        f"the engine failed: {type(error).__name__}: {lines[-1] if lines else 'no message'}"
    )
