"""Engines that are sent jobs through Beam's job service: Prism, Flink and Spark."""

from __future__ import annotations

import json
import logging
import math
import os
import shutil
import socket
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from slicebeam.metrics.errors import EngineError, InputError
from slicebeam.runner_configs.backend import Backend, run_aside
from slicebeam.runner_configs.beam_options import check_beam_options, flags
from slicebeam.runner_configs.guarded_process import GuardedProcess, wait_for
from slicebeam.runner_configs.loopback import LoopbackPool
from slicebeam.runner_configs.network_access import JOBS, NetworkAccess, no_network, reason_against
from slicebeam.runner_configs.options import split_address

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from slicebeam.runner_configs.backend import Build
    from slicebeam.runner_configs.options import ClusterOptions, PrismOptions

# Seconds that an address may take to answer, and that a worker pool may be silent during a job.
_ANSWER = 3.0
_SILENCE = 20.0
# Options that slicebeam sets itself.
_OWN = frozenset(
    {
        "runner", "job_endpoint", "job_name", "environment_type", "environment_config",
        "environment_options", "sdk_worker_parallelism", "parallelism", "flink_master",
        "spark_master_url", "job_server_timeout", "streaming", "save_main_session",
    }
)  # fmt: skip


def check_answers(address: str, what: str, remedy: str) -> None:
    """Raise an EngineError where nothing answers at host:port."""
    host, port = split_address(address)
    try:
        socket.create_connection((host, port), timeout=_ANSWER).close()
    except OSError as error:
        reason = error.strerror or str(error) or type(error).__name__
        raise EngineError(f"{what} {host}:{port} does not answer ({reason}); {remedy}") from error


def free_port() -> int:
    """Return a port of this machine that nobody listens at."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        return int(listening.getsockname()[1])


class PortableEngine(Backend):
    """An engine behind Beam's job service, which a program of this run's own provides."""

    def __init__(self, options: PrismOptions | ClusterOptions, workers: int) -> None:
        self.environment, self.environment_config = options.environment, options.environment_config
        self.beam_options, self.job_timeout = options.beam_options, options.job_timeout
        self.start_timeout = options.start_timeout
        self.smallest_job_seconds, self.counters = options.smallest_job_seconds, options.counters
        self.workers = workers
        self.private_network = options.private_network
        self._network: NetworkAccess | None = None
        self._has_warned = False
        self._pool: LoopbackPool | None = None
        self._server: GuardedProcess | None = None
        self._endpoint = ""
        self._folder: Path | None = None
        self._last_answers: dict[str, float] = {}

    # What differs between the engines.

    # The program's port for artifacts, and whether all of the engine is in the program.
    artifact_port = JOBS
    is_embedded = True

    def server_command(self, folder: Path, port: int) -> Sequence[str]:
        """Return the command of the program that provides the job service."""
        raise NotImplementedError

    def outside(self) -> str | None:
        """Return the address that the program must reach outside a private network, if any."""
        if self.environment == "docker":
            return "workers in containers"
        return f"the worker pool {self._external}" if self._external else None

    def server_environment(self, folder: Path) -> Mapping[str, str]:  # noqa: ARG002
        """Return the variables that the program needs."""
        return {}

    def job_options(self) -> dict[str, Any]:
        """Return Beam's options of every job of this engine; what must hold before it is checked."""
        return {}

    def cancel(self, name: str) -> None:
        """End a job that was sent and outlives the job service, which is ended before."""

    def needed(self) -> dict[str, str]:
        """Return the addresses, and their services, that must answer while a job runs."""
        return {self._external: "the worker pool"} if self._external else {}

    def after(self, name: str) -> None:
        """Look back at a job that is finished."""

    # What is the same for all.

    @property
    def _external(self) -> str | None:
        """The address of the worker pool of the user's own, if there is one."""
        return self.environment_config if self.environment == "external" else None

    @property
    def _is_shut_in(self) -> bool:
        """Whether the program starts the workers, in its private network."""
        return self.is_embedded and self.private_network and self.environment == "process"

    def runs_on_other_machines(self) -> str | None:
        """Return where workers are that do not reach everything."""
        return f"{self.name}, in a private network" if self._is_shut_in else None

    def sees(self, path: str) -> bool:
        """Return whether workers see a path; in a private network there are only local ones."""
        return super().sees(path) != self._is_shut_in

    @property
    def storage_hint(self) -> str:  # type: ignore[override]
        """What to do about a path that workers do not see."""
        if self._is_shut_in:
            return "use --runner-option environment=loopback, or private_network=false"
        return super().storage_hint

    @property
    def folder(self) -> Path:
        """Temporary folder of the engine's program; it is removed with it."""
        if self._folder is None:
            self._folder = Path(tempfile.mkdtemp(prefix="slicebeam-engine-"))
        return self._folder

    def sent_options(self, name: str) -> list[str]:
        """Return the options of a job as flags, except for the address of the job service."""
        given: dict[str, Any] = {
            "job_name": name,
            "environment_type": self.environment.upper(),
            "environment_config": self.environment_config,
            "parallelism": self.workers,
            **self.beam_options,
        }
        return flags(given)

    def run(self, build: Build, name: str) -> Any:
        """Run a pipeline: start its services, send it, and wait."""
        import apache_beam as beam
        from apache_beam.options.pipeline_options import PipelineOptions

        self._start()
        options = {
            "job_endpoint": self._endpoint,
            "job_name": name,
            # Beam ends the stream of a job's states after it, so that it bounds the whole job.
            "job_server_timeout": math.ceil(self.job_timeout) + 60,
            **self.job_options(),
            **self.beam_options,
        }
        if self._network is not None:
            artifacts = self._entrance(self._network, self.artifact_port)
            options.setdefault("artifact_endpoint", artifacts)
        pipeline = beam.Pipeline(runner=self._runner(), options=PipelineOptions(flags(options)))
        build(pipeline)
        results: list[Any] = []

        def submit() -> Any:
            results.append(pipeline.run())
            results[0].wait_until_finish()
            return results[0]

        self._last_answers = dict.fromkeys(self.needed(), time.monotonic())
        try:
            result = run_aside(submit, lambda: self.watch(name), self.job_timeout)
        except BaseException:
            self._end(name, results[0] if results else None)
            raise
        self.after(name)
        return result

    def _end(self, name: str, result: Any) -> None:
        """End a job that failed, or that nobody waits for any more."""
        if self._server is not None:
            # First, so that nothing is sent to the engine after what is there was ended.
            self._stop_server()
        elif result is not None:
            with suppress(Exception):
                # A job service that is not ours: the user sees why the job failed, not this.
                result.cancel()
        try:
            self.cancel(name)
        except EngineError as error:
            sys.stderr.write(f"slicebeam: {error}\n")

    def _runner(self) -> Any:
        from apache_beam.runners.portability.portable_runner import PortableRunner

        environment = self._environment()

        class EnvironmentRunner(PortableRunner):
            """Names the environment itself: Beam would list and stage all installed packages."""

            def default_environment(self, options: Any) -> Any:  # noqa: ARG002
                return environment

        return EnvironmentRunner()

    def _environment(self) -> Any:
        """Return what starts the Python of the workers."""
        from apache_beam.transforms import environments

        capabilities = environments.python_sdk_capabilities()
        config = self.environment_config or ""
        if self.environment == "docker":
            return environments.DockerEnvironment(config, capabilities=capabilities)
        if self.environment == "process":
            command, variables = self._worker_command(config)
            return environments.ProcessEnvironment(
                command, env=variables, capabilities=capabilities
            )
        if config:
            return environments.ExternalEnvironment(config, capabilities=capabilities)
        if self._pool is None:
            # Where the engine is elsewhere, so are those that ask for workers.
            self._pool = LoopbackPool(self._network if self.is_embedded else None)
        return environments.ExternalEnvironment(
            self._pool.address, {"secret": self._pool.secret}, capabilities
        )

    def _worker_command(self, config: str) -> tuple[str, dict[str, str]]:
        """Return program and variables of a worker that a node starts."""
        if config.lstrip().startswith("{"):
            try:
                shape = json.loads(config)
                return os.fspath(shape["command"]), shape.get("env", {})
            except (ValueError, KeyError, TypeError) as error:
                raise InputError(
                    f'environment_config {config}: write it as {{"command": "/path/of/worker"}}'
                ) from error
        if config:
            return config, {}
        # The same Python as here, by a file, since engines take no arguments with the command.
        script = self.folder / "worker"
        if not script.exists():
            script.write_text(
                f'#!/bin/sh\nexec "{sys.executable}" -m slicebeam.runner_configs.boot "$@"\n',
                "utf-8",
            )
            script.chmod(0o755)
        return str(script), {}

    def check(self) -> None:
        """Refuse options that could not work and that Beam would not report."""
        if self._external:
            check_answers(self._external, "the worker pool", "start it, or use environment process")
        if self.environment == "process" and self.environment_config:
            self._worker_command(self.environment_config)
        if not self._describes_options():
            check_beam_options(self.beam_options, own=_OWN)

    def _describes_options(self) -> bool:
        """Return whether the job service lists its own options."""
        return False

    def _start(self) -> None:
        """Start the job service and the workers, once."""
        if not self._endpoint and self._is_private():
            self._network = NetworkAccess()
        network = self._network
        if self._endpoint:
            if self._server is not None:
                self._server.check()
            return
        port = JOBS if network is not None else free_port()
        command = self.server_command(self.folder, port)
        variables = self.server_environment(self.folder)
        sockets = network.sockets if network is not None else None
        self._server = GuardedProcess(command, self.log, self.folder, variables, sockets)
        endpoint = f"127.0.0.1:{port}" if network is None else self._entrance(network, port)
        self.await_service(endpoint)
        self._endpoint = endpoint

    def _entrance(self, network: NetworkAccess, port: int) -> str:
        """Return the address of a port in the program's network."""
        try:
            return network.address(port)
        except OSError:
            # That the program has ended may be seen a moment after its network is gone.
            wait_for(lambda: False, f"the network of {self.name}", self.start_timeout, self._server)
            raise

    def _is_private(self) -> bool:
        """Return whether the program gets a private network; warn about open services."""
        why = reason_against(self.outside(), wanted=self.private_network)
        if why and self.private_network and self.is_embedded:
            raise no_network(self.name, why)
        exposure = self.exposure(why)
        if exposure:
            self.warn(exposure)
        return not why

    def exposure(self, why: str) -> str:
        """Return what others can do while the run lasts, where the program has no private network."""
        if not why:
            return ""
        return f"anyone who can connect to this machine can run code as you through {self.name}, because {why}"

    def warn(self, text: str) -> None:
        """Tell the user, once per run, who can connect."""
        if not self._has_warned:
            self._has_warned = True
            text = f"warning: {text}; see docs/how-to/engines.md, 'Who can connect'"
            logging.getLogger("slicebeam").warning(text)
            self.note(text)

    def await_service(self, endpoint: str) -> None:
        """Wait until the job service answers, and check Beam's options against its list."""
        import grpc
        from apache_beam.portability.api import beam_job_api_pb2, beam_job_api_pb2_grpc

        with grpc.insecure_channel(endpoint) as channel:
            ready = grpc.channel_ready_future(channel)
            name = Path(self._server.name).name if self._server is not None else endpoint
            wait_for(ready.done, f"the job server ({name})", self.start_timeout, self._server)
            if self._describes_options() and self.beam_options:
                service = beam_job_api_pb2_grpc.JobServiceStub(channel)
                described = service.DescribePipelineOptions(
                    beam_job_api_pb2.DescribePipelineOptionsRequest(), timeout=self.start_timeout
                )
                check_beam_options(
                    self.beam_options,
                    engine_options={option.name for option in described.options},
                    own=_OWN,
                )

    def watch(self, name: str) -> None:  # noqa: ARG002
        """Raise if a job's services are gone, or waiting is in vain."""
        if self._server is not None:
            self._server.check()
        now = time.monotonic()
        for address, what in self.needed().items():
            silent = now - self._last_answers[address]
            if silent < _ANSWER:
                continue
            try:
                check_answers(address, what, "the job was abandoned")
                self._last_answers[address] = now
            except EngineError:
                if silent > _SILENCE:
                    raise

    def cpu_seconds(self) -> float:
        """Return the CPU seconds of the job server, and of the workers that it has started."""
        return self._server.cpu_seconds() if self._server is not None else 0.0

    def stop(self) -> None:
        """End the job server and the workers, and remove their folder."""
        self._stop_server()
        self._stop_pool()
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)
            self._folder = None

    def _stop_server(self) -> None:
        if self._server is not None:
            self._server.stop()
            # The folder went with it.
            self._server = self._folder = None
        if self._network is not None:
            # The workers know no other network.
            self._stop_pool()
            self._network.remove()
            self._network = None
        self._endpoint = ""

    def _stop_pool(self) -> None:
        if self._pool is not None:
            self._pool.stop()
            self._pool = None


def executable(path: Path) -> bool:
    """Return whether a file can be run."""
    return path.is_file() and os.access(path, os.X_OK)
