"""What listens during a run of each engine, and that no other user of the machine can use it."""

import ctypes
import logging
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace

import grpc
import psutil
import pytest
from apache_beam.portability.api import beam_fn_api_pb2, beam_fn_api_pb2_grpc

from slicebeam.metrics.errors import EngineError
from slicebeam.pipelines.run.engine import Engine, runner_config
from slicebeam.runner_configs import guarded_process, guardian, job_service
from slicebeam.runner_configs.flink import Flink
from slicebeam.runner_configs.guarded_process import (
    GuardedProcess,
    private_address,
    socket_folder,
    why_not_private,
)
from slicebeam.runner_configs.loopback import LoopbackPool
from tests.open_sockets import at_work, attacked, listening, needs_root
from tests.refusals import refusal, refuses

is_private_possible = pytest.mark.skipif(
    bool(why_not_private()), reason="this system allows no private network"
)


@pytest.fixture(autouse=True)
def temporary(request, tmp_path, monkeypatch):
    """A temporary folder in which nothing is left; engines may leave files of their own."""
    pattern = "slicebeam-*" if request.node.get_closest_marker("engine") else "*"
    with tempfile.TemporaryDirectory(prefix="sb-") as name:
        # Other users can enter it, so that it is not what keeps them out.
        Path(name).chmod(0o755)
        monkeypatch.setattr(tempfile, "tempdir", name)
        monkeypatch.setenv("TMPDIR", name)
        yield Path(name)
        end = time.monotonic() + 20
        while list(Path(name).glob(pattern)) and time.monotonic() < end:
            time.sleep(0.02)
        assert not list(Path(name).glob(pattern))


@pytest.mark.parametrize("engine", ["direct", "direct_multi"])
def test_in_this_process_and_in_worker_processes_a_run_listens_at_nothing(tmp_path, engine):
    with at_work(tmp_path, engine) as (_, sockets):
        assert sockets == set()


@needs_root
@pytest.mark.slow
def test_the_attack_succeeds_where_sockets_are_open(tmp_path):
    """What Beam's own server lets others do, and a pool whose secret they know."""
    from apache_beam.runners.portability.fn_api_runner import worker_handlers

    state = worker_handlers.StateServicer()
    manager = worker_handlers.WorkerHandlerManager({}, None)
    provision = SimpleNamespace(provision_info=None)
    before = listening()
    server = worker_handlers.GrpcServer(state, provision, manager)
    known, safe = LoopbackPool(secret="guessed"), LoopbackPool()
    try:
        told = attacked(listening() - before, tmp_path)
    finally:
        server.close()
        known.stop()
        safe.stop()
    assert f"[::]:{server.control_port}" in told
    assert told[f"[::]:{server.control_port}"]["reads"] == "of the owner alone"
    enters = {"connects": True, "reads": "", "takes_jobs": False}
    assert told[known.address] == {**enters, "starts": True}
    assert told[safe.address] == {**enters, "starts": False}


@pytest.mark.parametrize("params", [{}, {"secret": "guessed"}])
def test_a_pool_starts_nothing_without_its_secret(params):
    pool, other = LoopbackPool(), LoopbackPool()
    with grpc.insecure_channel(pool.address) as channel:
        service = beam_fn_api_pb2_grpc.BeamFnExternalWorkerPoolStub(channel)
        for secret in (params, {"secret": other.secret}):
            request = beam_fn_api_pb2.StartWorkerRequest(worker_id="w", params=secret)
            refuses(grpc.RpcError, "the worker pool of another run", service.StartWorker, request)
    assert not [thread for thread in threading.enumerate() if thread.name == "worker w"]
    pool.stop()
    other.stop()


def test_the_folder_of_sockets_has_a_short_path(temporary, monkeypatch):
    folder = socket_folder()
    assert folder.parent == temporary
    folder.rmdir()
    long = temporary / ("x" * 90)
    long.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(long))
    folder = socket_folder()
    assert folder.parent == Path("/tmp")
    assert folder.stat().st_mode & 0o777 == 0o700
    folder.rmdir()
    monkeypatch.setattr(guarded_process, "_LAST", str(long))
    said = "too long for sockets, or contains .*; set TMPDIR to another"
    refuses(EngineError, said, socket_folder)
    long.rmdir()


@pytest.mark.parametrize("name", ["a b", "50%41", "q?x=1", "ü"])
def test_sockets_are_not_where_their_path_would_mean_something_else(temporary, monkeypatch, name):
    odd = temporary / name
    odd.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(odd))
    folder = socket_folder()
    assert folder.parent == Path("/tmp")
    folder.rmdir()
    odd.rmdir()


def program(path, text):
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return path


def sent(name, options, beam, log):
    """The error of a job that cannot be sent, and what the user was told before."""
    notes = []
    with Engine(runner_config(name, options, beam)) as engine:
        engine.log_to(log, note=notes.append)
        error = refusal(EngineError, engine.run, lambda pipeline: None, "test")
    return error, notes


def test_without_private_networks_programs_are_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(job_service, "why_not_private", lambda: "Operation not permitted")
    monkeypatch.setattr(Flink, "check", lambda self: None)
    binary = program(tmp_path / "p", "exit 3")
    monkeypatch.setattr(Flink, "server_command", lambda *_: [str(binary)])
    log = tmp_path / "log"
    # As the command does, which leaves the warnings of libraries out.
    monkeypatch.setattr(logging.getLogger(), "level", logging.ERROR)
    prism, open_to_all = [f"prism_location={binary}"], "private_network=false"
    for name, beam in {"prism": prism, "flink": []}.items():
        message, notes = sent(name, [], beam, log)
        assert "cannot have a private network: Operation not permitted; --runner-opt" in message
        assert "private_network=false runs it anyway" in message
        assert not notes
        message, notes = sent(name, [open_to_all], beam, log)
        assert message.startswith("p ended with code 3")
        assert len(notes) == 1
        assert notes[0].startswith(
            "warning: anyone who can connect to this machine can run code as you through "
        )
        assert "private_network is false; see docs/how-to/engines.md" in notes[0]
        assert notes[0] in log.read_text()
    cluster = ["flink_master=10.0.0.5:8081", *PROCESS]
    _, notes = sent("flink", [], cluster, log)
    begins = "warning: anyone who can connect to 10.0.0.5 can run code there, and so can any"
    assert notes[0].startswith(begins)
    # It would be of no use to workers that are not in it.
    monkeypatch.setattr(job_service, "why_not_private", lambda: "")
    message, _ = sent("flink", [], ["environment_type=DOCKER", "environment_config=image"], log)
    assert "it must reach workers in containers" in message
    monkeypatch.setattr(Flink, "await_service", lambda *_: None)
    _, notes = sent("flink", [], ["job_endpoint=10.0.0.5:8099", *cluster], log)
    said = "warning: anyone who can connect to 10.0.0.5:8099 can run code there; see"
    assert notes[0].startswith(said)


PROCESS = ["environment_type=PROCESS", "environment_config=w"]
# Says where it is, takes one connection, and sends back what comes.
ECHO = f"""
import os, socket, sys
listening = socket.create_server(("127.0.0.1", {guardian.JOBS}))
connected = listening.accept()[0]
while data := connected.recv(100):
    connected.sendall(data)
connected.close()
for port in ({guardian.POOL}, {guardian.MASTER}):
    out = socket.create_connection(("127.0.0.1", port))
    out.sendall(b"from inside")
    out.close()
while True:
    listening.accept()
"""


@pytest.fixture
def echo(tmp_path, temporary):
    folder = socket_folder()
    command = [sys.executable, "-c", ECHO]
    with socket.create_server(("127.0.0.1", 0)) as master:
        leads_to = master.getsockname()
        process = GuardedProcess(
            command, tmp_path / "log", folder, is_private=True, leads_to=leads_to
        )
        yield process, folder, master
        process.stop()
    assert not folder.exists()


@is_private_possible
def test_sockets_lead_into_a_private_network_and_out_of_it(echo):
    process, sockets, master = echo
    namespaces = [Path(f"/proc/{pid}/ns/net") for pid in (process.pid, "self")]
    assert len({namespace.stat().st_ino for namespace in namespaces}) == 2
    pool = socket.socket(socket.AF_UNIX)
    pool.bind(str(sockets / guardian.POOL_SOCKET))
    pool.listen()
    address = private_address(sockets, f"localhost:{guardian.JOBS}")
    payload = os.urandom(3_000_000)
    with connected_to(address) as into:
        # Both directions at once, and more than buffers hold.
        sender = threading.Thread(target=lambda: (into.sendall(payload), into.shutdown(1)))
        sender.start()
        returned = b"".join(iter(lambda: into.recv(1 << 16), b""))
        sender.join()
    assert returned == payload
    for listens in (pool, master):
        listens.settimeout(20)
        outside, _ = listens.accept()
        assert outside.recv(100) == b"from inside"
        outside.close()
    pool.close()
    refuses(OSError, r".*", socket.create_connection, ("127.0.0.1", guardian.JOBS), 1)


def connected_to(address):
    """A connection to a program that may only be starting."""
    while True:
        one = socket.socket(socket.AF_UNIX)
        one.connect(address.removeprefix("unix:"))
        with suppress(ConnectionError):
            one.sendall(b"x")
            if one.recv(1):
                return one
        one.close()
        time.sleep(0.02)


@needs_root
@is_private_possible
def test_without_root_the_network_is_that_of_a_user_namespace(temporary):
    folder = socket_folder()
    program = ["sh", "-c", "cat /proc/self/uid_map /proc/net/dev >&2"]
    with subprocess.Popen(
        [sys.executable, "-I", "-S", guardian.__file__, "private", str(folder), *program],
        # Which ends the program when it is closed.
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=_without_rights_over_the_system,  # noqa: PLW1509
    ) as process:
        users, *devices = process.stderr.read().splitlines()
    assert users.split() == ["0", "0", "1"]
    assert [line.split(":")[0].strip() for line in devices[2:]] == ["lo"]
    assert not folder.exists()


def test_a_system_without_them_says_why(tmp_path, monkeypatch):
    for text, why in {
        "print('No space left on device'); raise SystemExit(1)": "No space left on device",
        "import sys; sys.exit('no unshare')": "no unshare",
        "": "",
    }.items():
        tried = tmp_path / "tried.py"
        tried.write_text(text)
        monkeypatch.setattr(guarded_process, "_GUARDIAN", [sys.executable, str(tried)])
        assert why_not_private() == why
    monkeypatch.setattr(sys, "platform", "darwin")
    assert why_not_private() == "only Linux has network namespaces"


def _without_rights_over_the_system():
    drop_from_bounds, system = 24, 21
    if ctypes.CDLL(None).prctl(drop_from_bounds, system, 0, 0, 0) != 0:
        raise OSError("cannot give up a right")


@is_private_possible
def test_what_leads_into_the_network_ends_with_the_program(echo):
    process, sockets, _ = echo
    program = psutil.Process(process.pid)
    os.kill(process._guardian.pid, signal.SIGKILL)
    psutil.wait_procs([program], timeout=10)
    assert not program.is_running()
    refuses(EngineError, "ended with code -9", process.check)
    refuses(OSError, r".*", private_address, sockets, "localhost:1")


EMBEDDED = ["prism", "prism--process", "flink-embedded", "spark-embedded-process"]


GUARDIAN = Path(guardian.__file__).name


@pytest.mark.engine
@is_private_possible
@needs_root
@pytest.mark.parametrize("engine", EMBEDDED)
def test_another_user_can_use_no_socket_of_an_engine(tmp_path, engines, engine):
    options = engines.options(engine)
    with at_work(tmp_path, *options.values()) as (_, sockets):
        told = attacked(sockets, tmp_path)
    # Its services are there, where nobody else is.
    assert any(one.is_private and not one.is_unix for one in sockets)
    assert all(one.is_unix or one.is_private for one in sockets)
    assert {one.address for one in sockets if one.is_unix} < told.keys()
    assert all(found == {"connects": False} for found in told.values()), told


@pytest.mark.engine
@is_private_possible
@needs_root
def test_without_a_private_network_a_job_server_takes_jobs_and_no_pool_starts(tmp_path, engines):
    """Of which the run warns; and the attack is one that works."""
    options = engines.options("flink-embedded", "private_network=false")
    with at_work(tmp_path, *options.values()) as (_, sockets):
        told = attacked(sockets, tmp_path)
    assert any(found.get("takes_jobs") for found in told.values()), told
    assert not any(found.get("starts") for found in told.values()), told


@pytest.mark.engine
@is_private_possible
@needs_root
def test_beside_a_flink_cluster_there_is_but_a_pool_that_asks_for_a_secret(tmp_path, engines):
    options = engines.options("flink-cluster")
    nodes = set(engines.flink.pids())
    with at_work(tmp_path, *options.values()) as (started, sockets):
        pool = started._backend._environment().url
        told = attacked({one for one in sockets if nodes.isdisjoint(parents(one.pid))}, tmp_path)
    assert pool.startswith("127.0.0.1:")
    refused = {"connects": True, "reads": "", "starts": False, "takes_jobs": False}
    assert told.pop(pool) == refused
    assert all(found == {"connects": False} for found in told.values()), told


def parents(pid):
    process = psutil.Process(pid)
    return {pid, *(parent.pid for parent in process.parents())}


@pytest.mark.engine
@is_private_possible
@pytest.mark.parametrize("engine", ["prism--process", "prism"])
def test_a_run_ends_with_a_line_where_what_leads_into_the_network_is_killed(
    tmp_path, adult_path, engines, engine
):
    given = [
        sys.executable,
        "-m",
        "slicebeam.pipelines.commands.cli",
        "search",
        f"--data={adult_path}",
    ]
    given += [f"--output={tmp_path}", "--label=income", "--prediction=prediction", "--quiet"]
    given += ["--memory-budget=16MB", *engines.arguments(engine)]
    run = subprocess.Popen(given, stderr=subprocess.PIPE, text=True)
    while not (tmp_path / "_work" / "stages" / "iteration-1" / "plan").exists():
        assert run.poll() is None
        time.sleep(0.02)
    children = psutil.Process(run.pid).children(recursive=True)
    own = [child for child in children if child.ppid() == run.pid]
    (guardian,) = (child for child in own if GUARDIAN in "".join(child.cmdline()))
    os.kill(guardian.pid, signal.SIGKILL)
    _, message = run.communicate(timeout=120)
    assert run.returncode == 3, message
    first, second = message.strip().splitlines()
    assert first.startswith("slicebeam: ")
    assert "--resume" in second
    _, alive = psutil.wait_procs(children, timeout=20)
    assert not alive
