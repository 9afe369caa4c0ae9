"""A stand-in of the Dataflow service: its REST API, and workers that run what is sent to it.

A job's pipeline is taken from where it was staged, and run by Beam's in-process runner in a
process of its own, which knows of the job what a worker would: the staged graph and the options.
Run as a module it is what these processes are forked from, since importing Beam takes seconds.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
import traceback
import uuid
from collections import Counter
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

ROOT = Path(__file__).parent.parent
_PLACE = r"/v1b3/projects/(?P<project>[^/]+)/locations/(?P<region>[^/]+)"
_ENDED = {"JOB_STATE_DONE", "JOB_STATE_FAILED", "JOB_STATE_CANCELLED"}
# The API's numbers of the states that a client asks for.
_CANCELLED = (5, "JOB_STATE_CANCELLED")
_ACTIVE_ONLY = ("3", "ACTIVE")


class Refused(Exception):  # noqa: N818  (an answer, not a fault of the stand-in)
    def __init__(self, status, message):
        super().__init__(message)
        self.status = status


@dataclass
class StoredJob:
    """A job, and the process that is its worker."""

    told: dict[str, Any]
    project: str
    region: str
    id: str = ""
    state: str = "JOB_STATE_PENDING"
    created: float = field(default_factory=time.time)
    messages: list[dict[str, Any]] = field(default_factory=list)
    counts: dict[str, int] = field(default_factory=dict)
    worker: int | None = None

    @property
    def name(self):
        return str(self.told["name"])

    @property
    def options(self):
        """The pipeline's options, as workers get them."""
        return dict(self.told["environment"]["sdkPipelineOptions"]["options"])

    def resource(self):
        # What is described in full is not told again.
        return {
            "id": self.id,
            "name": self.name,
            "projectId": self.project,
            "location": self.region,
            "type": self.told.get("type"),
            "currentState": self.state,
            "createTime": _time(self.created),
            "clientRequestId": self.told.get("clientRequestId", ""),
        }


@dataclass
class Fault:
    """What goes wrong with requests that match: so many of them are answered by a status."""

    method: str
    path: str
    status: int
    times: int
    # Whether the request is carried out nevertheless, and only its answer lost.
    is_answer_lost: bool = False


class Workers:
    """Starts workers as forks of one process that has imported what they need; a context."""

    def __init__(self, environment):
        command = [sys.executable, "-m", "tests.dataflow_service"]
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL}
        how = {"cwd": ROOT, "env": {**os.environ, **environment}, "text": True}
        self._process = subprocess.Popen(command, **pipes, **how)

    def start(self, *request):
        self._process.stdin.write(json.dumps([*map(str, request)]) + "\n")
        self._process.stdin.flush()
        return int(self._process.stdout.readline())

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self._process.kill()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            pipe.close()


class DataflowService:
    """The jobs of a stand-in, and what tests do to them."""

    def __init__(self, workers):
        self.jobs = []
        self.requests = []
        self.held = ""
        self.endpoint = ""
        self._workers = workers
        self._faults = []
        self._changing = threading.RLock()

    def add(self, fault):
        self._faults.append(fault)

    def named(self, part):
        return [job for job in self.jobs if part in job.name]

    def told(self, job):
        return "\n".join(one["messageText"] for one in job.messages)

    def fault_of(self, method, path):
        with self._changing:
            self.requests.append(f"{method} {path}")
            for fault in self._faults:
                if fault.times and fault.method == method and re.search(fault.path, path):
                    fault.times -= 1
                    return fault
        return None

    def answer(self, method, address, body):
        split = urlsplit(address)
        query = {name: values[-1] for name, values in parse_qs(split.query).items()}
        for wanted, pattern, call in (
            ("POST", r"/jobs", self._create),
            ("GET", r"/jobs", self._list),
            ("GET", r"/jobs/(?P<id>[^/]+)", self._get),
            ("PUT", r"/jobs/(?P<id>[^/]+)", self._update),
            ("GET", r"/jobs/(?P<id>[^/]+)/messages", self._messages),
            ("GET", r"/jobs/(?P<id>[^/]+)/metrics", self._metrics),
        ):
            found = re.fullmatch(_PLACE + pattern, split.path)
            if method == wanted and found:
                with self._changing:
                    return call(found.groupdict(), query, body)
        raise Refused(404, f"{method} {split.path} is nothing that the service knows")

    def _create(self, place, _query, body):
        for job in self.jobs:
            if job.name == body["name"] and job.state not in _ENDED:
                if job.told.get("clientRequestId") == body.get("clientRequestId"):
                    return job.resource()
                raise Refused(409, f"({job.id}): There is already an active job named {job.name}")
        if not re.fullmatch(r"[a-z]([-a-z0-9]{0,1022}[a-z0-9])?", body["name"]):
            raise Refused(400, f"The job name {body['name']} is invalid")
        job = StoredJob(body, place["project"], place["region"])
        job.id = f"2026-01-01_{len(self.jobs):02d}-{uuid.uuid4().int % 10**12}"
        self.jobs.append(job)
        threading.Thread(target=self._work, args=(job,), daemon=True).start()
        return job.resource()

    def _list(self, place, query, _body):
        found = [
            job
            for job in self.jobs
            if (job.project, job.region) == (place["project"], place["region"])
            and query.get("name", job.name) == job.name
            and not (query.get("filter") in _ACTIVE_ONLY and job.state in _ENDED)
        ]
        return {"jobs": [job.resource() for job in found]}

    def _get(self, place, _query, _body):
        return self._job(place).resource()

    def _job(self, place):
        for job in self.jobs:
            if job.id == place["id"]:
                return job
        raise Refused(404, f"({place['id']}): Information about job could not be found")

    def _update(self, place, _query, body):
        job = self._job(place)
        if body.get("requestedState") not in _CANCELLED:
            raise Refused(400, f"requested state {body.get('requestedState')}")
        if job.state not in _ENDED:
            job.state = "JOB_STATE_CANCELLED"
            self.kill_worker(job)
        return job.resource()

    def fail(self, job, message, state="JOB_STATE_FAILED"):
        with self._changing:
            job.messages += [_message("JOB_MESSAGE_ERROR", message)] if message else []
            job.state = state
            self.kill_worker(job)

    def kill_worker(self, job):
        """End the process of a job as the end of its machine would."""
        if job.worker is not None:
            with suppress(ProcessLookupError):
                os.kill(job.worker, signal.SIGKILL)

    def _messages(self, place, _query, _body):
        return {"jobMessages": self._job(place).messages}

    def _metrics(self, place, _query, _body):
        job, context, metrics = self._job(place), {"namespace": "slicebeam", "step": "s1"}, []
        for name, count in job.counts.items():
            for tentative in ({}, {"tentative": "true"}):
                told = {"origin": "user", "name": name, "context": {**context, **tentative}}
                metrics.append({"name": told, "scalar": count})
        name = {"origin": "dataflow/v1b3", "name": "TotalVcpuTime"}
        metrics.append({"name": name, "scalar": 7.0})
        return {"metrics": metrics, "metricTime": _time(time.time())}

    def _work(self, job):
        with tempfile.TemporaryDirectory(prefix="slicebeam-test-") as folder:
            request = Path(folder) / "options.json", Path(folder) / "told.json"
            request[0].write_text(json.dumps(job.options), "utf-8")
            with self._changing:
                if job.state in _ENDED:
                    return
                job.state = "JOB_STATE_RUNNING"
            while self.held and self.held in job.name:
                time.sleep(0.01)
                if job.state in _ENDED:
                    return
            with self._changing:
                if job.state in _ENDED:
                    return
                job.worker = self._workers.start(*request)
            while _lives(job.worker):
                time.sleep(0.01)
            with self._changing:
                if job.state in _ENDED:
                    return
                told = json.loads(request[1].read_text("utf-8")) if request[1].exists() else {}
                job.counts = told.get("counts", {})
                if "error" in told or not told:
                    text = told.get("error", "The worker lost contact with the service.")
                    job.messages += [
                        _message("JOB_MESSAGE_BASIC", "Workers have started successfully."),
                        _message("JOB_MESSAGE_ERROR", text),
                        _message("JOB_MESSAGE_ERROR", "Workflow failed. Causes: S01 failed."),
                    ]
                    job.state = "JOB_STATE_FAILED"
                else:
                    job.state = "JOB_STATE_DONE"

    def end(self):
        with self._changing:
            for job in self.jobs:
                if job.state not in _ENDED:
                    job.state = "JOB_STATE_CANCELLED"
                    self.kill_worker(job)


def _lives(process):
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    return True


def _message(importance, text):
    told = {"id": uuid.uuid4().hex, "time": _time(time.time())}
    return {**told, "messageText": text, "messageImportance": importance}


def _time(seconds):
    whole = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(seconds))
    return f"{whole}.{int(seconds % 1 * 1e6):06d}Z"


@contextmanager
def _storage(environment):
    from google.auth.credentials import AnonymousCredentials
    from google.cloud import storage

    how = {"api_endpoint": environment["STORAGE_EMULATOR_HOST"]}
    client = storage.Client("tests", AnonymousCredentials(), client_options=how)
    try:
        yield client
    finally:
        client.close()


class _Server(ThreadingHTTPServer):
    request_queue_size = 128
    daemon_threads = True


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    service: DataflowService

    def do_GET(self):
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        fault = self.service.fault_of(self.command, self.path)
        if fault is not None and not fault.is_answer_lost:
            status, answer = fault.status, _error(fault.status, "the service is tried")
        else:
            try:
                answer = self.service.answer(self.command, self.path, json.loads(body or b"{}"))
                status = 200
            except Refused as refused:
                status, answer = refused.status, _error(refused.status, str(refused))
            if fault is not None:
                status, answer = fault.status, _error(fault.status, "the answer is lost")
        content = json.dumps(answer).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    do_POST = do_PUT = do_GET  # noqa: N815  (http.server's names)

    def log_message(self, *_):
        """The test reads `DataflowService.requests`."""


def _error(status, message):
    return {"error": {"code": status, "message": message, "status": "UNKNOWN"}}


@contextmanager
def dataflow_service(workers):
    """Run a stand-in whose workers find storage by variables of their environment."""
    service = DataflowService(workers)
    server = _Server(("127.0.0.1", 0), type("ServiceHandler", (_Handler,), {"service": service}))
    # The client speaks JSON to this very name only.
    service.endpoint = f"http://localhost:{server.server_port}"
    threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
    try:
        yield service
    finally:
        service.end()
        server.shutdown()
        server.server_close()


def run_staged(options):
    """Run the staged pipeline that options name, and return its counts."""
    from apache_beam.options.pipeline_options import PipelineOptions
    from apache_beam.portability import python_urns
    from apache_beam.portability.api import beam_runner_api_pb2
    from apache_beam.runners.portability.fn_api_runner.fn_runner import FnApiRunner

    with _storage(dict(os.environ)) as client:
        bucket, _, name = options["pipelineUrl"].removeprefix("gs://").partition("/")
        staged = client.bucket(bucket).blob(name).download_as_bytes()
    graph = beam_runner_api_pb2.Pipeline.FromString(staged)
    for environment in graph.components.environments.values():
        environment.Clear()
        environment.urn = python_urns.EMBEDDED_PYTHON
    result = FnApiRunner().run_via_runner_api(graph, PipelineOptions([]))
    result.wait_until_finish()
    counts = Counter()
    for counter in result.metrics().query()["counters"]:
        counts[counter.key.metric.name] += counter.committed or 0
    return dict(counts)


def work(options, told):
    """Be the worker of a job, and write what became of it."""
    # What is printed here is nothing that the service asked for.
    os.dup2(2, 1)
    try:
        outcome = {"counts": run_staged(json.loads(Path(options).read_text("utf-8")))}
    except BaseException:  # noqa: BLE001  (told to the service)
        outcome = {"error": traceback.format_exc()}
    Path(told).write_text(json.dumps(outcome), "utf-8")


def main():
    import apache_beam.runners.portability.fn_api_runner.fn_runner  # noqa: F401
    import google.cloud.storage  # noqa: F401

    import slicebeam.pipelines.search.search  # noqa: F401

    # Nobody waits for the workers here: they vanish when they end.
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    for line in sys.stdin:
        child = os.fork()
        if child == 0:
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            try:
                work(*json.loads(line))
            finally:
                os._exit(0)
        sys.stdout.write(f"{child}\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
