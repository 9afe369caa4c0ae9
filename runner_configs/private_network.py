"""A private network for a program that listens where anybody could reach it.

Run by its path with ``SOCKETS PROGRAM [ARGUMENT ...]``: enters a new network namespace, in which
there is only a loopback interface, and runs the Python program PROGRAM there. Unix sockets
in the folder SOCKETS lead into the network, one for each port requested at its ``door``; ports
connected to Unix sockets of that folder lead out. Without arguments it says why it cannot. Nothing
but the standard library is imported; Linux only.
"""

import contextlib
import ctypes
import errno
import fcntl
import os
import re
import runpy
import shutil
import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from functools import cache
from pathlib import Path

# Ports that the run's program is told to listen at; in a network of its own all are free.
JOBS, ARTIFACTS = 8099, 8098
# Ports that lead out, to the run's worker pool and to an engine's master, and the sockets behind them.
POOL, MASTER = 8097, 8096
POOL_SOCKET, MASTER_SOCKET = "pool", "master"
_DOOR = "door"
_NEW_USERS, _NEW_NETWORK = 0x1000_0000, 0x4000_0000
_SET_FLAGS, _UP = 0x8914, 1
_AT_ONCE = 1 << 16
_WAIT = 60.0
_PAUSE = 0.1
_LAST_PORT = re.compile(r":(\d+)$")


def refusal() -> str:
    """Return why this system lets a user have no private network, '' where it does."""
    if not sys.platform.startswith("linux"):
        return "only Linux has network namespaces"
    command = [sys.executable, "-I", "-S", __file__]
    done = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603
    if done.returncode != 0:
        return (done.stderr.strip().splitlines() or [f"code {done.returncode}"])[-1]
    return done.stdout.strip()


@cache
def private_address(sockets: Path, url: str) -> str:
    """Return the Unix socket that leads to ``host:port`` in a private network."""
    match = _LAST_PORT.search(url)
    if match is None:
        return url
    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(_WAIT)
        connection.connect(str(sockets / _DOOR))
        connection.sendall(f"{match[1]}\n".encode("ascii"))
        if not connection.recv(1):
            raise OSError(f"cannot reach port {match[1]} of the engine's private network")
    return f"unix:{sockets / match[1]}"


def enter() -> None:
    """Move this process into a network of its own."""
    libc = ctypes.CDLL(None, use_errno=True)
    user, group = os.geteuid(), os.getegid()
    # Root needs no users of its own, in which files of other users would be closed to it.
    if libc.unshare(_NEW_NETWORK) != 0:
        if libc.unshare(_NEW_USERS | _NEW_NETWORK) != 0:
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number))
        Path("/proc/self/setgroups").write_text("deny", "ascii")
        Path("/proc/self/uid_map").write_text(f"{user} {user} 1", "ascii")
        Path("/proc/self/gid_map").write_text(f"{group} {group} 1", "ascii")
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        fcntl.ioctl(any_socket, _SET_FLAGS, struct.pack("16sh22x", b"lo", _UP))


def forward(sockets: Path) -> None:
    """Lead into the network at Unix sockets in a folder, and out of it to others there."""

    def into(port: int) -> Callable[[], socket.socket]:
        return lambda: _connected(port)

    def out(name: str) -> Callable[[], socket.socket]:
        def connect() -> socket.socket:
            connected = socket.socket(socket.AF_UNIX)
            connected.connect(str(sockets / name))
            return connected

        return connect

    opened: set[int] = set()

    def open_port(asking: socket.socket) -> None:
        with asking, contextlib.suppress(OSError, ValueError):
            port = int(asking.makefile("r").readline())
            if port not in opened:
                serve(listening(sockets / str(port)), piped(into(port)))
                opened.add(port)
            asking.sendall(b"\n")

    # Ports are opened one after another.
    serve(listening(sockets / _DOOR), open_port)
    for port, name in ((POOL, POOL_SOCKET), (MASTER, MASTER_SOCKET)):
        serve(socket.create_server(("127.0.0.1", port)), piped(out(name)))


def _connected(port: int) -> socket.socket:
    try:
        return socket.create_connection(("127.0.0.1", port))
    except OSError:
        return socket.create_connection(("::1", port))


def listening(path: Path) -> socket.socket:
    """Return a Unix socket that listens."""
    listening = socket.socket(socket.AF_UNIX)
    listening.bind(str(path))
    listening.listen(128)
    return listening


def serve(at: socket.socket, answer: Callable[[socket.socket], None]) -> None:
    """Answer connections in a thread, one after another, until the socket is shut down."""

    def accept() -> None:
        while True:
            try:
                answer(at.accept()[0])
            except (OSError, RuntimeError) as error:  # noqa: PERF203
                if getattr(error, "errno", None) == errno.EINVAL:
                    at.close()
                    return
                # The caller left, or files or threads have run out for now.
                time.sleep(_PAUSE)

    threading.Thread(target=accept, daemon=True).start()


def piped(connect: Callable[[], socket.socket]) -> Callable[[socket.socket], None]:
    """Return what answers a connection by another one, in threads that copy between them."""

    def pipe(accepted: socket.socket) -> None:
        try:
            other = connect()
        except OSError:
            # Nobody listens there, or not yet.
            accepted.close()
            return
        for source, target in ((accepted, other), (other, accepted)):
            threading.Thread(target=_copy, args=(source, target), daemon=True).start()

    return pipe


def _copy(source: socket.socket, target: socket.socket) -> None:
    """Forward data until it ends; the last user of each socket closes it."""
    with contextlib.suppress(OSError):
        while data := source.recv(_AT_ONCE):
            target.sendall(data)
    for done, how in ((target, socket.SHUT_WR), (source, socket.SHUT_RD)):
        with contextlib.suppress(OSError):
            done.shutdown(how)


def main() -> None:
    """Run a program in a network of its own, and remove the sockets after it."""
    try:
        enter()
    except OSError as error:
        sys.stdout.write(f"{error.strerror or error}\n")
        return
    if len(sys.argv) == 1:
        return
    sockets, program = sys.argv[1:3]
    forward(Path(sockets))
    sys.argv[:] = sys.argv[2:]
    try:
        runpy.run_path(program, run_name="__main__")
    finally:
        shutil.rmtree(sockets, ignore_errors=True)


if __name__ == "__main__":
    main()
