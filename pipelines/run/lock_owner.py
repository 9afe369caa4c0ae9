"""Who holds the lock of a work folder, and whether that process still lives."""

from __future__ import annotations

import getpass
import json
import os
import socket
import uuid
from dataclasses import asdict, dataclass
from datetime import datetime, timezone
from pathlib import Path

from slicebeam.runner_configs import process_stat


@dataclass(frozen=True)
class Owner:
    """Who holds a lock.

    ``machine``: identifies the running system (this boot of it), whatever its host is called; empty
    where the system does not say.
    """

    host: str
    pid: int
    user: str
    started: str  # when it took the lock, as an ISO time in UTC, for people to read
    machine: str
    processes: str  # identifies the set of process numbers that ``pid`` belongs to
    begun: str  # when the process was started, since another may get its number afterwards
    token: str  # identifies this taking of the lock

    @classmethod
    def this_process(cls) -> Owner:
        """Return this process as a new owner."""
        pid = os.getpid()
        return cls(
            socket.gethostname(),
            pid,
            _user(),
            datetime.now(timezone.utc).strftime("%Y-%m-%d %H:%M:%S UTC"),
            _machine(),
            _process_numbers(),
            process_stat.started(pid) or "",
            uuid.uuid4().hex,
        )

    @classmethod
    def from_json(cls, text: bytes) -> Owner | None:
        """Return the owner that a lock names, None if it names none."""
        try:
            fields = json.loads(text)
            return cls(
                pid=int(fields["pid"]),
                **{name: str(fields[name]) for name in cls.__dataclass_fields__ if name != "pid"},
            )
        except (ValueError, TypeError, KeyError):
            return None

    def to_json(self, renewals: int = 0) -> bytes:
        """Return what stands in the lock."""
        return json.dumps({**asdict(self), "renewals": renewals}).encode()

    def is_here(self) -> bool:
        """Whether it is, or was, a process of the running system."""
        return self.machine != "" and self.machine == _machine()

    def lives(self) -> bool | None:
        """Return whether the process lives, None if that can't be known from here."""
        if not self.is_here() or self.processes != _process_numbers():
            return None
        now = process_stat.started(self.pid)
        return now is not None and (now == self.begun or "" in (now, self.begun))

    def __str__(self) -> str:
        return f"{self.user} on {self.host}, process {self.pid}, since {self.started}"


def _user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        # A number without a name, as containers have.
        return f"user {os.getuid()}"


def _machine() -> str:
    """Return what identifies this boot of this machine."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text("ascii").strip()
    except OSError:
        return f"{socket.gethostname()}-{uuid.getnode():x}"


def _process_numbers() -> str:
    """Return what identifies the set of process numbers: containers have their own."""
    try:
        return os.readlink("/proc/self/ns/pid")  # noqa: PTH115  (no path)
    except OSError:
        return ""
