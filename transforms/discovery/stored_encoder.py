"""A fitted encoder in the work folder: it is sent to workers by its path, not with all its words."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING

from slicebeam.transforms.encode.passes import read_found, write_found
from slicebeam.transforms.encoders.lsa import LsaEncoder
from slicebeam.transforms.storage.storage import storage_path

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy as np
    from numpy.typing import NDArray

    from slicebeam.transforms.storage.storage import StoragePath


@dataclass(frozen=True)
class StoredEncoder:
    """An `LsaEncoder` that a process loads when it first embeds a text."""

    path: str
    fingerprint: str

    @classmethod
    def written(cls, fitted: LsaEncoder, path: StoragePath) -> StoredEncoder:
        """Write a fitted encoder."""
        write_found(path, {name: values.ravel() for name, values in fitted.to_arrays().items()})
        return cls(str(path), fitted.fingerprint)

    @property
    def name(self) -> str:
        """As the user writes it."""
        return "lsa"

    def encode(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """Return the vectors of texts, see `LsaEncoder.encode`."""
        return _loaded(self.path, self.fingerprint).encode(texts)

    def load(self) -> LsaEncoder:
        """Return the encoder itself."""
        return _loaded(self.path, self.fingerprint)


@lru_cache(maxsize=2)
def _loaded(path: str, fingerprint: str) -> LsaEncoder:  # noqa: ARG001  (what the path holds now)
    arrays = read_found(storage_path(path))
    arrays["components"] = arrays["components"].reshape(-1, arrays["idf"].size)
    return LsaEncoder.from_arrays(arrays)
