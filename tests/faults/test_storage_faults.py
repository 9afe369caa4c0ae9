"""The servers of the tests end with them, and the proxy makes the faults that it is told to make."""

import subprocess
import sys
from pathlib import Path

import psutil
import pytest
import requests

from tests.object_stores import ROOT
from tests.storage_faults import Fault, faulty, within


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
    process = subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=ROOT
    )
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


def test_down_and_up_again(between):
    proxy, bucket = between
    endpoint = proxy.endpoint
    proxy.down()
    with pytest.raises(requests.ConnectionError, match="refused"):
        read(proxy, bucket)
    proxy.up()
    assert proxy.endpoint == endpoint
    assert read(proxy, bucket).content == b"0123456789"


def test_a_share_of_the_requests_is_the_same_each_time():
    def struck():
        fault = Fault("drop", share=0.1)
        return [fault.strikes("GET", f"/b/o/{number % 100}") for number in range(2000)]

    assert struck() == struck()
    assert 120 < sum(struck()) < 280
