"""Sets of files to publish without a run, and readers that see which set a folder holds."""

import hashlib
import io
import json
import re
import threading
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime, timezone

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
from slicebeam.transforms.storage import object_stores as stores
from slicebeam.transforms.storage.publication import files_to_publish
from slicebeam.transforms.storage.publish import version_of

MIXTURE = "mixture.npz"
OWN_NAME = re.compile(r"[a-z]+\.[0-9a-f]{12}\.[a-z]+")
METRIC = "accuracy"
TESTING = {"test": "none", "correction": "none", "corrected_for": "", "alternative": "both"}
TESTING |= {"alpha": 0.05, "confidence": 0.95, "min_slice_size": 1}
TESTING |= dict.fromkeys(("family_size", "significant", "degraded"), 0)
TESTING |= {"family_per_level": [], "tested_per_level": []}
SEARCH = {"strategy": "batch", "max_cross_size": 1, "stopped": "exhausted", "iterations": []}
SEARCH |= dict.fromkeys(("reported", "inherited", "duplicates"), 0) | {"saved_slices": "tested"}
DATASET = {"name": "d", "uri": [], "fingerprint": f"sha256:{'0' * 64}", "n": 0}
DATASET |= {"classes": [], "domains": [], "left_out": []}
MEASURED = {"key": METRIC, "name": "Accuracy", "kind": "pointwise", "range": [0, 1]}
MEASURED |= {"higher_is_better": True, "primary": True}


@dataclass(frozen=True)
class Written:
    """What a run would publish: a table and further files, each with the name in it."""

    name: str
    table: bool = True
    further: tuple[str, ...] = (MIXTURE,)
    same_files_as: str = ""

    @property
    def contents(self):
        held = self.same_files_as or self.name
        found = {name: f"{name} of {held}".encode() for name in self.further}
        if self.table:
            stream = io.BytesIO()
            pq.write_table(pa.table({"slice_id": [held], "metric": [METRIC]}), stream)
            found[TABLE] = stream.getvalue()
        return found

    @property
    def document(self):
        """The document, with no more in it than has to be."""
        fingerprint = hashlib.sha256(self.contents.get(TABLE, b"")).hexdigest()
        return minimal(
            changelist_id=hashlib.sha256(self.name.encode()).hexdigest()[:16],
            title=self.name,
            summary=self.same_files_as,
            search={**SEARCH, "slices_fingerprint": f"sha256:{fingerprint}"},
        )


def minimal(**changes):
    content = {
        "changelist_id": "test",
        "title": "t",
        "summary": "s",
        "created_at": "2026-01-01T00:00:00Z",
        "dataset": DATASET,
        "models": [{"key": "after", "role": "after", "name": "m"}],
        "comparison": {"kind": "overall", "after": "after"},
        "metrics": [MEASURED],
        "global": [{"metric": METRIC, "n": 0, "after": {"value": 0.5}, "direction": "none"}],
        "testing": TESTING,
        "search": {**SEARCH, "slices_fingerprint": DATASET["fingerprint"]},
        "slices": [],
        "provenance": {"tool_version": "0", "runner": "direct", "seed": 0, "config": {}},
    }
    return SearchChangeList.model_validate({**content, **changes})


def publish_set(folder, written, before="now"):
    """Publish a set as a run does that began at a version; return what it could not tidy up."""
    version = version_of(folder / CHANGELIST) if before == "now" else before
    contents = written.contents
    with files_to_publish(folder / CHANGELIST, tuple(contents), version, written.name) as files:
        for name, content in contents.items():
            files.streams[name].write(content)
        return files.publish(naming_files(written.document, files).to_json().encode())


def seen(folder):
    """Return which set a reader finds who goes by the document, after checking that it is one set."""
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


def assert_published(folder, written, *others):
    """Check that a set is there by the document and by the names, and besides some others nothing."""
    assert seen(folder) == written.name
    document = json.loads((folder / CHANGELIST).read_text("utf-8"))
    contents = written.contents
    for name, content in contents.items():
        assert (folder / name).read_bytes() == content, name
    own = {file["name"] for file in document.get("files", {}).values()}
    assert len(own) == len(contents)
    assert all(map(OWN_NAME.fullmatch, own))
    assert {path.name for path in folder.iterdir()} == {CHANGELIST, *contents, *own, *others}


@dataclass
class _Stored:
    content: bytes
    version: str
    metadata: dict[str, str]


class MemoryStore:
    """Object storage that is a dictionary; ``struck`` is called with each request before it is done."""

    def __init__(self, scheme):
        self.scheme = scheme
        self.objects = {}
        self.struck = lambda _: None
        self._written = 0
        self._one_at_a_time = threading.Lock()

    def _facts(self, key):
        found, now = self.objects[key], datetime.now(timezone.utc)
        return stores.ObjectFacts(len(found.content), found.version, now, found.metadata)

    def facts(self, bucket, key):
        self.struck(f"facts {key}")
        return self._facts(key) if key in self.objects else None

    def read(self, bucket, key, begin=0, end=None):
        self.struck(f"read {key}")
        if key not in self.objects:
            raise stores.no_object(key)
        return self.objects[key].content[begin:end]

    def listed(self, bucket, prefix, *, deep):
        self.struck(f"list {prefix}")
        # As it is now, whatever others do meanwhile.
        for key in [key for key in sorted(self.objects) if key.startswith(prefix)]:
            first, slash, _ = key.removeprefix(prefix).partition("/")
            yield prefix + first + slash if slash and not deep else key

    def write(self, bucket, key, stream, metadata=None, *, expected=None, is_new=False):
        self.struck(f"write {key}")
        stream.seek(0)
        content = stream.read()
        with self._one_at_a_time:
            found = self.objects.get(key)
            if (is_new and found) or (expected and (not found or found.version != expected)):
                raise stores.VersionConflictError(key)
            self._written += 1
            # Of S3 the same content has the same mark.
            digest = hashlib.md5(content, usedforsecurity=False).hexdigest()
            version = str(self._written) if self.scheme == "gs" else f'"{digest}"'
            self.objects[key] = _Stored(content, version, dict(metadata or {}))

    def delete(self, bucket, keys):
        for key in keys:
            self.struck(f"delete {key}")
            self.objects.pop(key, None)


class KilledError(BaseException):
    """Stands for the end of a process: nothing in the product catches it."""


@contextmanager
def killed_at(store, number):
    """Let nothing of a request be done from some request on; yields what was asked for."""
    asked = []

    def strike(what):
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
