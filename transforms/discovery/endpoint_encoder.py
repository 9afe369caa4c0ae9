"""Vectors of texts from an endpoint that answers like OpenAI's ``/v1/embeddings``."""

from __future__ import annotations

import asyncio
import json
import os
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING
from urllib.parse import parse_qsl, urlsplit, urlunsplit

import numpy as np

from slicebeam.metrics.errors import (
    EngineError,
    InputError,
    OptionError,
    install_hint,
    unknown_name,
)
from slicebeam.transforms.discovery.encoder_cache import CachedEncoder, fingerprint_of
from slicebeam.transforms.http.calls import (
    NoConnectionError,
    Pace,
    UnknownOutcomeError,
    backoff,
    response_of,
)
from slicebeam.transforms.storage.secrets import HIDDEN, hiding, is_http_allowed, refuse_plain_http

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from urllib.parse import SplitResult

    import aiohttp
    from numpy.typing import NDArray

    from slicebeam.transforms.discovery.encoder_cache import Keep
    from slicebeam.transforms.http.calls import Response
    from slicebeam.transforms.storage.storage import StoragePath


_TEXTS_A_CALL = 64
# Endpoints limit the words of a request as well; a text alone may have more.
_LETTERS_A_CALL = 200_000
_CALLS_AT_ONCE = 4
_RETRIES = 6
_TIMEOUT, _CONNECTS_WITHIN = 120.0, 10.0
_LARGEST_BODY = 64 << 20
_SHOWN = 200


class Calls:
    """The calls that get the vectors of some texts; the key is a bearer token, and is never shown."""

    def __init__(self, name: str, address: str, model: str, key: str) -> None:
        self.name, self.address, self.model, self._key = name, address, model, key
        self._secret = hiding([key])
        self._failure: Exception | None = None
        self._answered = 0
        self._pace = Pace()

    async def make(self, texts: Sequence[str], keep: Keep) -> None:
        """Hand over the vectors of all texts, call by call.

        After a failure no call is begun, and those in flight are waited for: they are paid.
        """
        import aiohttp

        batches = iter(list(_batches(texts)))
        headers = {"User-Agent": "slicebeam", "Content-Type": "application/json"}
        if self._key:
            headers["Authorization"] = f"Bearer {self._key}"
        async with aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=_CALLS_AT_ONCE),
            cookie_jar=aiohttp.DummyCookieJar(),
            timeout=aiohttp.ClientTimeout(total=_TIMEOUT, sock_connect=_CONNECTS_WITHIN),
            headers=headers,
        ) as session:

            async def work() -> None:
                try:
                    for rows in batches:
                        if self._failure is not None:
                            return
                        vectors = await self._vectors(session, texts[rows])
                        self._answered += 1
                        # Writing may take as long as a call.
                        await asyncio.to_thread(keep, rows, vectors)
                except Exception as error:  # noqa: BLE001  (raised when the others have ended)
                    self._failure = self._failure or error

            await asyncio.gather(*(work() for _ in range(_CALLS_AT_ONCE)))
        if self._failure is not None:
            raise self._failure

    async def _vectors(
        self, session: aiohttp.ClientSession, texts: Sequence[str]
    ) -> NDArray[np.float32]:
        body = json.dumps({"model": self.model, "input": list(texts)}).encode()
        never = asyncio.Event()
        failures, answered = 0, self._answered
        while True:
            await self._pace.turn(never)
            wait = None
            try:
                response = await response_of(
                    lambda: session.post(self.address, data=body, allow_redirects=False),
                    where=f"--encoder {self.name}",
                    timeout=_TIMEOUT,
                    most_bytes=_LARGEST_BODY,
                    describe=lambda error: self._shown(str(error) or type(error).__name__),
                )
            except (NoConnectionError, UnknownOutcomeError) as error:
                reason = str(error)
            else:
                if response.status == 200:
                    return self._read(response.body, len(texts))
                if not response.may_pass:
                    raise self._refused(response)
                reason = f"HTTP {response.status}: {self._excerpt(response.body)}"
                wait = self._pace.pause_as_requested(
                    response,
                    f"--encoder {self.name}: HTTP {response.status}: the endpoint",
                    "run again then: finished embeddings are kept",
                )
                # An endpoint that is busy with the other calls has nothing against this one.
                if response.status == 429 and self._answered > answered:
                    failures, answered = 0, self._answered
            failures += 1
            if failures > _RETRIES or self._failure is not None:
                often = "once" if failures == 1 else f"{failures} times"
                raise EngineError(
                    f"--encoder {self.name}: {often} {reason}; run again later: finished "
                    "embeddings are kept"
                )
            if wait is None:
                await asyncio.sleep(backoff(failures))

    def _refused(self, response: Response) -> InputError:
        status = response.status
        if 300 <= status < 400:
            place = self._shown(response.headers.get("Location", "nowhere"))
            return OptionError(
                f"--encoder {self.name}: HTTP {status}: it redirects to {place}, to which no key "
                "is sent; if you trust that address, use it instead"
            )
        remedy = {
            400: "the model's name may be wrong, or a text may be too long for it",
            401: "set OPENAI_API_KEY in the environment, also on remote workers",
            403: "check what the key in OPENAI_API_KEY permits",
        }.get(status, "check the address, and the model's name after ?model=")
        return InputError(
            f"--encoder {self.name}: HTTP {status}: {self._excerpt(response.body)}\n{remedy}"
        )

    def _read(self, body: bytes, count: int) -> NDArray[np.float32]:
        """Return the vectors of an answer in the order of the texts, shape ``[count, D]``."""
        try:
            items = json.loads(body)["data"]
            order = [item["index"] for item in items]
            vectors = [item["embedding"] for item in items]
        except (ValueError, TypeError, KeyError, RecursionError):
            raise self._wrong("it has no list 'data' of index and embedding", body) from None
        if sorted(order, key=str) != sorted(range(count), key=str):
            raise self._wrong(f"it has {len(order)} embeddings for {count} texts", body)
        try:
            with np.errstate(over="ignore"):
                whole = np.asarray(vectors, np.float64).astype(np.float32)
        except (ValueError, TypeError, OverflowError):
            raise self._wrong("its embeddings are not numbers, or differ in length", body) from None
        if whole.ndim != 2 or not whole.shape[1]:
            raise self._wrong("its embeddings are not lists of numbers", body)
        if not np.isfinite(whole).all():
            raise self._wrong("an embedding contains numbers that are not finite", body)
        return whole[np.argsort(order)]

    def _wrong(self, what: str, body: bytes) -> EngineError:
        return EngineError(
            f"--encoder {self.name}: the answer is not that of an embeddings endpoint: {what}: "
            f"{self._excerpt(body)}"
        )

    def _excerpt(self, body: bytes) -> str:
        return self._shown(body.decode("utf-8", "replace")) or "no text"

    def _shown(self, text: str) -> str:
        hidden = self._secret.sub(HIDDEN, text) if self._secret else text
        return " ".join(hidden.split())[:_SHOWN]


def _batches(texts: Sequence[str]) -> Iterator[slice]:
    """Yield which texts go into a call together."""
    start, letters = 0, 0
    for row, text in enumerate(texts):
        letters += len(text)
        if row > start and (row - start == _TEXTS_A_CALL or letters > _LETTERS_A_CALL):
            yield slice(start, row)
            start, letters = row, len(text)
    if len(texts):
        yield slice(start, len(texts))


KEY_VARIABLE = "OPENAI_API_KEY"
_DEFAULT_MODEL = "text-embedding-3-small"
_KIND = "openai:"
_EXAMPLE = "openai:https://host/v1?model=NAME"


@dataclass(frozen=True)
class EndpointEncoder(CachedEncoder):
    """Asks an endpoint; vectors may have any length."""

    def encode(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """Return the vectors of texts, an empty one sent as a blank: OpenAI's endpoint refuses it."""
        return super().encode([text or " " for text in texts])


def endpoint_encoder(spec: str, cache: StoragePath | None) -> EndpointEncoder:
    """Return the encoder of ``openai:URL``, where the URL may end in ``?model=NAME``."""
    # The address is that of the API, such as ``https://host/v1``, or of its ``…/embeddings``.
    try:
        import aiohttp  # noqa: F401
    except ImportError as error:
        raise OptionError(f"--encoder openai: needs aiohttp; {install_hint('api')}") from error
    parts = _parts(spec, spec.removeprefix(_KIND))
    model = _DEFAULT_MODEL
    for key, value in parse_qsl(parts.query, keep_blank_values=True):
        if key != "model":
            # Not the value, nor the whole, since it may be a key.
            raise OptionError(f"--encoder openai: {unknown_name('parameter', key, ['model'])}")
        model = value
    if not model:
        raise OptionError(f"--encoder {spec}: the name of the model is empty")
    path = parts.path.rstrip("/") or "/v1"
    path = path if path.endswith("/embeddings") else f"{path}/embeddings"
    address = urlunsplit((parts.scheme, parts.netloc, path, "", ""))
    # Workers may have a key that this process has not, and look again.
    allow_http = is_http_allowed()
    key_of(spec, address, allow_http)
    embed = partial(_embed, spec, address, model, allow_http)
    return EndpointEncoder(spec, fingerprint_of(f"endpoint {address} {model}"), cache, embed)


def _parts(spec: str, address: str) -> SplitResult:
    try:
        parts = urlsplit(address)
        # Reading it is what finds a wrong one.
        host, _ = parts.hostname, parts.port
    except ValueError as error:
        raise OptionError(
            f"--encoder openai: not an address ({error}); write {_EXAMPLE}"
        ) from error
    if parts.username is not None or parts.password is not None:
        raise OptionError(
            f"--encoder openai: the address contains a user name or password; write {_EXAMPLE}, "
            f"and set {KEY_VARIABLE} in the environment"
        )
    if parts.scheme not in {"http", "https"} or not host:
        raise OptionError(f"--encoder {spec}: {address!r} is not an address; write {_EXAMPLE}")
    return parts


def key_of(name: str, address: str, allow_http: bool) -> str:
    """Return the key in the environment, which no file and no pickle has, unless others could read it."""
    key = os.environ.get(KEY_VARIABLE, "").strip()
    if not (key.isascii() and key.isprintable()):
        raise InputError(
            f"{KEY_VARIABLE} in the environment contains characters that are not allowed in a key; set it again"
        )
    if key:
        where, what = f"--encoder {name}", f"the key in {KEY_VARIABLE}"
        refuse_plain_http(where, address, what, allowed=allow_http)
    return key


def _embed(
    name: str, address: str, model: str, allow_http: bool, texts: Sequence[str], keep: Keep
) -> None:
    calls = Calls(name, address, model, key_of(name, address, allow_http))
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        asyncio.run(calls.make(texts, keep))
        return
    # A notebook runs its cells inside of a loop.
    with ThreadPoolExecutor(1) as thread:
        thread.submit(asyncio.run, calls.make(texts, keep)).result()
