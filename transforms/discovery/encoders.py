"""Encoders of texts, by the names that users give."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from slicebeam.metrics.errors import OptionError, unknown_name
from slicebeam.transforms.discovery.endpoint_encoder import endpoint_encoder
from slicebeam.transforms.discovery.minilm import minilm_encoder
from slicebeam.transforms.discovery.model_handler import handler_encoder

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import numpy as np
    from numpy.typing import NDArray

    from slicebeam.transforms.storage.storage import StoragePath

LSA = "lsa"
_ENDPOINT = "openai:"


class Encoder(Protocol):
    """Turns texts into vectors; it is sent to workers by pickle, and loads large files there."""

    @property
    def name(self) -> str:
        """As the user wrote it: ``lsa``, ``minilm``, ``openai:https://…``, ``module:function``."""

    @property
    def fingerprint(self) -> str:
        """``sha256:…`` of all that decides the vectors and can be known."""

    def encode(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """Return the vectors of texts, shape ``[n, D]``, the same for the same text."""


# Encoders that slicebeam brings, by name: functions of the folder of their cache, if any.
_NAMED: dict[str, Callable[[StoragePath | None], Encoder]] = {"minilm": minilm_encoder}


def needs_fit(spec: str) -> bool:
    """Whether the encoder is learned from the texts: by `LsaEncoder.fit`, not by `encoder`."""
    return spec == LSA


def encoder(spec: str, *, cache: StoragePath | None) -> Encoder:
    """Return the encoder that ``--encoder`` names; nothing large is loaded, and no endpoint is called.

    The cache is a folder that stores embeddings for later calls, processes and runs, if any.
    """
    if spec in _NAMED:
        return _NAMED[spec](cache)
    if spec.startswith(_ENDPOINT):
        return endpoint_encoder(spec, cache)
    if ":" not in spec:
        raise unknown_name("encoder", spec, [LSA, *_NAMED, "openai:URL", "module:function"])
    if "://" in spec:
        raise OptionError(f"--encoder {spec}: write openai: before the address of an endpoint")
    return handler_encoder(spec, cache)
