"""Starts the server of an output on this machine, and ends it; there is one for each output."""

from __future__ import annotations

import asyncio
import fcntl
import json
import logging
import os
import signal
import socket
import threading
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

from slicebeam.metrics.errors import EngineError, OptionError
from slicebeam.pipelines.page.protection import MOST_SECONDS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from starlette.types import ASGIApp
_LOCK = "server.lock"
# Seconds that requests get to end in when the server is ended.
_LAST_SECONDS = 3
# At a time; of further ones each is refused.
_MOST_CONNECTIONS = 256


class RunningError(Exception):
    """Another server has the output."""

    def __init__(self, address: str) -> None:
        super().__init__(address)
        self.address = address


@contextmanager
def only_server(state: Path) -> Iterator[Callable[[str], None]]:
    """Keep other servers of an output away; what is yielded says where this one is.

    The system ends the lock with the process, however that ends.
    """
    file = os.open(state / _LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise RunningError(_address(os.pread(file, 4096, 0))) from None
        os.ftruncate(file, 0)

        def publish(address: str) -> None:
            content = json.dumps({"address": address, "pid": os.getpid()}).encode()
            os.pwrite(file, content, 0)
            os.ftruncate(file, len(content))

        yield publish
        os.ftruncate(file, 0)
    finally:
        os.close(file)


def _address(content: bytes) -> str:
    with suppress(ValueError, KeyError, TypeError):
        return str(json.loads(content)["address"])
    return ""


def bound_socket(port: int) -> socket.socket:
    """Return a socket on 127.0.0.1."""
    found = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        found.bind(("127.0.0.1", port))
    except OSError as error:
        found.close()
        raise OptionError(
            f"--port {port}: {error.strerror}; leave it out for a free one"
        ) from error
    return found


def _is_unforeseen(record: logging.LogRecord) -> bool:
    # Whoever ends the server need not hear that a page was still asking.
    return "graceful shutdown exceeded" not in str(record.msg)


def _protocol() -> type:
    """Return what reads requests, and closes a connection on which half a head came and no more."""
    from uvicorn.protocols.http.h11_impl import H11Protocol

    class Protocol(H11Protocol):
        _waits: asyncio.TimerHandle | None = None

        def connection_made(self, transport: Any) -> None:
            super().connection_made(transport)
            self._waits = self.loop.call_later(MOST_SECONDS, transport.close)

        def data_received(self, data: bytes) -> None:
            super().data_received(data)
            is_answering = self.cycle is not None and not self.cycle.response_complete
            if is_answering and self._waits is not None:
                self._waits.cancel()
                self._waits = None
            elif not is_answering and self._waits is None:
                self._waits = self.loop.call_later(MOST_SECONDS, self.transport.close)

        def connection_lost(self, exc: Exception | None) -> None:
            super().connection_lost(exc)
            if self._waits is not None:
                self._waits.cancel()

    return Protocol


def run_server(app: ASGIApp, bound: socket.socket, started: Callable[[], None]) -> None:
    """Answer requests until SIGINT or SIGTERM."""
    import uvicorn

    class Server(uvicorn.Server):
        async def startup(self, sockets: list[socket.socket] | None = None) -> None:
            await super().startup(sockets)
            if self.started:
                started()

        @contextmanager
        def capture_signals(self) -> Iterator[None]:
            # A signal is how one ends a server, and no failure that is raised again.
            if threading.current_thread() is not threading.main_thread():
                yield
                return
            numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
            earlier = {one: signal.getsignal(one) for one in numbers}
            for one in numbers:
                if earlier[one] != signal.SIG_IGN:
                    signal.signal(one, self.handle_exit)
            try:
                yield
            finally:
                for one, handler in earlier.items():
                    signal.signal(one, handler)

    config: Any = uvicorn.Config(
        app,
        http=_protocol(),
        limit_concurrency=_MOST_CONNECTIONS,
        log_config=None,
        access_log=False,
        server_header=False,
        ws="none",
        lifespan="off",
        timeout_graceful_shutdown=_LAST_SECONDS,
        backlog=256,
    )
    logging.getLogger("uvicorn.error").addFilter(_is_unforeseen)
    server = Server(config)
    server.run(sockets=[bound])
    if not server.started:
        raise EngineError("the server could not be started")
