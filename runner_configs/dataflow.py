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
from pathlib import Path
from typing import TYPE_CHECKING, Any

from slicebeam.metrics.errors import (
    EngineError,
    FileError,
    InputError,
    SlicebeamError,
    install_hint,
)
from slicebeam.runner_configs.backend import FinishedJob
from slicebeam.runner_configs.beam_options import check_beam_options, flags
from slicebeam.runner_configs.beam_runner import BeamRunner
from slicebeam.runner_configs.dataflow_service import (
    SERVICE_TIMEOUT,
    DataflowService,
    is_transient,
    to_engine_error,
)
from slicebeam.runner_configs.job_log import reported

if TYPE_CHECKING:
    from slicebeam.runner_configs.backend import Build
    from slicebeam.runner_configs.dataflow_service import Job
    from slicebeam.runner_configs.options import RunnerOptions

_log = logging.getLogger(__name__)

# Machines that blocks of work are cut for where the user does not say how many there may be.
_MACHINES = 10
# Seconds that the messages of a failed job may take to be there, and a cancelled job to end.
_MESSAGES = 30.0
_CANCELLED = 600.0
# Seconds between two looks how a job goes, and that it may take to be accepted.
_FIRST_POLL, _LONGEST_POLL = 0.05, 10.0
_NEEDED = ("project", "region", "temp_location")


class Dataflow(BeamRunner):
    """Runs jobs on Dataflow."""

    storage_hint = "use gs:// paths"
    least_seconds = 300.0
    own_options = (
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
        self.service = DataflowService(
            self.text("project"),
            self.region,
            self.text("dataflow_endpoint"),
            is_anonymous=bool(self.beam.get("no_auth")),
        )
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
        check_beam_options(self.beam, own=self.own_options)

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

    def attach(self, name: str) -> Any | None:
        """Return the result of a job that an earlier process of this run sent, None without one.

        One that still runs is waited for. One that failed is not taken up again.
        """
        attempts = self._attempts(name)
        if not attempts or not (attempts[-1].is_active or attempts[-1].is_done):
            return None
        job = attempts[-1]
        _log.info("job %s (%s) of this run is %s", job.id, job.name, job.state)
        return self._finish(job)

    def end_earlier(self, name: str, but: str = "") -> None:
        """End an earlier process's jobs of a stage, whatever their plan and attempt, and wait for that."""
        ended = [
            job
            for job in self.service.active_jobs()
            if is_job_of_stage(job.name, name) and not (but and is_job_of_stage(job.name, but))
        ]
        for job in ended:
            self.service.cancel(job.id)
        for job in ended:
            self._until_over(job.id)

    def run(self, build: Build, name: str) -> Any:
        """Run a pipeline: send it, and wait."""
        job_name = name
        earlier = self._attempts(name)
        if earlier:
            job_name = f"{name}-{len(earlier) + 1}"
        try:
            return self._finish(self.service.job(self._sent(build, job_name)))
        except KeyboardInterrupt:
            # It may have been accepted, though nothing was heard of it yet.
            self._cancel(job.id for job in self.service.jobs_named(job_name) if job.is_active)
            raise

    def _attempts(self, name: str) -> list[Job]:
        """Return the jobs of a name, and of that name with the number of a further attempt."""
        attempts: list[Job] = []
        while True:
            number = len(attempts) + 1
            jobs = self.service.jobs_named(name if number == 1 else f"{name}-{number}")
            if not jobs:
                return attempts
            attempts.append(jobs[-1])

    def _sent(self, build: Build, name: str) -> str:
        """Send a job and return its id."""
        begun = time.monotonic()
        pause = 1.0
        while True:
            try:
                return self._submitted(build, name)
            except SlicebeamError:
                raise
            except Exception as error:
                active = [job for job in self.service.jobs_named(name) if job.is_active]
                if active:
                    # Its acceptance was lost on the way.
                    return active[-1].id
                waited = time.monotonic() - begun
                if not is_transient(error) or waited + pause > SERVICE_TIMEOUT:
                    raise self._not_sent(error, name) from error
                _log.warning("job %s was not accepted: %s", name, error)
            time.sleep(pause)
            pause = min(2 * pause, 30.0)

    def _submitted(self, build: Build, name: str) -> str:
        import apache_beam as beam
        from apache_beam.options.pipeline_options import PipelineOptions
        from apache_beam.runners.dataflow.dataflow_runner import DataflowRunner

        options = PipelineOptions(self.sent_options(name))
        pipeline = beam.Pipeline(runner=DataflowRunner(), options=options)
        build(pipeline)
        job_id: str = pipeline.run().job_id()
        return job_id

    def _not_sent(self, error: Exception, name: str) -> SlicebeamError:
        refused = to_engine_error(error, f"take job {name}")
        if refused is not None:
            return refused
        ours = reported(str(error))
        lines = [line.strip() for line in str(error).splitlines() if line.strip()]
        reason = lines[0][:300] if lines else type(error).__name__
        return ours or EngineError(f"job {name} could not be sent to dataflow: {reason}")

    def _finish(self, job: Job) -> FinishedJob:
        """Wait for a job, and return its counts."""
        try:
            over = self._until_over(job.id, self.options.job_timeout)
        except KeyboardInterrupt:
            self._cancel([job.id])
            raise
        if over is None:
            self._cancel([job.id])
            raise EngineError(
                f"dataflow job {job.id} ({job.name}) was not finished after "
                f"{self.options.job_timeout:g} seconds and was cancelled; raise job_timeout, or "
                f"look at {self.service.console(job.id)}"
            )
        if not over.is_done:
            raise self._failure(over)
        counts = self.service.counts(over.id)
        self._vcpu_seconds += counts.vcpu_seconds
        return FinishedJob(counts.user)

    def _until_over(self, job_id: str, seconds: float = _CANCELLED) -> Job | None:
        """Return a job when it is over, None if that takes too long."""
        end, pause = time.monotonic() + seconds, _FIRST_POLL
        state = ""
        while True:
            job = self.service.job(job_id)
            if job.state != state:
                _log.info("job %s (%s) is %s", job.id, job.name, job.state)
                state = job.state
            if not job.is_active:
                return job
            if time.monotonic() > end:
                return None
            time.sleep(min(pause, max(0.0, end - time.monotonic()) + 0.01))
            pause = min(1.2 * pause, _LONGEST_POLL)

    def _cancel(self, job_ids: Any) -> None:
        """Cancel jobs; if that fails tell the user, since they continue to cost money."""
        for job_id in job_ids:
            try:
                self.service.cancel(job_id)
            except EngineError as error:  # noqa: PERF203
                sys.stderr.write(
                    f"slicebeam: job {job_id} still runs ({error}); cancel it at "
                    f"{self.service.console(job_id)}\n"
                )

    def _failure(self, job: Job) -> SlicebeamError:
        """Return the error for a job that failed."""
        where = f"dataflow job {job.id} ({job.name})"
        console = self.service.console(job.id)
        if job.state == "JOB_STATE_CANCELLED":
            return EngineError(f"{where} was cancelled by someone else; see {console}")
        texts: list[str] = []
        end, pause = time.monotonic() + _MESSAGES, _FIRST_POLL
        while not texts:
            texts = self.service.errors(job.id)
            if texts or time.monotonic() > end:
                break
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
        state = job.state.removeprefix("JOB_STATE_").lower()
        return EngineError(f"{where} is {state}: {reason[:300]}; see {console}")

    def cpu_seconds(self) -> float:
        """Return the seconds of virtual CPUs that finished jobs had."""
        return self._vcpu_seconds


def is_job_of_stage(name: str, stage: str) -> bool:
    """Return whether a job is one of a stage: by a plan, perhaps, and a further attempt, perhaps.

    >>> is_job_of_stage("run-iteration-1-0a1b2c3d-2", "run-iteration-1")
    True
    >>> is_job_of_stage("run-iteration-1-resampled-0a1b2c3d", "run-iteration-1")
    False
    """
    return bool(re.fullmatch(rf"{re.escape(stage)}(-[0-9a-f]{{8}})?(-\d{{1,3}})?", name))
