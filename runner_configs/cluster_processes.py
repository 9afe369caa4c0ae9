"""Programs of a local cluster: started in a folder that records them, and stopped exactly."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from slicebeam.metrics.errors import EngineError, InputError
from slicebeam.runner_configs import process_stat

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

_STATE = "cluster.json"
# Seconds that programs have to end by themselves.
_PATIENCE = 10.0


@dataclass(frozen=True)
class Program:
    """A program that was started.

    Attributes
    ----------
    pid : its process, which leads a group of its own
    started : start time of the process, since process ids are reused
    """

    name: str
    pid: int
    started: str

    @property
    def is_running(self) -> bool:
        """Return whether it still runs."""
        return self.started == _started(self.pid)


@dataclass(frozen=True)
class Running:
    """A cluster that was started.

    Attributes
    ----------
    address : of its master, as ``--runner-option master=`` takes it
    pages : host:port of its web pages
    programs : in the order in which they were started
    """

    version: str
    address: str
    pages: str
    programs: tuple[Program, ...]


class ClusterFolder:
    """The folder of a cluster: its configuration, logs, and what runs."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def running(self) -> Running | None:
        """Return the running cluster, None if there is none."""
        try:
            shape = json.loads((self.path / _STATE).read_text("utf-8"))
        except (FileNotFoundError, ValueError):
            return None
        programs = tuple(Program(**program) for program in shape.pop("programs"))
        return Running(**shape, programs=programs)

    def begin(self) -> None:
        """Make the folder ready for a cluster.

        Raises
        ------
        InputError
            One runs there already.
        """
        earlier = self.running()
        if earlier is not None and any(program.is_running for program in earlier.programs):
            raise InputError(
                f"a cluster already runs in {self.path}, at {earlier.address}; stop it with "
                "'down', or name another --folder"
            )
        for part in ("conf", "log", "tmp", "work"):
            (self.path / part).mkdir(parents=True, exist_ok=True)

    def start(self, name: str, command: Sequence[str], environment: Mapping[str, str]) -> Program:
        """Start a program, whose output goes to ``log/NAME.log``."""
        with (self.path / "log" / f"{name}.log").open("ab") as log:
            process = subprocess.Popen(  # noqa: S603
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                cwd=self.path,
                env={**os.environ, **environment},
                # It outlives this command, and whoever ends the terminal's session.
                start_new_session=True,
            )
        return Program(name, process.pid, _started(process.pid) or "")

    def remember(self, running: Running) -> None:
        """Note what runs, for ``down`` to end it."""
        text = json.dumps(asdict(running), indent=1)
        temporary = self.path / f".{_STATE}"
        temporary.write_text(text, "utf-8")
        temporary.replace(self.path / _STATE)

    def await_ready(self, is_ready: Callable[[], bool], running: Running, seconds: float) -> None:
        """Wait until the cluster is ready; end it where it is not.

        Raises
        ------
        EngineError
            A program ended, or the time is over.
        """
        begun = time.monotonic()
        while not is_ready():
            ended = [program.name for program in running.programs if not program.is_running]
            if ended or time.monotonic() - begun > seconds:
                what = f"{ended[0]} ended" if ended else f"not ready after {seconds:g} seconds"
                self.stop(running)
                raise EngineError(f"the cluster did not start: {what}; see {self.path / 'log'}")
            time.sleep(0.1)

    def stop(self, running: Running) -> None:
        """Stop the programs of a cluster, the last one first, and their children."""
        programs = running.programs[::-1]
        for program in programs:
            _signal(program, signal.SIGTERM)
        begun = time.monotonic()
        while any(program.is_running for program in programs):
            if time.monotonic() - begun > _PATIENCE:
                for program in programs:
                    _signal(program, signal.SIGKILL)
            time.sleep(0.05)
        (self.path / _STATE).unlink(missing_ok=True)


def _signal(program: Program, number: int) -> None:
    if program.is_running:
        with suppress(ProcessLookupError):
            os.killpg(program.pid, number)


def _started(pid: int) -> str | None:
    """Return when a process was started, None if it is gone."""
    # One of our own that has ended is there until it is asked for.
    with suppress(ChildProcessError):
        os.waitpid(pid, os.WNOHANG)
    return process_stat.started(pid)
