"""Flink: a cluster, or one inside the job server."""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING, Any

from slicebeam.metrics.errors import EngineError, InputError
from slicebeam.runner_configs.cluster import ClusterEngine, ask
from slicebeam.runner_configs.guarded_process import wait_for
from slicebeam.runner_configs.job_log import reported
from slicebeam.runner_configs.options import split_address
from slicebeam.runner_configs.portable import check_answers

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from slicebeam.runner_configs.options import FlinkOptions

JAR_VARIABLE = "SLICEBEAM_FLINK_JOB_SERVER_JAR"
# Seconds that the slots of the last job may take to be free again, and a cancelled job to end.
_RELEASE = 20.0
_CANCEL = 20.0
# Seconds between looks at what a running job failed by.
_LOOK = 2.0
_ENDED = ("FINISHED", "CANCELED", "FAILED")
# Java keeps these closed to libraries that look into its classes, as Flink's serializers do.
_OPENS = (
    "--add-opens=java.base/java.util=ALL-UNNAMED",
    "--add-opens=java.base/java.lang=ALL-UNNAMED",
    "--add-opens=java.base/java.nio=ALL-UNNAMED",
    "--add-opens=java.base/java.time=ALL-UNNAMED",
)


class Flink(ClusterEngine):
    """Runs jobs on Flink."""

    engine = "flink"
    variable = JAR_VARIABLE

    def __init__(self, options: FlinkOptions) -> None:
        super().__init__(options)
        self.options = options
        where = "embedded" if options.is_embedded else "cluster"
        self.name = f"flink {options.version} ({where}), parallelism {options.parallelism}"
        self.gradle_target = f":runners:flink:{options.version}:job-server:shadowJar"
        master = options.master if "://" in options.master else f"http://{options.master}"
        self.rest = "" if options.is_embedded else master.rstrip("/")
        self._next_look = 0.0

    def version(self) -> str | None:
        """Return the version that the job server must be of."""
        return self.options.version

    def cached_version(self) -> str:
        """Return the version in the name of a cached job server."""
        return self.options.version

    def check(self) -> None:
        """Refuse a cluster that does not answer, is of another version, or has too few slots."""
        if self.rest:
            check_answers(
                self.options.master,
                "the Flink master",
                "is the cluster up, and is this its REST address?",
            )
            found = str(ask(f"{self.rest}/config").get("flink-version", ""))
            if found.split(".")[:2] != self.options.version.split("."):
                raise EngineError(
                    f"the Flink master {self.options.master} is version {found}, and the option "
                    f"version is {self.options.version}; set --runner-option version="
                    f"{'.'.join(found.split('.')[:2])}, with a job server of that version"
                )
            self._check_slots()
        super().check()

    def _check_slots(self) -> None:
        """Refuse a cluster with too few slots; wait a little for those that are not free yet."""
        total = int(ask(f"{self.rest}/overview")["slots-total"])
        if total < self.workers:
            raise EngineError(
                f"the Flink master {self.options.master} has {total} slots, and parallelism is "
                f"{self.workers}; lower it, or add task managers"
            )
        try:
            wait_for(self._are_slots_free, "free slots", _RELEASE)
        except EngineError as error:
            free = ask(f"{self.rest}/overview")["slots-available"]
            raise EngineError(
                f"the Flink master {self.options.master} has {free} of {total} slots free, and "
                f"parallelism is {self.workers}; lower it, or wait for other jobs"
            ) from error

    def _are_slots_free(self) -> bool:
        return int(ask(f"{self.rest}/overview")["slots-available"]) >= self.workers

    def default_processes(self) -> int:
        """Return as many workers a task manager as it has slots."""
        if not self.rest or self.environment == "loopback":
            return super().default_processes()
        managers = int(ask(f"{self.rest}/overview")["taskmanagers"])
        return -(-self.workers // max(1, managers))

    def server_command(self, folder: Path, port: int) -> Sequence[str]:
        """Return the command of the job server."""
        master = self.rest or "[local]"
        if self.rest and self._network is not None:
            master = f"http://{self._network.lead_to(*split_address(self.rest))}"
        return [*self.java_command(folder, port, *_OPENS), f"--flink-master={master}"]

    def outside(self) -> str | None:
        """Return the addresses that the job server must reach outside a private network."""
        if not self.rest:
            return super().outside()
        # It asks the master alone, which is led to; but a certificate names the master's own address.
        return self.rest if self.rest.startswith("https:") else None

    def job_options(self) -> dict[str, Any]:
        """Return the options of every job."""
        if self.rest:
            self._check_slots()
        return super().job_options()

    def needed(self) -> dict[str, str]:
        """Return the addresses that must answer while a job runs."""
        master = {self.options.master: "the Flink master"} if self.rest else {}
        return super().needed() | master

    def watch(self, name: str) -> None:
        """Raise if the job's services are gone, or a worker reported an error that will recur."""
        super().watch(name)
        now = time.monotonic()
        if not self.rest or now < self._next_look:
            return
        self._next_look = now + _LOOK
        try:
            # Jobs of earlier runs, which may have failed by what is mended now, have the same name.
            running = [job for job in self._jobs(name) if job["state"] not in _ENDED]
            failures = [failure for job in running for failure in self._failures(job)]
        except EngineError as error:
            # A master that stays silent is noticed by what watches over all addresses.
            logging.getLogger("slicebeam").info("job %s: %s", name, error)
            return
        for failure in failures:
            ours = reported(failure.get("stacktrace", ""))
            if isinstance(ours, InputError):
                raise ours

    def cancel(self, name: str) -> None:
        """End the job on the cluster, where it would continue without a job service."""
        self._end_jobs(name, lambda: self._jobs(name))

    def end_earlier(self, name: str, but: str = "") -> None:  # noqa: ARG002
        """End the jobs of an earlier process, also one that this process would send alike.

        Beam cannot wait for a job that another process sent.
        """
        self._end_jobs(name, lambda: [*self._jobs(name), *self._jobs(name, prefix=f"{name}-")])

    def _end_jobs(self, name: str, find: Callable[[], list[dict[str, Any]]]) -> None:
        """End jobs, and wait until they are ended."""
        if not self.rest:
            return
        ended = time.monotonic() + _CANCEL
        asked: set[str] = set()
        while jobs := [job for job in find() if job["state"] not in _ENDED]:
            for job in jobs:
                if job["jid"] not in asked:
                    ask(f"{self.rest}/jobs/{job['jid']}?mode=cancel", method="PATCH")
                    asked.add(job["jid"])
            if time.monotonic() > ended:
                raise EngineError(
                    f"the Flink job {name} could not be cancelled and still runs; look at {self.rest}"
                )
            time.sleep(0.2)

    def after(self, name: str) -> None:
        """Log the restarts of a job, which it does not report itself."""
        if not self.rest:
            return
        log = logging.getLogger("slicebeam")
        try:
            for job in self._jobs(name):
                for failure in self._failures(job):
                    why = failure.get("exceptionName")
                    log.warning("job %s was restarted after %s", name, why)
        except EngineError as error:
            # The job is done: only what it went through is not known.
            log.warning("job %s: %s", name, error)

    def _failures(self, job: dict[str, Any]) -> list[dict[str, Any]]:
        """Return the failures of a job so far, with or without restarts."""
        told = ask(f"{self.rest}/jobs/{job['jid']}/exceptions")
        failures: list[dict[str, Any]] = told.get("exceptionHistory", {}).get("entries", [])
        return failures

    def _jobs(self, name: str, prefix: str | None = None) -> list[dict[str, Any]]:
        """Return the jobs of a name, or of names that begin alike."""
        jobs = ask(f"{self.rest}/jobs/overview")["jobs"]
        if prefix is not None:
            return [job for job in jobs if job["name"].startswith(prefix)]
        return [job for job in jobs if job["name"] == name]
