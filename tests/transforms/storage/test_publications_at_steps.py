"""A publication that dies, or meets another, at any step leaves one whole set; the next puts all right."""

import os
import re
import shutil
import signal
import subprocess
import threading
from functools import partial
from pathlib import Path

import pytest

from slicebeam.metrics.errors import ConflictError, SlicebeamError
from slicebeam.pipelines.changelist.reading import CHANGELIST, TABLE
from slicebeam.transforms.storage import publication, storage
from slicebeam.transforms.storage.publication import files_to_publish
from slicebeam.transforms.storage.publish import version_of
from slicebeam.transforms.storage.storage import ObjectPath
from tests.conftest import google_first, own_stores, slow
from tests.publications import (
    MIXTURE,
    MemoryStore,
    Written,
    assert_published,
    killed_at,
    publish_set,
    seen,
)
from tests.storage_faults import OBJECTS, Fault

OLD, NEW, OTHER, ONE, TWO = map(Written, ("old", "new", "other", "one", "two"))
# Of a shift, which has a document and nothing else.
ALONE = Written("alone", table=False, further=())
BEGINNINGS = {
    "nothing there": (None, lambda _: None),
    "a set": (OLD.name, lambda folder: publish_set(folder, OLD)),
}
begins = pytest.mark.parametrize("begin", BEGINNINGS)


def step(name, steps, number, function, *arguments):
    """Do a step, or die before it."""
    steps.append(name)
    if len(steps) > number:
        os._exit(9)
    return function(*arguments)


def put_right(folder, new, number):
    """Publish again, at every other step after another run."""
    for written in (*[OTHER][: number % 2], new):
        assert publish_set(folder, written) == []
        assert_published(folder, written)


def assert_one_or_the_other(outcomes, there, new, least, least_new):
    """Up to some step the one set is there, from there on the other."""
    at = outcomes.index(new.name)
    assert outcomes == [there] * at + [new.name] * (len(outcomes) - at)
    assert at >= least
    assert len(outcomes) - at >= least_new


# What changes the file system, where it is looked up when it is done.
STEPS = (
    *((Path, name) for name in ("replace", "unlink")),
    *((os, name) for name in ("link", "open", "fsync")),
    *((publication, name) for name in ("settle", "temporary_beside")),
    (storage, "locked"),
)


def dies_at_step(number, monkeypatch, folder, new):
    """Publish in a process that dies at a step; return whether it did, and not end before."""
    process = os.fork()
    if process:
        return os.waitstatus_to_exitcode(os.waitpid(process, 0)[1]) == 9
    code = 1
    try:
        steps = []
        for owner, name in STEPS:
            function = getattr(owner, name)
            if isinstance(owner, type):
                monkeypatch.setattr(
                    owner,
                    name,
                    lambda self, *rest, function=function, name=name, **how: step(
                        name, steps, number, partial(function, **how), self, *rest
                    ),
                )
            else:
                monkeypatch.setattr(owner, name, partial(step, name, steps, number, function))
        publish_set(folder, new)
        code = 0
    finally:
        os._exit(code)


@pytest.mark.parametrize("begin", ["a set", slow("nothing there")])
@pytest.mark.parametrize("new", [NEW, slow(ALONE)], ids=lambda one: one.name)
def test_it_dies_at_any_step(tmp_path, monkeypatch, begin, new):
    there, make = BEGINNINGS[begin]
    outcomes = []
    for number in range(100):
        folder = tmp_path / str(number)
        folder.mkdir()
        make(folder)
        if not dies_at_step(number, monkeypatch, folder, new):
            break
        outcomes.append(seen(folder))
        put_right(folder, new, number)
        shutil.rmtree(folder)
    assert_one_or_the_other(outcomes, there, new, 6, 3)
    assert_published(folder, new)


@pytest.fixture(params=["gs", "s3"])
def memory(request, monkeypatch):
    store = MemoryStore(request.param)
    monkeypatch.setattr(storage, "_store", lambda *_: store)
    store.struck = stepping
    return store


@begins
@pytest.mark.parametrize("new", [NEW, ALONE], ids=lambda one: one.name)
def test_it_dies_at_any_request(memory, begin, new):
    there, make = BEGINNINGS[begin]
    outcomes = []
    for number in range(100):
        folder = ObjectPath(f"{memory.scheme}://bucket/{number}")
        make(folder)
        with killed_at(memory, number) as asked:
            assert publish_set(folder, new) == []
        if len(asked) <= number:
            break
        outcomes.append(seen(folder))
        put_right(folder, new, number)
    assert_one_or_the_other(outcomes, there, new, 2, 2)


def test_what_can_not_be_removed_is_said_and_removed_the_next_time(tmp_path, monkeypatch):
    publish_set(tmp_path, OLD)
    unlink = Path.unlink

    def refuse(path, *, missing_ok=False):
        if re.fullmatch(r"slices\.[0-9a-f]{12}\.parquet", path.name):
            raise PermissionError(1, "Operation not permitted")
        unlink(path, missing_ok=missing_ok)

    with monkeypatch.context() as patched:
        patched.setattr(Path, "unlink", refuse)
        (line,) = publish_set(tmp_path, NEW)
        assert "is no longer needed, but could not be removed" in line
        (other,) = publish_set(tmp_path, OTHER)[:1]
        assert "slices." in other
    assert seen(tmp_path) == OTHER.name
    assert publish_set(tmp_path, NEW) == []
    assert_published(tmp_path, NEW)


def test_full_disks_and_forbidden_folders_name_the_file(tmp_path, monkeypatch):
    from slicebeam.metrics.errors import EngineError

    publish_set(tmp_path, OLD)
    for owner, name, named in (
        (publication, "settle", MIXTURE),
        (Path, "replace", r"\.[0-9a-f]{12}\."),
        (publication, "sync_folder", CHANGELIST),
        (os, "open", MIXTURE),
    ):

        def full(*_, **__):
            raise OSError(28, "No space left on device")

        with monkeypatch.context() as patched:
            patched.setattr(owner, name, full)
            with pytest.raises(EngineError, match="No space left on device") as error:
                publish_set(tmp_path, NEW)
        assert len(str(error.value).splitlines()) == 1
        assert re.search(named, str(error.value)), error.value
        assert_published(tmp_path, OLD)


def test_an_interruption_just_after_the_document_appeared(tmp_path, monkeypatch):
    publish_set(tmp_path, OLD)
    replace = Path.replace

    def interrupted(path, target):
        replace(path, target)
        if target.name == CHANGELIST:
            raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(Path, "replace", interrupted)
        with pytest.raises(KeyboardInterrupt):
            publish_set(tmp_path, NEW)
    assert seen(tmp_path) == NEW.name
    publish_set(tmp_path, NEW)
    assert_published(tmp_path, NEW)


@pytest.mark.parametrize("has_locks", [True, False])
def test_what_was_never_published_is_removed(tmp_path, monkeypatch, has_locks):
    """Without locks what another may be about to publish stays; it can't be told from what is left."""
    if not has_locks:
        monkeypatch.setattr(publication, "locked", lambda _: None)
    publish_set(tmp_path, OLD)
    before = version_of(tmp_path / CHANGELIST)
    with files_to_publish(tmp_path / CHANGELIST, [TABLE], before, "another") as files:
        files.streams[TABLE].write(b"another's")
        name = files.files[TABLE].name
    (tmp_path / name).write_bytes(b"another's")
    assert publish_set(tmp_path, NEW) == []
    assert_published(tmp_path, NEW, *([] if has_locks else [name]))


def test_nothing_of_a_stranger_is_removed(tmp_path):
    publish_set(tmp_path, OLD)
    strange = ("slices.0123456789ab.parquet", "mixture.npz.bak", ".slices.parquet.mine", "r.json")
    for name in strange:
        (tmp_path / name).write_text("a stranger's")
    publish_set(tmp_path, NEW)
    assert_published(tmp_path, NEW, *strange)


def test_a_document_can_not_have_files_elsewhere_removed(tmp_path):
    folder = tmp_path / "out"
    folder.mkdir()
    publish_set(folder, OLD)
    (tmp_path / "slices.0123456789ab.parquet").write_text("a stranger's")
    path = folder / CHANGELIST
    document = re.sub(
        r"slices\.[0-9a-f]{12}\.parquet", "../slices.0123456789ab.parquet", path.read_text()
    )
    path.write_text(document)
    publish_set(folder, NEW)
    assert (tmp_path / "slices.0123456789ab.parquet").exists()


def test_a_revision_keeps_the_files_that_it_names(tmp_path):
    publish_set(tmp_path, OLD)
    revision = tmp_path / "changelist.r1.json"
    shutil.copy(tmp_path / CHANGELIST, revision)
    kept = {path.name for path in tmp_path.glob("*.*.*")}
    publish_set(tmp_path, NEW)
    assert_published(tmp_path, NEW, *kept)
    revision.unlink()
    publish_set(tmp_path, OTHER)
    assert_published(tmp_path, OTHER)


def test_a_file_system_without_links(tmp_path, monkeypatch):
    def refuse(*_):
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(os, "link", refuse)
    for written in (OLD, NEW, NEW):
        assert publish_set(tmp_path, written) == []
        assert_published(tmp_path, written)


def test_copies_go_by_the_well_known_names(tmp_path):
    publish_set(tmp_path, NEW)
    copies = tmp_path / "copies"
    copies.mkdir()
    for name in (CHANGELIST, TABLE, MIXTURE):
        shutil.copy(tmp_path / name, copies / name)
    from slicebeam.pipelines.changelist.reading import read_search, read_table

    uri = str(copies / CHANGELIST)
    tables = read_table(uri, read_search(uri, "--changelist"), ["accuracy"], ["slice_id"])
    assert tables is not None
    assert tables["accuracy"].column("slice_id").to_pylist() == [NEW.name]
    # A table of another run under this name is not taken for its own.
    (copies / TABLE).write_bytes(OTHER.contents[TABLE])
    assert read_table(uri, read_search(uri, "--changelist"), ["accuracy"], ["slice_id"]) is None


CHANGING = [
    *("openat", "write", "fsync", "chmod", "rename", "renameat2", "link", "linkat"),
    *("unlink", "unlinkat", "flock"),
]


def dies_at_call(folder, call, number):
    """Publish in a process that is killed as it makes a system call for the n-th time."""
    go, may = os.pipe()
    process = os.fork()
    if not process:
        code = 1
        try:
            os.read(go, 1)
            publish_set(folder, NEW)
            code = 0
        finally:
            os._exit(code)
    tracer = subprocess.Popen(
        [
            *("strace", "-f", "-p", str(process), "-e", f"trace=?{call}"),
            *("-e", f"inject=?{call}:signal=KILL:when={number}"),
        ],
        stderr=subprocess.PIPE,
        text=True,
    )
    assert tracer.stderr is not None
    attached = tracer.stderr.readline()
    os.write(may, b".")
    code = os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])
    tracer.communicate()
    for end in (go, may):
        os.close(end)
    if "attached" not in attached:
        pytest.skip(f"strace may not trace here: {attached.strip()}")
    assert code in (0, -signal.SIGKILL)
    return code != 0


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("strace") is None, reason="strace is not installed")
@begins
def test_it_is_killed_at_any_system_call(tmp_path, begin):
    there, make = BEGINNINGS[begin]
    killed = {}
    for call in CHANGING:
        for number in range(1, 60):
            folder = tmp_path / f"{call}-{number}"
            folder.mkdir()
            make(folder)
            if not dies_at_call(folder, call, number):
                break
            killed.setdefault(call, []).append(seen(folder))
            assert publish_set(folder, NEW) == []
            assert_published(folder, NEW)
            shutil.rmtree(folder)
    assert {one for found in killed.values() for one in found} == {there, NEW.name}
    for call in ("openat", "fsync", "rename", "flock"):
        assert len(killed[call]) >= 2, killed
    assert sum(map(len, killed.values())) > 30


@google_first
@pytest.mark.slow
@pytest.mark.usefixtures("short_waits")
def test_storage_fails_from_some_request_on(bucket, proxy, monkeypatch):
    """The same with a server: what fails for good is an error in a line, and leaves one whole set."""
    from slicebeam.metrics.errors import EngineError

    monkeypatch.setenv("SLICEBEAM_STORAGE_TIMEOUT", "1")
    outcomes = []
    for n in range(40):
        folder = ObjectPath(f"{bucket.uri}/{n}")
        publish_set(folder, OLD)
        fault = proxy.add(Fault("status", status=503, path=OBJECTS[bucket.store.scheme], skip=n))
        said = ""
        try:
            left = publish_set(folder, NEW)
        except EngineError as error:
            said, left = str(error), []
        is_struck = fault.struck > 0
        proxy.heal()
        if not is_struck:
            break
        outcomes.append(seen(folder))
        # What can't be tidied up is no error, but is said.
        assert said or left
        assert all(re.search(rf"{folder}", line) for line in [said or left[0], *left])
        assert len(said.splitlines()) <= 1
        assert publish_set(folder, NEW) == []
        assert_published(folder, NEW)
    assert_one_or_the_other(outcomes, OLD.name, NEW, 3, 0)


# It differs from the first in the document only.
ALIKE = Written("alike", same_files_as="one")
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


HELD = (
    *((Path, name) for name in ("replace", "unlink")),
    *((os, name) for name in ("link", "fsync")),
    *((publication, name) for name in ("settle", "locked", "version_of")),
)


@updates
def test_two_runs_meet_on_a_disk(tmp_path, monkeypatch, there):
    for owner, name in HELD:
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
