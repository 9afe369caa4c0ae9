import hashlib
from contextlib import suppress

import pytest

from slicebeam.metrics.errors import ConflictError, EngineError
from slicebeam.transforms.storage import publication
from slicebeam.transforms.storage.publication import files_to_publish
from slicebeam.transforms.storage.publish import version_of
from slicebeam.transforms.storage.storage import ObjectPath, locked
from tests.conftest import own_stores
from tests.object_stores import one_line
from tests.publications import Written, assert_published, publish_set
from tests.transforms.storage.test_publish import TOLD


@own_stores
def test_a_set_appears_as_a_whole(bucket):
    folder = ObjectPath(f"{bucket.uri}/out")
    with suppress(KeyError), files_to_publish(folder / "d.json", ["t.npz"], None, "a") as files:
        files.streams["t.npz"].write(b"some")
        raise KeyError
    assert bucket.keys() == []
    assert publish_set(folder, Written("first"), None) == []
    assert_published(folder, Written("first"))
    before = version_of(folder / "changelist.json")
    assert publish_set(folder, Written("second"), before) == []
    assert_published(folder, Written("second"))
    for late in (before, None):
        with pytest.raises(ConflictError, match=TOLD) as error:
            publish_set(folder, Written("late"), late)
        one_line(error, "changelist.json was published by second at", "nothing was replaced")
        assert_published(folder, Written("second"))
    bucket.delete("out/changelist.json")
    with pytest.raises(ConflictError, match="was deleted by another process"):
        publish_set(folder, Written("late"), before)


def test_on_a_disk_only_what_was_there_is_replaced(tmp_path):
    document = tmp_path / "changelist.json"
    assert version_of(document) is None
    assert publish_set(tmp_path, Written("first"), None) == []
    before = version_of(document)
    assert before == hashlib.sha256(document.read_bytes()).hexdigest()
    assert publish_set(tmp_path, Written("second"), before) == []
    for late in (before, None):
        with pytest.raises(ConflictError, match=TOLD) as error:
            publish_set(tmp_path, Written("late"), late)
        one_line(error, str(document), "somebody else at", "nothing was replaced")
        assert error.value.exit_code == 2
        assert_published(tmp_path, Written("second"))
    document.unlink()
    with pytest.raises(ConflictError, match="was deleted by another process"):
        publish_set(tmp_path, Written("late"), before)


def test_the_same_set_again(tmp_path):
    for _ in range(3):
        assert publish_set(tmp_path, Written("one")) == []
        assert_published(tmp_path, Written("one"))


def test_a_set_without_tables_takes_those_of_the_one_before_away(tmp_path):
    publish_set(tmp_path, Written("one"))
    publish_set(tmp_path, Written("two", table=False, further=()))
    assert sorted(one.name for one in tmp_path.iterdir()) == ["changelist.json"]
    # But not what somebody else has put there since.
    publish_set(tmp_path, Written("one"))
    (tmp_path / "slices.parquet").unlink()
    (tmp_path / "slices.parquet").write_bytes(b"a stranger's")
    publish_set(tmp_path, Written("two", table=False, further=()))
    assert {one.name for one in tmp_path.iterdir()} == {"changelist.json", "slices.parquet"}


def test_a_folder_where_somebody_publishes_for_ever(tmp_path, monkeypatch):
    monkeypatch.setattr(publication, "_PATIENCE", 0.1)
    with (
        publication._publication_lock(tmp_path / "changelist.json"),
        pytest.raises(EngineError, match="another run has been publishing there") as error,
    ):
        publish_set(tmp_path, Written("one"))
    one_line(error, str(tmp_path / "changelist.json"), "--output")
    assert publish_set(tmp_path, Written("one")) == []
    assert_published(tmp_path, Written("one"))


def test_a_lock_that_its_owner_has_removed_since_is_none(tmp_path, monkeypatch):
    document = tmp_path / "changelist.json"
    monkeypatch.setattr(publication, "_PATIENCE", 0.1)
    opened = []

    def removed_before(file):
        opened.append(file)
        if len(opened) == 1:
            (tmp_path / ".changelist.json.lock").unlink()
        return locked(file)

    monkeypatch.setattr(publication, "locked", removed_before)
    with (
        publication._publication_lock(document),
        pytest.raises(EngineError, match="another run has been publishing there"),
        publication._publication_lock(document),
    ):
        pass
    assert len(opened) > 2
