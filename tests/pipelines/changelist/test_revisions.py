"""Revisions: numbers, parents, several writers at a time, and what a crash leaves."""

import hashlib
import json
import multiprocessing
import os
import shutil
from pathlib import Path

import pytest

from slicebeam.metrics.errors import EngineError, InputError
from slicebeam.pipelines.changelist import revisions as rev
from slicebeam.pipelines.changelist.edits import annotated
from slicebeam.pipelines.changelist.reading import read_search
from slicebeam.transforms.storage import storage
from slicebeam.transforms.storage.storage import storage_path
from tests.conftest import own_stores
from tests.edited_documents import searched


@pytest.fixture(scope="module")
def original(tmp_path_factory):
    return searched(tmp_path_factory.mktemp("searched"))


@pytest.fixture
def first(original, tmp_path):
    shutil.copy(original, tmp_path / "changelist.json")
    return str(tmp_path / "changelist.json")


def noted(uri, text):
    base = read_search(uri, "--changelist")
    changed, edit = annotated(base, base.slices[0].slice_id, text)
    return rev.publish_revision(uri, base, changed, (edit,))


def test_a_revision_tells_of_its_parent_and_leaves_it_as_it_was(first, tmp_path):
    before = Path(first).read_bytes()
    document, path = noted(first, "one")
    assert path == tmp_path / "changelist.r1.json"
    assert Path(first).read_bytes() == before
    assert sorted(one.name for one in tmp_path.iterdir()) == ["changelist.json", path.name]
    told = json.loads(path.read_text())
    assert told["revision"] == 1
    assert told["parent"] == {
        "changelist_id": json.loads(before)["changelist_id"],
        "revision": 0,
        "fingerprint": f"sha256:{hashlib.sha256(before).hexdigest()}",
    }
    assert [edit["op"] for edit in told["edits"]] == ["annotate"]
    assert document == read_search(str(path), "--changelist")
    # The journal goes on.
    second, path = noted(str(path), "two")
    assert path.name == "changelist.r2.json"
    assert (second.parent.revision, len(second.edits)) == (1, 2)
    assert second.edits[:1] == document.edits
    assert second.slices[0].notes == ("one", "two")


def test_any_revision_may_be_the_base(first, tmp_path):
    noted(first, "one")
    noted(str(tmp_path / "changelist.r1.json"), "two")
    document, path = noted(str(tmp_path / "changelist.r1.json"), "another")
    assert path.name == "changelist.r3.json"
    assert document.parent.revision == 1
    assert document.slices[0].notes == ("one", "another")


def test_later_ones_have_larger_numbers_where_some_are_gone(first, tmp_path):
    noted(first, "one")
    _, path = noted(first, "two")
    (tmp_path / "changelist.r1.json").unlink()
    assert noted(str(path), "three")[1].name == "changelist.r3.json"
    # A number is never given again to what is made of it.
    path = tmp_path / "changelist.r3.json"
    (tmp_path / "changelist.r2.json").unlink()
    path.rename(tmp_path / "copy.json")
    assert noted(str(tmp_path / "copy.json"), "four")[1].name == "changelist.r4.json"


def test_latest(first, tmp_path):
    assert rev.latest(tmp_path) == Path(first)
    for text in "abcdefghijkl":
        noted(rev.base_of(str(tmp_path)), text)
    # By number, not by name.
    assert rev.latest(tmp_path).name == "changelist.r12.json"
    assert rev.base_of(str(tmp_path)) == str(tmp_path / "changelist.r12.json")
    assert rev.base_of(first) == first
    document = read_search(first, "--changelist")
    assert rev.later_revision(tmp_path, document) == tmp_path / "changelist.r12.json"
    last = read_search(rev.base_of(str(tmp_path)), "--changelist")
    assert rev.later_revision(tmp_path, last) is None
    assert [edit.after[-1] for edit in last.edits] == list("abcdefghijkl")


def test_revisions_of_another_document_are_passed_over(first, tmp_path):
    noted(first, "one")
    told = json.loads(Path(first).read_text())
    told["changelist_id"] = "another"
    Path(first).write_text(json.dumps(told))
    assert rev.latest(tmp_path) == Path(first)
    assert rev.later_revision(tmp_path, read_search(first, "--changelist")) is None
    # They keep their numbers.
    assert noted(first, "two")[1].name == "changelist.r2.json"
    assert rev.latest(tmp_path).name == "changelist.r2.json"


def test_no_document(tmp_path):
    with pytest.raises(InputError, match=r"there is no changelist.json in this folder"):
        rev.base_of(str(tmp_path))


def test_base_that_was_replaced_meanwhile_is_refused(first, tmp_path):
    base = read_search(first, "--changelist")
    changed, edit = annotated(base, base.slices[0].slice_id, "one")
    told = json.loads(Path(first).read_text())
    Path(first).write_text(json.dumps({**told, "title": "another run"}))
    with pytest.raises(EngineError, match="was replaced by another run in the meantime"):
        rev.publish_revision(first, base, changed, (edit,))
    assert [one.name for one in tmp_path.iterdir()] == ["changelist.json"]


def test_an_edit_of_the_last_revision_is_refused_where_there_is_a_later_one(first, tmp_path):
    base = read_search(first, "--changelist")
    changed, edit = annotated(base, base.slices[0].slice_id, "two")
    noted(first, "one")
    with pytest.raises(
        rev.SupersededError, match=r"changelist\.r1\.json was written in the meantime"
    ):
        rev.publish_revision(first, base, changed, (edit,), is_last=True)
    assert rev.revisions(tmp_path) == [1]
    # Neither another document's revision nor what can't be read is an edit of this one.
    told = json.loads((tmp_path / "changelist.r1.json").read_text())
    (tmp_path / "changelist.r1.json").write_text(json.dumps({**told, "changelist_id": "another"}))
    (tmp_path / "changelist.r2.json").write_text("{")
    _, path = rev.publish_revision(first, base, changed, (edit,), is_last=True)
    assert path.name == "changelist.r3.json"


def test_a_name_that_a_writer_holds_is_waited_for(first, tmp_path):
    base = read_search(first, "--changelist")
    changed, edit = annotated(base, base.slices[0].slice_id, "one")
    held = tmp_path / "changelist.r1.json"
    held.touch()
    with pytest.raises(rev.SupersededError):
        rev.publish_revision(first, base, changed, (edit,), is_last=True)
    os.utime(held, (0, 0))
    _, path = rev.publish_revision(first, base, changed, (edit,), is_last=True)
    assert path.name == "changelist.r2.json"


WRITERS, EACH = 4, 6


def write_some(uri, own, start):
    start.wait()
    for number in range(EACH):
        noted(uri, f"{own}-{number}")


def test_writers_at_the_same_time_get_numbers_of_their_own(first, tmp_path):
    context = multiprocessing.get_context("fork")
    start = context.Barrier(WRITERS)
    writers = [
        context.Process(target=write_some, args=(first, own, start)) for own in range(WRITERS)
    ]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join(60)
        assert writer.exitcode == 0
    assert rev.revisions(tmp_path) == list(range(1, WRITERS * EACH + 1))
    texts = []
    for number in rev.revisions(tmp_path):
        document = read_search(str(tmp_path / f"changelist.r{number}.json"), "--changelist")
        assert document.revision == number
        texts += document.slices[0].notes
    # None was overwritten, and none was written twice.
    assert sorted(texts) == [f"{own}-{number}" for own in range(WRITERS) for number in range(EACH)]
    assert len(list(tmp_path.iterdir())) == WRITERS * EACH + 1


def test_number_that_is_taken_just_before_the_file_appears(first, tmp_path, monkeypatch):
    settle = rev.settle

    def late(stream, temporary):
        settle(stream, temporary)
        if not (tmp_path / "changelist.r1.json").exists():
            (tmp_path / "changelist.r1.json").write_text("somebody else's")

    monkeypatch.setattr(rev, "settle", late)
    document, path = noted(first, "one")
    assert (path.name, document.revision) == ("changelist.r2.json", 2)
    assert (tmp_path / "changelist.r1.json").read_text() == "somebody else's"


@pytest.mark.parametrize("dies_at", ["settle", "link"])
def test_crash_leaves_no_revision(first, tmp_path, monkeypatch, dies_at):
    def die(*_):
        os._exit(9)

    process = os.fork()
    if not process:
        try:
            monkeypatch.setattr(*((rev, "settle") if dies_at == "settle" else (os, "link")), die)
            noted(first, "lost")
        finally:
            os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(process, 0)[1]) == 9
    assert len(list(tmp_path.iterdir())) == 2
    assert rev.latest(tmp_path) == Path(first)
    (left,) = (one for one in tmp_path.iterdir() if one.name.startswith("."))
    os.utime(left, (0, 0))
    # The next writer gets the number, and removes what the crash left.
    assert noted(first, "one")[1].name == "changelist.r1.json"
    assert len(list(tmp_path.iterdir())) == 2


def test_file_system_without_links(first, tmp_path, monkeypatch):
    def refuse(*_):
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(os, "link", refuse)
    # One that died between the two steps keeps a number without a revision.
    (tmp_path / "changelist.r1.json").touch()
    assert rev.latest(tmp_path) == Path(first)
    document, path = noted(first, "one")
    assert (path.name, document.slices[0].notes) == ("changelist.r2.json", ("one",))
    assert (tmp_path / "changelist.r1.json").stat().st_size == 0
    assert len(list(tmp_path.iterdir())) == 3


def test_full_disk_is_told(first, tmp_path, monkeypatch):
    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(storage.os, "fsync", full)
    with pytest.raises(EngineError, match="No space left on device; free some space"):
        noted(first, "one")
    assert [one.name for one in tmp_path.iterdir()] == ["changelist.json"]


@own_stores
def test_object_storage(bucket, original, monkeypatch):
    uri = f"{bucket.uri}/out/changelist.json"
    with storage.written_whole(storage_path(uri)) as stream:
        stream.write(original.read_bytes())
    document, path = noted(uri, "one")
    assert str(path) == f"{bucket.uri}/out/changelist.r1.json"
    assert rev.base_of(f"{bucket.uri}/out") == str(path)
    # Somebody else was quicker: the number was not yet listed when it was chosen.
    monkeypatch.setattr(rev, "revisions", lambda _: [])
    _, path = noted(uri, "two")
    monkeypatch.undo()
    assert str(path) == f"{bucket.uri}/out/changelist.r2.json"
    first = read_search(f"{bucket.uri}/out/changelist.r1.json", "--changelist")
    assert first == document
    # A write whose answer got lost meets its own object, and that is success.
    content = document.to_json().encode()
    target = storage_path(f"{bucket.uri}/out/changelist.r9.json")
    assert rev._created(target, content)
    assert rev._created(target, content)
    assert not rev._created(target, content + b" ")
    assert target.read_bytes() == content
