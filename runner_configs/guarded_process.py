"""Programs that a run starts, and that end with it, however it ends.

A small process guards each: it starts the program, in a network of its own if that is wanted, ends it
when this process says so or is gone, and removes the program's temporary folder.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import socket
import stat
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from slicebeam.metrics.errors import EngineError
from slicebeam.runner_configs import guardian, process_stat

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

# Longer than the guardian waits for the program's own end.
_PATIENCE = guardian.PATIENCE + 10.0
# Seconds that a private network may take to open a port.
_OPEN = 60.0
# Isolated and by its path: it imports nothing of ours, and starts in hundredths of a second.
_GUARDIAN = [sys.executable, "-I", "-S", guardian.__file__]
# Bytes of the longest path of a Unix socket that every system takes, and of the longest name in it.
_LONGEST_PATH = 103
_LONGEST_NAME = 16
_PLAIN = re.compile(r"[\w/.+-]+", re.ASCII)
_LAST = "/tmp"  # noqa: S108  (mkdtemp makes a folder in it that nobody else can enter)
_LAST_PORT = re.compile(r":(\d+)$")


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


def socket_folder() -> Path:
    """Return a new folder for sockets: temporary, or in ``/tmp`` where that path means something else to gRPC."""
    tried = dict.fromkeys((tempfile.gettempdir(), _LAST))
    for parent in tried:
        if not os.path.isdir(parent) or not _PLAIN.fullmatch(parent):  # noqa: PTH112
            continue
        folder = Path(tempfile.mkdtemp(prefix="slicebeam-", dir=parent))
        if stat.S_IMODE(folder.stat().st_mode) & 0o077:
            folder.rmdir()
            raise EngineError(
                f"{parent} cannot hold private folders, which the sockets of an engine "
                "need; set TMPDIR to a folder on a local disk"
            )
        if len(os.fsencode(folder)) + 1 + _LONGEST_NAME <= _LONGEST_PATH:
            return folder
        folder.rmdir()
    raise EngineError(
        f"the path of the temporary folder {next(iter(tried))} is too long for sockets, or "
        "contains special characters; set TMPDIR to another folder"
    )


def why_not_private() -> str:
    """Return why this system lets a user have no private network, '' where it does."""
    if not sys.platform.startswith("linux"):
        return "only Linux has network namespaces"
    done = subprocess.run(_GUARDIAN, capture_output=True, text=True, check=False)  # noqa: S603
    if done.returncode == 0:
        return ""
    said = (done.stdout + done.stderr).strip().splitlines()
    return said[-1] if said else f"code {done.returncode}"


@cache
def private_address(folder: Path, url: str) -> str:
    """Return the Unix socket that leads to ``host:port`` in the private network of a program."""
    match = _LAST_PORT.search(url)
    if match is None:
        return url
    with guardian.connect_to(folder / guardian.DOOR) as connection:
        connection.settimeout(_OPEN)
        connection.sendall(f"{match[1]}\n".encode("ascii"))
        if not connection.recv(1):
            raise OSError(f"cannot reach port {match[1]} of the engine's private network")
    return f"unix:{folder / match[1]}"


class GuardedProcess:
    """A program that ends with this process; ``leads_to``: what its private network reaches outside."""

    def __init__(
        self,
        command: Sequence[str],
        log: Path,
        folder: Path,
        environment: Mapping[str, str] | None = None,
        *,
        is_private: bool = False,
        leads_to: tuple[str, int] | None = None,
    ) -> None:
        self.name, self.log, self.pid, self._folder = Path(command[0]).name, log, 0, folder
        self._door_out = leads_to and guardian.forward(
            str(folder / guardian.MASTER_SOCKET), lambda: socket.create_connection(leads_to)
        )
        kind = "private" if is_private else "shared"
        with log.open("ab") as output:
            # A session of its own: Ctrl-C is for the run to handle.
            self._guardian = subprocess.Popen(  # noqa: S603
                [*_GUARDIAN, kind, str(folder), *command],
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
        except subprocess.TimeoutExpired:
            self._guardian.kill()
            code = self._guardian.wait()
        if self._door_out:
            self._door_out.shutdown()
            self._door_out.server_close()
        if code < 0 and self.pid:
            # Killed, with nobody left to end what the program started.
            with suppress(ProcessLookupError):
                os.killpg(self.pid, signal.SIGKILL)
        shutil.rmtree(self._folder, ignore_errors=True)


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
