"""What an engine refuses before a job is sent, how its processes end, and what errors and logs say."""

import json
import logging
import os
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
import zipfile
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from unittest.mock import Mock

import apache_beam as beam
import psutil
import pytest

from slicebeam.metrics.errors import EngineError, InputError
from slicebeam.pipelines.run.engine import Engine, runner_config
from slicebeam.runner_configs import flink, job_service, process_stat
from slicebeam.runner_configs.backend import run_aside
from slicebeam.runner_configs.beam_runner import check_beam_options, flags
from slicebeam.runner_configs.guarded_process import GuardedProcess
from slicebeam.runner_configs.job_log import for_user, logged_to
from slicebeam.runner_configs.job_service import Prism, free_port
from slicebeam.runner_configs.options import RunnerOptions
from tests.conftest import slow
from tests.refusals import refuses

ENDED = 20.0


def nothing(pipeline):
    return pipeline | beam.Create([1])


def failure(name, *beam):
    """What an engine says where a job cannot be sent; in a line."""
    with (
        pytest.raises((EngineError, InputError)) as error,
        Engine(runner_config(name, (), beam)) as engine,
    ):
        engine.run(nothing, "test")
    message = str(error.value)
    assert len(message.splitlines()) == 1
    return message


@pytest.fixture(autouse=True)
def no_programs(tmp_path, monkeypatch):
    """None of the programs of engines that this machine may have, and a folder for what they leave."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    path = [
        folder for folder in os.environ["PATH"].split(":") if not Path(folder, "prism").exists()
    ]
    monkeypatch.setenv("PATH", ":".join(path))


def jar(path, *names, text=""):
    with zipfile.ZipFile(path, "w") as written:
        for name in names:
            written.writestr(name, text)
    return path


@pytest.fixture
def flink_jar(tmp_path):
    name = "META-INF/maven/org.apache.beam/beam-runners-flink-1.19/pom.properties"
    return jar(tmp_path / "flink.jar", name)


@contextmanager
def served(answers):
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self):
            answer = answers.get(self.path)
            self.send_response(200 if answer is not None else 404)
            self.end_headers()
            text = answer if isinstance(answer, str) else json.dumps(answer)
            self.wfile.write(text.encode())

        def do_PATCH(self):
            answers.setdefault("patched", []).append(self.path)
            job = self.path.split("/")[2].partition("?")[0]
            for known in answers["/jobs/overview"]["jobs"]:
                if known["jid"] == job:
                    known["state"] = "CANCELED"
            self.send_response(202)
            self.end_headers()

        def log_message(self, *_):
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()


def test_a_master_that_does_not_answer_is_named_at_once():
    address = f"127.0.0.1:{free_port()}"
    begun = time.monotonic()
    said = failure("flink", f"flink_master={address}")
    assert f"Flink master {address} does not answer (Connection refused)" in said
    said = failure("spark", f"spark_master_url=spark://{address}")
    assert f"Spark master {address} does not answer" in said
    assert f"job server {address} does not answer" in failure("flink", f"job_endpoint={address}")
    pool = ("environment_type=EXTERNAL", f"environment_config={address}")
    assert f"worker pool {address} does not answer" in failure("flink", *pool)
    # Beam would take a minute for each.
    assert time.monotonic() - begun < 30


@pytest.mark.parametrize(("version", "slots", "message"), [
    ("1.20.1", (2, 2), "is version 1.20.1, and the job server is for 1.19; name a flink_job_server_jar"),
    ("1.19.3", (1, 1), "has 1 of 1 slots free, and workers is 2; lower it, add task managers"),
    ("1.19.3", (2, 1), "has 1 of 2 slots free, and workers is 2"),
])  # fmt: skip
def test_a_flink_that_does_not_fit(version, slots, message, monkeypatch, flink_jar):
    monkeypatch.setattr(flink, "_RELEASE", 0.2)
    overview = {"slots-total": slots[0], "slots-available": slots[1], "taskmanagers": 1}
    with served({"/config": {"flink-version": version}, "/overview": overview}) as address:
        server = f"flink_job_server_jar={flink_jar}"
        assert re.search(message, failure("flink", f"flink_master={address}", server))


def test_jobs_that_an_earlier_process_left_on_flink_are_ended(tmp_path, flink_jar):
    def job(jid, stage, state="RUNNING"):
        return {"jid": jid, "name": f"slicebeam-run-{stage}", "state": state}

    jobs = [
        job("a", "iteration-1-0123abcd"),
        job("b", "iteration-1"),
        job("c", "iteration-10"),
        job("d", "iteration-1-old", "FAILED"),
        {"jid": "e", "name": "somebody-elses", "state": "RUNNING"},
    ]
    answers = {
        "/config": {"flink-version": "1.19.3"},
        "/overview": {"slots-total": 2, "slots-available": 2, "taskmanagers": 2},
        "/jobs/overview": {"jobs": jobs},
    }
    with served(answers) as address:
        config = runner_config(
            "flink", [], [f"flink_master={address}", f"flink_job_server_jar={flink_jar}"]
        )
        for resumes in (False, True):
            with Engine(config) as engine:
                engine.log_to(tmp_path / "log", "run", resumes=resumes)
                engine.end_earlier("iteration-1", but="iteration-1-0123abcd")
            assert ("patched" in answers) == resumes
    assert sorted(answers["patched"]) == ["/jobs/a?mode=cancel", "/jobs/b?mode=cancel"]


def test_a_job_server_that_is_not_there(tmp_path, flink_jar):
    message = failure("flink", "flink_version=1.19")
    assert "no job server for flink: name its jar with --beam flink_job_server_jar=PATH" in message
    assert "/beam-runners-flink-1.19-job-server/" in message
    assert "no job server for spark: " in failure("spark")
    named = f"flink_job_server_jar={tmp_path}"
    assert f"{tmp_path}/x.jar: no such file" in failure("flink", f"{named}/x.jar")
    (tmp_path / "broken.jar").write_text("no zip")
    assert "is not a readable jar" in failure("flink", f"{named}/broken.jar")
    java = failure("flink", f"{named}/flink.jar", "job_server_java_launcher=jva")
    assert "'jva' is missing" in java
    assert flink.jar_version(flink_jar) == "1.19"
    assert flink.jar_version(jar(tmp_path / "other.jar", "a")) is None


def test_a_prism_that_is_not_there(tmp_path):
    assert "go install github.com/apache/beam" in failure("prism")
    (tmp_path / "p").touch(mode=0o644)
    assert "cannot be run" in failure("prism", f"prism_location={tmp_path}/p")


@pytest.mark.parametrize(("beam", "message"), [
    ("flink_master=nowhere", "--beam flink_master=nowhere: it must be host:port"),
    ("flink_master=h:0", "it must be host:port"),
    ("flink_master=h:65536", "it must be host:port"),
    ("flink_master=10.0.0.5:8081", "LOOPBACK works only with an engine on this machine"),
    ("flink_master=localhost.example:1", "only with an engine on this machine"),
    ("environment_type=PROCESS flink_master=h:1", "PROCESS needs --beam environment_config"),
    ("environment_type=DOCKER", "DOCKER needs --beam environment_config=IMAGE"),
    ("environment_type=EXTERNAL", "environment_config=: it must be host:port"),
    ("environment_type=EXTERNAL environment_config=x", "environment_config=x: it must be host:port"),
    ("environment_type=CLOUD", "CLOUD: choose from LOOPBACK, PROCESS, EXTERNAL, DOCKER"),
    ("job_server_timeout=soon", "job_server_timeout=soon: it must be a whole number"),
    ("environment_config=x", "LOOPBACK takes no environment_config"),
    ("environment_type=PROCESS environment_config={x", "write it as .*command"),
])  # fmt: skip
def test_options_that_could_not_work_are_refused_at_once(beam, message):
    refuses(InputError, message, Engine, runner_config("flink", [], beam.split()))


def test_any_runner_of_beam_runs_jobs(tmp_path):
    """Without code of ours: by the name of its class, with Beam's options."""
    done = tmp_path / "done"
    config = runner_config("BundleBasedDirectRunner", [], ["direct_num_workers=1"])
    with Engine(config) as engine:
        engine.log_to(tmp_path / "log")
        engine.run(
            lambda pipeline: pipeline | beam.Create([done]) | beam.Map(lambda path: path.touch()),
            "test",
        )
        assert engine.name == "BundleBasedDirectRunner"
        with pytest.raises(InputError, match="workers of BundleBasedDirectRunner do not see it"):
            engine.check_storage(["data.csv"])
    assert done.exists()
    assert "did you mean 'FlinkRunner'" in failure("FlnkRunner")
    assert "--runner-config no.such.OddRunner: No module" in failure("no.such.OddRunner")
    said = failure("BundleBasedDirectRunner", "direct_num_worker=1")
    assert "did you mean 'direct_num_workers'" in said
    # As Beam does, of an option with one value the last is taken.
    backend = Engine(
        runner_config("flink", [], ["flink_master=a:1", "flink_master=[local]"])
    )._backend
    assert backend.is_embedded
    assert Engine(runner_config("FlinkRunner", [], ["parallelism=7"])).workers == 7
    assert "slicebeam sets it" in failure("BundleBasedDirectRunner", "job_name=x")


def program(path, text):
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return path


def test_a_program_that_ends_at_once_is_a_line_and_leaves_nothing(tmp_path):
    binary = program(tmp_path / "p", "echo its last words >&2; exit 3")
    log = tmp_path / "log"
    with Engine(runner_config("prism", [], [f"prism_location={binary}"])) as engine:
        engine.log_to(log)
        with pytest.raises(EngineError, match=f"p ended with code 3; its output is in {log}"):
            engine.run(nothing, "test")
    assert "its last words" in log.read_text()
    assert not list(tmp_path.glob("slicebeam-*"))


def test_a_program_that_never_answers_is_given_up(tmp_path):
    binary = program(tmp_path / "p", "exec sleep 1000")
    with Engine(
        runner_config("prism", [], [f"prism_location={binary}", "job_server_timeout=1"])
    ) as engine:
        engine.log_to(tmp_path / "log")
        refuses(EngineError, r"did not answer within 1 seconds", engine.run, nothing, "test")
    assert not list(tmp_path.glob("slicebeam-*"))


def test_small_work_stays_in_this_process(tmp_path):
    binary = program(tmp_path / "p", "exit 3")
    with Engine(
        runner_config("prism", ["smallest_job_seconds=5"], [f"prism_location={binary}"])
    ) as engine:
        engine.log_to(tmp_path / "log")
        engine.run(nothing, "small", 4.9)
        assert engine.name == "prism, 2 threads"
        for seconds in (5.0, None):
            refuses(EngineError, "ended with code 3", engine.run, nothing, "large", seconds)


def test_jobs_are_called_after_run_and_stage(tmp_path):
    with Engine(runner_config("direct", ())) as engine:
        engine.log_to(tmp_path / "log", "abc")
        assert engine.job_name("encode") == "slicebeam-abc-encode"
        name = "slicebeam-abc-iteration-2-resampled"
        assert engine.job_name("iteration-2 (Resampled)") == name


@pytest.mark.parametrize(("beam", "options", "seen"), [
    ("flink_master=127.0.0.1:8081", (), True),
    ("flink_master=[local]", (), True),
    ("flink_master=localhost:8081 environment_type=DOCKER environment_config=image", (), False),
    ("flink_master=10.0.0.5:8081 environment_type=PROCESS environment_config=w", (), False),
    ("flink_master=10.0.0.5:8081 environment_type=PROCESS environment_config=w", ["shared_folder=true"], True),
])  # fmt: skip
def test_paths_of_this_machine_are_for_workers_on_it(beam, options, seen):
    with Engine(runner_config("flink", options, beam.split())) as engine:
        engine.check_storage(["gs://bucket/data", "s3://bucket/work"])
        for path in ("/data/x.parquet", "data.csv", "file:///data/x", Path("/data")):
            if seen:
                engine.check_storage([path])
                continue
            with pytest.raises(InputError, match=r"gs:// or s3:// paths, or .*shared_folder=true"):
                engine.check_storage(["gs://bucket/data", path])


def test_workers_in_a_private_network_see_this_machine_only():
    with Engine(runner_config("flink", [], ["environment_type=PROCESS"])) as engine:
        engine.check_storage(["/data/x.parquet"])
        hint = "environment_type=LOOPBACK, or --runner-option private_network=false"
        with pytest.raises(InputError, match=rf"gs://b/x is elsewhere, .* see it; .*{hint}"):
            engine.check_storage(["data.csv", "gs://b/x"])
    with Engine(
        runner_config("flink", ["private_network=false"], ["environment_type=PROCESS"])
    ) as engine:
        engine.check_storage(["/data/x.parquet", "gs://b/x"])


def test_beam_options_are_checked():
    check_beam_options({"max_cache_memory_usage_mb": 3, "experiments": ["a", "b"]})
    name = "number_of_execution_retries"
    check_beam_options({name: 3}, engine_options=[name])
    for options, message in {
        ("max_cache_memory_usge_mb", 3): "did you mean 'max_cache_memory_usage_mb'",
        ("max_cache_memory_usage_mb", "much"): "invalid int value: 'much'",
        ("no_auth", False): "Beam does not take this value",
        ("job_name", "x"): "slicebeam sets it",
    }.items():
        refuses(InputError, message, check_beam_options, dict([options]), reserved=["job_name"])
    given = {"a": True, "b": None, "c": [1, 2], "d": {"x": 1}, "e": "f"}
    assert flags(given) == ["--a", "--c=1", "--c=2", '--d={"x": 1}', "--e=f"]


def test_an_engine_refuses_unknown_beam_options(tmp_path):
    binary = program(tmp_path / "p", "exit 0")
    message = failure("prism", f"prism_location={binary}", "max_cache_memory_usge_mb=3")
    assert "did you mean 'max_cache_memory_usage_mb'" in message


TRACEBACK = """java.util.concurrent.ExecutionException: java.lang.RuntimeException: Error received from
SDK harness for instruction 4: Traceback (most recent call last):
  File "apache_beam/runners/common.py", line 1512, in process
{first}

During handling of the above exception, another exception occurred:

Traceback (most recent call last):
  File "apache_beam/runners/common.py", line 1512, in process
{first} [while running 'Extract slice keys/Encode']

\tat java.base/java.lang.Thread.run(Thread.java:840)
Caused by: java.lang.IllegalStateException: the pipe broke
\tat org.apache.beam.Something
"""


def test_the_error_of_a_worker_is_told_in_its_own_words():
    ours = "slicebeam.metrics.errors.InputError: --example-id has no value in row 3 of x.csv"
    told = for_user(RuntimeError(TRACEBACK.format(first=ours)))
    assert type(told) is InputError
    assert str(told) == "--example-id has no value in row 3 of x.csv"
    other = for_user(RuntimeError(TRACEBACK.format(first="BufferError: no room")), Path("a.log"))
    assert type(other) is EngineError
    assert str(other) == "the engine failed: BufferError: no room; more in a.log"
    memory = for_user(RuntimeError(TRACEBACK.format(first="MemoryError: no room")))
    assert str(memory).startswith("a worker is out of memory; lower --memory-budget")
    java = for_user(RuntimeError(TRACEBACK.format(first="")))
    assert str(java) == "the engine failed: IllegalStateException: the pipe broke"
    call = '<_InactiveRpcError of RPC\n\tstatus = StatusCode.UNAVAILABLE\n\tdetails = "Socket closed"\n>'
    assert str(for_user(RuntimeError(call))) == "the engine failed: UNAVAILABLE: Socket closed"
    assert len(str(for_user(RuntimeError("x" * 5000)))) < 400
    quoted = f'{{"error":"Traceback\\n  File\\n{ours} [while running \\"x\\"]\\n"}}'
    assert str(for_user(RuntimeError(quoted))) == "--example-id has no value in row 3 of x.csv"
    conflict = (
        "slicebeam.metrics.errors.ConflictError: out/changelist.json was published by another"
    )
    assert for_user(RuntimeError(TRACEBACK.format(first=conflict))).exit_code == 2


def test_waiting_for_a_job_ends(tmp_path):
    begun = time.monotonic()
    with pytest.raises(EngineError, match=r"abandoned after 0.1 seconds; raise job_timeout"):
        run_aside(lambda: time.sleep(30), lambda: None, 0.1)

    lost = Mock(side_effect=EngineError("a worker is gone"))
    refuses(EngineError, "a worker is gone", run_aside, lambda: time.sleep(30), lost)
    assert time.monotonic() - begun < 20
    assert run_aside(lambda: 7, lost) == 7


def _gone(*pids):
    processes = [process for process in psutil.process_iter() if process.pid in pids]
    _, alive = psutil.wait_procs(processes, timeout=ENDED)
    return not alive


def test_a_job_of_prism_whose_worker_was_killed_is_not_waited_for(tmp_path, monkeypatch):
    monkeypatch.setattr(job_service, "_WITHOUT_WORKER", 0.0)
    engine = Prism(RunnerOptions(beam={"environment_type": "PROCESS"}), "PrismRunner")
    engine.log = tmp_path / "log"
    program = (
        "import subprocess, time; p = subprocess.Popen(['sleep', '1000']); print(p.pid, flush=True)"
    )
    command = [sys.executable, "-S", "-c", f"{program}; p.wait(); time.sleep(1000)"]
    engine._server = GuardedProcess(command, engine.log, tmp_path / "folder")
    try:
        engine.watch("job")
        while not engine.log.read_text().strip():
            time.sleep(0.01)
        worker = int(engine.log.read_text())
        engine.watch("job")
        os.kill(worker, signal.SIGKILL)
        assert _gone(worker)
        with pytest.raises(EngineError, match=f"worker process of the job has ended.*{engine.log}"):
            engine.watch("job")
    finally:
        engine._server.stop()


@pytest.mark.slow
def test_a_guarded_program_ends_with_its_children_and_its_folder(tmp_path):
    folder = tmp_path / "folder"
    folder.mkdir()
    log = tmp_path / "log"
    stubborn = "trap '' TERM; sleep 1000 & echo $!; wait; sleep 1000"
    process = GuardedProcess(["sh", "-c", stubborn], log, folder)
    while not log.read_text().strip():
        time.sleep(0.01)
    child = int(log.read_text())
    process.check()
    assert process.cpu_seconds() >= 0.0
    process.stop()
    assert _gone(process.pid, child)
    assert not folder.exists()
    assert process_stat.cpu_seconds(child) == 0.0
    refuses(EngineError, "sh ended", process.check)


def test_a_program_that_cannot_be_started(tmp_path):
    with pytest.raises(EngineError, match="cannot start /nowhere/p: No such file or directory"):
        GuardedProcess(["/nowhere/p"], tmp_path / "log", tmp_path / "x")


@pytest.mark.parametrize("number", [signal.SIGKILL, slow(signal.SIGTERM)])
@pytest.mark.slow
def test_a_guarded_program_ends_when_the_run_is_killed(tmp_path, number):
    folder = tmp_path / "folder"
    folder.mkdir()
    text = (
        "import sys, time, pathlib\n"
        "from slicebeam.runner_configs.guarded_process import GuardedProcess\n"
        f"p = GuardedProcess(['sleep', '1000'], pathlib.Path({str(tmp_path / 'log')!r}), {str(folder)!r})\n"
        "print(p.pid, p._guardian.pid, flush=True)\n"
        "time.sleep(1000)\n"
    )
    run = subprocess.Popen([sys.executable, "-c", text], stdout=subprocess.PIPE, text=True)
    pids = [int(pid) for pid in run.stdout.readline().split()]
    assert all(psutil.pid_exists(pid) for pid in pids)
    run.send_signal(number)
    run.wait(timeout=30)
    run.stdout.close()
    assert _gone(*pids)
    assert not folder.exists()


def _heard(monkeypatch):
    """Return what reaches a process without handlers; called by the test, as pytest sets some."""
    seen = []
    monkeypatch.setattr(logging.getLogger(), "handlers", [])
    last = logging.Handler()
    last.emit = lambda record: seen.append(record.getMessage())
    monkeypatch.setattr(logging, "lastResort", last)
    monkeypatch.setattr(threading, "excepthook", lambda details: seen.append(details.exc_value))
    return seen


def _complain(gate, words):
    gate.wait()
    logging.getLogger("apache_beam").error(words)
    raise ValueError(words)


def _started(words):
    gate = threading.Event()
    thread = threading.Thread(target=_complain, args=(gate, words))
    thread.start()
    return gate, thread


def _let(gate, thread):
    gate.set()
    thread.join()


def test_threads_of_a_failed_job_are_quiet(monkeypatch, tmp_path):
    heard = _heard(monkeypatch)
    within, left = [], []

    def job():
        with logged_to(tmp_path / "log"):
            within.extend(_started("within"))
            left.extend(_started("left"))
            _let(*within)
            raise RuntimeError("lost")

    with pytest.raises(RuntimeError):
        job()
    _let(*left)
    assert heard == []
    written = (tmp_path / "log").read_text()
    assert "ValueError: within" in written
    assert "left" not in written
    _let(*_started("later"))
    assert [str(one) for one in heard] == ["later", "later"]


def test_threads_of_a_job_that_ended_well_are_heard(monkeypatch, tmp_path):
    heard = _heard(monkeypatch)
    with logged_to(tmp_path / "log"):
        left = _started("left")
    _let(*left)
    assert [str(one) for one in heard] == ["left", "left"]
