"""The common part of Flink and Spark: a job server in Java, and nodes that may be elsewhere."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from pathlib import Path
from typing import TYPE_CHECKING, Any

from slicebeam.metrics.errors import EngineError
from slicebeam.runner_configs.artifacts import jar_version, java_program, job_server_jar
from slicebeam.runner_configs.network_access import ARTIFACTS
from slicebeam.runner_configs.portable import PortableEngine, check_answers

if TYPE_CHECKING:
    from collections.abc import Sequence

    from slicebeam.runner_configs.options import ClusterOptions

_ANSWER = 5.0


class ClusterEngine(PortableEngine):
    """An engine whose jobs go through a job server of Beam's."""

    artifact_port = ARTIFACTS
    engine: str
    variable: str
    gradle_target: str

    def __init__(self, options: ClusterOptions) -> None:
        super().__init__(options, options.parallelism)
        self.cluster = options
        self.is_embedded = options.is_embedded and not options.job_endpoint

    def version(self) -> str | None:
        """Return the engine's version that the job server must be of."""
        raise NotImplementedError

    def cached_version(self) -> str:
        """Return the version in the name of a job server in the cache folder."""
        raise NotImplementedError

    def jar(self) -> Path:
        """Return the job server's jar."""
        return job_server_jar(
            self.cluster.job_server_jar,
            self.engine,
            self.cached_version(),
            self.variable,
            self.gradle_target,
        )

    def check(self) -> None:
        """Refuse a job server or a Java that is not there, or is of another version."""
        super().check()
        options = self.cluster
        if options.job_endpoint:
            check_answers(options.job_endpoint, "the job server", "start it, or name another")
            return
        java_program(options.java)
        jar, wanted = self.jar(), self.version()
        found = jar_version(jar, self.engine)
        if wanted is not None and found is not None and found != wanted:
            raise EngineError(
                f"{jar} is a job server for {self.engine} {found}, and the option version is "
                f"{wanted}; name another job_server_jar, or another version"
            )

    def runs_on_other_machines(self) -> str | None:
        """Return where workers are that do not see this machine's files."""
        options = self.cluster
        if self._is_shut_in or options.shared_folder:
            return super().runs_on_other_machines()
        if options.environment == "docker":
            return f"{self.engine} (in containers of {options.environment_config})"
        return None if options.is_here else f"{self.engine} on {options.host}"

    def _describes_options(self) -> bool:
        return True

    def job_options(self) -> dict[str, Any]:
        """Return the options of every job."""
        processes = self.cluster.worker_processes or self.default_processes()
        return {"parallelism": self.workers, "sdk_worker_parallelism": processes}

    def default_processes(self) -> int:
        """Return how many workers a node starts where the user does not say."""
        # Threads of this process are one worker, whatever they are asked for.
        return 1 if self.environment == "loopback" else self.workers

    def outside(self) -> str | None:
        """Return the addresses that the job server must reach outside a private network."""
        return super().outside() if self.is_embedded else self.cluster.host

    def exposure(self, why: str) -> str:
        """Return what others can do while the run lasts."""
        options = self.cluster
        if self.is_embedded:
            return super().exposure(why)
        opened = (
            f"anyone who can connect to {options.job_endpoint or options.host} can run code there"
        )
        if not why:
            return opened
        return f"{opened}, and so can anyone who can connect to this machine, through the job server of this run"

    def _start(self) -> None:
        endpoint = self.cluster.job_endpoint
        if endpoint and not self._endpoint:
            self.warn(self.exposure(""))
            self.await_service(endpoint)
            self._endpoint = endpoint
        super()._start()

    def java_command(self, folder: Path, port: int, *properties: str) -> list[str]:
        """Return the command of the job server, except for the address of its master."""
        options = self.cluster
        artifacts = options.artifacts_dir or folder / "artifacts"
        temporary = folder / "tmp"
        temporary.mkdir(parents=True, exist_ok=True)
        return [
            java_program(options.java),
            # What it copies, unpacks and forgets goes with the folder.
            f"-Djava.io.tmpdir={temporary}",
            *properties,
            *options.java_options,
            "-jar",
            str(self.jar()),
            "--job-host=127.0.0.1",
            f"--job-port={port}",
            f"--artifact-port={0 if self._network is None else ARTIFACTS}",
            "--expansion-port=0",
            f"--artifacts-dir={artifacts}",
        ]

    def server_command(self, folder: Path, port: int) -> Sequence[str]:
        """Return the command of the job server."""
        raise NotImplementedError


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
