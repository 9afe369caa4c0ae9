"""Who may ask the server: the page that it served itself, in the browser of the one who started it.

Another site that a browser shows can send requests to this machine, also under a name of its own that
it points here; another user of the machine can reach the port. Neither knows the token.
"""

from __future__ import annotations

import asyncio
import hmac
import re
import secrets
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated
from urllib.parse import quote, unquote

from pydantic import Field
from starlette.datastructures import Headers, MutableHeaders

from slicebeam.pipelines.page.answers import Given, RefusedError, failed

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

HEADER, SESSION = "x-slicebeam-token", "/api/session"
# Bytes of a body: of JSON, and of a file that a user brings.
MOST_JSON, MOST_UPLOADED = 1 << 20, 512 << 20
# Seconds that a request may take to go on with its head, or with its body.
MOST_SECONDS = 20.0
_JSON, _BYTES = "application/json", "application/octet-stream"
_LOOPBACK = ("127.0.0.1", "localhost", "[::1]")
# Files of the page, which are the same for every output and hold nothing of any.
ASSETS = {"served.js": "text/javascript", "page.css": "text/css", "served.css": "text/css"}
# Of one of several outputs, the paths begin with its name.
_RUN = r"(/runs/[^/]+)?"
_PUBLIC = re.compile(rf"{_RUN}/|/({'|'.join(map(re.escape, ASSETS))})")
_UPLOAD = re.compile(rf"{_RUN}/api/upload/[^/]+")
# How a path is written: in segments of plain characters, with escapes in the name of a run alone.
_PATH = re.compile(
    r"(?:/runs/(?P<name>(?:[\w.~!'()*-]|%[0-9A-F]{2})+))?(?P<rest>(?:/[\w.~!'()*-]+)*/?)", re.ASCII
)
_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
_HEADERS = {
    "content-security-policy": _POLICY,
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "x-frame-options": "DENY",
    "cache-control": "no-store",
}


@dataclass
class PageSession:
    """What lets a page ask a server.

    ``port``: that the server listens at. ``token``: 256 bits, which the page keeps for its tab and
    sends in a header; a cookie would go to every port of this machine. The page gets it for a code
    in the fragment of its address, which a browser sends to no server. A code is good once, so that
    an address in a history, a log or a screenshot opens nothing. ``on_new_code``: what says to the
    user where the next page is opened.
    """

    port: int
    token: str = field(default_factory=lambda: secrets.token_urlsafe(32), repr=False)
    on_new_code: list[Callable[[], None]] = field(default_factory=list, repr=False)
    _code: str = field(default_factory=lambda: secrets.token_urlsafe(32), repr=False)
    _lock: threading.Lock = field(default_factory=threading.Lock, repr=False)

    def address(self, path: str = "/") -> str:
        """Return the address of a page, with the code."""
        return f"http://127.0.0.1:{self.port}{path}#code={self._code}"

    def begin(self, request: PageCode) -> dict[str, str]:
        """Return the token for the code of an address, which is replaced by another one."""
        with self._lock:
            if not hmac.compare_digest(request.code.encode(), self._code.encode()):
                raise RefusedError(
                    "this address was opened before, or is of an earlier server; run slicebeam serve "
                    "again for another one",
                    401,
                )
            self._code = secrets.token_urlsafe(32)
            for publish in self.on_new_code:
                publish()
        return {"token": self.token}


class PageCode(Given):
    """The code of an address."""

    code: Annotated[str, Field(max_length=100)]


class _TooLargeError(RefusedError):
    """A body is longer than its bound; the application answers it like other refusals."""


class Protection:
    """Refuses what does not come from the page, and adds the headers that bind it."""

    def __init__(self, app: ASGIApp, session: PageSession) -> None:
        self.app, self.session = app, session

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request."""
        if scope["type"] == "lifespan":
            await self.app(scope, receive, send)
            return
        if scope["type"] != "http":
            # There are no sockets.
            await send({"type": "websocket.close", "code": 1008})
            return
        headers = Headers(scope=scope)

        async def answer(message: Message) -> None:
            if message["type"] == "http.response.start":
                own = MutableHeaders(scope=message)
                for name, value in _HEADERS.items():
                    own[name] = value
            await send(message)

        refusal = self._refusal(scope, headers)
        if refusal is not None:
            await failed(*refusal)(scope, receive, answer)
            return
        most = MOST_UPLOADED if _UPLOAD.fullmatch(scope["path"]) else MOST_JSON
        await self.app(scope, _bounded(receive, most), answer)

    def _refusal(self, scope: Scope, headers: Headers) -> tuple[int, str] | None:
        """Return status and reason of a request that is refused; None for one that is let through."""
        host = headers.getlist("host")
        if len(host) != 1 or host[0] not in {f"{one}:{self.session.port}" for one in _LOOPBACK}:
            return 403, "this server answers only under 127.0.0.1, localhost and [::1]"
        method, path = scope["method"], scope["path"]
        if method not in ("GET", "HEAD", "POST"):
            return 405, f"{method} is not used here"
        if not _is_path(path, scope.get("raw_path")):
            return 404, "there is nothing at this path"
        if _PUBLIC.fullmatch(path):
            return None if method != "POST" else (405, "POST is not used here")
        # Whatever else there is, or is not, only the page may know.
        shown = headers.get(HEADER, "").encode()
        is_known = hmac.compare_digest(shown, self.session.token.encode())
        if not is_known and (method, path) != ("POST", SESSION):
            return 401, "open the address that slicebeam serve prints when you run it again"
        if headers.get("sec-fetch-site", "same-origin") not in ("same-origin", "none"):
            return 403, "another site sent this request"
        if method != "POST":
            return None
        if headers.getlist("origin") != [f"http://{host[0]}"]:
            return 403, "another site sent this request"
        kind = headers.get("content-type", "").partition(";")[0].strip().lower()
        wanted = _BYTES if _UPLOAD.fullmatch(path) else _JSON
        if kind != wanted:
            return 415, f"a request to this path holds {wanted}"
        return None


def _is_path(path: str, raw: bytes | None) -> bool:
    """Return whether a path is written in the only way that this server uses.

    Whatever reads a path after this reads it as it was checked: no segment is empty or a dot, and an escape
    stands only in the name of a run, for a character that can't be written otherwise.

    ``path``: as the routes get it. ``raw``: as it was sent.

    Examples
    --------
    >>> _is_path("/api/page", b"/api/page"), _is_path("/runs/a b/", b"/runs/a%20b/")
    (True, True)
    >>> _is_path("/api//page", b"/api//page"), _is_path("/api/page", b"/api/%70age")
    (False, False)
    """
    found = _PATH.fullmatch((raw or b"").decode("latin-1"))
    if found is None or not path:
        return False
    written, rest = found["name"] or "", found["rest"]
    try:
        name = unquote(written, errors="strict")
    except UnicodeDecodeError:
        return False
    return (
        written in _spellings(name)
        and name.isprintable()
        and not {"/", "\\"} & set(name)
        and not {".", ".."} & {name, *rest.split("/")}
        and path == (f"/runs/{name}" if name else "") + rest
    )


def _spellings(name: str) -> tuple[str, str]:
    """Return how the server and how a browser write the name of a run in a path."""
    return quote(name, safe=""), quote(name, safe="!'()*")


def _bounded(receive: Receive, most: int) -> Receive:
    """Return what reads a body and stops where it is longer than ``most`` bytes, or does not go on."""
    seen, is_whole = 0, False

    async def bounded() -> Message:
        nonlocal seen, is_whole
        if is_whole:
            return await receive()
        try:
            message = await asyncio.wait_for(receive(), MOST_SECONDS)
        except asyncio.TimeoutError:
            raise RefusedError("the rest of the request did not come", 408) from None
        is_whole = not message.get("more_body", False)
        seen += len(message.get("body", b""))
        if seen > most:
            raise _TooLargeError(f"a request has at most {most >> 20} MB", 413)
        return message

    return bounded
