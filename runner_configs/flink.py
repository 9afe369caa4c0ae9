"""Flink: a cluster, or one inside the job server."""

from __future__ import annotations

import json
import logging
import re
import sys
import time
import urllib.error
import urllib.request
import zipfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from slicebeam.metrics.errors import EngineError, InputError
from slicebeam.runner_configs.guardian import MASTER
from slicebeam.runner_configs.job_log import reported
from slicebeam.runner_configs.job_service import JavaJobService, split_address

if TYPE_CHECKING:
    from collections import Counter
    from collections.abc import Sequence

    from slicebeam.runner_configs.backend import Build
    from slicebeam.runner_configs.options import RunnerOptions

# Seconds that the master may take to answer, that the slots of the last job may take to be free
# again, and that a cancelled job may take to end.
_ANSWER = 5.0
_RELEASE = 20.0
_CANCEL = 20.0
# Seconds between looks at what a running job failed by.
_POLL = 2.0
_ENDED = ("FINISHED", "CANCELED", "FAILED")
# Java keeps these closed to libraries that look into its classes, as Flink's serializers do.
_OPENS = (
    "--add-opens=java.base/java.util=ALL-UNNAMED",
    "--add-opens=java.base/java.lang=ALL-UNNAMED",
    "--add-opens=java.base/java.nio=ALL-UNNAMED",
    "--add-opens=java.base/java.time=ALL-UNNAMED",
)
_VERSION = re.compile(
    r"META-INF/maven/org\.apache\.beam/beam-runners-flink-([\d.]+)/pom\.properties"
)


class Flink(JavaJobService):
    """Runs jobs on Flink."""

    engine = "flink"
    least_seconds = 10.0
    workers_option = "parallelism"
    master_option = "flink_master"
    local_masters = re.compile(r"|\[local\]|\[auto\]")
    jar_option = "flink_job_server_jar"
    beam_server = "apache_beam.runners.portability.flink_runner:FlinkJarJobServer"

    def __init__(self, options: RunnerOptions, runner: str) -> None:
        super().__init__(options, runner)
        scheme = "" if "://" in self.master else "http://"
        self.rest = f"{scheme}{self.master}".rstrip("/") if self.host else ""
        if self.rest.startswith("http:"):
            # The job server asks the master alone. A certificate would name the master's own address.
            self.leads_to = split_address(self.rest, self.master_option)
        self._next_poll = 0.0

    def check(self) -> None:
        """Refuse a cluster that does not answer, is of another version, or has too few slots."""
        super().check()
        built = None if self.job_endpoint else jar_version(self.jar())
        if not self.rest:
            return
        version = str(ask(f"{self.rest}/config").get("flink-version", ""))
        wanted = built or self.text("flink_version") or version
        if wanted.split(".")[:2] != version.split(".")[:2]:
            raise EngineError(
                f"the Flink master {self.master} is version {version}, and the job server is for "
                f"{wanted}; name a {self.jar_option} of that version"
            )
        self._task_managers()

    def _task_managers(self) -> int:
        """Return the number of task managers; wait a little until enough slots are free."""
        end = time.monotonic() + _RELEASE
        while (overview := ask(f"{self.rest}/overview"))["slots-available"] < self.workers:
            total = overview["slots-total"]
            if total < self.workers or time.monotonic() > end:
                raise EngineError(
                    f"the Flink master {self.master} has {overview['slots-available']} of {total} "
                    f"slots free, and workers is {self.workers}; lower it, add task managers, or "
                    "wait for other jobs"
                )
            time.sleep(0.2)
        return int(overview["taskmanagers"])

    def server_command(self, folder: Path, port: int) -> Sequence[str]:
        """Return the command of the job server."""
        master = f"http://127.0.0.1:{MASTER}" if self.rest and self.is_private else self.rest
        return self.java_command(folder, port, master or "[local]", *_OPENS)

    def job_options(self) -> dict[str, Any]:
        """Return the options of every job."""
        options = {**super().job_options(), "parallelism": self.workers}
        if self.rest:
            managers = self._task_managers()
            if self.environment != "LOOPBACK":
                # As many workers a task manager as it has slots.
                options["sdk_worker_parallelism"] = -(-self.workers // max(1, managers))
        return options

    def watch(self, name: str) -> None:
        """Raise if the job's services are gone, or a worker reported an error that will recur."""
        super().watch(name)
        now = time.monotonic()
        if not self.rest or now < self._next_poll:
            return
        self._next_poll = now + _POLL
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

    def end(self, name: str, result: Any) -> None:
        """End a job also on the cluster, where it would continue without the job service."""
        # After the service, so that nothing is sent to the cluster any more.
        super().end(name, result)
        try:
            self._end_jobs(name)
        except EngineError as error:
            sys.stderr.write(f"slicebeam: {error}\n")

    def end_earlier(self, name: str, but: str = "") -> None:  # noqa: ARG002
        """End the jobs of an earlier process, also one that this process would send alike.

        Beam cannot wait for a job that another process sent.
        """
        self._end_jobs(name, f"{name}-")

    def _end_jobs(self, name: str, prefix: str | None = None) -> None:
        """End the jobs of a name, or of names with a prefix too, and wait until they are ended."""
        if not self.rest:
            return
        ended = time.monotonic() + _CANCEL
        cancelled: set[str] = set()
        while jobs := [job for job in self._jobs(name, prefix) if job["state"] not in _ENDED]:
            for job in jobs:
                if job["jid"] not in cancelled:
                    ask(f"{self.rest}/jobs/{job['jid']}?mode=cancel", method="PATCH")
                    cancelled.add(job["jid"])
            if time.monotonic() > ended:
                raise EngineError(
                    f"the Flink job {name} could not be cancelled and still runs; look at {self.rest}"
                )
            time.sleep(0.2)

    def run(self, build: Build, name: str) -> Counter[str]:
        """Run a pipeline, and log its restarts, which the engine does not report itself."""
        counts = super().run(build, name)
        log = logging.getLogger("slicebeam")
        try:
            for job in self._jobs(name) if self.rest else ():
                for failure in self._failures(job):
                    log.warning("job %s was restarted after %s", name, failure.get("exceptionName"))
        except EngineError as error:
            # The job is done: only what it went through is not known.
            log.warning("job %s: %s", name, error)
        return counts

    def _failures(self, job: dict[str, Any]) -> list[dict[str, Any]]:
        """Return the failures of a job so far, with or without restarts."""
        answer = ask(f"{self.rest}/jobs/{job['jid']}/exceptions")
        failures: list[dict[str, Any]] = answer.get("exceptionHistory", {}).get("entries", [])
        return failures

    def _jobs(self, name: str, prefix: str | None = None) -> list[dict[str, Any]]:
        """Return the jobs of a name, or of names with a prefix too."""
        jobs = ask(f"{self.rest}/jobs/overview")["jobs"]
        return [
            job
            for job in jobs
            if job["name"] == name or (prefix and job["name"].startswith(prefix))
        ]


def jar_version(jar: Path) -> str | None:
    """Return the version (major.minor) of Flink that a job server is built for, None if it does not tell."""
    try:
        with zipfile.ZipFile(jar) as archive:
            matches = filter(None, map(_VERSION.fullmatch, archive.namelist()))
            return next((match[1] for match in matches), None)
    except (OSError, zipfile.BadZipFile) as error:
        raise EngineError(
            f"{jar} is not a readable jar ({error}); name another job server"
        ) from error


def ask(url: str, *, method: str = "GET") -> Any:
    """Return the JSON that an address of an engine answers, None if it is empty."""
    request = urllib.request.Request(url, method=method)  # noqa: S310  (http by construction)
    try:
        with urllib.request.urlopen(request, timeout=_ANSWER) as answer:  # noqa: S310
            text = answer.read()
        return json.loads(text) if text.strip() else None
    except urllib.error.HTTPError as error:
        raise EngineError(f"{url} answers {error.code} {error.reason}") from error
    except (OSError, ValueError) as error:
        reason = getattr(error, "reason", None) or error
        raise EngineError(f"{url} does not answer as expected ({reason})") from error
