"""How an interrupted command ends, and how any continues without the streams it usually has."""

from __future__ import annotations

import io
import os
import signal
import sys
from typing import IO, TYPE_CHECKING, Any, TextIO

if TYPE_CHECKING:
    from types import FrameType

# Exit codes of what a signal ended are this and its number, as shells have it.
_BY_SIGNAL = 128
_TOLD = {signal.SIGINT: "interrupted", signal.SIGTERM: "terminated", signal.SIGHUP: "hung up"}
_received: list[int] = []


def install_handlers() -> None:
    """Let Ctrl-C, a scheduler's SIGTERM and a lost terminal end the command in order.

    Each raises KeyboardInterrupt where the command is, so that workers are ended and the lock is
    given up.
    """
    for number in _TOLD:
        # What is ignored stays ignored, as nohup wants it.
        if signal.getsignal(number) != signal.SIG_IGN:
            signal.signal(number, _end)


def _end(number: int, frame: FrameType | None) -> None:  # noqa: ARG001  (a handler's signature)
    _received.append(number)
    if number != signal.SIGINT:
        # Schedulers repeat themselves, and must not disturb the tidying up.
        signal.signal(number, signal.SIG_IGN)
    raise KeyboardInterrupt


def interrupted() -> bool:
    """Whether a signal came that ends the command."""
    return bool(_received)


def ending() -> tuple[int, str]:
    """Return exit code and word of the signal that ended the command, Ctrl-C by default."""
    number = _received[0] if _received else signal.SIGINT
    return _BY_SIGNAL + number, _TOLD[signal.Signals(number)]


def hold_streams() -> None:
    """Make standard streams that are closed harmless, and those that close later.

    A file that is opened takes the lowest number that is free, and what is written to stderr must
    not go into it. Nobody reads what is written to a closed pipe, and the run is not for that; but
    what stdout can't take for another reason is an error.
    """
    while (number := os.open(os.devnull, os.O_RDWR)) < 3:
        # That was closed, and is this now.
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
        """Write, or let it be."""
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
        # Signs that the terminal's encoding lacks are shown as question marks.
        errors="replace",
        line_buffering=number == 2 or os.isatty(number),
    )
