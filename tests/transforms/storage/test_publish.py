"""One of several writers wins, and nothing that is half written is ever seen."""

import io
import os
import re
import signal
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from slicebeam.metrics.errors import EngineError
from slicebeam.transforms.storage.publish import publish, version_of
from tests.conftest import own_stores
from tests.object_stores import ROOT, one_line
from tests.storage_faults import Fault

WRITERS, ROUNDS = 8, 25
TOLD = re.compile(r"was published by (.+) at (\d{4}-\d\d-\d\d \d\d:\d\d:\d\d UTC)")
# Moto looks at a condition and writes in two steps, so two writers may win there.
atomic_stores = pytest.mark.parametrize("bucket", [
    "gcs_server",
    pytest.param("fake_gcs_server", marks=pytest.mark.engine),
    pytest.param("minio", marks=pytest.mark.engine),
], indirect=True)  # fmt: skip


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
