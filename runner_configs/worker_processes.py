"""Worker processes of this machine: started once, and used by every pipeline of a run.

Beam would start new ones for each pipeline, and each imports for two seconds what it needs. Here
one process imports it and forks the others. They wait for harnesses to start (Beam's external
worker pool), and a servicer in the process of the run hands the harnesses that Beam asks for to
one of them after another.
"""

from __future__ import annotations

import hmac
import os
import shutil
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from itertools import cycle
from pathlib import Path
from typing import TYPE_CHECKING, Any

from slicebeam.metrics.errors import EngineError
from slicebeam.runner_configs import process_stat
from slicebeam.runner_configs.guarded_process import python_module
from slicebeam.runner_configs.private_network import private_address
from slicebeam.runner_configs.private_sockets import socket_folder

if TYPE_CHECKING:
    from collections.abc import Callable

# Nodes of an engine that ask for a worker at the same time; each is kept until its worker is there.
_ASKED_AT_ONCE = 8


class WorkerProcesses:
    """Processes that work for the pipelines of this one, until it stops them or ends.

    They listen on Unix sockets, which only this user can open.

    Parameters
    ----------
    network : folder of the private network of the engine that they work for, if it has one

    Attributes
    ----------
    sockets : folder of their sockets; it goes with them
    """

    def __init__(self, count: int, network: Path | None = None) -> None:
        self.count = count
        self.sockets = socket_folder()
        command = python_module("slicebeam.runner_configs.worker_processes")
        command += [str(count), str(self.sockets), str(network or "")]
        # A session of their own: they end with the run, and Ctrl-C is for the run to handle.
        self._process = subprocess.Popen(  # noqa: S603
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        self._workers: list[int] = []
        self._dispatch: Any = None
        self._address = ""

    def cpu_seconds(self) -> float:
        """Return the CPU seconds of the workers so far, if the system has /proc."""
        return sum(map(process_stat.cpu_seconds, self._workers))

    def address(self, log: Path, at: str = "", secret: str = "") -> str:
        """Return the address where Beam requests workers, when all processes are ready.

        Parameters
        ----------
        at : address to listen at; left out, a Unix socket of this user's
        secret : that Beam must know to get a worker

        Raises
        ------
        EngineError
            A process ended before it was ready.
        """
        if not self._address:
            told, said = self._process.stdin, self._process.stdout
            if told is None or said is None:
                raise TypeError("a process without pipes")
            with suppress(BrokenPipeError):
                told.write(f"{log}\n")
                told.flush()
            ready = [said.readline().split() for _ in range(self.count)]
            if not all(ready):
                raise EngineError(f"a worker process did not start; its output is in {log}")
            self._workers = [int(worker) for worker, _ in ready]
            self._address, self._dispatch = serve_pool(
                _dispatcher([address for _, address in ready]),
                at or f"unix:{self.sockets / 'pool'}",
                secret,
            )
        return self._address

    def check(self) -> None:
        """Raise an EngineError where one of the processes has ended."""
        if self._process.poll() is not None:
            raise EngineError(
                "a worker process ended, perhaps killed for using too much memory; lower "
                "--memory-budget or the number of workers"
            )

    def stop(self) -> None:
        """End the processes."""
        if self._dispatch is not None:
            self._dispatch.stop(0)
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                with suppress(BrokenPipeError):
                    pipe.close()
        shutil.rmtree(self.sockets, ignore_errors=True)


def _dispatcher(addresses: list[str]) -> Callable[[Any], Any]:
    """Return what hands requests for workers to pools in turn."""
    import grpc
    from apache_beam.portability.api import beam_fn_api_pb2_grpc

    pools = cycle(
        beam_fn_api_pb2_grpc.BeamFnExternalWorkerPoolStub(grpc.insecure_channel(address))
        for address in addresses
    )
    return lambda request: next(pools).StartWorker(request)


def serve_pool(start: Callable[[Any], Any], at: str, secret: str = "") -> tuple[str, Any]:
    """Return address and server of a worker pool.

    Whoever can ask a pool for a worker can make it run what they send: it listens at a Unix socket
    in a folder that nobody else can enter, or asks for a secret.

    Parameters
    ----------
    at : address to listen at; port 0 is any that is free
    secret : that a request must bring as its parameter of that name

    Raises
    ------
    ValueError
        Others could reach the address, and there is no secret.
    """
    if not secret and not at.startswith("unix:"):
        raise ValueError(f"a worker pool at {at} needs a secret")
    import grpc
    from apache_beam.portability.api import beam_fn_api_pb2, beam_fn_api_pb2_grpc

    class PoolServicer(beam_fn_api_pb2_grpc.BeamFnExternalWorkerPoolServicer):
        """Starts workers, which end with the connection to the engine that asked for them."""

        def StartWorker(self, request: Any, context: Any) -> Any:  # noqa: N802
            given = request.params["secret"]
            if secret and not hmac.compare_digest(given.encode(), secret.encode()):
                context.abort(grpc.StatusCode.PERMISSION_DENIED, "the worker pool of another run")
            return start(request)

        def StopWorker(self, request: Any, context: Any) -> Any:  # noqa: ARG002, N802
            # The nodes of an engine number their workers alike, so nobody knows which one is meant:
            # Beam's own pool would end that of another node.
            return beam_fn_api_pb2.StopWorkerResponse()

    server = grpc.server(ThreadPoolExecutor(_ASKED_AT_ONCE))
    port = server.add_insecure_port(at)
    beam_fn_api_pb2_grpc.add_BeamFnExternalWorkerPoolServicer_to_server(PoolServicer(), server)
    server.start()
    return at if at.startswith("unix:") else f"{at.rpartition(':')[0]}:{port}", server


def start_thread(request: Any, network: Path | None = None) -> Any:
    """Answer a request for a worker with one that is a thread of this process.

    Parameters
    ----------
    network : folder of the engine's private network, if it has one
    """
    import threading
    import traceback

    from apache_beam.portability.api import beam_fn_api_pb2
    from apache_beam.runners.worker.sdk_worker import SdkHarness

    class Harness(SdkHarness):
        """Tells the engine alone what failed: Beam's would write it to the terminal too.

        Reaches an engine in a private network by the Unix sockets that lead into it.
        """

        def __init__(self, address: str, worker: str) -> None:
            super().__init__(_reached(address), worker_id=worker)
            data, state = self._data_channel_factory, self._state_handler_factory
            open_data, open_state = data.create_data_channel_from_url, state.create_state_handler

            def reach_data(url: str, data_stream_id: str | None = None) -> Any:
                return open_data(_reached(url), data_stream_id)

            def reach_state(service: Any) -> Any:
                return open_state(service and type(service)(url=_reached(service.url)))

            data.create_data_channel_from_url = reach_data
            state.create_state_handler = reach_state

        def _execute(self, task: Callable[[], Any], request: Any) -> None:
            def told() -> Any:
                try:
                    return task()
                except BaseException:  # noqa: BLE001  (the engine is told)
                    return beam_fn_api_pb2.InstructionResponse(
                        instruction_id=request.instruction_id, error=traceback.format_exc()
                    )

            super()._execute(told, request)

    def _reached(url: str) -> str:
        return private_address(network, url) if network is not None else url

    try:
        harness = Harness(request.control_endpoint.url, request.worker_id)
    except Exception as error:  # noqa: BLE001  (the engine is told, and tells the user)
        return beam_fn_api_pb2.StartWorkerResponse(error=f"{type(error).__name__}: {error}")
    threading.Thread(target=harness.run, name=f"worker {request.worker_id}", daemon=True).start()
    return beam_fn_api_pb2.StartWorkerResponse()


def main() -> None:
    """Import, fork the processes, and end with the first of them that ends."""
    import logging

    logging.getLogger().setLevel(logging.ERROR)

    # What the pipelines' functions need, ahead of the first bundle.
    import apache_beam.runners.worker.sdk_worker  # noqa: F401

    import slicebeam.transforms.count.combine_slice_metrics
    import slicebeam.transforms.count.finding_passes
    import slicebeam.transforms.count.significance
    import slicebeam.transforms.encode.extract_slice_keys
    import slicebeam.transforms.encode.learn_domains  # noqa: F401

    processes, sockets, network = sys.argv[1:]
    log = sys.stdin.readline().strip()
    # Without one, the run failed before it needed a worker.
    if log:
        with open(log, "ab") as stream:  # noqa: PTH123
            os.dup2(stream.fileno(), sys.stderr.fileno())
        # Nothing of gRPC runs yet, which no fork would survive.
        for _ in range(int(processes)):
            if os.fork() == 0:
                _work(Path(sockets), Path(network) if network else None)
        os.wait()
    # The run is over, or will be: where it was killed, nobody else tidies up.
    shutil.rmtree(sockets, ignore_errors=True)


def _work(sockets: Path, network: Path | None) -> None:
    """Be a worker: say where harnesses are started, and end when stdin does."""
    address, _ = serve_pool(
        lambda request: start_thread(request, network), f"unix:{sockets / str(os.getpid())}"
    )
    os.write(sys.stdout.fileno(), f"{os.getpid()} {address}\n".encode("ascii"))
    # Nothing more is said: the end of the run, however it comes, closes the pipe.
    while os.read(sys.stdin.fileno(), 1):
        continue
    os._exit(0)


if __name__ == "__main__":
    main()
