"""The folder that caches embeddings: no text is embedded twice.

A file has the vectors of some texts and is named by its content, so that processes may write at the
same time. A text is identified by a hash of the text and the encoder; the texts are not stored.
"""

from __future__ import annotations

import hashlib
import threading
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from slicebeam.metrics.errors import EngineError
from slicebeam.transforms.storage.storage import make_folder, matching, storage_errors
from slicebeam.transforms.storage.work_files import open_arrow, write_arrow

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from numpy.typing import NDArray

    from slicebeam.metrics.arrays import BoolArray
    from slicebeam.transforms.storage.storage import StoragePath

    Keep = Callable[[slice, NDArray[np.float32]], None]
    Embed = Callable[[Sequence[str], Keep], None]

# 128 bits: among a billion texts no two have the same by chance.
_KEY = np.dtype("S16")
_KEY_BYTES = 16
_PREFIX_DIGITS, _NAME_DIGITS = 12, 32


@dataclass(frozen=True)
class VectorSource:
    """The encoder whose vectors are cached, and the folder (of all encoders; None keeps nothing).

    The name is for messages and readers of the files, and contains no secret.
    """

    name: str
    fingerprint: str
    folder: StoragePath | None

    @property
    def prefix(self) -> str:
        """What the names of its files begin with."""
        return hashlib.sha256(self.fingerprint.encode()).hexdigest()[:_PREFIX_DIGITS]


def embed_once(texts: Sequence[str], source: VectorSource, embed: Embed) -> NDArray[np.float32]:
    """Return the vectors of texts [n, D], embedding those that are not kept yet, each of them once.

    `embed` gets the missing texts, and hands over vectors [rows, D] of a part as soon as it has them, from
    any thread; they are kept even if it fails later. D is 0 where there is no text, and none is kept.
    """
    row_of: dict[str, int] = {}
    rows = np.fromiter(
        (row_of.setdefault(text, len(row_of)) for text in texts), np.intp, len(texts)
    )
    distinct = list(row_of)
    keys = _keys(distinct, source.fingerprint)
    store = _Store(source) if source.folder is None else _opened(source)
    missing = np.flatnonzero(~store.has(keys))
    if len(missing):
        # Others may have embedded them in the meantime.
        store.refresh()
        missing = np.flatnonzero(~store.has(keys))
    if len(missing):
        with store.taking(keys[missing]) as keep:
            embed([distinct[row] for row in missing], keep)
    return store.vectors(keys)[rows]


def _keys(texts: Sequence[str], fingerprint: str) -> NDArray[np.bytes_]:
    start = hashlib.sha256(fingerprint.encode())
    digests = []
    for text in texts:
        digest = start.copy()
        digest.update(text.encode("utf-8", "surrogatepass"))
        digests.append(digest.digest()[:_KEY_BYTES])
    return np.frombuffer(b"".join(digests), _KEY)


@lru_cache(1)
def _opened(source: VectorSource) -> _Store:
    # Its vectors are in memory until another encoder is used.
    return _Store(source)


@dataclass
class _Store:
    """The vectors of one encoder that a process knows: its own, and those in the folder's files."""

    source: VectorSource
    # The part and the row of each key.
    _places: dict[bytes, tuple[int, int]] = field(default_factory=dict)
    _parts: list[NDArray[np.float32]] = field(default_factory=list)
    _files: set[str] = field(default_factory=set)
    _changing: threading.RLock = field(default_factory=threading.RLock)

    def has(self, keys: NDArray[np.bytes_]) -> BoolArray:
        """Tell which vectors are there."""
        with self._changing:
            return np.fromiter((key in self._places for key in keys.tolist()), bool, len(keys))

    def vectors(self, keys: NDArray[np.bytes_]) -> NDArray[np.float32]:
        """Return vectors that are all there, shape ``[n, D]``."""
        with self._changing:
            found = np.empty((len(keys), self._dimensions or 0), np.float32)
            places = np.array([self._places[key] for key in keys.tolist()], int).reshape(-1, 2)
            for part in np.unique(places[:, 0]):
                mine = places[:, 0] == part
                found[mine] = self._parts[part][places[mine, 1]]
            return found

    @property
    def _dimensions(self) -> int | None:
        return self._parts[0].shape[1] if self._parts else None

    def _add(self, keys: NDArray[np.bytes_], vectors: NDArray[np.float32], where: str) -> None:
        with self._changing:
            known = self._dimensions
            if known is not None and vectors.shape[1] != known:
                raise EngineError(
                    f"{where} vectors of {vectors.shape[1]} numbers, where {self.source.name} "
                    f"gave {known} before: the model has changed\n"
                    f"delete the files {self.source.prefix}-*.arrow in {self.source.folder}, and "
                    "run again"
                )
            for row, key in enumerate(keys.tolist()):
                self._places.setdefault(key, (len(self._parts), row))
            self._parts.append(vectors)

    def refresh(self) -> None:
        """Learn what files were written since."""
        folder = self.source.folder
        if folder is None:
            return
        pattern, is_complete = f"{self.source.prefix}-*.arrow", False
        with self._changing:
            while not is_complete:
                with storage_errors(folder, "read"):
                    found = matching(folder, pattern) if folder.is_dir() else []
                is_complete = True
                for path in found:
                    if path.name not in self._files:
                        read = _read(path)
                        if read is None:
                            is_complete = False
                        else:
                            self._add(*read, f"{path} has")
                        self._files.add(path.name)

    @contextmanager
    def taking(self, keys: NDArray[np.bytes_]) -> Iterator[Keep]:
        """Take the vectors of keys, in parts as they come, each into a file that at once is whole."""
        # When all are there, one file takes the place of the many.
        written: list[StoragePath] = []
        taken: list[tuple[slice, NDArray[np.float32]]] = []

        def keep(rows: slice, vectors: NDArray[np.float32]) -> None:
            self._add(keys[rows], vectors, f"{self.source.name} gives")
            path = self._write(keys[rows], vectors)
            with self._changing:
                taken.append((rows, vectors))
                written.extend([] if path is None else [path])

        yield keep
        if len(written) > 1:
            taken.sort(key=lambda part: part[0].start)
            self._write(
                np.concatenate([keys[rows] for rows, _ in taken]),
                np.concatenate([vectors for _, vectors in taken]),
            )
            for path in written:
                with storage_errors(path, "delete"):
                    path.unlink(missing_ok=True)

    def _write(self, keys: NDArray[np.bytes_], vectors: NDArray[np.float32]) -> StoragePath | None:
        folder = self.source.folder
        if folder is None:
            return None
        content = hashlib.sha256(keys.tobytes() + vectors.tobytes()).hexdigest()[:_NAME_DIGITS]
        path = folder / f"{self.source.prefix}-{content}.arrow"
        with storage_errors(folder, "write"):
            make_folder(folder)
        batch = pa.RecordBatch.from_arrays(
            [
                pa.FixedSizeBinaryArray.from_buffers(
                    pa.binary(_KEY_BYTES), len(keys), [None, pa.py_buffer(keys.tobytes())]
                ),
                pa.FixedSizeListArray.from_arrays(pa.array(vectors.ravel()), vectors.shape[1]),
            ],
            schema=pa.schema(
                {"key": pa.binary(_KEY_BYTES), "vector": pa.list_(pa.float32(), vectors.shape[1])},
                {"encoder": self.source.name, "fingerprint": self.source.fingerprint},
            ),
        )
        # Known before others can see it: what it has is in memory.
        with self._changing:
            self._files.add(path.name)
        write_arrow(path, batch.schema, [batch])
        return path


def _read(path: StoragePath) -> tuple[NDArray[np.bytes_], NDArray[np.float32]] | None:
    """Return the keys and vectors of a file, mapped; None if it is gone, and another has them."""
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
    keys = np.frombuffer(batch.column("key").buffers()[1], _KEY, batch.num_rows)
    vectors: NDArray[np.float32] = batch.column("vector").flatten().to_numpy()
    return keys, vectors.reshape(batch.num_rows, -1)
