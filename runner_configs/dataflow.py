"""Google Cloud Dataflow: jobs are sent by Beam, and waited for here.

The names of jobs are reproducible, so a resumed run finds the job that was running when its driver
died, and waits for it instead of starting it twice.
"""

from __future__ import annotations

import logging
import re
import sys
import time
from typing import TYPE_CHECKING, Any

from slicebeam.metrics.errors import (
    EngineError,
    FileError,
    InputError,
    SlicebeamError,
    install_hint,
)
from slicebeam.runner_configs.backend import Backend, FinishedJob
from slicebeam.runner_configs.beam_options import check_beam_options, flags
from slicebeam.runner_configs.dataflow_service import DataflowService, is_passing, refusal
from slicebeam.runner_configs.job_log import reported

if TYPE_CHECKING:
    from slicebeam.runner_configs.backend import Build
    from slicebeam.runner_configs.dataflow_service import Job
    from slicebeam.runner_configs.options import DataflowOptions

_log = logging.getLogger(__name__)

# Machines that blocks of work are cut for where the user does not say how many there may be.
_MACHINES = 10
# What the service starts where no machine type is given has so many.
_VCPUS = 1
# Seconds that the messages of a failed job may take to be there, and a cancelled job to end.
_MESSAGES = 30.0
_CANCELLED = 600.0
# Older ones do not understand the licence in pyproject.toml, and Beam builds with what is installed.
_SETUPTOOLS = 77
_OWN = frozenset(
    {
        "runner", "project", "region", "temp_location", "staging_location", "num_workers",
        "max_num_workers", "machine_type", "worker_machine_type", "disk_size_gb",
        "service_account_email", "network", "subnetwork", "use_public_ips", "no_use_public_ips",
        "setup_file", "sdk_container_image", "sdk_location", "label", "labels", "experiment",
        "experiments", "dataflow_endpoint", "no_auth", "job_name", "streaming",
        "save_main_session", "template_location", "update", "dry_run",
    }
)  # fmt: skip


def vcpus_of(machine_type: str | None) -> int:
    """Return how many a machine has, which the name of its type ends in.

    >>> vcpus_of("n2-standard-4"), vcpus_of("e2-custom-6-4096"), vcpus_of(None)
    (4, 6, 1)
    """
    name = machine_type or ""
    found = re.search(r"custom-(\d+)-\d+", name) or re.search(r"-(\d+)$", name)
    return int(found.group(1)) if found else _VCPUS


class Dataflow(Backend):
    """Runs jobs on Dataflow."""

    storage_hint = "use gs:// paths"

    def __init__(self, options: DataflowOptions) -> None:
        self.options = options
        self.smallest_job_seconds = options.smallest_job_seconds
        self.counters = options.counters
        machines = options.max_num_workers or options.num_workers or _MACHINES
        self.workers = machines * vcpus_of(options.machine_type)
        self.name = f"dataflow ({options.region}), up to {self.workers} vCPUs"
        self.service = DataflowService(options)
        self._vcpu_seconds = 0.0

    def runs_on_other_machines(self) -> str | None:
        """Return where workers are: never here."""
        return f"dataflow in {self.options.region}"

    def sees(self, path: str) -> bool:
        """Return whether workers see a path: they have no credentials but Google's."""
        return path.startswith("gs://")

    def check(self) -> None:
        """Refuse what could not work."""
        options = self.options
        try:
            import apache_beam.runners.dataflow.internal.apiclient  # noqa: F401
        except ImportError as error:
            raise EngineError(
                f"dataflow needs Google's client libraries ({error}); {install_hint('dataflow')}"
            ) from error
        if options.setup_file is not None:
            self._check_setup_file()
        elif options.sdk_container_image is None:
            raise InputError(
                "dataflow's workers need slicebeam: give --runner-option setup_file=./setup.py "
                "in a checkout of it, or sdk_container_image with an image that contains it"
            )
        check_beam_options(options.beam_options, own=_OWN)

    def _check_setup_file(self) -> None:
        from importlib.metadata import PackageNotFoundError, version

        path = self.options.setup_file
        if path is None or not path.is_file():
            raise FileError(
                f"option setup_file {path}: no such file; name the setup.py of a checkout of "
                "slicebeam, or give sdk_container_image instead"
            )
        if path.name != "setup.py":
            raise InputError(
                f"option setup_file {path}: it must be named setup.py, as Beam requires"
            )
        try:
            found = version("setuptools")
        except PackageNotFoundError:
            found = "0"
        if int(found.split(".")[0]) < _SETUPTOOLS:
            raise EngineError(
                "option setup_file: Beam packs slicebeam with the setuptools of this "
                f"environment, which is {found}; pip install 'setuptools>={_SETUPTOOLS}'"
            )

    def sent_options(self, name: str) -> list[str]:
        """Return Beam's options of a job, as flags."""
        options = self.options
        setup_file = options.setup_file
        given: dict[str, Any] = {
            "runner": "DataflowRunner",
            "job_name": name,
            "project": options.project,
            "region": options.region,
            "temp_location": options.temp_location,
            "staging_location": options.staging_location or options.temp_location,
            "num_workers": options.num_workers,
            "max_num_workers": options.max_num_workers,
            "machine_type": options.machine_type,
            "disk_size_gb": options.disk_size_gb,
            "service_account_email": options.service_account,
            "network": options.network,
            "subnetwork": options.subnetwork,
            "use_public_ips": options.use_public_ips,
            "sdk_container_image": options.sdk_container_image,
            # What is in the image is used, and nothing else is fetched.
            "sdk_location": "container" if options.sdk_container_image else None,
            "label": [f"{key}={value}" for key, value in options.labels.items()],
            # Else Beam lists what is installed here, which takes seconds and tells workers nothing.
            "experiments": ["disable_logging_submission_environment", *options.experiments],
            "dataflow_endpoint": options.endpoint,
            # A switch that is off is left out: Beam knows no name for it.
            "no_auth": options.no_auth or None,
            **options.beam_options,
        }
        if setup_file is not None:
            # Beam goes to the folder of the file, and knows none in a bare name.
            is_bare = not setup_file.is_absolute() and len(setup_file.parts) == 1
            given["setup_file"] = f"./{setup_file}" if is_bare else str(setup_file)
        return flags(given)

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
            if is_of(job.name, name) and not (but and is_of(job.name, but))
        ]
        for job in ended:
            self.service.cancel(job.id)
        for job in ended:
            self._until_over(job.id)

    def run(self, build: Build, name: str) -> Any:
        """Run a pipeline: send it, and wait."""
        own_name = name
        earlier = self._attempts(name)
        if earlier:
            own_name = f"{name}-{len(earlier) + 1}"
        try:
            return self._finish(self.service.job(self._sent(build, own_name)))
        except KeyboardInterrupt:
            # It may have been accepted, though nothing was heard of it yet.
            self._cancel(job.id for job in self.service.jobs_named(own_name) if job.is_active)
            raise

    def _attempts(self, name: str) -> list[Job]:
        """Return the jobs of a name, and of that name with the number of a further attempt."""
        attempts: list[Job] = []
        while True:
            number = len(attempts) + 1
            found = self.service.jobs_named(name if number == 1 else f"{name}-{number}")
            if not found:
                return attempts
            attempts.append(found[-1])

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
                known = [job for job in self.service.jobs_named(name) if job.is_active]
                if known:
                    # Its acceptance was lost on the way.
                    return known[-1].id
                waited = time.monotonic() - begun
                if not is_passing(error) or waited + pause > self.options.service_timeout:
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
        refused = refusal(error, f"take job {name}")
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
        end = time.monotonic() + seconds
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
            time.sleep(min(self.options.poll_seconds, max(0.0, end - time.monotonic()) + 0.01))

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
        end = time.monotonic() + _MESSAGES
        while not texts:
            texts = self.service.errors(job.id)
            if texts or time.monotonic() > end:
                break
            # They come some time after the failure.
            time.sleep(self.options.poll_seconds)
        for text in texts:
            _log.error("%s: %s", where, text)
        ours = next(filter(None, map(reported, texts)), None)
        if ours is not None:
            return ours
        told = sorted(texts, key=lambda text: "Traceback" not in text)
        lines = [line.strip() for line in (told or [""])[0].splitlines() if line.strip()]
        # A traceback ends in its reason, and a message begins with it.
        reason = (lines or ["no reason given"])[-1 if "Traceback" in (told or [""])[0] else 0]
        state = job.state.removeprefix("JOB_STATE_").lower()
        return EngineError(f"{where} is {state}: {reason[:300]}; see {console}")

    def cpu_seconds(self) -> float:
        """Return the seconds of virtual CPUs that finished jobs had."""
        return self._vcpu_seconds


def is_of(name: str, stage: str) -> bool:
    """Return whether a job is one of a stage: by a plan, perhaps, and a further attempt, perhaps.

    >>> is_of("run-iteration-1-0a1b2c3d-2", "run-iteration-1")
    True
    >>> is_of("run-iteration-1-resampled-0a1b2c3d", "run-iteration-1")
    False
    """
    return bool(re.fullmatch(rf"{re.escape(stage)}(-[0-9a-f]{{8}})?(-\d{{1,3}})?", name))
