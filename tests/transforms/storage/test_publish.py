"""One of several writers wins, and nothing that is half written is ever seen."""

import hashlib
import io
import os
import re
import signal
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

import pytest

from slicebeam.metrics.errors import ConflictError, EngineError, InputError
from slicebeam.transforms.storage import object_stores as stores
from slicebeam.transforms.storage import publication, storage
from slicebeam.transforms.storage.files import expand_paths
from slicebeam.transforms.storage.publication import files_to_publish
from slicebeam.transforms.storage.publish import Version, publish, version_of
from slicebeam.transforms.storage.storage import (
    ObjectPath,
    identity,
    locked,
    remove_folder,
    written_whole,
)
from tests.conftest import google_first, own_stores
from tests.gcs_server import FORBIDDEN
from tests.object_stores import ROOT, free_port, one_line
from tests.publications import Written, assert_published, publish_set
from tests.storage_faults import OBJECTS, Fault, within

WRITERS, ROUNDS = 8, 25
TOLD = re.compile(r"was published by (.+) at (\d{4}-\d\d-\d\d \d\d:\d\d:\d\d UTC)")
# Moto looks at a condition and writes in two steps, so two writers may win there.
atomic_stores = pytest.mark.parametrize("bucket", [
    "gcs_server",
    pytest.param("fake_gcs_server", marks=pytest.mark.engine),
    pytest.param("minio", marks=pytest.mark.engine),
], indirect=True)  # fmt: skip


@pytest.fixture
def path(bucket):
    return ObjectPath(f"{bucket.uri}/out/changelist.json")


def put(path, data, expected, writer="a test"):
    publish(path, io.BytesIO(data), expected, writer)


def test_a_new_object_only_if_there_is_none(path):
    assert version_of(path) is None
    put(path, b"one", None, "the first run")
    assert path.read_bytes() == b"one"
    with pytest.raises(EngineError, match=TOLD) as error:
        put(path, b"two", None, "the second run")
    one_line(error, str(path), "the first run", "nothing was replaced")
    assert path.read_bytes() == b"one"


def test_only_the_version_that_was_read_is_replaced(path):
    put(path, b"one", None)
    first = version_of(path)
    assert first is not None
    put(path, b"two", first, "the second run")
    second = version_of(path)
    assert second not in (None, first)
    with pytest.raises(EngineError, match=TOLD) as error:
        put(path, b"three", first, "the third run")
    one_line(error, str(path), "the second run")
    assert path.read_bytes() == b"two"
    put(path, b"three", second)
    assert path.read_bytes() == b"three"


def test_the_same_bytes_again_are_a_success(path):
    """A repeated request meets what it has written itself."""
    put(path, b"one", None)
    put(path, b"one", None)
    stale = version_of(path)
    put(path, b"two", stale)
    put(path, b"two", stale)
    assert path.read_bytes() == b"two"


def test_an_object_of_a_stranger_is_not_replaced(bucket, path):
    bucket.write(path.key, b"a copy by hand")
    with pytest.raises(EngineError, match=TOLD) as error:
        put(path, b"one", None)
    one_line(error, "by somebody else at")
    assert path.read_bytes() == b"a copy by hand"


def test_an_object_that_was_deleted_meanwhile(bucket, path):
    put(path, b"one", None)
    version = version_of(path)
    bucket.delete(path.key)
    with pytest.raises(EngineError, match="was deleted by another process") as error:
        put(path, b"two", version)
    one_line(error, str(path))
    assert bucket.keys() == []


def test_a_writer_of_any_name(path):
    put(path, b"one", None, "the run of Zoë on größe-主机 ")
    assert path.read_bytes() == b"one"
    with pytest.raises(EngineError, match="Zo") as error:
        put(path, b"two", None)
    one_line(error, "the run of Zoë on größe-主机 at")


def test_large_and_empty_objects(path):
    data = os.urandom(1 << 20) * 20
    put(path, data, None)
    assert path.read_bytes() == data
    put(path, b"", version_of(path))
    assert path.read_bytes() == b""


def raced(path, expected, round_):
    """Let writers meet; return what became of each: the name of the winner, or what it was told."""
    together = threading.Barrier(WRITERS)

    def one(number):
        writer = f"writer {number} of round {round_}"
        together.wait()
        try:
            put(path, f"{writer} ".encode() * 1000, expected, writer)
        except EngineError as error:
            return error
        return writer

    with ThreadPoolExecutor(WRITERS) as pool:
        return list(pool.map(one, range(WRITERS)))


@atomic_stores
@pytest.mark.parametrize("kind", ["new", "update"])
def test_one_of_many_writers_wins(path, kind):
    for round_ in range(ROUNDS):
        place = path.parent / f"{kind}-{round_}"
        if kind == "update":
            put(place, b"before", None)
        outcome = raced(place, version_of(place), round_)
        winners = [one for one in outcome if isinstance(one, str)]
        assert len(winners) == 1
        assert place.read_bytes() == f"{winners[0]} ".encode() * 1000
        for error in outcome:
            if isinstance(error, EngineError):
                told = TOLD.search(str(error))
                assert told, error
                assert told.group(1) == winners[0]


@own_stores
@pytest.mark.parametrize("is_new", [True, False])
@pytest.mark.parametrize("size", [1000, 10_000_000])
@pytest.mark.usefixtures("short_waits")
def test_a_lost_answer_is_known_as_success(path, proxy, bucket, is_new, size):
    if not is_new:
        put(path, b"before", None)
    version = version_of(path)
    # The last request of an upload in several is the one that stores the object.
    skip = 1 if bucket.store.scheme == "gs" and size > 8 << 20 else 0
    fault = proxy.add(Fault("lose answer", method="POST|PUT", skip=skip, times=1))
    before = len(proxy.requests)
    put(path, b"x" * size, version, "this run")
    assert fault.struck == 1
    # It did ask again.
    assert len([one for one in proxy.requests[before:] if one.startswith(("POST", "PUT"))]) >= 2
    assert path.read_bytes() == b"x" * size
    facts = path.store.facts(path.bucket, path.key)
    assert facts is not None
    assert facts.metadata["writer"] == "this run"


@own_stores
@pytest.mark.usefixtures("short_waits")
def test_another_writer_after_a_lost_answer_is_no_success(path, proxy, bucket):
    proxy.add(Fault("drop", method="POST|PUT", times=1))
    bucket.write(path.key, b"another's")
    with pytest.raises(EngineError, match=TOLD):
        put(path, b"ours", None)
    assert path.read_bytes() == b"another's"


@own_stores
@pytest.mark.parametrize("status", [429, 500, 502, 503, 504])
@pytest.mark.usefixtures("short_waits")
def test_a_busy_store_is_asked_again(path, proxy, status):
    fault = proxy.add(Fault("status", method="POST|PUT", status=status, times=3))
    put(path, b"one", None)
    assert fault.struck == 3
    assert path.read_bytes() == b"one"


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
    assert before == Version(hashlib.sha256(document.read_bytes()).hexdigest())
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
    names = sorted(one.name for one in tmp_path.iterdir())
    assert names == ["changelist.json", "slices.parquet"]


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


def write(path, data):
    with written_whole(path) as stream:
        stream.write(data)


USES = {
    "is_file": lambda path: path.is_file(),
    "is_dir": lambda path: path.is_dir(),
    "iterdir": lambda path: list(path.iterdir()),
    "glob": lambda path: list(path.glob("*")),
    "read": lambda path: path.read_bytes(),
    "open": lambda path: path.open().read(),
    "identity": identity,
    "unlink": lambda path: path.unlink(missing_ok=True),
    "remove_folder": remove_folder,
    "write": lambda path: write(path, b"data"),
    "expand_paths": lambda path: expand_paths([str(path)]),
}


@pytest.mark.parametrize("use", USES)
@pytest.mark.slow
def test_a_bucket_that_is_not_there(bucket, use):
    path = ObjectPath(f"{bucket.uri}-absent/folder/file")
    with pytest.raises(EngineError) as error:
        USES[use](path)
    one_line(error, f"{bucket.uri}-absent/", "no bucket", f"'{bucket.name}-absent'", "; create it")


@pytest.mark.parametrize("use", USES)
@pytest.mark.parametrize("bucket", ["gcs_server"], indirect=True)
def test_no_permission_on_google_cloud_storage(bucket, use):
    with pytest.raises(EngineError) as error:
        USES[use](ObjectPath(f"gs://{FORBIDDEN}bucket/folder/file"))
    one_line(error, f"gs://{FORBIDDEN}bucket/", "does not have storage.objects", "credentials")


@pytest.mark.engine
@pytest.mark.parametrize("use", USES)
@pytest.mark.parametrize("bucket", ["minio"], indirect=True)
@pytest.mark.parametrize("variable", ["AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"])
def test_wrong_keys(bucket, use, variable, monkeypatch):
    bucket.write("folder/file", b"data")
    monkeypatch.setenv(variable, "wrong")
    # Neither the client nor the credentials that it has found are kept.
    storage._store.cache_clear()
    monkeypatch.setattr("boto3.DEFAULT_SESSION", None)
    with pytest.raises(EngineError) as error:
        USES[use](ObjectPath(f"{bucket.uri}/folder/file"))
    one_line(error, f"{bucket.uri}/", "; check the credentials")


@pytest.mark.parametrize("bucket", ["moto"], indirect=True)
def test_no_keys(bucket, monkeypatch, tmp_path):
    for variable in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(variable)
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "none"))
    # It keeps the credentials that it has found.
    monkeypatch.setattr("boto3.DEFAULT_SESSION", None)
    storage._store.cache_clear()
    with pytest.raises(EngineError) as error:
        ObjectPath(f"{bucket.uri}/file").read_bytes()
    one_line(error, f"{bucket.uri}/file", "Unable to locate credentials", "; check the credentials")


def test_no_credentials_for_google_cloud_storage(monkeypatch, tmp_path):
    monkeypatch.delenv("STORAGE_EMULATOR_HOST", raising=False)
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(tmp_path / "absent.json"))
    storage._store.cache_clear()
    with pytest.raises(EngineError) as error:
        ObjectPath("gs://bucket/file").read_bytes()
    one_line(error, "gs://", "absent.json", "; check the credentials")


@own_stores
@pytest.mark.parametrize("use", ["is_file", "read", "write"])
@pytest.mark.slow
def test_nobody_listens(bucket, use, monkeypatch):
    monkeypatch.setenv("SLICEBEAM_STORAGE_TIMEOUT", "1")
    for name, value in bucket.store.environment(f"http://127.0.0.1:{free_port()}").items():
        monkeypatch.setenv(name, value)
    storage._store.cache_clear()
    with pytest.raises(EngineError) as error:
        within(60, USES[use], ObjectPath(f"{bucket.uri}/file"))
    one_line(error, f"{bucket.uri}/", "127.0.0.1", "SLICEBEAM_STORAGE_TIMEOUT")


def test_a_time_limit_that_is_none(monkeypatch):
    for value in ("soon", "0", "-1", "nan", "1e9"):
        monkeypatch.setenv("SLICEBEAM_STORAGE_TIMEOUT", value)
        with pytest.raises(InputError, match="SLICEBEAM_STORAGE_TIMEOUT") as error:
            stores.storage_timeout()
        one_line(error, repr(value))


FAULTS = {
    "429": {"kind": "status", "status": 429, "times": 2},
    "500": {"kind": "status", "status": 500, "times": 2},
    "502": {"kind": "status", "status": 502, "times": 1},
    "503": {"kind": "status", "status": 503, "times": 3},
    "dropped": {"kind": "drop", "times": 2},
    "lost answer": {"kind": "lose answer", "times": 1},
    "half an answer": {"kind": "cut answer", "times": 1},
    "slow": {"kind": "delay", "times": 1, "seconds": 0.3},
}
FAULTY_USES = ["is_file", "iterdir", "read", "open", "write", "unlink"]


@own_stores
@pytest.mark.parametrize(("use", "name"), [
    pytest.param(use, name, marks=() if use == "read" or name == "503" else pytest.mark.slow)
    for use in FAULTY_USES
    for name in FAULTS
])  # fmt: skip
@pytest.mark.usefixtures("short_waits")
@pytest.mark.slow
def test_passing_faults_go_unnoticed(bucket, proxy, use, name):
    bucket.write("folder/file", b"content" * 1000)
    bucket.write("folder/file/below", b"")
    path = ObjectPath(f"{bucket.uri}/folder/file")
    wanted = USES[use](path)
    bucket.write("folder/file", b"content" * 1000)
    fault = proxy.add(Fault(path=OBJECTS[bucket.store.scheme], **FAULTS[name]))
    assert USES[use](path) == wanted
    assert fault.struck == fault.times
    assert bucket.keys() == ["folder/file"] * (use != "unlink") + ["folder/file/below"]
    if use == "write":
        assert bucket.read("folder/file") == b"data"


# Answers without a body, which cannot be cut.
BODILESS = {"gcs_server": ("unlink",), "moto": ("is_file", "write")}


@pytest.mark.parametrize(("bucket", "use", "kind"), [
    (store, use, kind)
    for store in BODILESS
    for use in FAULTY_USES
    for kind in ("silence", "drop", "status", "cut answer", "lose answer")
    if kind != "cut answer" or use not in BODILESS[store]
], indirect=["bucket"])  # fmt: skip
@pytest.mark.slow
def test_lasting_faults_are_an_error(bucket, proxy, use, kind, monkeypatch):
    monkeypatch.setenv("SLICEBEAM_STORAGE_TIMEOUT", "2")
    bucket.write("folder/file", b"content" * 1000)
    proxy.add(Fault(kind, path=OBJECTS[bucket.store.scheme]))
    with pytest.raises(EngineError) as error:
        within(60, USES[use], ObjectPath(f"{bucket.uri}/folder/file"))
    one_line(error, f"{bucket.uri}/folder/file", "SLICEBEAM_STORAGE_TIMEOUT")


@pytest.mark.parametrize(
    "bucket", ["gcs_server", pytest.param("minio", marks=pytest.mark.engine)], indirect=True
)
def test_what_is_damaged_on_its_way_is_fetched_again_or_refused(bucket, proxy, monkeypatch):
    """Both libraries compare the store's checksum of a whole object."""
    monkeypatch.setenv("SLICEBEAM_STORAGE_TIMEOUT", "3")
    path = ObjectPath(f"{bucket.uri}/file")
    write(path, b"content" * 1000)
    once = proxy.add(Fault("damage", method="GET", path="file", times=1))
    assert path.read_bytes() == b"content" * 1000
    assert once.struck == 1
    proxy.add(Fault("damage", method="GET", path="file"))
    with pytest.raises(EngineError) as error:
        path.read_bytes()
    one_line(error, str(path))


@google_first
@pytest.mark.usefixtures("short_waits")
@pytest.mark.slow
def test_an_upload_that_is_cut_leaves_what_was_there(bucket, proxy, monkeypatch):
    path = ObjectPath(f"{bucket.uri}/file")
    write(path, b"old")
    once = proxy.add(Fault("cut request", method="PUT|POST", times=1))
    write(path, b"new" * 1_000_000)
    assert once.struck == 1
    assert path.read_bytes() == b"new" * 1_000_000
    monkeypatch.setenv("SLICEBEAM_STORAGE_TIMEOUT", "2")
    proxy.add(Fault("cut request", method="PUT|POST"))
    with pytest.raises(EngineError):
        write(path, b"newer" * 1_000_000)
    assert bucket.read("file") == b"new" * 1_000_000


RACER = """
import io, sys
from slicebeam.metrics.errors import EngineError
from slicebeam.transforms.storage.publish import publish, version_of
from slicebeam.transforms.storage.storage import ObjectPath
folder, me = ObjectPath(sys.argv[1]), sys.argv[2]
for line in sys.stdin:
    path = folder / line.strip()
    version = version_of(path)
    print("ready", flush=True)
    sys.stdin.readline()
    try:
        publish(path, io.BytesIO(me.encode() * 1000), version, me)
        print("won", flush=True)
    except EngineError as error:
        print(error, flush=True)
"""


@atomic_stores
@pytest.mark.slow
def test_one_of_many_processes_wins(bucket, path):
    names = [f"process {number}" for number in range(WRITERS)]
    command = [sys.executable, "-c", RACER, str(path.parent)]
    racers = [
        subprocess.Popen(
            [*command, name], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT
        )
        for name in names
    ]

    def tell(line):
        for racer in racers:
            assert racer.stdin is not None
            racer.stdin.write(f"{line}\n")
            racer.stdin.flush()
        return [racer.stdout.readline().strip() for racer in racers if racer.stdout is not None]

    try:
        for round_ in range(ROUNDS):
            place = path.parent / f"object {round_}"
            if round_ % 2:
                put(place, b"before", None)
            assert tell(place.name) == ["ready"] * WRITERS
            outcome = tell("go")
            winners = [name for name, told in zip(names, outcome, strict=True) if told == "won"]
            assert len(winners) == 1, outcome
            assert place.read_bytes() == winners[0].encode() * 1000
            told = [TOLD.search(one) for one in outcome if one != "won"]
            assert [one.group(1) for one in told if one] == winners * (WRITERS - 1)
    finally:
        for racer in racers:
            racer.kill()
            racer.communicate()


@google_first
@pytest.mark.parametrize("kind", [
    "status",
    *(
        pytest.param(kind, marks=pytest.mark.slow)
        for kind in ("silence", "drop", "cut request")
    ),
])  # fmt: skip
@pytest.mark.slow
def test_a_store_that_never_answers(path, proxy, bucket, kind, monkeypatch):
    put(path, b"old", None)
    version = version_of(path)
    monkeypatch.setenv("SLICEBEAM_STORAGE_TIMEOUT", "2")
    proxy.add(Fault(kind, path=OBJECTS[bucket.store.scheme]))
    with pytest.raises(EngineError) as error:
        within(60, put, path, b"new" * 1_000_000, version)
    one_line(error, str(path), "SLICEBEAM_STORAGE_TIMEOUT")
    proxy.heal()
    assert path.read_bytes() == b"old"


KILLED = """
import io, sys
from slicebeam.transforms.storage.publish import publish, version_of
from slicebeam.transforms.storage.storage import ObjectPath, written_whole
path, how = ObjectPath(sys.argv[1]), sys.argv[2]
data = b"new" * 5_000_000
if how == "publish":
    publish(path, io.BytesIO(data), version_of(path), "one that dies")
else:
    with written_whole(path) as stream:
        stream.write(data)
"""


def is_google(bucket):
    return bucket.store.scheme == "gs"


@pytest.mark.parametrize("how", ["publish", "written_whole"])
def test_a_writer_that_is_killed_leaves_the_old_object(path, proxy, bucket, how):
    put(path, b"old", None)
    keys = bucket.keys()
    # Of an upload in several requests the one with the bytes.
    proxy.add(Fault("hold request", method="PUT", path="upload_id" if is_google(bucket) else ""))
    process = subprocess.Popen([sys.executable, "-c", KILLED, str(path), how], cwd=ROOT)
    assert proxy.holding.wait(60)
    process.send_signal(signal.SIGKILL)
    process.wait()
    proxy.heal()
    assert path.read_bytes() == b"old"
    assert bucket.keys() == keys
    put(path, b"new", version_of(path))
    assert path.read_bytes() == b"new"
