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
import time
from contextlib import suppress
from pathlib import Path
from pkgutil import resolve_name
from typing import TYPE_CHECKING, Any

from slicebeam.metrics.errors import EngineError, FileError, InputError
from slicebeam.runner_configs import process_stat
from slicebeam.runner_configs.beam_runner import BeamRunner, check_beam_options, flags
from slicebeam.runner_configs.guarded_process import (
    GuardedProcess,
    private_address,
    socket_folder,
    wait_for,
    why_not_private,
)
from slicebeam.runner_configs.guardian import ARTIFACTS, JOBS
from slicebeam.runner_configs.loopback import LoopbackPool
from slicebeam.transforms.storage.secrets import redacted

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

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

    reserved_options = (
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
    # The address that it reaches outside a network of its own, through its folder.
    leads_to: tuple[str, int] | None = None

    def __init__(self, options: RunnerOptions, runner: str) -> None:
        super().__init__(options, runner)
        self.master = self.text(self.master_option)
        self.job_endpoint = self.text("job_endpoint")
        is_local = bool(self.local_masters.fullmatch(self.master))
        self.host = "" if is_local else split_address(self.master, self.master_option)[0]
        # Whether all of the engine is in the program that the run starts.
        self.is_embedded = is_local and not self.job_endpoint
        self.is_here = is_local or bool(_LOOPBACK.fullmatch(self.host))
        self.start_timeout = self.number("job_server_timeout") or _START
        self.environment = (self.text("environment_type") or "LOOPBACK").upper()
        self.environment_config = self.text("environment_config")
        # Whether the user's worker pool starts the workers, or the program, in its private network.
        self._is_external = self.environment == "EXTERNAL"
        self._is_shut_in = (
            self.is_embedded and options.private_network and self.environment == "PROCESS"
        )
        if self._is_shut_in:
            self.storage_hint = (
                "use --beam environment_type=LOOPBACK, or --runner-option private_network=false"
            )
        self._check_environment()
        where = "embedded" if is_local else "cluster"
        self.name = f"{self.engine} ({where}), parallelism {self.workers}"
        self.is_private = self._has_warned = False
        self._pool: LoopbackPool | None = None
        self._server: GuardedProcess | None = None
        self._endpoint = ""
        self._folder: Path | None = None
        self._last_answers: dict[str, float] = {}

    def _check_environment(self) -> None:
        """Refuse options of the workers that could not work."""
        kind, config = self.environment, self.environment_config
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
            self._worker_command()

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
            return None if self.leads_to else self.host
        if self.environment == "DOCKER":
            return "workers in containers"
        return f"the worker pool {self.environment_config}" if self._is_external else None

    def job_options(self) -> dict[str, Any]:
        """Return the options of every job; what must hold before it is checked."""
        # Threads of this process are one worker, regardless of the requested number.
        processes = 1 if self.environment == "LOOPBACK" else self.workers
        return {"sdk_worker_parallelism": processes}

    # What is the same for all.

    def needed(self) -> dict[str, tuple[str, str]]:
        """Return the option and the service of each address that must answer while a job runs."""
        addresses = {}
        if self._is_external:
            addresses[self.environment_config] = ("environment_config", "the worker pool")
        if self.host:
            what = f"the {self.engine.capitalize()} master"
            addresses[self.master] = (self.master_option, what)
        if self.job_endpoint:
            addresses[self.job_endpoint] = ("job_endpoint", "the job server")
        return addresses

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

    def check(self) -> None:
        """Refuse what could not work and Beam would not report."""
        for address, (option, what) in self.needed().items():
            check_answers(address, option, what, "is it up, and is this its address?")

    def sent_options(self, name: str) -> list[str]:
        """Return the options of a job as flags, except for the address of a job service of the run."""
        options = {"job_name": name, "environment_type": self.environment, **self.beam}
        return flags({"runner": self.runner, **options})

    def job_flags(self, name: str) -> list[str]:
        """Start the services of a job, and return its options."""
        try:
            self._start()
        except BaseException:
            self.stop()
            raise
        self._last_answers = dict.fromkeys(self.needed(), time.monotonic())
        # These have had their effect when a job is sent: what it would say of them is wrong.
        services = {"environment_type", "environment_config", self.master_option}
        options = {
            **self.job_options(),
            **{option: value for option, value in self.beam.items() if option not in services},
            "job_name": name,
            "job_endpoint": self._endpoint,
            # Beam ends the stream of a job's states after it, so that it bounds the whole job.
            "job_server_timeout": math.ceil(self.options.job_timeout) + 60,
        }
        if self.is_private:
            options["artifact_endpoint"] = self._address(self.artifact_port)
        return flags(options)

    def _start(self) -> None:
        """Start the job service, or find the user's, once."""
        if self._endpoint:
            if self._server is not None:
                self._server.check()
            return
        endpoint = self.job_endpoint
        if endpoint:
            self._warn(f"anyone who can connect to {endpoint} can run code there")
        else:
            self.is_private = self._can_be_private()
            port = JOBS if self.is_private else free_port()
            self._server = GuardedProcess(
                self.server_command(self.folder, port),
                self.log,
                self.folder,
                self.server_environment(),
                is_private=self.is_private,
                leads_to=self.leads_to if self.is_private else None,
            )
            endpoint = self._address(port)
        self.await_service(endpoint)
        self._endpoint = endpoint

    @property
    def folder(self) -> Path:
        """Temporary folder of the engine's program; it is removed with it."""
        if self._folder is None:
            self._folder = socket_folder()
        return self._folder

    def _address(self, port: int) -> str:
        """Return the address of a port of the program's."""
        if not self.is_private:
            return f"127.0.0.1:{port}"
        try:
            return private_address(self.folder, f"localhost:{port}")
        except OSError:
            # That the program has ended may be seen a moment after its network is gone.
            wait_for(lambda: False, f"the network of {self.name}", self.start_timeout, self._server)
            raise

    def _can_be_private(self) -> bool:
        """Return whether the program gets a private network; warn of what is open."""
        if not self.options.private_network:
            why = "private_network is false"
        else:
            outside = self.outside()
            why = f"it must reach {outside}" if outside else why_not_private()
            if why and self.is_embedded:
                raise EngineError(
                    f"{self.name} listens on every address of this machine, runs any code it "
                    f"receives as you, and cannot have a private network: {why}; --runner-option "
                    "private_network=false runs it anyway"
                )
        others = "anyone who can connect to this machine"
        if not self.is_embedded:
            there = f"anyone who can connect to {self.host} can run code there"
            here = f", and so can {others}, through the job server of this run" if why else ""
            self._warn(there + here)
        elif why:
            self._warn(f"{others} can run code as you through {self.name}, because {why}")
        return not why

    def _warn(self, text: str) -> None:
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
        check_beam_options(self.beam, engine_options=names, reserved=self.reserved_options)

    def beam_runner(self) -> Any:
        """Return Beam's object that sends jobs, with workers of the run's environment."""
        environment = self._environment()
        kind: Any = type(super().beam_runner())

        class EnvironmentRunner(kind):
            """Names the environment itself: Beam would list and stage all installed packages."""

            def default_environment(self, options: Any) -> Any:  # noqa: ARG002
                return environment

        return EnvironmentRunner()

    def _environment(self) -> Any:
        """Return what starts the Python of the workers."""
        from apache_beam.transforms import environments

        options: dict[str, Any] = {"capabilities": environments.python_sdk_capabilities()}
        if self.environment == "DOCKER":
            return environments.DockerEnvironment(self.environment_config, **options)
        if self.environment == "PROCESS":
            command, variables = self._worker_command()
            return environments.ProcessEnvironment(command, env=variables, **options)
        if self._is_external:
            return environments.ExternalEnvironment(self.environment_config, **options)
        if self._pool is None:
            # Where the engine is elsewhere, so are those that ask for workers.
            is_inside = self.is_private and self.is_embedded
            self._pool = LoopbackPool(self.folder if is_inside else None)
        params = {"secret": self._pool.secret}
        return environments.ExternalEnvironment(self._pool.address, params, **options)

    def _worker_command(self) -> tuple[str, dict[str, str]]:
        """Return program and variables of a worker that a node starts."""
        config = self.environment_config
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
            program = f'exec "{sys.executable}" -m slicebeam.runner_configs.boot "$@"'
            script.write_text(f"#!/bin/sh\n{program}\n", "utf-8")
            script.chmod(0o755)
        return str(script), {}

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

    def end(self, name: str, result: Any) -> None:  # noqa: ARG002
        """End a job that failed, or that nobody waits for any more, with the job service."""
        if self._server is None and result is not None:
            with suppress(Exception):
                # A job service that is not ours: the user sees why the job failed, not this.
                result.cancel()
        self.stop()

    def cpu_seconds(self) -> float:
        """Return the CPU seconds of the job server, and of the workers that it has started."""
        return self._server.cpu_seconds() if self._server is not None else 0.0

    def stop(self) -> None:
        """End the job server and the workers, and remove their folder."""
        if self._server is not None:
            self._server.stop()
        if self._pool is not None:
            self._pool.stop()
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)
        self._server = self._pool = self._folder = None
        self._endpoint = ""


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
        if not self.job_endpoint:
            self.binary()
        check_beam_options(self.beam, reserved=self.reserved_options)

    def job_options(self) -> dict[str, Any]:
        """Return the options of every job, which gets a new worker."""
        self._worker_seen = None
        return {}

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
        log = ("--log_kind=text", "--log_level=warn")
        return [str(self.binary()), f"--job_port={port}", "--serve_http=false", *log]


class JavaJobService(JobService):
    """Runs jobs through one of Beam's job servers in Java."""

    jar_option: str
    # Beam's class that knows the program and its arguments.
    beam_server: str

    def _beam_server(self, master: str = "") -> Any:
        from apache_beam.options.pipeline_options import PipelineOptions

        options = {**self.beam, **({self.master_option: master} if master else {})}
        return resolve_name(self.beam_server)(PipelineOptions(flags(options)))

    def jar(self) -> Path:
        """Return the job server's jar, which Beam downloads where it is an address."""
        named = self.text(self.jar_option)
        if named and "://" not in named:
            return _existing(named, self.jar_option)
        server = self._beam_server()
        if not named:
            raise EngineError(
                f"no job server for {self.engine}: name its jar with --beam {self.jar_option}=PATH, "
                f"or --beam {self.jar_option}={server.path_to_jar()}, which Beam downloads"
            )
        try:
            return Path(server.local_jar(named, self.text("jar_cache_dir") or None))
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
        if not self.job_endpoint:
            self.java()
            self.jar()

    def java_command(self, folder: Path, port: int, master: str, *properties: str) -> list[str]:
        """Return the command of the job server; a property of the user's comes later, and counts."""
        temporary = folder / "tmp"
        temporary.mkdir(parents=True, exist_ok=True)
        users = self.beam.get("job_server_jvm_properties", [])
        artifacts = self.text("artifacts_dir") or str(folder / "artifacts")
        artifact_port = ARTIFACTS if self.is_private else 0
        return [
            self.java(),
            # What it copies, unpacks and forgets goes with the folder.
            f"-Djava.io.tmpdir={temporary}",
            *("-Xmx1g", *properties, *(users if isinstance(users, list) else [str(users)])),
            *("-jar", str(self.jar()), "--job-host=127.0.0.1"),
            *map(str, self._beam_server(master).java_arguments(port, artifact_port, 0, artifacts)),
        ]


class Spark(JavaJobService):
    """Runs jobs on Spark: a standalone cluster, or one inside the job server."""

    engine = "spark"
    least_seconds = 10.0
    master_option = "spark_master_url"
    local_masters = re.compile(r"|local(\[(\d+|\*)\])?")
    jar_option = "spark_job_server_jar"
    beam_server = "apache_beam.runners.portability.spark_runner:SparkJarJobServer"

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
        master = self.master or f"local[{self.workers}]"
        return self.java_command(folder, port, master, *SPARK_JAR_JOB_SERVER_JVM_ARGS, *properties)

    def server_environment(self) -> Mapping[str, str]:
        """Return the variables of the job server: it is found where its master is."""
        return {"SPARK_LOCAL_IP": "127.0.0.1"} if self.is_here else {}


def _existing(path: str, option: str) -> Path:
    file = Path(path).expanduser()
    if not file.is_file():
        raise FileError(redacted(f"--beam {option}={file}: no such file"))
    return file
