"""A run's side of the private network of the program that it starts."""

from __future__ import annotations

import os
import re
import shutil
import socket
import stat
import tempfile
from pathlib import Path

from slicebeam.metrics.errors import EngineError
from slicebeam.runner_configs import private_network

# The program's port for jobs, and that for artifacts where it has another one.
JOBS, ARTIFACTS = private_network.JOBS, private_network.ARTIFACTS

# Bytes of the longest path of a Unix socket that every system takes, and of the longest name in it.
_LONGEST_PATH = 103
_LONGEST_NAME = 16
_PLAIN = re.compile(r"[\w/.+-]+", re.ASCII)
_LAST = "/tmp"  # noqa: S108  (mkdtemp makes a folder in it that nobody else can enter)


class NetworkAccess:
    """Sockets that lead into a private network and out of it."""

    def __init__(self) -> None:
        self.sockets: Path = socket_folder()
        self.pool = f"unix:{self.sockets / private_network.POOL_SOCKET}"
        self.pool_inside = f"127.0.0.1:{private_network.POOL}"
        self._master: socket.socket | None = None

    def address(self, port: int) -> str:
        """Return the address of a port in the network, once the program is started."""
        return private_network.private_address(self.sockets, f"localhost:{port}")

    def lead_to(self, host: str, port: int) -> str:
        """Return an address in the network that leads to one outside, until all is removed."""
        self._master = private_network.listening(self.sockets / private_network.MASTER_SOCKET)
        private_network.serve(
            self._master, private_network.piped(lambda: socket.create_connection((host, port)))
        )
        return f"127.0.0.1:{private_network.MASTER}"

    def remove(self) -> None:
        """Remove the sockets."""
        if self._master is not None:
            # Unblocks accept().
            self._master.shutdown(socket.SHUT_RDWR)
            self._master = None
        shutil.rmtree(self.sockets, ignore_errors=True)


def reason_against(outside: str | None, *, wanted: bool) -> str:
    """Return why a program gets no private network, '' where it does."""
    if not wanted:
        return "private_network is false"
    return f"it must reach {outside}" if outside else private_network.refusal()


def no_network(name: str, why: str) -> EngineError:
    """Return the error of a program that is not run without a private network."""
    return EngineError(
        f"{name} listens on every address of this machine, runs any code it receives as you, and "
        f"cannot have a private network: {why}; --runner-option private_network=false runs it "
        "anyway"
    )


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
