"""Vectors of texts from an endpoint that answers like OpenAI's ``/v1/embeddings``."""

from __future__ import annotations

import asyncio
import hashlib
import os
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING
from urllib.parse import parse_qsl, urlsplit, urlunsplit

from slicebeam.metrics.errors import InputError, OptionError, install_hint, unknown_name
from slicebeam.transforms.encoders.cache import VectorSource, embed_once
from slicebeam.transforms.encoders.embedding_calls import Calls
from slicebeam.transforms.secrets.plain_http import is_allowed, refuse_plain_http

if TYPE_CHECKING:
    from collections.abc import Sequence
    from urllib.parse import SplitResult

    import numpy as np
    from numpy.typing import NDArray

    from slicebeam.transforms.encoders.cache import Keep
    from slicebeam.transforms.storage.storage import StoragePath

KEY_VARIABLE = "OPENAI_API_KEY"
_DEFAULT_MODEL = "text-embedding-3-small"
_KIND = "openai:"
_EXAMPLE = "openai:https://host/v1?model=NAME"


@dataclass(frozen=True)
class EndpointEncoder:
    """Asks an endpoint, at the address and for the model that the name gives.

    The key is read from the environment of the calling process, and is in no file and no pickle; it goes
    to another machine over http only where that is allowed. Vectors may have any length.
    """

    name: str
    address: str
    model: str
    cache: StoragePath | None
    allow_http: bool = False

    @property
    def fingerprint(self) -> str:
        """``sha256:…`` of the address and the model."""
        identity = f"endpoint {self.address} {self.model}"
        return f"sha256:{hashlib.sha256(identity.encode()).hexdigest()}"

    def encode(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """Return the vectors of texts, shape ``[n, D]``.

        An empty text is sent as a blank, since OpenAI's endpoint refuses the empty one.
        """
        source = VectorSource(self.name, self.fingerprint, self.cache)
        return embed_once([text or " " for text in texts], source, self._embed)

    def check_key(self, key: str) -> None:
        """Refuse to send a key where others can read it."""
        if key:
            where = f"--encoder {self.name}"
            refuse_plain_http(
                where, self.address, f"the key in {KEY_VARIABLE}", allowed=self.allow_http
            )

    def _embed(self, texts: Sequence[str], keep: Keep) -> None:
        key = _key()
        self.check_key(key)
        calls = Calls(self.name, self.address, self.model, key)
        try:
            asyncio.get_running_loop()
        except RuntimeError:
            asyncio.run(calls.make(texts, keep))
            return
        # A notebook runs its cells inside of a loop.
        with ThreadPoolExecutor(1) as thread:
            thread.submit(asyncio.run, calls.make(texts, keep)).result()


def endpoint_encoder(spec: str, cache: StoragePath | None) -> EndpointEncoder:
    """Return the encoder of ``openai:URL``, where the URL may end in ``?model=NAME``.

    The address is that of the API, such as ``https://host/v1``, or of its ``…/embeddings``.
    """
    try:
        import aiohttp  # noqa: F401
    except ImportError as error:
        raise OptionError(f"--encoder openai: needs aiohttp; {install_hint('api')}") from error
    address = spec.removeprefix(_KIND)
    parts = _parts(spec, address)
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
    found = EndpointEncoder(spec, address, model, cache, is_allowed())
    # Workers may have a key that this process has not, and look again.
    found.check_key(os.environ.get(KEY_VARIABLE, "").strip())
    return found


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


def _key() -> str:
    key = os.environ.get(KEY_VARIABLE, "").strip()
    if not (key.isascii() and key.isprintable()):
        raise InputError(
            f"{KEY_VARIABLE} in the environment contains characters that are not allowed in a key; set it again"
        )
    return key
