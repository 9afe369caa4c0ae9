"""Guards a program: ends it, and removes its folder, when the process that started it is gone.

Run by its path with ``shared FOLDER COMMAND [ARGUMENT ...]``; only the standard library is imported.
It says the program's number on stdout, and ends the program when its own stdin is closed. With
``private`` in place of ``shared`` it first enters a new network namespace, in which there is only a
loopback interface (Linux). Unix sockets in the folder lead into that network, one for each port requested
at its ``door``; ports connected to Unix sockets of the folder lead out. Without arguments it says
why it cannot enter one.
"""

import contextlib
import ctypes
import fcntl
import os
import shutil
import signal
import socket
import socketserver
import struct
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

# Ports that a program is told to listen at; in a network of its own all are free.
JOBS, ARTIFACTS = 8099, 8098
# Ports that lead out, to the run's worker pool and to an engine's master, and the sockets behind them.
POOL, MASTER = 8097, 8096
DOOR, POOL_SOCKET, MASTER_SOCKET = "door", "pool", "master"
# Seconds that a program has to end by itself: a job server tells its cluster, and clears up.
PATIENCE = 5.0
# Linux's option of a process, a signal that it gets when its parent is gone; what `unshare` makes
# new; and the control of a network device that switches it on.
_SET_PARENT_DEATH_SIGNAL = 1
_NEW_USERS, _NEW_NETWORK = 0x1000_0000, 0x4000_0000
_SET_FLAGS, _UP = 0x8914, 1
_libc = ctypes.CDLL(None, use_errno=True)


def main() -> int:
    """Start the program and wait for its end, or for that of the parent."""
    kind, folder, *command = sys.argv[1:] or ("private", "")
    try:
        if kind == "private":
            _enter_network()
        if not command:
            return 0
        if kind == "private":
            _forward(Path(folder))
        program = subprocess.Popen(  # noqa: S603
            command,
            stdin=subprocess.DEVNULL,
            stdout=sys.stderr,
            start_new_session=True,
            preexec_fn=_end_with_parent if sys.platform.startswith("linux") else None,  # noqa: PLW1509
        )
    except OSError as error:
        sys.stdout.write(f"{error.strerror or error}\n")
        return 1
    # Whoever ends the guardian means the program.
    for number in (signal.SIGINT, signal.SIGHUP, signal.SIGTERM):
        signal.signal(number, lambda *_: _signal(program, signal.SIGTERM))
    sys.stdout.write(f"{program.pid}\n")
    sys.stdout.flush()
    threading.Thread(target=_end_after_stdin, args=(program,), daemon=True).start()
    code = program.wait()
    # What it started may still be there.
    _signal(program, signal.SIGKILL)
    shutil.rmtree(folder, ignore_errors=True)
    return code if code >= 0 else 128 - code


def _end_with_parent() -> None:
    """Let the program end also where its guardian is killed."""
    _libc.prctl(_SET_PARENT_DEATH_SIGNAL, signal.SIGKILL)


def _end_after_stdin(program: subprocess.Popen[bytes]) -> None:
    while os.read(0, 1):
        continue
    _signal(program, signal.SIGTERM)
    try:
        program.wait(PATIENCE)
    except subprocess.TimeoutExpired:
        _signal(program, signal.SIGKILL)


def _signal(program: subprocess.Popen[bytes], number: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(program.pid, number)


def _enter_network() -> None:
    """Move this process into a network of its own."""
    user, group = os.geteuid(), os.getegid()
    # Root needs no users of its own, in which files of other users would be closed to it.
    if _libc.unshare(_NEW_NETWORK) != 0:
        if _libc.unshare(_NEW_USERS | _NEW_NETWORK) != 0:
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number))
        Path("/proc/self/setgroups").write_text("deny", "ascii")
        Path("/proc/self/uid_map").write_text(f"{user} {user} 1", "ascii")
        Path("/proc/self/gid_map").write_text(f"{group} {group} 1", "ascii")
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        fcntl.ioctl(any_socket, _SET_FLAGS, struct.pack("16sh22x", b"lo", _UP))


def _forward(folder: Path) -> None:
    """Lead into the network at Unix sockets in the folder, and out of it to others there."""

    class Door(socketserver.StreamRequestHandler):
        """Opens ports, one after another."""

        def handle(self) -> None:
            with contextlib.suppress(OSError, ValueError):
                port = int(self.rfile.readline())
                path = folder / str(port)
                if not path.exists():
                    forward(str(path), lambda: _connect(port))
                self.wfile.write(b"\n")

    _serve(socketserver.UnixStreamServer(str(folder / DOOR), Door))
    forward(POOL, lambda: connect_to(folder / POOL_SOCKET))
    forward(MASTER, lambda: connect_to(folder / MASTER_SOCKET))


def _connect(port: int) -> socket.socket:
    try:
        return socket.create_connection(("127.0.0.1", port))
    except OSError:
        return socket.create_connection(("::1", port))


def connect_to(path: Path) -> socket.socket:
    """Return a connection to a Unix socket."""
    connection = socket.socket(socket.AF_UNIX)
    connection.connect(str(path))
    return connection


def forward(address: int | str, connect: Callable[[], socket.socket]) -> socketserver.BaseServer:
    """Answer each connection to a port or a Unix socket by another one, until it is shut down."""

    class Forward(socketserver.BaseRequestHandler):
        def handle(self) -> None:
            # Where nobody listens, or not yet, the connection is closed.
            with contextlib.suppress(OSError), connect() as other:
                back = threading.Thread(target=_copy, args=(other, self.request), daemon=True)
                back.start()
                _copy(self.request, other)
                back.join()

    class Server(socketserver.ThreadingMixIn, socketserver.TCPServer):
        address_family = socket.AF_UNIX if isinstance(address, str) else socket.AF_INET
        daemon_threads = True
        request_queue_size = 128

    # The class names a host, which a Unix socket has not.
    server = Server(address if isinstance(address, str) else ("127.0.0.1", address), Forward)  # type: ignore[arg-type]
    return _serve(server)


def _serve(server: socketserver.BaseServer) -> socketserver.BaseServer:
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return server


def _copy(source: socket.socket, target: socket.socket) -> None:
    """Forward data until it ends."""
    with contextlib.suppress(OSError):
        while data := source.recv(1 << 16):
            target.sendall(data)
    for done, how in ((target, socket.SHUT_WR), (source, socket.SHUT_RD)):
        with contextlib.suppress(OSError):
            done.shutdown(how)


if __name__ == "__main__":
    sys.exit(main())
