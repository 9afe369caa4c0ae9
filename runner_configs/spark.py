"""Spark: a standalone cluster, or one inside the job server."""

from __future__ import annotations

import re
import urllib.request
from typing import TYPE_CHECKING, Any

from slicebeam.metrics.errors import EngineError
from slicebeam.runner_configs.artifacts import jar_version
from slicebeam.runner_configs.cluster import ClusterEngine, ask
from slicebeam.runner_configs.portable import check_answers

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from slicebeam.runner_configs.options import SparkOptions

JAR_VARIABLE = "SLICEBEAM_SPARK_JOB_SERVER_JAR"
_WEB_PORT = 8080
_ANSWER = 5.0
# The master's page tells its version next to the name.
_VERSION = re.compile(r'<span class="version"[^>]*>\s*([\d.]+)\s*</span>')


class Spark(ClusterEngine):
    """Runs jobs on Spark."""

    engine = "spark"
    variable = JAR_VARIABLE
    gradle_target = ":runners:spark:3:job-server:shadowJar"

    def __init__(self, options: SparkOptions) -> None:
        super().__init__(options)
        self.options = options
        # Workers of the cluster, where its pages tell.
        self._nodes = 0
        where = "embedded" if options.is_embedded else "cluster"
        version = f" {options.version}" if options.version else ""
        self.name = f"spark{version} ({where}), parallelism {options.parallelism}"

    def version(self) -> str | None:
        """Return the version that the job server must be of."""
        return self.options.version

    def cached_version(self) -> str:
        """Return the version in the name of a cached job server."""
        return self.options.version or "*"

    def check(self) -> None:
        """Refuse a cluster that does not answer, is of another version, or has too few cores."""
        if not self.options.is_embedded:
            check_answers(
                self.options.master,
                "the Spark master",
                "is the cluster up, and is this its spark:// address?",
            )
        super().check()
        if not self.options.is_embedded:
            self._check_pages()

    def _check_pages(self) -> None:
        """Check the master's pages; if they are missing, nothing is known."""
        pages = self.options.web_ui or f"{self.options.host}:{_WEB_PORT}"
        try:
            state = ask(f"http://{pages}/json/")
            if state.get("url") != self.options.master:
                # The pages of another master: nothing is known about this one.
                return
            with urllib.request.urlopen(f"http://{pages}/", timeout=_ANSWER) as answer:
                found = _VERSION.search(answer.read().decode("utf-8", "replace"))
        except (EngineError, OSError):
            if self.options.web_ui:
                raise
            return
        alive = [worker for worker in state["workers"] if worker["state"] == "ALIVE"]
        cores = sum(worker["coresfree"] for worker in alive)
        if cores < 1:
            raise EngineError(
                f"the Spark master {self.options.master} has no free core on its {len(alive)} "
                "workers; add workers, or wait for other applications"
            )
        self._nodes = len(alive)
        wanted = self.options.version or (
            None if self.options.job_endpoint else jar_version(self.jar(), "spark")
        )
        if found and wanted and found.group(1) != wanted:
            raise EngineError(
                f"the Spark master {self.options.master} is version {found.group(1)}, and the job "
                f"server is built for {wanted}: they must be the same, including the patch "
                "version; name another job_server_jar"
            )

    def default_processes(self) -> int:
        """Return as many workers an executor as it has a share of the bundles."""
        if not self._nodes or self.environment == "loopback":
            return super().default_processes()
        return -(-self.workers // self._nodes)

    def needed(self) -> dict[str, str]:
        """Return the addresses that must answer while a job runs."""
        master = {} if self.options.is_embedded else {self.options.master: "the Spark master"}
        return super().needed() | master

    def server_command(self, folder: Path, port: int) -> Sequence[str]:
        """Return the command of the job server."""
        from apache_beam.runners.portability.spark_runner import SPARK_JAR_JOB_SERVER_JVM_ARGS

        conf = {
            "spark.ui.enabled": "false",
            "spark.default.parallelism": str(self.workers),
            "spark.local.dir": str(folder / "tmp"),
            **self.options.spark_conf,
        }
        if not self.options.is_embedded:
            conf.setdefault("spark.cores.max", str(self.workers))
            if self.options.is_here:
                conf.setdefault("spark.driver.host", "127.0.0.1")
        properties = [f"-D{key}={value}" for key, value in conf.items()]
        command = self.java_command(folder, port, *SPARK_JAR_JOB_SERVER_JVM_ARGS, *properties)
        return [*command, f"--spark-master-url={self.options.master}"]

    def server_environment(self, folder: Path) -> Mapping[str, str]:  # noqa: ARG002
        """Return the variables of the job server: it is found where its master is."""
        return {"SPARK_LOCAL_IP": "127.0.0.1"} if self.options.is_here else {}

    def job_options(self) -> dict[str, Any]:
        """Return the options of every job."""
        options = super().job_options()
        # Spark's runner takes its parallelism from Spark.
        del options["parallelism"]
        return options
