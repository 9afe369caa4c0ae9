"""Encoders of texts, by the names that users give."""

from __future__ import annotations

from typing import TYPE_CHECKING

from slicebeam.metrics.errors import OptionError, unknown_name
from slicebeam.transforms.encoders.cache import CachedEncoder
from slicebeam.transforms.encoders.endpoint import endpoint_encoder
from slicebeam.transforms.encoders.lsa import StoredEncoder
from slicebeam.transforms.encoders.minilm import minilm_encoder
from slicebeam.transforms.encoders.model_handler import handler_encoder

if TYPE_CHECKING:
    from slicebeam.transforms.storage.storage import StoragePath

LSA = "lsa"
_MINILM = "minilm"
_ENDPOINT = "openai:"


# Turns texts into vectors, the same for the same text; it is sent to workers by pickle.
Encoder = CachedEncoder | StoredEncoder


def needs_fit(spec: str) -> bool:
    """Whether the encoder is learned from the texts: by `LsaEncoder.fit`, not by `encoder`."""
    return spec == LSA


def encoder(spec: str, *, cache: StoragePath | None) -> Encoder:
    """Return the encoder that ``--encoder`` names; nothing large is loaded, and no endpoint is called.

    The cache is a folder that stores embeddings for later calls, processes and runs, if any.
    """
    if spec == _MINILM:
        return minilm_encoder(cache)
    if spec.startswith(_ENDPOINT):
        return endpoint_encoder(spec, cache)
    if ":" not in spec:
        raise unknown_name("encoder", spec, [LSA, _MINILM, "openai:URL", "module:function"])
    if "://" in spec:
        raise OptionError(f"--encoder {spec}: write openai: before the address of an endpoint")
    return handler_encoder(spec, cache)
