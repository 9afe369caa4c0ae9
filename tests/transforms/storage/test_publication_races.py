"""Of several runs that publish in one folder, one wins whole, however their steps meet."""

import os
import shutil
import threading
from pathlib import Path

import pytest

from slicebeam.metrics.errors import ConflictError, SlicebeamError
from slicebeam.pipelines.changelist.reading import CHANGELIST
from slicebeam.transforms.storage import publication, storage
from slicebeam.transforms.storage.publish import version_of
from slicebeam.transforms.storage.storage import ObjectPath
from tests.conftest import own_stores, slow
from tests.publications import MemoryStore, Written, assert_published, publish_set, seen

OLD, ONE, TWO = Written("old"), Written("one"), Written("two")
# It differs from the first in the document only.
ALIKE = Written("alike", same_files_as="one")
ALONE = Written("alone", table=False, further=())
updates = pytest.mark.parametrize("there", [slow(False), True], ids=["new", "update"])
# Of how many steps of the second run each is tried.
thoroughly = pytest.mark.parametrize("every", [11, slow(4)])


class Publisher(threading.Thread):
    """Publishes in a thread of its own, which may be held at any of its steps."""

    def __init__(self, folder, written, before):
        super().__init__(daemon=True)
        self.folder, self.written, self.before = folder, written, before
        self.steps = []
        self.error = None
        self._changed = threading.Condition()
        self._may = 0

    def run(self):
        try:
            publish_set(self.folder, self.written, self.before)
        except (SlicebeamError, AssertionError, OSError) as error:
            self.error = error
        finally:
            with self._changed:
                self._may = 1 << 30
                self._changed.notify_all()

    def step(self, what):
        """Wait until this step may be done."""
        with self._changed:
            self.steps.append(what)
            self._changed.notify_all()
            assert self._changed.wait_for(lambda: len(self.steps) <= self._may, 30)

    def go_to(self, number, seconds=30):
        """Let it do so many steps in all, and wait until it has, or waits for another."""
        with self._changed:
            self._may = max(self._may, number)
            self._changed.notify_all()
            self._changed.wait_for(lambda: len(self.steps) > number or self._may > number, seconds)

    def finish(self):
        self.go_to(1 << 29)
        self.join(30)
        assert not self.is_alive()


def stepping(what):
    thread = threading.current_thread()
    if isinstance(thread, Publisher):
        thread.step(what)


def one_won(folder, publishers, *others):
    """Check that one publisher won whole and the others were told so; return its set's name."""
    for one in publishers:
        assert one.error is None or isinstance(one.error, ConflictError), one.error
        if one.error is not None:
            assert "during this run; nothing was replaced" in str(one.error)
            assert len(str(one.error).splitlines()) == 1
    (winner,) = (one for one in publishers if one.error is None)
    assert_published(folder, winner.written, *others)
    return winner.written.name


@pytest.fixture(params=["gs", "s3"])
def memory(request, monkeypatch):
    store = MemoryStore(request.param)
    monkeypatch.setattr(storage, "_store", lambda *_: store)
    store.struck = stepping
    return store


def raced(folder, sets, at, until, seconds=30):
    """Let each do some steps, then the rest; return them, and whether the first had so many to do."""
    before = version_of(folder / CHANGELIST)
    publishers = [Publisher(folder, one, before) for one in sets]
    first, second = publishers
    first.start()
    first.go_to(at)
    was_held = first.is_alive() and len(first.steps) > at
    second.start()
    second.go_to(until, seconds)
    first.finish()
    second.finish()
    return publishers, was_held


@pytest.mark.parametrize("sets", [
    (ONE, TWO), slow((ONE, ALIKE)), slow((ALONE, TWO)), slow((ONE, ALONE)),
], ids=lambda sets: "-".join(one.name for one in sets))  # fmt: skip
@updates
@thoroughly
def test_two_runs_meet_in_object_storage(memory, sets, there, every):
    winners = set()
    for at in range(60):
        for until in (*range(at % every, 30, every), 1000):
            folder = ObjectPath(f"{memory.scheme}://bucket/{at}-{until}")
            if there:
                publish_set(folder, OLD)
            publishers, was_held = raced(folder, sets, at, until)
            winners.add(one_won(folder, publishers))
        if not was_held:
            break
    assert winners == {one.name for one in sets}


@updates
@thoroughly
def test_a_run_meets_one_that_began_after_it_had_published(memory, there, every):
    """Both publish: the second is right by name, too, though the first had not tidied up yet."""
    met = 0
    for at in range(60):
        for until in (*range(at % every, 30, every), 1000):
            folder = ObjectPath(f"{memory.scheme}://bucket/{at}-{until}")
            if there:
                publish_set(folder, OLD)
            first = Publisher(folder, ONE, version_of(folder / CHANGELIST))
            first.start()
            first.go_to(at)
            if seen(folder) != ONE.name:
                first.finish()
                continue
            met += 1
            # Its table is that of the set before the one that it replaces.
            second = Publisher(folder, Written("two", same_files_as="old"), _now(folder))
            second.start()
            second.go_to(until)
            first.finish()
            second.finish()
            assert (first.error, second.error) == (None, None)
            assert_published(folder, second.written)
        if first.steps and len(first.steps) < at:
            break
    assert met > 10


def _now(folder):
    return version_of(folder / CHANGELIST)


def _stepping_first(function, name):
    def stepped(*arguments, **how):
        stepping(name)
        return function(*arguments, **how)

    return stepped


STEPS = (
    *((Path, name) for name in ("replace", "unlink")),
    *((os, name) for name in ("link", "fsync")),
    *((publication, name) for name in ("settle", "locked", "version_of")),
)


@updates
def test_two_runs_meet_on_a_disk(tmp_path, monkeypatch, there):
    for owner, name in STEPS:
        monkeypatch.setattr(owner, name, _stepping_first(getattr(owner, name), name))
    winners = set()
    for at in range(60):
        folder = tmp_path / str(at)
        folder.mkdir()
        if there:
            publish_set(folder, OLD)
        # The other may have to wait for the one that is held.
        publishers, was_held = raced(folder, (ONE, TWO), at, 1000, 0.05)
        winners.add(one_won(folder, publishers))
        shutil.rmtree(folder)
        if not was_held:
            break
    assert at > 12
    assert winners == {ONE.name, TWO.name}


def test_many_runs_meet_on_a_disk(tmp_path):
    publish_set(tmp_path, OLD)
    before = version_of(tmp_path / CHANGELIST)
    children = []
    for number in range(8):
        process = os.fork()
        if not process:
            code = 9
            try:
                publish_set(tmp_path, Written(f"run {number}"), before)
                code = 0
            except ConflictError as error:
                code = error.exit_code
            finally:
                os._exit(code)
        children.append(process)
    codes = [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]
    assert sorted(codes) == [0, *[2] * 7]
    assert_published(tmp_path, Written(f"run {codes.index(0)}"))


def test_a_reader_meets_runs_that_publish(tmp_path):
    """Whatever it reads by the document is of one set, or is gone; never of two."""
    publish_set(tmp_path, Written("run 0"))
    process = os.fork()
    if not process:
        code = 1
        try:
            for number in range(60):
                publish_set(tmp_path, Written(f"run {number}"))
            code = 0
        finally:
            os._exit(code)
    from slicebeam.pipelines.changelist.reading import read_search, read_table

    read, uri = 0, str(tmp_path / CHANGELIST)
    while os.waitpid(process, os.WNOHANG) == (0, 0):
        document = read_search(uri, "--changelist")
        tables = read_table(uri, document, ["accuracy"], ["slice_id"])
        if tables is not None:
            assert tables["accuracy"].column("slice_id").to_pylist() == [document.title]
            read += 1
    assert read > 3


@own_stores
@pytest.mark.slow
def test_two_runs_meet_at_a_server(bucket, monkeypatch):
    store = ObjectPath(f"{bucket.uri}/out").store
    for name in ("facts", "read", "write", "delete"):
        monkeypatch.setattr(store, name, _stepping_first(getattr(store, name), name))
    for at in range(60):
        folder = ObjectPath(f"{bucket.uri}/{at}")
        publish_set(folder, OLD)
        publishers, was_held = raced(folder, (ONE, TWO), at, 1000)
        one_won(folder, publishers)
        if not was_held:
            break
    assert at > 8
