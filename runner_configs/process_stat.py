"""The system's information about a process, by its number."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path


def started(pid: int) -> str | None:
    """Return when a process was started, None if it is gone, '' where the system does not say.

    Numbers are used again: number and start together are a process's own.
    """
    try:
        os.kill(pid, 0)
        return _fields(pid)[19]
    except ProcessLookupError:
        return None
    except (OSError, IndexError):
        # A process of another user lives; a system without /proc tells no more.
        return ""


def cpu_seconds(pid: int) -> float:
    """Return the CPU seconds of a process, and of those that it started and that ended; 0 without /proc."""
    try:
        return sum(map(int, _fields(pid)[11:15])) / float(os.sysconf("SC_CLK_TCK"))
    except OSError:
        return 0.0


def children(pid: int) -> list[int]:
    """Return the processes that a process started and that have not ended; none without /proc."""
    pids = []
    for entry in Path("/proc").glob("[0-9]*"):
        with suppress(OSError, ValueError):
            state, parent, *_ = _fields(int(entry.name))
            if int(parent) == pid and state != "Z":
                pids.append(int(entry.name))
    return pids


def _fields(pid: int) -> list[str]:
    """Return the fields from the third on: the second is the name, which may hold blanks."""
    return Path(f"/proc/{pid}/stat").read_text("utf-8", "replace").rpartition(")")[2].split()
