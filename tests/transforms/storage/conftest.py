"""Places on a disk and in object storage."""

from dataclasses import dataclass
from pathlib import Path

import pytest

from slicebeam.transforms.storage import storage
from slicebeam.transforms.storage.storage import ObjectPath, StoragePath, forget_copies
from tests.conftest import STORES


@dataclass
class Place:
    """A folder under test, and a way to put files there that is not under test."""

    folder: StoragePath
    bucket: object

    def put(self, name, data=b""):
        if self.bucket is not None:
            self.bucket.write(f"{self._key}/{name}", data)
            return
        path = Path(str(self.folder)) / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)

    def names(self):
        if self.bucket is not None:
            keys = self.bucket.keys(f"{self._key}/")
            return [key.removeprefix(f"{self._key}/") for key in keys]
        folder = Path(str(self.folder))
        return sorted(str(one.relative_to(folder)) for one in folder.rglob("*") if one.is_file())

    @property
    def _key(self):
        return self.folder.key


@pytest.fixture(params=["local", *STORES])
def place(request, tmp_path, monkeypatch):
    if request.param == "local":
        yield Place(tmp_path / "folder", None)
        return
    store = request.getfixturevalue(request.param)
    for name, value in store.environment().items():
        monkeypatch.setenv(name, value)
    storage._store.cache_clear()
    forget_copies()
    bucket = store.new_bucket()
    yield Place(ObjectPath(f"{bucket.uri}/folder"), bucket)
    storage._store.cache_clear()


@pytest.fixture
def path(bucket):
    return ObjectPath(f"{bucket.uri}/out/changelist.json")
