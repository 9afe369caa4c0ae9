"""Programs that a run starts, and that end with it, however it ends.

A small process guards each: it starts the program, ends it when this process says so or is gone,
and removes the program's temporary folder.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from slicebeam.metrics.errors import EngineError
from slicebeam.runner_configs import guardian, private_network, process_stat

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

# Longer than the guardian waits for the program's own end.
_PATIENCE = guardian.PATIENCE + 10.0


def python_module(name: str) -> list[str]:
    """Return the command that runs a module of ours in a process of its own.

    ``python -m`` looks into the working folder first, which may be a stranger's with a ``json.py`` in it; only
    where this process looks there too, the other one has to.
    """
    if {"", os.getcwd()} & set(sys.path):  # noqa: PTH109
        return [sys.executable, "-m", name]
    if hasattr(sys.flags, "safe_path"):  # Python 3.11
        return [sys.executable, "-P", "-m", name]
    # From 3.13 on, "-c" itself imports from the working folder before it runs any code.
    code = "import sys; sys.path[:] = filter(None, sys.path); import runpy; runpy.run_module"
    return [sys.executable, "-c", f"{code}({name!r}, run_name='__main__')"]


class GuardedProcess:
    """A program that ends with this process; in a network of its own where it has a folder for sockets."""

    def __init__(
        self,
        command: Sequence[str],
        log: Path,
        folder: Path,
        environment: Mapping[str, str] | None = None,
        sockets: Path | None = None,
    ) -> None:
        self.name, self.log, self.pid = Path(command[0]).name, log, 0
        self._folders = [folder] if sockets is None else [folder, sockets]
        # Isolated and by its path: it imports nothing of ours, and starts in hundredths of a second.
        guarded = [sys.executable, "-I", "-S"]
        if sockets is not None:
            guarded += [private_network.__file__, str(sockets)]
        guarded += [guardian.__file__, str(folder), *command]
        with log.open("ab") as output:
            # A session of its own: Ctrl-C is for the run to handle.
            self._guardian = subprocess.Popen(  # noqa: S603
                guarded,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=output,
                start_new_session=True,
                env={**os.environ, **(environment or {})},
            )
        stdout = self._guardian.stdout
        if stdout is None:
            raise TypeError("a process without pipes")
        first = stdout.readline().decode("utf-8").strip()
        if not first.isdigit():
            self.stop()
            raise EngineError(f"cannot start {command[0]}: {first or 'no reason given'}")
        self.pid = int(first)

    @property
    def has_ended(self) -> bool:
        """Return whether the program has ended."""
        return self._guardian.poll() is not None

    def check(self) -> None:
        """Raise an EngineError where the program has ended."""
        if self.has_ended:
            raise EngineError(
                f"{self.name} ended with code {self._guardian.returncode}; its output is in "
                f"{self.log}"
            )

    def cpu_seconds(self) -> float:
        """Return the CPU seconds of the program so far, if the system has /proc."""
        return process_stat.cpu_seconds(self.pid)

    def stop(self) -> None:
        """End the program, and wait until it and its folder are gone."""
        for pipe in (self._guardian.stdin, self._guardian.stdout):
            if pipe is not None:
                with suppress(BrokenPipeError):
                    pipe.close()
        try:
            code = self._guardian.wait(_PATIENCE)
            if code < 0:
                # Killed, with nobody left to end what the program started.
                self._kill()
                for folder in self._folders:
                    shutil.rmtree(folder, ignore_errors=True)
        except subprocess.TimeoutExpired:
            self._kill()
            self._guardian.kill()
            self._guardian.wait()

    def _kill(self) -> None:
        if not self.pid:
            return
        with suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)


def wait_for(
    is_ready: Callable[[], bool], what: str, seconds: float, process: GuardedProcess | None = None
) -> None:
    """Wait until a function returns true."""
    end = time.monotonic() + seconds
    while not is_ready():
        if process is not None:
            process.check()
        if time.monotonic() > end:
            log = f"; its output is in {process.log}" if process is not None else ""
            raise EngineError(f"{what} did not answer within {seconds:g} seconds{log}")
        time.sleep(0.05)
