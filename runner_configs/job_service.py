"""Beam's job service, which takes jobs for Prism, Flink and Spark: a program of this run's, or the user's."""

from __future__ import annotations

import json
import logging
import math
import os
import re
import shutil
import socket
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from slicebeam.metrics.errors import EngineError, FileError, InputError
from slicebeam.runner_configs import process_stat
from slicebeam.runner_configs.backend import run_aside
from slicebeam.runner_configs.beam_options import check_beam_options, flags
from slicebeam.runner_configs.beam_runner import BeamRunner
from slicebeam.runner_configs.guarded_process import GuardedProcess, wait_for
from slicebeam.runner_configs.loopback import LoopbackPool
from slicebeam.runner_configs.network_access import (
    ARTIFACTS,
    JOBS,
    NetworkAccess,
    no_network,
    reason_against,
)
from slicebeam.transforms.storage.secrets import redacted

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from slicebeam.runner_configs.backend import Build
    from slicebeam.runner_configs.options import RunnerOptions

# Seconds that an address may take to answer, and that one may be silent during a job.
_ANSWER = 3.0
_SILENCE = 20.0
# Seconds that a job server may take to start.
_START = 60.0
# Seconds that a job of Prism may be without a worker, once it has had one.
_WITHOUT_WORKER = 5.0
_ENVIRONMENTS = ("LOOPBACK", "PROCESS", "EXTERNAL", "DOCKER")
_PRISM = "github.com/apache/beam/sdks/v2/go/cmd/prism"
_ADDRESS = re.compile(r"(?:[a-z]+://)?(?P<host>[\w.-]+|\[[0-9A-Fa-f:]+\]):(?P<port>\d{1,5})/?")
_LOOPBACK = re.compile(r"localhost|127\.\d+\.\d+\.\d+|::1")


def split_address(address: str, option: str) -> tuple[str, int]:
    """Return host and port of ``host:port``, with or without a scheme before it."""
    match = _ADDRESS.fullmatch(address)
    if not match or not 0 < int(match["port"]) < 1 << 16:
        raise InputError(redacted(f"--beam {option}={address}: it must be host:port"))
    return match["host"].strip("[]"), int(match["port"])


def check_answers(address: str, option: str, what: str, remedy: str) -> None:
    """Raise an EngineError where nothing answers at host:port."""
    host, port = split_address(address, option)
    try:
        socket.create_connection((host, port), timeout=_ANSWER).close()
    except OSError as error:
        reason = error.strerror or str(error) or type(error).__name__
        raise EngineError(f"{what} {host}:{port} does not answer ({reason}); {remedy}") from error


def free_port() -> int:
    """Return a port of this machine that nobody listens at."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        return int(listening.getsockname()[1])


class JobService(BeamRunner):
    """A runner behind Beam's job service."""

    own_options = (
        *("runner", "job_name", "streaming", "save_main_session", "environment_options"),
        *("artifact_endpoint", "job_port", "artifact_port", "expansion_port"),
        *("output_executable_path", "flink_submit_uber_jar", "spark_submit_uber_jar"),
    )
    engine: str
    # The option with the address of the master, and what that is without a cluster.
    master_option = ""
    local_masters = re.compile("")
    # The program's port for artifacts, in a network of its own.
    artifact_port = ARTIFACTS

    def __init__(self, options: RunnerOptions, runner: str) -> None:
        super().__init__(options, runner)
        self.master = self.text(self.master_option)
        self.endpoint_option = self.text("job_endpoint")
        is_local = bool(self.local_masters.fullmatch(self.master))
        self.host = "" if is_local else split_address(self.master, self.master_option)[0]
        # Whether all of the engine is in the program that the run starts.
        self.is_embedded = is_local and not self.endpoint_option
        self.is_here = is_local or bool(_LOOPBACK.fullmatch(self.host))
        self.start_timeout = self.number("job_server_timeout") or _START
        self._set_environment()
        where = "embedded" if is_local else "cluster"
        self.name = f"{self.engine} ({where}), parallelism {self.workers}"
        self._network: NetworkAccess | None = None
        self._has_warned = False
        self._pool: LoopbackPool | None = None
        self._server: GuardedProcess | None = None
        self._endpoint = ""
        self._folder: Path | None = None
        self._last_answers: dict[str, float] = {}

    def _set_environment(self) -> None:
        """Take what starts the workers from Beam's options, and refuse what could not work."""
        kind = self.environment = (self.text("environment_type") or "LOOPBACK").upper()
        config = self.environment_config = self.text("environment_config")
        place = f"--beam environment_type={kind}"
        if kind not in _ENVIRONMENTS:
            raise InputError(f"{place}: choose from {', '.join(_ENVIRONMENTS)}")
        if kind == "LOOPBACK" and not self.is_here:
            raise InputError(
                f"{place} works only with an engine on this machine, and the master is on "
                f"{self.host}: use PROCESS, DOCKER or EXTERNAL"
            )
        if kind == "LOOPBACK" and config:
            raise InputError(f"{place} takes no environment_config")
        if kind == "DOCKER" and not config:
            raise InputError(f"{place} needs --beam environment_config=IMAGE")
        if kind == "EXTERNAL":
            # The address of a worker pool; the engine starts workers with PROCESS.
            split_address(config, "environment_config")
        if kind == "PROCESS" and not config and not self.is_here:
            raise InputError(
                f"{place} needs --beam environment_config=… where the master is on another "
                f"machine ({self.host})"
            )
        if kind == "PROCESS" and config.startswith("{"):
            self._worker_command(config)

    # What differs between the engines.

    def server_command(self, folder: Path, port: int) -> Sequence[str]:
        """Return the command of the program that provides the job service."""
        raise NotImplementedError

    def server_environment(self) -> Mapping[str, str]:
        """Return the variables that the program needs."""
        return {}

    def outside(self) -> str | None:
        """Return the address that the program must reach outside a private network, if any."""
        if self.host:
            return self.host
        if self.environment == "DOCKER":
            return "workers in containers"
        return f"the worker pool {self._external}" if self._external else None

    def job_options(self) -> dict[str, Any]:
        """Return the options of every job; what must hold before it is checked."""
        # Threads of this process are one worker, regardless of the requested number.
        processes = 1 if self.environment == "LOOPBACK" else self.workers
        return {"sdk_worker_parallelism": processes}

    def cancel(self, name: str) -> None:
        """End a job that was sent and outlives the job service, which is ended before."""

    def after(self, name: str) -> None:
        """Look back at a job that is finished."""

    # What is the same for all.

    def needed(self) -> dict[str, tuple[str, str]]:
        """Return the option and the service of each address that must answer while a job runs."""
        addresses = {}
        if self._external:
            addresses[self._external] = ("environment_config", "the worker pool")
        if self.host:
            what = f"the {self.engine.partition(' ')[0].capitalize()} master"
            addresses[self.master] = (self.master_option, what)
        return addresses

    @property
    def _of_services(self) -> set[str]:
        """Options that have had their effect when a job is sent: what it would say of them is wrong."""
        return {"environment_type", "environment_config", self.master_option}

    @property
    def _external(self) -> str:
        """The address of the worker pool of the user's, if there is one."""
        return self.environment_config if self.environment == "EXTERNAL" else ""

    @property
    def _is_shut_in(self) -> bool:
        """Whether the program starts the workers, in its private network."""
        return self.is_embedded and self.options.private_network and self.environment == "PROCESS"

    def runs_on_other_machines(self) -> str | None:
        """Return where workers are that do not reach everything."""
        if self._is_shut_in:
            return f"{self.name}, in a private network"
        if self.options.shared_folder:
            return None
        if self.environment == "DOCKER":
            return f"{self.name}, in containers of {self.environment_config}"
        return None if self.is_here else f"{self.name} on {self.host}"

    def sees(self, path: str) -> bool:
        """Return whether workers see a path; in a private network there are only local ones."""
        return super().sees(path) != self._is_shut_in

    @property
    def storage_hint(self) -> str:  # type: ignore[override]
        """What to do about a path that workers do not see."""
        if self._is_shut_in:
            return "use --beam environment_type=LOOPBACK, or --runner-option private_network=false"
        return super().storage_hint

    @property
    def folder(self) -> Path:
        """Temporary folder of the engine's program; it is removed with it."""
        if self._folder is None:
            self._folder = Path(tempfile.mkdtemp(prefix="slicebeam-engine-"))
        return self._folder

    def sent_options(self, name: str) -> list[str]:
        """Return the options of a job as flags, except for the address of a job service of the run."""
        return flags(
            {
                "runner": self.runner,
                "job_name": name,
                "environment_type": self.environment,
                **self.beam,
            }
        )

    def run(self, build: Build, name: str) -> Any:
        """Run a pipeline: start its services, send it, and wait."""
        import apache_beam as beam
        from apache_beam.options.pipeline_options import PipelineOptions

        self._start()
        options = {
            **self.job_options(),
            **{name: value for name, value in self.beam.items() if name not in self._of_services},
            "job_name": name,
            "job_endpoint": self._endpoint,
            # Beam ends the stream of a job's states after it, so that it bounds the whole job.
            "job_server_timeout": math.ceil(self.options.job_timeout) + 60,
        }
        if self._network is not None:
            options["artifact_endpoint"] = self._entrance(self._network, self.artifact_port)
        pipeline = beam.Pipeline(
            runner=self._beam_runner(), options=PipelineOptions(flags(options))
        )
        build(pipeline)
        results: list[Any] = []

        def submit() -> Any:
            results.append(pipeline.run())
            results[0].wait_until_finish()
            return results[0]

        self._last_answers = dict.fromkeys(self.needed(), time.monotonic())
        try:
            result = run_aside(submit, lambda: self.watch(name), self.options.job_timeout)
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

    def _beam_runner(self) -> Any:
        from apache_beam.runners.runner import create_runner

        environment = self._environment()
        kind: Any = type(create_runner(self.runner))

        class EnvironmentRunner(kind):
            """Names the environment itself: Beam would list and stage all installed packages."""

            def default_environment(self, options: Any) -> Any:  # noqa: ARG002
                return environment

        return EnvironmentRunner()

    def _environment(self) -> Any:
        """Return what starts the Python of the workers."""
        from apache_beam.transforms import environments

        capabilities = environments.python_sdk_capabilities()
        if self.environment == "DOCKER":
            return environments.DockerEnvironment(
                self.environment_config, capabilities=capabilities
            )
        if self.environment == "PROCESS":
            command, variables = self._worker_command(self.environment_config)
            return environments.ProcessEnvironment(
                command, env=variables, capabilities=capabilities
            )
        if self._external:
            return environments.ExternalEnvironment(self._external, capabilities=capabilities)
        if self._pool is None:
            # Where the engine is elsewhere, so are those that ask for workers.
            self._pool = LoopbackPool(self._network if self.is_embedded else None)
        return environments.ExternalEnvironment(
            self._pool.address, {"secret": self._pool.secret}, capabilities
        )

    def _worker_command(self, config: str) -> tuple[str, dict[str, str]]:
        """Return program and variables of a worker that a node starts."""
        if config.startswith("{"):
            try:
                shape = json.loads(config)
                return os.fspath(shape["command"]), shape.get("env", {})
            except (ValueError, KeyError, TypeError) as error:
                raise InputError(
                    f'--beam environment_config={config}: write it as {{"command": "/path/of/worker"}}'
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
        """Refuse what could not work and Beam would not report."""
        for address, (option, what) in self.needed().items():
            check_answers(address, option, what, "is it up, and is this its address?")
        if self.endpoint_option:
            check_answers(
                self.endpoint_option, "job_endpoint", "the job server", "start it, or name another"
            )

    def _start(self) -> None:
        """Start the job service, or find the user's, once."""
        if self._endpoint:
            if self._server is not None:
                self._server.check()
            return
        if self.endpoint_option:
            self.warn(self.exposure(""))
            self.await_service(self.endpoint_option)
            self._endpoint = self.endpoint_option
            return
        network = self._network = NetworkAccess() if self._is_private() else None
        port = JOBS if network is not None else free_port()
        command = self.server_command(self.folder, port)
        sockets = network.sockets if network is not None else None
        self._server = GuardedProcess(
            command, self.log, self.folder, self.server_environment(), sockets
        )
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
        is_wanted = self.options.private_network
        why = reason_against(self.outside(), wanted=is_wanted)
        if why and is_wanted and self.is_embedded:
            raise no_network(self.name, why)
        exposure = self.exposure(why)
        if exposure:
            self.warn(exposure)
        return not why

    def exposure(self, why: str) -> str:
        """Return what others can do while the run lasts, and why the program has no private network."""
        if self.is_embedded:
            text = "anyone who can connect to this machine can run code as you through"
            return f"{text} {self.name}, because {why}" if why else ""
        place = self.endpoint_option or self.host
        opened = f"anyone who can connect to {place} can run code there"
        if not why:
            return opened
        return f"{opened}, and so can anyone who can connect to this machine, through the job server of this run"

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
            service = beam_job_api_pb2_grpc.JobServiceStub(channel)
            described = service.DescribePipelineOptions(
                beam_job_api_pb2.DescribePipelineOptionsRequest(), timeout=self.start_timeout
            )
        names = {option.name for option in described.options}
        check_beam_options(self.beam, engine_options=names, own=self.own_options)

    def watch(self, name: str) -> None:  # noqa: ARG002
        """Raise if a job's services are gone, or waiting is in vain."""
        if self._server is not None:
            self._server.check()
        now = time.monotonic()
        for address, (option, what) in self.needed().items():
            silent = now - self._last_answers[address]
            if silent < _ANSWER:
                continue
            try:
                check_answers(address, option, what, "the job was abandoned")
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


class Prism(JobService):
    """Runs jobs on a Prism of this run, Beam's portable runner as one program on this machine."""

    engine = "prism"
    artifact_port = JOBS

    def __init__(self, options: RunnerOptions, runner: str) -> None:
        super().__init__(options, runner)
        # Prism asks for one worker, which works on several bundles at once in threads.
        self.name = f"prism, {self.workers} threads"
        self._worker_seen: float | None = None

    def binary(self) -> Path:
        """Return the program."""
        from apache_beam.version import __version__ as version

        named = self.text("prism_location") or shutil.which("prism")
        if not named:
            raise EngineError(
                f"prism is missing: build it with 'go install {_PRISM}@v{version}', and name it "
                "with --beam prism_location=PATH"
            )
        path = _existing(named, "prism_location")
        if not os.access(path, os.X_OK):
            raise EngineError(f"{path} cannot be run; make it executable (chmod +x)")
        return path

    def check(self) -> None:
        """Refuse a program that is not there, and options that Beam does not know."""
        super().check()
        if not self.endpoint_option:
            self.binary()
        check_beam_options(self.beam, own=self.own_options)

    def job_options(self) -> dict[str, Any]:
        """Return the options of every job."""
        return {}

    def run(self, build: Build, name: str) -> Any:
        """Run a job, which gets a new worker."""
        self._worker_seen = None
        return super().run(build, name)

    def watch(self, name: str) -> None:
        """Raise also where the job's worker has ended: Prism 2.77 at times waits for it forever."""
        super().watch(name)
        if self.environment != "PROCESS" or self._server is None:
            return
        now = time.monotonic()
        if process_stat.children(self._server.pid):
            self._worker_seen = now
        elif self._worker_seen is not None and now - self._worker_seen > _WITHOUT_WORKER:
            raise EngineError(
                "the worker process of the job has ended, killed or for want of memory; its output is "
                f"in {self.log}"
            )

    def server_command(self, folder: Path, port: int) -> Sequence[str]:  # noqa: ARG002
        """Return the command of Prism."""
        return [
            str(self.binary()),
            f"--job_port={port}",
            "--serve_http=false",
            "--log_kind=text",
            "--log_level=warn",
        ]


class JavaJobService(JobService):
    """Runs jobs through one of Beam's job servers in Java."""

    jar_option: str
    gradle_target: str

    def jar(self) -> Path:
        """Return the job server's jar, which Beam downloads where it is an address."""
        from apache_beam.utils.subprocess_server import JavaJarServer

        named = self.text(self.jar_option)
        if not named:
            raise EngineError(
                f"no job server for {self.engine}: name its jar with --beam {self.jar_option}=PATH, "
                f"or --beam {self.jar_option}={JavaJarServer.path_to_beam_jar(self.gradle_target)}, "
                "which Beam downloads"
            )
        if "://" not in named:
            return _existing(named, self.jar_option)
        try:
            return Path(JavaJarServer.local_jar(named, self.text("jar_cache_dir") or None))
        except (OSError, RuntimeError, ValueError) as error:
            raise EngineError(f"cannot download the job server {named}: {error}") from error

    def java(self) -> str:
        """Return the path of the Java that starts a job server."""
        name = self.text("job_server_java_launcher") or "java"
        path = shutil.which(name)
        if path is None:
            raise EngineError(
                f"{name!r} is missing, and the job server needs it: install Java 11 or 17, or name "
                "it with --beam job_server_java_launcher=PATH"
            )
        return path

    def check(self) -> None:
        """Refuse a job server or a Java that is not there."""
        super().check()
        if not self.endpoint_option:
            self.java()
            self.jar()

    def java_command(self, folder: Path, port: int, *properties: str) -> list[str]:
        """Return the command of the job server, except for the address of its master."""
        temporary = folder / "tmp"
        temporary.mkdir(parents=True, exist_ok=True)
        given = self.beam.get("job_server_jvm_properties", [])
        return [
            self.java(),
            # What it copies, unpacks and forgets goes with the folder.
            f"-Djava.io.tmpdir={temporary}",
            *("-Xmx1g", *properties),
            *(given if isinstance(given, list) else [str(given)]),
            "-jar",
            str(self.jar()),
            "--job-host=127.0.0.1",
            f"--job-port={port}",
            f"--artifact-port={0 if self._network is None else ARTIFACTS}",
            "--expansion-port=0",
            f"--artifacts-dir={self.text('artifacts_dir') or folder / 'artifacts'}",
        ]


class Spark(JavaJobService):
    """Runs jobs on Spark: a standalone cluster, or one inside the job server."""

    engine = "spark"
    counters = "attempted"
    least_seconds = 10.0
    master_option = "spark_master_url"
    local_masters = re.compile(r"|local(\[(\d+|\*)\])?")
    jar_option = "spark_job_server_jar"
    gradle_target = ":runners:spark:3:job-server:shadowJar"

    def server_command(self, folder: Path, port: int) -> Sequence[str]:
        """Return the command of the job server."""
        from apache_beam.runners.portability.spark_runner import SPARK_JAR_JOB_SERVER_JVM_ARGS

        conf = {
            "spark.ui.enabled": "false",
            "spark.default.parallelism": str(self.workers),
            "spark.local.dir": str(folder / "tmp"),
        }
        if self.host:
            conf["spark.cores.max"] = str(self.workers)
            if self.is_here:
                conf["spark.driver.host"] = "127.0.0.1"
        properties = [f"-D{key}={value}" for key, value in conf.items()]
        # A property of the user's comes later, and counts.
        command = self.java_command(folder, port, *SPARK_JAR_JOB_SERVER_JVM_ARGS, *properties)
        return [*command, f"--spark-master-url={self.master or f'local[{self.workers}]'}"]

    def server_environment(self) -> Mapping[str, str]:
        """Return the variables of the job server: it is found where its master is."""
        return {"SPARK_LOCAL_IP": "127.0.0.1"} if self.is_here else {}


def _existing(path: str, option: str) -> Path:
    file = Path(path).expanduser()
    if not file.is_file():
        raise FileError(redacted(f"--beam {option}={file}: no such file"))
    return file
