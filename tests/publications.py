"""Sets of files to publish without a run, and readers that see which set a folder holds."""

from __future__ import annotations

import hashlib
import io
import json
import re
import threading
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq

from slicebeam.pipelines.changelist.document import SearchChangeList
from slicebeam.pipelines.changelist.reading import (
    CHANGELIST,
    TABLE,
    file_of,
    naming_files,
    read_search,
    read_table,
)
from slicebeam.transforms.storage.object_stores import (
    NoObjectError,
    ObjectFacts,
    VersionConflictError,
    folder_facts,
)
from slicebeam.transforms.storage.publication import files_to_publish
from slicebeam.transforms.storage.publish import version_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from slicebeam.transforms.storage.publish import Version
    from slicebeam.transforms.storage.storage import StoragePath

MIXTURE = "mixture.npz"
OWN_NAME = re.compile(r"[a-z]+\.[0-9a-f]{12}\.[a-z]+")
METRIC = "accuracy"
TESTING: dict[str, Any] = {
    "test": "none",
    "alternative": "both",
    "alpha": 0.05,
    "correction": "none",
    "corrected_for": "",
    "confidence": 0.95,
    "min_slice_size": 1,
    "family_size": 0,
    "family_per_level": [],
    "tested_per_level": [],
    "significant": 0,
    "degraded": 0,
}


@dataclass(frozen=True)
class Written:
    """What a run would publish.

    Attributes
    ----------
    name : tells it from others; in the document and in each file
    table : whether there is one
    further : names of other files
    same_files_as : name of another set whose files are the same to the byte
    """

    name: str
    table: bool = True
    further: tuple[str, ...] = (MIXTURE,)
    same_files_as: str = ""

    @property
    def contents(self) -> dict[str, bytes]:
        """The files by well-known name."""
        held = self.same_files_as or self.name
        found = {name: f"{name} of {held}".encode() for name in self.further}
        if self.table:
            stream = io.BytesIO()
            pq.write_table(pa.table({"slice_id": [held], "metric": [METRIC]}), stream)
            found[TABLE] = stream.getvalue()
        return found

    @property
    def document(self) -> SearchChangeList:
        """The document, with no more in it than has to be."""
        table = self.contents.get(TABLE, b"")
        content: dict[str, Any] = {
            "changelist_id": hashlib.sha256(self.name.encode()).hexdigest()[:16],
            "title": self.name,
            "summary": self.same_files_as,
            "created_at": "2026-01-01T00:00:00Z",
            "dataset": {
                "name": "d",
                "uri": [],
                "fingerprint": f"sha256:{'0' * 64}",
                "n": 0,
                "classes": [],
                "domains": [],
                "left_out": [],
            },
            "models": [{"key": "after", "role": "after", "name": "m"}],
            "comparison": {"kind": "overall", "after": "after"},
            "metrics": [
                {
                    "key": METRIC,
                    "name": "Accuracy",
                    "kind": "pointwise",
                    "range": [0, 1],
                    "higher_is_better": True,
                    "primary": True,
                }
            ],
            "global": [{"metric": METRIC, "n": 0, "after": {"value": 0.5}, "direction": "none"}],
            "testing": TESTING,
            "search": {
                "strategy": "batch",
                "max_cross_size": 1,
                "stopped": "exhausted",
                "iterations": [],
                "reported": 0,
                "inherited": 0,
                "duplicates": 0,
                "saved_slices": "tested",
                "slices_fingerprint": f"sha256:{hashlib.sha256(table).hexdigest()}",
            },
            "slices": [],
            "provenance": {"tool_version": "0", "runner": "direct", "seed": 0, "config": {}},
        }
        return SearchChangeList.model_validate(content)


def publish_set(
    folder: StoragePath, written: Written, before: Version | str | None = "now"
) -> list[str]:
    """Publish a set as a run does; return what it could not tidy up.

    Parameters
    ----------
    before : the version of the document when the run began
    """
    version = version_of(folder / CHANGELIST) if isinstance(before, str) else before
    contents = written.contents
    with files_to_publish(folder / CHANGELIST, tuple(contents), version, written.name) as files:
        for name, content in contents.items():
            files.streams[name].write(content)
        document = naming_files(written.document, files)
        return files.publish(document.to_json().encode())


def publish_like_earlier_versions(folder: StoragePath, written: Written) -> None:
    """Put files where versions before this one did, which named none of them."""
    contents = {**written.contents, CHANGELIST: written.document.to_json().encode()}
    for name, content in contents.items():
        put(folder / name, content)


def put(path: StoragePath, content: bytes) -> None:
    """Write a file as somebody else would."""
    if isinstance(path, Path):
        path.write_bytes(content)
    else:
        path.store.write(path.bucket, path.key, io.BytesIO(content))


def seen(folder: StoragePath) -> str | None:
    """Return which set a reader finds who goes by the document, after checking that it is one set.

    It reads as ``check --changelist``, ``--since`` and `Report` do.
    """
    path = folder / CHANGELIST
    if not path.is_file():
        return None
    document = read_search(str(path), "--changelist")
    written = Written(document.title, same_files_as=document.summary)
    held = written.same_files_as or written.name
    tables = read_table(str(path), document, [METRIC], ["slice_id"])
    if document.search.slices_fingerprint.endswith(hashlib.sha256(b"").hexdigest()):
        assert tables is None
    else:
        assert tables is not None, sorted(str(one) for one in folder.iterdir())
        assert tables[METRIC].column("slice_id").to_pylist() == [held]
        assert file_of(str(path), document, MIXTURE).read_bytes() == written.contents[MIXTURE]
    for key, file in (document.files or {}).items():
        content = (folder / file.name).read_bytes()
        assert file.name.startswith(f"{key}.")
        assert file.sha256 == f"sha256:{hashlib.sha256(content).hexdigest()}"
        assert file.size == len(content)
    return document.title


def assert_published(folder: StoragePath, written: Written, *others: str) -> None:
    """Check that a set is there by the document and by the names, and besides some others nothing."""
    assert seen(folder) == written.name
    document = json.loads((folder / CHANGELIST).read_text("utf-8"))
    contents = written.contents
    for name, content in contents.items():
        assert (folder / name).read_bytes() == content, name
    own = {file["name"] for file in document.get("files", {}).values()}
    assert len(own) == len(contents)
    assert all(map(OWN_NAME.fullmatch, own))
    names = {path.name for path in folder.iterdir()}
    assert names == {CHANGELIST, *contents, *own, *others}


@dataclass
class _Stored:
    content: bytes
    version: str
    metadata: dict[str, str]


class MemoryStore:
    """Object storage that is a dictionary, whose every request may be struck.

    Attributes
    ----------
    struck : called with the kind of each request that writes or reads, before it is done
    """

    def __init__(self, scheme: str) -> None:
        self.scheme = scheme
        self.objects: dict[str, _Stored] = {}
        self.struck: Callable[[str], None] = lambda _: None
        self._written = 0
        self._one_at_a_time = threading.Lock()

    def _facts(self, key: str) -> ObjectFacts:
        found = self.objects[key]
        now = datetime.now(timezone.utc)
        return ObjectFacts(key, len(found.content), found.version, now, found.metadata)

    def facts(self, bucket: str, key: str) -> ObjectFacts | None:
        self.struck(f"facts {key}")
        return self._facts(key) if key in self.objects else None

    def read(self, bucket: str, key: str, begin: int = 0, end: int | None = None) -> bytes:
        self.struck(f"read {key}")
        if key not in self.objects:
            raise NoObjectError(key)
        return self.objects[key].content[begin:end]

    def listed(self, bucket: str, prefix: str, *, deep: bool) -> Iterator[ObjectFacts]:
        self.struck(f"list {prefix}")
        # As it is now, whatever others do meanwhile.
        found = [self._facts(key) for key in sorted(self.objects) if key.startswith(prefix)]
        for one in found:
            rest = one.key.removeprefix(prefix)
            is_below = "/" in rest and not deep
            yield folder_facts(prefix + rest.partition("/")[0] + "/") if is_below else one

    def write(
        self,
        bucket: str,
        key: str,
        stream: IO[bytes],
        metadata: Mapping[str, str] | None = None,
        *,
        expected: str | None = None,
        is_new: bool = False,
    ) -> None:
        self.struck(f"write {key}")
        stream.seek(0)
        content = stream.read()
        with self._one_at_a_time:
            found = self.objects.get(key)
            if (is_new and found) or (expected and (not found or found.version != expected)):
                raise VersionConflictError(key)
            self._written += 1
            # Of S3 the same content has the same mark.
            version = (
                str(self._written)
                if self.scheme == "gs"
                else f'"{hashlib.md5(content, usedforsecurity=False).hexdigest()}"'
            )
            self.objects[key] = _Stored(content, version, dict(metadata or {}))

    def delete(self, bucket: str, keys: Iterable[str]) -> None:
        for key in keys:
            self.struck(f"delete {key}")
            self.objects.pop(key, None)


class KilledError(BaseException):
    """Stands for the end of a process: nothing in the product catches it."""


@contextmanager
def killed_at(store: MemoryStore, number: int) -> Iterator[list[str]]:
    """Let nothing of a request be done from some request on; yields what was asked for."""
    asked: list[str] = []

    def strike(what: str) -> None:
        asked.append(what)
        if len(asked) > number:
            raise KilledError(what)

    store.struck = strike
    try:
        yield asked
    except KilledError:
        pass
    finally:
        store.struck = lambda _: None
