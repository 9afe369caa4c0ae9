"""A proxy before a server of object storage that does what networks and servers do at times.

It runs in threads of the test's process. Which requests a fault strikes is decided by their
method, their address and how often they came, never by chance alone, so a test strikes the same
requests each time.
"""

from __future__ import annotations

import hashlib
import http.client
import json
import re
import select
import socket
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib import import_module
from typing import Literal
from urllib.parse import quote, urlsplit

Kind = Literal[
    "status",  # an answer of this status, without asking the server
    "delay",  # the server's answer, later
    "gate",  # the server is asked when the test opens the gate
    "silence",  # no answer for as long as the proxy runs
    "drop",  # the connection ends before the server is asked
    "lose answer",  # the server did what it was asked, and the connection ends
    "cut answer",  # half of the server's answer
    "cut request",  # half of the request reaches the server, then both connections end
    "hold request",  # half of the request reaches the server, and nothing until the client is gone
    "damage",  # the server's answer with one bit turned over
]
# What asks for objects; google-cloud-storage also looks buckets up, in a thread of its own.
OBJECTS = {"gs": r"/b/[^/]+/o([/?]|$)|^/batch/", "s3": ""}
# Headers that speak of one connection, not of the message.
_OF_THE_CONNECTION = {"connection", "keep-alive", "transfer-encoding", "expect", "te", "upgrade"}


@dataclass
class Fault:
    """What goes wrong, and with which requests.

    kind : what happens
    method, path : patterns found in the method and in the address with its query, to which the
        name of an uploaded object is added where only the body tells it
    skip : requests that match and are let through first
    times : requests that are struck, None for all
    share : part of the requests that are struck, from 0 to 1
    status : of the answer, for ``status``
    seconds : for ``delay``
    struck : how many requests were
    gate : to set, for ``gate``
    """

    kind: Kind
    method: str = ""
    path: str = ""
    skip: int = 0
    times: int | None = None
    share: float = 1.0
    status: int = 503
    seconds: float = 0.0
    struck: int = 0
    gate: threading.Event = field(default_factory=threading.Event)
    _seen: Counter[str] = field(default_factory=Counter)

    def strikes(self, method, path):
        if not re.search(self.method, method) or not re.search(self.path, path):
            return False
        if self.skip > 0:
            self.skip -= 1
            return False
        if self.times is not None and self.struck >= self.times:
            return False
        if self.share < 1.0:
            request = f"{method} {_without_signs(path)}"
            self._seen[request] += 1
            # Of each kind of fault other requests.
            drawn = hashlib.sha256(f"{self.kind} {self._seen[request]} {request}".encode()).digest()
            if int.from_bytes(drawn[:4], "big") >= self.share * 2**32:
                return False
        self.struck += 1
        return True


def _without_signs(path):
    """Return an address without what differs between two runs: buckets of tests and uploads."""
    return re.sub(r"tests-[0-9a-f]{20}|upload_id=[^&]*|[0-9a-f]{32}", "", path)


class Proxy:
    def __init__(self, endpoint):
        self.upstream = urlsplit(endpoint).netloc
        self.requests = []
        # Set when a request is held half-way.
        self.holding = threading.Event()
        self._faults = []
        self._lock = threading.Lock()
        self._ended = threading.Event()
        handler = type("ProxyHandler", (_Handler,), {"proxy": self})
        self._server = _Server(("127.0.0.1", 0), handler)
        self.endpoint = f"http://127.0.0.1:{self._server.server_port}"
        threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True).start()

    def end(self):
        self._ended.set()
        self._server.shutdown()
        self._server.server_close()
        self._server.end_connections()

    def add(self, fault):
        with self._lock:
            self._faults.append(fault)
        return fault

    def heal(self):
        """Hand everything on."""
        with self._lock:
            self._faults.clear()

    def fault_of(self, method, path):
        """Return the fault that strikes a request, which is noted."""
        with self._lock:
            struck = next((one for one in self._faults if one.strikes(method, path)), None)
            self.requests.append(f"{method} {path}")
            return struck

    @property
    def has_ended(self):
        return self._ended.is_set()

    def wait_for(self, fault, times, process):
        until = time.monotonic() + 120
        while fault.struck < times:
            assert process.poll() is None, "it ended before"
            assert time.monotonic() < until, "it never asked"
            time.sleep(0.01)

    def wait_for_end(self, connection):
        """Wait until a client closes its connection, or the proxy ends."""
        poll = select.poll()
        poll.register(connection, select.POLLRDHUP | select.POLLHUP | select.POLLERR)
        while not self._ended.is_set() and not poll.poll(50):
            """A client that is killed closes by a reset."""

    def wait_out(self, seconds):
        self._ended.wait(seconds)


@contextmanager
def faulty(endpoint):
    proxy = Proxy(endpoint)
    try:
        yield proxy
    finally:
        proxy.end()


def within(seconds, work, *arguments):
    pool = ThreadPoolExecutor(1)
    try:
        return pool.submit(work, *arguments).result(timeout=seconds)
    finally:
        pool.shutdown(wait=False)


class _Server(ThreadingHTTPServer):
    request_queue_size = 128
    daemon_threads = True

    def __init__(self, *arguments):
        self._connections = set()
        super().__init__(*arguments)  # type: ignore[arg-type]

    def process_request(self, request, client_address):
        self._connections.add(request)  # type: ignore[arg-type]
        super().process_request(request, client_address)  # type: ignore[arg-type]

    def shutdown_request(self, request):
        self._connections.discard(request)  # type: ignore[arg-type]
        super().shutdown_request(request)  # type: ignore[arg-type]

    def handle_error(self, *_):
        """A client that went away is nothing to report."""

    def end_connections(self):
        for one in list(self._connections):
            with suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    proxy: Proxy

    def do_GET(self):
        fault = self.proxy.fault_of(self.command, self._address())
        kind = fault.kind if fault else None
        if kind == "silence":
            self.proxy.wait_out(None)
        if kind in ("silence", "drop"):
            self._end()
            return
        if kind == "hold request":
            self._hold()
            return
        body = self._body()
        if body is None:
            self._end()
            return
        if fault and kind == "status":
            self._refuse(fault.status)
            return
        if fault and kind == "delay":
            self.proxy.wait_out(fault.seconds)
        if fault and kind == "gate":
            while not fault.gate.wait(0.05) and not self.proxy.has_ended:
                """The gate opens, or the proxy ends."""
        if kind == "cut request":
            self._forward_part(body[: len(body) // 2], len(body))
            self._end()
            return
        answer, content = self._forward(body)
        if kind == "lose answer":
            self._end()
            return
        if kind == "damage" and content:
            middle = len(content) // 2
            content = b"%b%c%b" % (content[:middle], content[middle] ^ 1, content[middle + 1 :])
        self._reply(answer, content, is_cut=kind == "cut answer")

    do_HEAD = do_POST = do_PUT = do_DELETE = do_PATCH = do_GET  # noqa: N815  (http.server's names)

    def _address(self):
        """Return the address; where the body names the object, as a part of it."""
        if "uploadType=multipart" not in self.path:
            return self.path
        found = re.search(rb'"name": *("(?:[^"\\]|\\.)*")', self.rfile.peek(4096))
        return f"{self.path}&name={quote(json.loads(found.group(1)))}" if found else self.path

    def log_message(self, *_):
        """The test reads `Proxy.requests`."""

    def _body(self):
        """Return the body; of one whose sender went away hand on what came, and return None."""
        if self.headers.get("Transfer-Encoding", "").lower() != "chunked":
            size = int(self.headers.get("Content-Length") or 0)
            body = self.rfile.read(size)
            if len(body) == size:
                return body
            self._forward_part(body, size)
            return None
        blocks = []
        while size := int(self.rfile.readline().split(b";")[0] or b"0", 16):
            blocks.append(self.rfile.read(size))
            self.rfile.read(2)
        while self.rfile.readline().strip():
            """Trailers end at an empty line."""
        return b"".join(blocks)

    def _hold(self):
        size = int(self.headers.get("Content-Length") or 0)
        connection = self._begin(size)
        connection.send(self.rfile.read(size // 2))
        self.proxy.holding.set()
        # Nothing more is read, so that a large body fills the way to here.
        self.proxy.wait_for_end(self.connection)
        connection.close()
        self._end()

    def _begin(self, size):
        """Send the head of the request on; the host stays the client's, which it has signed."""
        connection = http.client.HTTPConnection(self.proxy.upstream, timeout=120)
        connection.putrequest(self.command, self.path, skip_host=True, skip_accept_encoding=True)
        for key, value in self.headers.items():
            if key.lower() not in {*_OF_THE_CONNECTION, "content-length"}:
                connection.putheader(key, value)
        if size or self.command in ("POST", "PUT", "PATCH"):
            connection.putheader("Content-Length", str(size))
        connection.endheaders()
        return connection

    def _forward(self, body):
        connection = self._begin(len(body))
        if body:
            connection.send(body)
        answer = connection.getresponse()
        content = answer.read()
        connection.close()
        return answer, content

    def _forward_part(self, part, size):
        connection = self._begin(size)
        connection.send(part)
        # The server shall see the part before it sees the end.
        time.sleep(0.05)
        connection.close()

    def _reply(self, answer, content, *, is_cut):
        self.send_response_only(answer.status, answer.reason)
        for key, value in answer.getheaders():
            if key.lower() not in {*_OF_THE_CONNECTION, "content-length"}:
                self.send_header(key, value)
        told = answer.headers.get("Content-Length")
        if self.command == "HEAD":
            if told is not None:
                self.send_header("Content-Length", told)
        elif answer.status not in (204, 304):
            self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        if self.command != "HEAD" and answer.status not in (204, 304):
            self.wfile.write(content[: len(content) // 2] if is_cut else content)
        if is_cut:
            self._end()

    def _refuse(self, status):
        self.send_response_only(status)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def _end(self):
        self.close_connection = True
        with suppress(OSError):
            self.connection.shutdown(socket.SHUT_RDWR)


def repeat_at_once(replace=setattr):
    """Let the clients' libraries wait a hundredth of what they do before they repeat a request."""

    class Time:
        sleep = staticmethod(lambda seconds: time.sleep(seconds / 100))
        monotonic, time = time.monotonic, time.time

    modules = ("botocore.endpoint", "google.api_core.retry.retry_unary")
    for module in (*modules, "slicebeam.transforms.storage.object_stores"):
        replace(import_module(module), "time", Time)
