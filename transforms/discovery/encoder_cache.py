"""The folder that caches embeddings: no text is embedded twice.

A file has the vectors of some texts and is named by its content, so that processes may write at the
same time. A text is identified by a hash of the text and the encoder; the texts are not stored.
"""

from __future__ import annotations

import hashlib
import threading
from dataclasses import dataclass, field
from functools import lru_cache, partial
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from slicebeam.metrics.errors import EngineError
from slicebeam.transforms.storage.storage import make_folder, matching, storage_errors
from slicebeam.transforms.storage.work_files import open_arrow, write_arrow

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray

    from slicebeam.transforms.storage.storage import StoragePath

    Keep = Callable[[slice, NDArray[np.float32]], None]
    Embed = Callable[[Sequence[str], Keep], None]

# 128 bits: among a billion texts no two have the same by chance.
_KEY_BYTES = 16
_PREFIX_DIGITS, _NAME_DIGITS = 12, 32


@dataclass(frozen=True)
class CachedEncoder:
    """An encoder whose vectors are cached in a folder (of all encoders; None keeps nothing).

    The name is as the user wrote it, and contains no secret; the fingerprint is a hash of all that decides the
    vectors and can be known. `embed` gets the texts that are not kept yet, each of them once, and hands over
    vectors [rows, D] of a part as soon as it has them, from any thread; they are kept even if it fails later.
    `dimensions`: D, where it is known before the first text.
    """

    name: str
    fingerprint: str
    folder: StoragePath | None
    embed: Embed
    dimensions: int = 0

    def encode(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """Return the vectors of texts, shape ``[n, D]``."""
        row_of: dict[str, int] = {}
        rows = [row_of.setdefault(text, len(row_of)) for text in texts]
        distinct = list(row_of)
        keys = _keys(distinct, self.fingerprint)
        opened = _opened if self.folder is not None else _Store
        store = opened(self.name, self.fingerprint, self.folder)
        if missing := store.missing(keys):
            new = [distinct[row] for row in missing]
            store.take([keys[row] for row in missing], partial(self.embed, new))
        return store.vectors(keys, self.dimensions)[np.array(rows, np.intp)]


def fingerprint_of(identity: str) -> str:
    """Return ``sha256:…`` of what decides the vectors."""
    return f"sha256:{hashlib.sha256(identity.encode()).hexdigest()}"


def _keys(texts: Sequence[str], fingerprint: str) -> list[bytes]:
    start = hashlib.sha256(fingerprint.encode())
    keys = []
    for text in texts:
        digest = start.copy()
        digest.update(text.encode("utf-8", "surrogatepass"))
        keys.append(digest.digest()[:_KEY_BYTES])
    return keys


@dataclass
class _Store:
    """The vectors of one encoder that a process knows: its own, and those in the folder's files."""

    name: str
    fingerprint: str
    folder: StoragePath | None
    # The part and the row of each key.
    _places: dict[bytes, tuple[int, int]] = field(default_factory=dict)
    _parts: list[NDArray[np.float32]] = field(default_factory=list)
    _files: set[str] = field(default_factory=set)
    _changing: threading.RLock = field(default_factory=threading.RLock)

    @property
    def _prefix(self) -> str:
        return hashlib.sha256(self.fingerprint.encode()).hexdigest()[:_PREFIX_DIGITS]

    def missing(self, keys: Sequence[bytes]) -> list[int]:
        """Return which vectors are not there; others may have written them in the meantime."""
        with self._changing:
            if not all(key in self._places for key in keys):
                self._refresh()
            return [row for row, key in enumerate(keys) if key not in self._places]

    def vectors(self, keys: Sequence[bytes], dimensions: int) -> NDArray[np.float32]:
        """Return vectors that are all there, shape ``[n, D]``."""
        with self._changing:
            found = np.empty((len(keys), self._dimensions or dimensions), np.float32)
            places = np.array([self._places[key] for key in keys], int).reshape(-1, 2)
            for part in np.unique(places[:, 0]):
                mine = places[:, 0] == part
                found[mine] = self._parts[part][places[mine, 1]]
            return found

    @property
    def _dimensions(self) -> int:
        return self._parts[0].shape[1] if self._parts else 0

    def _add(self, keys: Sequence[bytes], vectors: NDArray[np.float32], where: str) -> None:
        with self._changing:
            known = self._dimensions
            if known and vectors.shape[1] != known:
                raise EngineError(
                    f"{where} vectors of {vectors.shape[1]} numbers, where {self.name} gave {known} before: the "
                    f"model has changed\ndelete the files {self._prefix}-*.arrow in {self.folder}, and run again"
                )
            for row, key in enumerate(keys):
                self._places.setdefault(key, (len(self._parts), row))
            self._parts.append(vectors)

    def _refresh(self) -> None:
        """Learn what files were written since."""
        is_complete = self.folder is None
        while self.folder is not None and not is_complete:
            with storage_errors(self.folder, "read"):
                pattern = f"{self._prefix}-*.arrow"
                found = matching(self.folder, pattern) if self.folder.is_dir() else []
            is_complete = True
            for path in found:
                if path.name not in self._files:
                    read = _read(path)
                    if read is None:
                        is_complete = False
                    else:
                        self._add(*read, f"{path} has")
                    self._files.add(path.name)

    def take(self, keys: Sequence[bytes], embed: Callable[[Keep], None]) -> None:
        """Take the vectors of keys, in parts as they come, each into a file that at once is whole."""
        # When all are there, one file takes the place of the many.
        parts: list[tuple[slice, NDArray[np.float32], list[StoragePath]]] = []

        def keep(rows: slice, vectors: NDArray[np.float32]) -> None:
            self._add(keys[rows], vectors, f"{self.name} gives")
            parts.append((rows, vectors, self._write(keys[rows], vectors)))

        embed(keep)
        if len(parts) > 1:
            parts.sort(key=lambda part: part[0].start)
            ordered = [key for rows, _, _ in parts for key in keys[rows]]
            self._write(ordered, np.concatenate([vectors for _, vectors, _ in parts]))
            for path in (path for _, _, written in parts for path in written):
                with storage_errors(path, "delete"):
                    path.unlink(missing_ok=True)

    def _write(self, keys: Sequence[bytes], vectors: NDArray[np.float32]) -> list[StoragePath]:
        """Write vectors into the folder, if there is one, and return the file."""
        folder = self.folder
        if folder is None:
            return []
        content = hashlib.sha256(b"".join(keys) + vectors.tobytes()).hexdigest()[:_NAME_DIGITS]
        path = folder / f"{self._prefix}-{content}.arrow"
        with storage_errors(folder, "write"):
            make_folder(folder)
        D = vectors.shape[1]
        flat = pa.FixedSizeListArray.from_arrays(pa.array(vectors.ravel()), D)
        schema = pa.schema(
            {"key": pa.binary(_KEY_BYTES), "vector": pa.list_(pa.float32(), D)},
            {"encoder": self.name, "fingerprint": self.fingerprint},
        )
        columns = [pa.array(keys, pa.binary(_KEY_BYTES)), flat]
        # Known before others can see it: what it has is in memory.
        self._files.add(path.name)
        write_arrow(path, schema, [pa.record_batch(columns, schema=schema)])
        return [path]


# The vectors of an encoder are in memory until another encoder is used.
_opened = lru_cache(1)(_Store)


def _read(path: StoragePath) -> tuple[list[bytes], NDArray[np.float32]] | None:
    """Return the keys, and the vectors of a file, mapped; None if it is gone, and another has them."""
    try:
        batch = open_arrow(path, is_unchanging=True).get_batch(0)
    except EngineError as error:
        if not path.is_file():
            return None
        if isinstance(error.__cause__, OSError):
            raise
        raise EngineError(
            f"{path} is damaged: its content has changed; delete it, and its texts are embedded "
            "again"
        ) from error
    vectors: NDArray[np.float32] = batch.column("vector").flatten().to_numpy()
    return batch.column("key").to_pylist(), vectors.reshape(batch.num_rows, -1)
