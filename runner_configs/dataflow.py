"""Google Cloud Dataflow: jobs are sent by Beam, and waited for here.

The names of jobs are reproducible, so a resumed run finds the job that was running when its driver
died, and waits for it instead of starting it twice.
"""

from __future__ import annotations

import logging
import os
import re
import sys
import time
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

from slicebeam.metrics.errors import (
    EngineError,
    FileError,
    InputError,
    SlicebeamError,
    install_hint,
)
from slicebeam.runner_configs.beam_runner import BeamRunner, check_beam_options, flags
from slicebeam.runner_configs.job_log import reported

if TYPE_CHECKING:
    from collections.abc import Callable

    from slicebeam.runner_configs.backend import Build
    from slicebeam.runner_configs.options import RunnerOptions

_log = logging.getLogger(__name__)

# Machines that blocks of work are cut for where the user does not say how many there may be.
_MACHINES = 10
# Seconds that the messages of a failed job may take to be there, and a cancelled job to end.
_MESSAGES = 30.0
_CANCELLED = 600.0
# Seconds between two looks how a job goes.
_FIRST_POLL, _LONGEST_POLL = 0.05, 10.0
# Seconds that one request may take, and for which it is repeated where the service cannot answer now.
_TIMEOUT = 60.0
_SERVICE_TIMEOUT = 300.0
_NEEDED = ("project", "region", "temp_location")
# All others may still change something; an unknown one is that of a job that was just made.
_ENDED = {f"JOB_STATE_{state}" for state in ("DONE", "FAILED", "CANCELLED", "UPDATED", "DRAINED")}
_LONGEST_REASON = 300


class Dataflow(BeamRunner):
    """Runs jobs on Dataflow."""

    storage_hint = "use gs:// paths"
    least_seconds = 300.0
    reserved_options = (
        *("runner", "job_name", "streaming", "save_main_session", "template_location", "update"),
        "dry_run",
    )

    def __init__(self, options: RunnerOptions, runner: str) -> None:
        super().__init__(options, runner)
        for name in _NEEDED:
            if not self.text(name):
                raise InputError(f"{runner} needs --beam {name}=…")
        machines = self.number("max_num_workers") or self.number("num_workers") or _MACHINES
        self.workers = options.workers or machines
        self.region = self.text("region")
        self.name = f"dataflow ({self.region}), {self.workers} workers"
        self._place = {"project_id": self.text("project"), "location": self.region}
        self._clients: dict[str, Any] = {}
        self._vcpu_seconds = 0.0

    def runs_on_other_machines(self) -> str | None:
        """Return where workers are: never here."""
        return f"dataflow in {self.region}"

    def sees(self, path: str) -> bool:
        """Return whether workers see a path: they have no credentials but Google's."""
        return path.startswith("gs://")

    def check(self) -> None:
        """Refuse what could not work."""
        try:
            import apache_beam.runners.dataflow.internal.apiclient  # noqa: F401
        except ImportError as error:
            raise EngineError(
                f"dataflow needs Google's client libraries ({error}); {install_hint('dataflow')}"
            ) from error
        setup_file = self.text("setup_file")
        if setup_file and not Path(setup_file).is_file():
            raise FileError(
                f"--beam setup_file={setup_file}: no such file; name the setup.py of a checkout of "
                "slicebeam, or give sdk_container_image instead"
            )
        if not setup_file and not self.text("sdk_container_image"):
            raise InputError(
                "dataflow's workers need slicebeam: give --beam setup_file=./setup.py in a "
                "checkout of it, or --beam sdk_container_image=… with an image that contains it"
            )
        check_beam_options(self.beam, reserved=self.reserved_options)

    def sent_options(self, name: str) -> list[str]:
        """Return Beam's options of a job, as flags."""
        experiments = self.beam.get("experiments", [])
        # Beam goes to the folder of the file, and knows none in a bare name.
        folder, file = os.path.split(self.text("setup_file"))
        return flags(
            {
                "runner": self.runner,
                "job_name": name,
                # What is in the image is used, and nothing else is fetched.
                "sdk_location": "container" if self.text("sdk_container_image") else None,
                **self.beam,
                "setup_file": f"{folder or '.'}/{file}" if file else None,
                # Else Beam lists what is installed here, which takes seconds and tells workers nothing.
                "experiments": [
                    "disable_logging_submission_environment",
                    *(experiments if isinstance(experiments, list) else [experiments]),
                ],
            }
        )

    def attach(self, name: str) -> Counter[str] | None:
        """Return the counts of a job that an earlier process of this run sent, None without one.

        One that still runs is waited for. One that failed is not taken up again.
        """
        attempts = self._attempts(name)
        if not attempts:
            return None
        job = attempts[-1]
        if not (_is_active(job) or _is_done(job)):
            return None
        _log.info("job %s (%s) of this run is %s", job.id, job.name, job.current_state.name)
        return self._finish(job)

    def end_earlier(self, name: str, but: str = "") -> None:
        """End an earlier process's jobs of a stage, whatever their plan and attempt, and wait for that."""
        ended = [
            job
            for job in self._jobs(filter="ACTIVE")
            if _is_active(job)
            and is_job_of_stage(job.name, name)
            and not (but and is_job_of_stage(job.name, but))
        ]
        for job in ended:
            self._cancel(job.id)
        for job in ended:
            self._until_over(job.id)

    def run(self, build: Build, name: str) -> Counter[str]:
        """Run a pipeline: send it, wait, and return its counts."""
        earlier = self._attempts(name)
        job_name = f"{name}-{len(earlier) + 1}" if earlier else name
        try:
            return self._finish(self._job(self._sent(build, job_name)))
        except KeyboardInterrupt:
            # It may have been accepted, though nothing was heard of it yet.
            self._give_up(self._active_jobs(job_name))
            raise

    def _attempts(self, name: str) -> list[Any]:
        """Return the jobs of a name, and of that name with the number of a further attempt."""
        attempts: list[Any] = []
        while True:
            number = len(attempts) + 1
            jobs = self._jobs_named(name if number == 1 else f"{name}-{number}")
            if not jobs:
                return attempts
            attempts.append(jobs[-1])

    def _sent(self, build: Build, name: str) -> str:
        """Send a job and return its id."""

        def send() -> str:
            pipeline = self.pipeline(build, name)
            try:
                return str(pipeline.run().job_id())
            except Exception as error:
                if active := self._active_jobs(name):
                    # Its acceptance was lost on the way.
                    return str(active[-1].id)
                _log.warning("job %s was not accepted: %s", name, error)
                raise

        try:
            job_id: str = _repeated(send, f"take job {name}")
        except SlicebeamError:
            raise
        except Exception as error:
            lines = [line.strip() for line in str(error).splitlines() if line.strip()]
            reason = lines[0][:_LONGEST_REASON] if lines else type(error).__name__
            raise reported(str(error)) or EngineError(
                f"job {name} could not be sent to dataflow: {reason}"
            ) from error
        return job_id

    def _finish(self, job: Any) -> Counter[str]:
        """Wait for a job, and return its counts."""
        try:
            over = self._until_over(job.id, self.options.job_timeout)
        except KeyboardInterrupt:
            self._give_up([job])
            raise
        if over is None:
            self._give_up([job])
            raise EngineError(
                f"dataflow job {job.id} ({job.name}) was not finished after "
                f"{self.options.job_timeout:g} seconds and was cancelled; raise job_timeout, or "
                f"look at {self._console(job.id)}"
            )
        if not _is_done(over):
            raise self._failure(over)
        return self._counts(over.id)

    def _until_over(self, job_id: str, seconds: float = _CANCELLED) -> Any | None:
        """Return a job when it is over, None if that takes too long."""
        end, pause = time.monotonic() + seconds, _FIRST_POLL
        state = ""
        while True:
            job = self._job(job_id)
            if job.current_state.name != state:
                state = job.current_state.name
                _log.info("job %s (%s) is %s", job.id, job.name, state)
            if not _is_active(job):
                return job
            if time.monotonic() > end:
                return None
            time.sleep(min(pause, max(0.0, end - time.monotonic()) + 0.01))
            pause = min(1.2 * pause, _LONGEST_POLL)

    def _give_up(self, jobs: list[Any]) -> None:
        """Cancel jobs; if that fails tell the user, since they continue to cost money."""
        for job in jobs:
            try:
                self._cancel(job.id)
            except EngineError as error:  # noqa: PERF203
                sys.stderr.write(
                    f"slicebeam: job {job.id} still runs ({error}); cancel it at "
                    f"{self._console(job.id)}\n"
                )

    def _failure(self, job: Any) -> SlicebeamError:
        """Return the error for a job that failed."""
        where = f"dataflow job {job.id} ({job.name})"
        console = self._console(job.id)
        state = job.current_state.name.removeprefix("JOB_STATE_").lower()
        if state == "cancelled":
            return EngineError(f"{where} was cancelled by someone else; see {console}")
        end, pause = time.monotonic() + _MESSAGES, _FIRST_POLL
        while not (texts := self._errors(job.id)) and time.monotonic() < end:
            # They come some time after the failure.
            time.sleep(pause)
            pause = min(1.2 * pause, _LONGEST_POLL)
        for text in texts:
            _log.error("%s: %s", where, text)
        ours = next(filter(None, map(reported, texts)), None)
        if ours is not None:
            return ours
        text = min(texts, key=lambda text: "Traceback" not in text, default="")
        lines = [line.strip() for line in text.splitlines() if line.strip()]
        # A traceback ends in its reason, and a message begins with it.
        reason = (lines or ["no reason given"])[-1 if "Traceback" in text else 0]
        return EngineError(f"{where} is {state}: {reason[:_LONGEST_REASON]}; see {console}")

    def cpu_seconds(self) -> float:
        """Return the seconds of virtual CPUs that finished jobs had."""
        return self._vcpu_seconds

    # The service.

    def _jobs(self, **request: str) -> list[Any]:
        return self._call("Jobs.list_jobs", "list its jobs", list, **request)

    def _jobs_named(self, name: str) -> list[Any]:
        """Return the jobs of a name, the latest last."""
        jobs = [job for job in self._jobs(filter="ALL", name=name) if job.name == name]
        times = {job.id: job.create_time.timestamp() if job.create_time else 0.0 for job in jobs}
        return sorted(jobs, key=lambda job: (times[job.id], job.id))

    def _active_jobs(self, name: str) -> list[Any]:
        return list(filter(_is_active, self._jobs_named(name)))

    def _job(self, job_id: str) -> Any:
        return self._call("Jobs.get_job", f"report the state of job {job_id}", job_id=job_id)

    def _cancel(self, job_id: str) -> None:
        """Ask for the end of a job."""
        wanted = {"requested_state": "JOB_STATE_CANCELLED"}
        self._call("Jobs.update_job", f"cancel job {job_id}", job_id=job_id, job=wanted)

    def _errors(self, job_id: str) -> list[str]:
        return self._call(
            "Messages.list_job_messages",
            f"report the messages of job {job_id}",
            lambda messages: [message.message_text for message in messages],
            job_id=job_id,
            minimum_importance="JOB_MESSAGE_ERROR",
        )

    def _counts(self, job_id: str) -> Counter[str]:
        """Return the counts of a job, and note its seconds of virtual CPUs."""
        what = f"report the metrics of job {job_id}"
        answer = self._call("Metrics.get_job_metrics", what, job_id=job_id)
        counts: Counter[str] = Counter()
        for metric in answer.metrics:
            # Skip tentative counters; the service repeats them as committed.
            if metric.scalar is None or metric.name.context.get("tentative") == "true":
                continue
            if metric.name.origin == "user":
                counts[metric.name.name] += int(metric.scalar)
            elif metric.name.name == "TotalVcpuTime":
                self._vcpu_seconds += float(metric.scalar)
        return counts

    def _console(self, job_id: str) -> str:
        """Return the address of the page about a job."""
        place = f"{self.region}/{job_id}?project={self._place['project_id']}"
        return f"https://console.cloud.google.com/dataflow/jobs/{place}"

    def _call(
        self,
        call: str,
        what: str,
        read: Callable[[Any], Any] = lambda answer: answer,
        **request: Any,
    ) -> Any:
        """Return what is read of an answer; its further pages are asked for on the way."""
        kind, _, method = call.partition(".")
        request |= self._place

        def answer() -> Any:
            return read(getattr(self._client(kind), method)(request=request, timeout=_TIMEOUT))

        return _repeated(answer, what)

    def _client(self, kind: str) -> Any:
        if kind not in self._clients:
            from google.api_core.client_options import ClientOptions
            from google.auth.credentials import AnonymousCredentials
            from google.cloud import dataflow_v1beta3 as api

            options: dict[str, Any] = {}
            if self.beam.get("no_auth"):
                options["credentials"] = AnonymousCredentials()  # type: ignore[no-untyped-call]
            if endpoint := self.text("dataflow_endpoint"):
                options["client_options"] = ClientOptions(api_endpoint=endpoint)
                # As Beam has it: what stands in for the service speaks JSON.
                if "localhost" in endpoint:
                    options["transport"] = "rest"
            self._clients[kind] = getattr(api, f"{kind}V1Beta3Client")(**options)
        return self._clients[kind]


def _is_active(job: Any) -> bool:
    return job.current_state.name not in _ENDED


def _is_done(job: Any) -> bool:
    return bool(job.current_state.name == "JOB_STATE_DONE")


def _repeated(call: Callable[[], Any], what: str) -> Any:
    """Return the result of a call, repeated while the service is overloaded or away."""
    from google.api_core.retry import Retry

    retry = Retry(_is_transient, initial=0.5, maximum=30.0, timeout=_SERVICE_TIMEOUT)
    try:
        return retry(call)()
    except Exception as error:
        failure = _service_error(error, what)
        if failure is None:
            raise
        raise failure from error


def _is_transient(error: BaseException) -> bool:
    """Return whether a request may succeed when it is sent again."""
    import requests
    from google.api_core.exceptions import ServerError, TooManyRequests
    from google.auth.exceptions import TransportError

    connection = (requests.ConnectionError, requests.Timeout, TransportError)
    return isinstance(error, (TooManyRequests, ServerError, *connection))


def _service_error(error: BaseException, what: str) -> EngineError | None:
    """Return the error to report for an error of the service, None if it is not one."""
    import requests
    from google.api_core import exceptions
    from google.auth.exceptions import GoogleAuthError

    if isinstance(error, exceptions.RetryError):
        cause = error.cause or error
        return EngineError(
            f"dataflow did not answer a request to {what} ({_reason(cause)}); running jobs "
            "continue: try again later with --resume"
        )
    if isinstance(error, GoogleAuthError):
        return EngineError(
            f"no credentials for dataflow ({_reason(error)}); run gcloud auth application-default "
            "login, or name a service account's file in GOOGLE_APPLICATION_CREDENTIALS"
        )
    if isinstance(error, (exceptions.Forbidden, exceptions.Unauthorized)):
        remedy = "; check the credentials, and that they have the role Dataflow Developer"
    elif isinstance(error, exceptions.NotFound):
        remedy = "; check the options project and region"
    elif isinstance(error, (exceptions.GoogleAPIError, requests.RequestException)):
        remedy = ""
    else:
        return None
    return EngineError(f"dataflow refused to {what}: {_reason(error)}{remedy}")


def _reason(error: BaseException) -> str:
    """Return the first line of the service's message."""
    text = str(getattr(error, "message", "") or error)
    line = next((line.strip() for line in text.splitlines() if line.strip()), "")
    # The REST client puts the address first: 403 GET http://…: the reason
    if "://" in line.split(": ")[0]:
        line = line.partition(": ")[2] or line
    return (line or type(error).__name__)[:_LONGEST_REASON].rstrip(".")


def is_job_of_stage(name: str, stage: str) -> bool:
    """Return whether a job is one of a stage: by a plan, perhaps, and a further attempt, perhaps.

    >>> is_job_of_stage("run-iteration-1-0a1b2c3d-2", "run-iteration-1")
    True
    >>> is_job_of_stage("run-iteration-1-resampled-0a1b2c3d", "run-iteration-1")
    False
    """
    return bool(re.fullmatch(rf"{re.escape(stage)}(-[0-9a-f]{{8}})?(-\d{{1,3}})?", name))
