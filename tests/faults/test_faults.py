"""After every fault the result is right to the byte, or an error says in a line what to do.

The short tests try each fault once or twice, the longer ones at most three times;
``python benchmarks/faults.py`` tries them at many moments and prints what came of it.
"""

import subprocess
import sys
from pathlib import Path

import psutil
import pytest
import requests

from tests.faults import (
    faults_of_engines,
    faults_of_object_storage,
    faults_of_processes,
    faults_of_storage,
    faults_of_surroundings,
)
from tests.faults.faults import CLEAR, EQUAL, Ended, bench, published, same, verdict, whole
from tests.object_stores import ROOT
from tests.running import own_file
from tests.storage_faults import Fault, faulty, within

FAULTS = [*faults_of_processes.FAULTS, *faults_of_storage.FAULTS, *faults_of_surroundings.FAULTS]
FIRST = ("killed", "the disk full", "the data changed")
# Of each fault in the longer tests.
MOST_TRIES = 3
OF_RUNS = ["killed, then resumed", "two runs in one"]


@pytest.fixture(scope="module")
def place(commands):
    with bench(commands) as made:
        yield made


def named(fault):
    return fault.name


@pytest.mark.parametrize(
    # The others in the longer run, where they are tried at these moments and many more.
    "fault",
    [one for one in FAULTS if one.quick and one.name.startswith(FIRST)],
    ids=named,
)
def test_fault(place, fault):
    assert fault.tried(place, fault.quick).other(fault.may) == {}


@pytest.mark.slow
@pytest.mark.parametrize("fault", FAULTS, ids=named)
def test_fault_at_many_moments(place, fault):
    assert fault.tried(place, range(min(fault.times, MOST_TRIES))).other(fault.may) == {}


@pytest.fixture(scope="module")
def stores():
    with faults_of_object_storage.faults() as found:
        yield {fault.name: fault for fault in found}


@pytest.mark.slow
@pytest.mark.parametrize("scheme", ["gs://", "s3://"])
@pytest.mark.parametrize(
    "what", [*faults_of_object_storage.PASSING, *faults_of_object_storage.LASTING, *OF_RUNS]
)
def test_fault_of_object_storage(place, stores, scheme, what):
    fault = stores[f"{scheme} {what}"]
    assert fault.tried(place, range(min(fault.times, MOST_TRIES))).other(fault.may) == {}


@pytest.fixture
def clusters(engines):
    return {fault.name: fault for fault in faults_of_engines.faults(engines)}


@pytest.mark.engine
@pytest.mark.parametrize("what", faults_of_engines.KILLS)
def test_fault_of_a_cluster(place, clusters, what):
    fault = clusters[f"{what}, then resumed"]
    # Each takes a minute; the benchmark tries more moments.
    assert fault.tried(place, range(1)).other(fault.may) == {}


@pytest.mark.slow
def test_what_is_wrong_is_told_from_what_is_right(place):
    """The verdict itself: else no fault could be found."""
    right = place.undisturbed()
    output = place.place() / "out"
    output.mkdir()
    done = Ended(0, "")
    assert same(output, right).startswith("nothing published")
    for name, content in published(right.folder).items():
        (output / name).write_bytes(content)
    assert verdict(done, output, right) == EQUAL
    (output / ".slices.parquet.abcdefgh").touch()
    assert verdict(done, output, right) == "left behind: ['.slices.parquet.abcdefgh']"
    document = output / "changelist.json"
    document.write_bytes(document.read_bytes().replace(b'"n": 16281', b'"n": 16282', 1))
    assert verdict(done, output, right) == "other changelist.json"
    assert whole(output, right) == "other changelist.json"
    document.write_bytes(published(right.folder)[document.name])
    assert whole(output, right) == EQUAL
    (output / "_work").mkdir()
    assert whole(output, right) == EQUAL
    (output / "mine").touch()
    assert whole(output, right) == "left behind: ['mine']"
    own_file(output, "slices.parquet").write_bytes(b"")
    assert whole(output, right).startswith("other slices.")
    (output / "slices.parquet").write_bytes(place.undisturbed("--max-cross-size=2").slices_bytes)
    assert verdict(done, output, right) == "other slices.parquet"
    line = "slicebeam: cannot read x: no such file"
    assert verdict(Ended(2, f"{line}\n"), output, right) == CLEAR
    assert verdict(Ended(3, f"{line}\nmore\n"), output, right) == CLEAR
    for bad in (
        *(Ended(1, line), Ended(-11, ""), Ended(None, ""), Ended(3, "")),
        *(Ended(3, "\n".join([line] * 3)), Ended(3, "Traceback (most recent call last):")),
        Ended(3, "slicebeam: unforeseen KeyError: 'x'"),
    ):
        assert verdict(bad, output, right) not in (EQUAL, CLEAR)


@pytest.mark.slow
def test_the_servers_end_with_the_process_that_started_them():
    code = (
        "from tests.object_stores import gcs_store, moto_store\n"
        "import os, signal, sys\n"
        "with gcs_store() as one, moto_store() as other:\n"
        "    print(one.endpoint, other.endpoint, flush=True)\n"
        "    sys.stdin.read()\n"
        "    os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    process = subprocess.Popen([sys.executable, "-c", code], **pipes, cwd=ROOT)
    assert len(process.stdout.readline().split()) == 2
    servers = psutil.Process(process.pid).children()
    assert len(servers) == 2
    process.communicate()
    _, alive = psutil.wait_procs(servers, timeout=20)
    assert not alive


def test_a_command_ends_with_whoever_started_it(tmp_path):
    code = "import sys, time; print(sys.argv[1], flush=True); time.sleep(1000)"
    program = [sys.executable, str(ROOT / "tests" / "ends_with_parent.py")]
    program += [sys.executable, "-c", code, "{folder}"]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    process = subprocess.Popen(program, **pipes)
    folder = Path(process.stdout.readline().strip())
    assert folder.is_dir()
    commands = psutil.Process(process.pid).children()
    assert len(commands) == 1
    process.communicate(timeout=20)
    assert not psutil.wait_procs(commands, timeout=20)[1]
    assert not folder.exists()


@pytest.fixture
def between(gcs_server):
    with faulty(gcs_server.endpoint) as proxy:
        bucket = gcs_server.new_bucket()
        bucket.write("file", b"0123456789")
        yield proxy, bucket


def read(proxy, bucket):
    address = f"{proxy.endpoint}/download/storage/v1/b/{bucket.name}/o/file?alt=media"
    return requests.get(address, timeout=(5, 0.5))


def write(proxy, bucket, data):
    address = f"{proxy.endpoint}/upload/storage/v1/b/{bucket.name}/o?uploadType=media&name=file"
    return requests.post(address, data=data, timeout=5)


def test_undisturbed_it_hands_everything_on(between):
    proxy, bucket = between
    assert read(proxy, bucket).content == b"0123456789"
    assert write(proxy, bucket, b"new").json()["size"] == "3"
    assert bucket.read("file") == b"new"
    assert [one.split()[0] for one in proxy.requests] == ["GET", "POST"]


def test_faults_of_answers(between):
    proxy, bucket = between
    fault = proxy.add(Fault("status", status=429, skip=1, times=2))
    assert [read(proxy, bucket).status_code for _ in range(4)] == [200, 429, 429, 200]
    assert fault.struck == 2
    proxy.add(Fault("damage", times=1))
    assert read(proxy, bucket).content == b"0123446789"
    for kind in ("cut answer", "drop", "silence"):
        proxy.add(Fault(kind, times=1))
        with pytest.raises(requests.RequestException):
            within(20, read, proxy, bucket)
    proxy.add(Fault("status", method="POST"))
    proxy.add(Fault("status", path="another"))
    assert read(proxy, bucket).content == b"0123456789"


def test_faults_of_requests(between):
    proxy, bucket = between
    proxy.add(Fault("cut request", times=1))
    with pytest.raises(requests.RequestException):
        write(proxy, bucket, b"new" * 1000)
    assert bucket.read("file") == b"0123456789"
    proxy.add(Fault("lose answer", times=1))
    with pytest.raises(requests.RequestException):
        write(proxy, bucket, b"new")
    assert bucket.read("file") == b"new"


def test_a_share_of_the_requests_is_the_same_each_time():
    def struck():
        fault = Fault("drop", share=0.1)
        return [fault.strikes("GET", f"/b/o/{number % 100}") for number in range(2000)]

    assert struck() == struck()
    assert 120 < sum(struck()) < 280
