"""How an interrupted command ends, and how a command runs with closed streams."""

from __future__ import annotations

import io
import os
import signal
import sys
from types import FrameType
from typing import IO, Any, TextIO

# The exit code after a signal is this plus its number, as in shells.
_BY_SIGNAL = 128
_WORDS = {signal.SIGINT: "interrupted", signal.SIGTERM: "terminated", signal.SIGHUP: "hung up"}
_received: list[int] = []


def install_handlers() -> None:
    """Let Ctrl-C, a scheduler's SIGTERM and a lost terminal end the command in order.

    Each raises KeyboardInterrupt in the command, which ends its workers and releases its lock.
    """
    for number in _WORDS:
        # What is ignored stays ignored, as nohup wants it.
        if signal.getsignal(number) != signal.SIG_IGN:
            signal.signal(number, _end)


def _end(number: int, frame: FrameType | None) -> None:  # noqa: ARG001  (a handler's signature)
    _received.append(number)
    if number != signal.SIGINT:
        # Schedulers repeat the signal, which must not interrupt the cleanup.
        signal.signal(number, signal.SIG_IGN)
    raise KeyboardInterrupt


def interrupted() -> bool:
    """Return whether a signal ended the command."""
    return bool(_received)


def ending() -> tuple[int, str]:
    """Return exit code and word of the signal that ended the command, Ctrl-C by default."""
    number = _received[0] if _received else signal.SIGINT
    return _BY_SIGNAL + number, _WORDS[signal.Signals(number)]


def guard_streams() -> None:
    """Let a command run with standard streams that are closed, or that close later.

    A closed stream becomes the null device, so that no file takes its number and gets its messages.
    A closed pipe is ignored; any other write error on stdout is raised.
    """
    while (number := os.open(os.devnull, os.O_RDWR)) < 3:
        os.set_inheritable(number, True)
    os.close(number)
    sys.stdout = _stream(1, sys.stdout, BrokenPipeError)
    sys.stderr = _stream(2, sys.stderr, OSError)


class _Lenient(io.FileIO):
    """A file that ignores some write errors."""

    def __init__(self, number: int, error: type[OSError]) -> None:
        super().__init__(number, "w", closefd=False)
        self.error = error

    def write(self, data: Any, /) -> int:
        """Write; an error of this kind is ignored."""
        try:
            return super().write(data)
        except self.error:
            return len(data)


def _stream(number: int, before: IO[str] | None, error: type[OSError]) -> TextIO:
    if before is not None:
        before.flush()
    return io.TextIOWrapper(
        io.BufferedWriter(_Lenient(number, error)),
        encoding=getattr(before, "encoding", "utf-8"),
        # Characters that the terminal's encoding lacks are shown as question marks.
        errors="replace",
        line_buffering=number == 2 or os.isatty(number),
    )
