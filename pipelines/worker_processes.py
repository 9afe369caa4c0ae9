"""Worker processes of this machine: started once, and used by every pipeline of a run.

Beam would start new ones for each pipeline, and each imports for two seconds what it needs. Here
one process imports it and forks the others. They wait for harnesses to start (Beam's external
worker pool), and a servicer in the process of the run hands the harnesses that Beam asks for to
one of them after another.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from itertools import cycle
from pathlib import Path
from typing import TYPE_CHECKING, Any

from slicebeam.metrics.errors import EngineError
from slicebeam.pipelines import process_stat

if TYPE_CHECKING:
    from collections.abc import Callable

# Nodes of an engine that ask for a worker at the same time; each is kept until its worker is there.
_ASKED_AT_ONCE = 8


class WorkerProcesses:
    """Processes that work for the pipelines of this one, until it stops them or ends.

    Parameters
    ----------
    count : of processes
    """

    def __init__(self, count: int) -> None:
        self.count = count
        command = [sys.executable, "-m", "slicebeam.pipelines.worker_processes", str(count)]
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
        """Return the CPU seconds of the workers so far, where the system tells them by /proc."""
        return sum(map(process_stat.cpu_seconds, self._workers))

    def address(self, log: Path) -> str:
        """Return where Beam asks for workers, when all processes are ready.

        Parameters
        ----------
        log : file that the processes write to

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
                raise EngineError(f"a worker process did not start; what it said is in {log}")
            self._workers = [int(worker) for worker, _ in ready]
            self._address, self._dispatch = _dispatcher([address for _, address in ready])
        return self._address

    def check(self) -> None:
        """Raise an EngineError where one of the processes has ended."""
        if self._process.poll() is not None:
            raise EngineError(
                "a worker process ended, perhaps killed for its memory; lower --memory-budget or "
                "the number of workers"
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


def _dispatcher(addresses: list[str]) -> tuple[str, Any]:
    """Return address and server of a servicer that hands requests to others in turn."""
    import grpc
    from apache_beam.portability.api import beam_fn_api_pb2_grpc

    pools = cycle(
        beam_fn_api_pb2_grpc.BeamFnExternalWorkerPoolStub(grpc.insecure_channel(address))
        for address in addresses
    )
    return serve_pool(lambda request: next(pools).StartWorker(request))


def serve_pool(start: Callable[[Any], Any]) -> tuple[str, Any]:
    """Return address and server of a worker pool, which only this machine can reach.

    Whoever can ask a pool for a worker can make it run what they send.

    Parameters
    ----------
    start : answers a request for a worker
    """
    import grpc
    from apache_beam.portability.api import beam_fn_api_pb2, beam_fn_api_pb2_grpc

    class Pool(beam_fn_api_pb2_grpc.BeamFnExternalWorkerPoolServicer):
        """Starts workers, which end with the connection to the engine that asked for them."""

        def StartWorker(self, request: Any, context: Any) -> Any:  # noqa: ARG002, N802
            return start(request)

        def StopWorker(self, request: Any, context: Any) -> Any:  # noqa: ARG002, N802
            # The nodes of an engine number their workers alike, so nobody knows which one is meant:
            # Beam's own pool would end that of another node.
            return beam_fn_api_pb2.StopWorkerResponse()

    server = grpc.server(ThreadPoolExecutor(_ASKED_AT_ONCE))
    port = server.add_insecure_port("127.0.0.1:0")
    beam_fn_api_pb2_grpc.add_BeamFnExternalWorkerPoolServicer_to_server(Pool(), server)
    server.start()
    return f"127.0.0.1:{port}", server


def start_thread(request: Any) -> Any:
    """Answer a request for a worker with one that is a thread of this process."""
    import threading
    import traceback

    from apache_beam.portability.api import beam_fn_api_pb2
    from apache_beam.runners.worker.sdk_worker import SdkHarness

    class Harness(SdkHarness):
        """Tells the engine alone what failed: Beam's would write it to the terminal too."""

        def _execute(self, task: Callable[[], Any], request: Any) -> None:
            def told() -> Any:
                try:
                    return task()
                except BaseException:  # noqa: BLE001  (the engine is told)
                    return beam_fn_api_pb2.InstructionResponse(
                        instruction_id=request.instruction_id, error=traceback.format_exc()
                    )

            super()._execute(told, request)

    try:
        harness = Harness(request.control_endpoint.url, worker_id=request.worker_id)
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

    import slicebeam.transforms.combine_slice_metrics
    import slicebeam.transforms.count_overlaps
    import slicebeam.transforms.extract_slice_keys
    import slicebeam.transforms.learn_domains
    import slicebeam.transforms.test_significance  # noqa: F401

    log = sys.stdin.readline().strip()
    if not log:
        # The run failed before it needed a worker.
        return
    with open(log, "ab") as stream:  # noqa: PTH123
        os.dup2(stream.fileno(), sys.stderr.fileno())
    # Nothing of gRPC runs yet, which no fork would survive.
    for _ in range(int(sys.argv[1])):
        if os.fork() == 0:
            _work()
    os.wait()


def _work() -> None:
    """Be a worker: say where harnesses are started, and end when stdin does."""
    address, _ = serve_pool(start_thread)
    os.write(sys.stdout.fileno(), f"{os.getpid()} {address}\n".encode("ascii"))
    # Nothing more is said: the end of the run, however it comes, closes the pipe.
    while os.read(sys.stdin.fileno(), 1):
        continue
    os._exit(0)


if __name__ == "__main__":
    main()
