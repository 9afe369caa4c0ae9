"""Worker processes of this machine, which the driver reaches by socket pairs.

Nothing listens: a socket pair exists only in the two processes that hold its ends.
"""

from __future__ import annotations

import logging
import os
import queue
import signal
import socket
import subprocess
import sys
import threading
import traceback
from collections import Counter, defaultdict
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from contextlib import suppress
from multiprocessing.connection import Connection
from typing import TYPE_CHECKING, Any, Literal

from slicebeam.metrics.errors import EngineError, SlicebeamError
from slicebeam.runner_configs import process_stat
from slicebeam.runner_configs.guarded_process import python_module

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    Part = Literal["steps", "grouped"]


class LocalProcesses:
    """Python processes that work for the jobs of this one, until `stop` or its end."""

    def __init__(self, count: int) -> None:
        self.count = count
        self._start()

    def _start(self) -> None:
        pairs = [socket.socketpair() for _ in range(self.count)]
        sockets = [theirs.fileno() for _, theirs in pairs]
        command = [*python_module("slicebeam.runner_configs.local_processes"), *map(str, sockets)]
        # A session of their own: Ctrl-C is for the driver to handle.
        self._process = subprocess.Popen(  # noqa: S603
            command, pass_fds=sockets, start_new_session=True
        )
        for _, theirs in pairs:
            theirs.close()
        self._workers = [_Worker(Connection(ours.detach())) for ours, _ in pairs]

    def run(self, pipeline: Any, log: Path) -> Counter[str] | None:
        """Do a job and return its counts, None where its form does not allow it."""
        from slicebeam.runner_configs.local_job import shares_of, work_of

        work = work_of(pipeline) or shares_of(pipeline, self.count)
        if work is None:
            return None
        counts: Counter[str] = Counter()
        outputs = self._map(work.steps, "steps", work.elements, log, counts)
        if work.is_grouped:
            by_key: dict[Any, list[bytes]] = defaultdict(list)
            for key, value in outputs:
                by_key[key].append(value)
            self._map(work.steps, "grouped", list(by_key.items()), log, counts)
        return counts

    def _map(
        self, steps: bytes, part: Part, elements: Iterable[Any], log: Path, counts: Counter[str]
    ) -> list[Any]:
        """Return what is made of all elements; each worker takes the next one when it is idle."""
        if self._process.poll() is not None and not self._workers:
            self._start()
        idle: queue.SimpleQueue[_Worker] = queue.SimpleQueue()
        for worker in self._workers:
            idle.put(worker)

        def work(element: Any) -> tuple[list[Any], dict[str, int]]:
            worker = idle.get()
            try:
                return worker.do(steps, str(log), part, element)
            finally:
                idle.put(worker)

        outputs = []
        with ThreadPoolExecutor(self.count) as threads:
            try:
                futures = [threads.submit(work, element) for element in elements]
                wait(futures, return_when=FIRST_EXCEPTION)
                for future in futures:
                    made, counted = future.result()
                    outputs += made
                    counts.update(counted)
            except BaseException:
                # Also Ctrl-C: what the workers are at is of no use any more.
                threads.shutdown(wait=False, cancel_futures=True)
                self.stop()
                raise
        return outputs

    def cpu_seconds(self) -> float:
        """Return the CPU seconds of the workers so far, if the system has /proc."""
        return sum(process_stat.cpu_seconds(worker.pid) for worker in self._workers)

    def stop(self) -> None:
        """End the processes."""
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        self._workers = []


class _Worker:
    """The driver's side of a worker."""

    def __init__(self, connection: Connection) -> None:
        self.connection = connection
        self.pid = 0
        self._steps: bytes | None = None

    def do(
        self, steps: bytes, log: str, part: Part, element: Any
    ) -> tuple[list[Any], dict[str, int]]:
        """Return what the worker makes of an element, and what it counted."""
        is_known = self._steps is steps
        try:
            self.connection.send((None if is_known else steps, log, part, element))
            self.pid, outputs, counted, error = self.connection.recv()
        except (EOFError, OSError) as lost:
            raise EngineError(
                "a worker process ended, perhaps killed for using too much memory; lower "
                "--memory-budget or the number of workers"
            ) from lost
        self._steps = steps
        if error is not None:
            raise error
        return outputs, counted


def main() -> None:
    """Import what steps need, and fork a worker for each socket; all end with the first that ends."""
    logging.getLogger().setLevel(logging.ERROR)

    sockets = [int(number) for number in sys.argv[1:]]
    while sockets:
        connection = Connection(sockets.pop(0))
        if os.fork() == 0:
            for number in sockets:
                os.close(number)
            _serve(connection)
        connection.close()
    os.wait()
    # The driver learns it from whichever worker it waits for.
    os.killpg(0, signal.SIGKILL)


def _serve(connection: Connection) -> None:
    """Do what comes, and end with the driver: its end, however it comes, closes the socket."""
    from apache_beam.internal import pickler

    from slicebeam.runner_configs.local_job import counted, outputs_of

    tasks: queue.SimpleQueue[Any] = queue.SimpleQueue()
    threading.Thread(target=_receive, args=(connection, tasks), daemon=True).start()
    while True:
        packed, log, part, element = tasks.get()
        with open(log, "ab") as stream:  # noqa: PTH123
            os.dup2(stream.fileno(), sys.stderr.fileno())
        outputs: list[Any] = []
        counts: Counter[str] = Counter()
        error: Exception | None = None
        try:
            if packed:
                steps = pickler.loads(packed)
            with counted(counts):
                outputs = outputs_of(steps, part, element)
        except SlicebeamError as raised:
            error = raised
        except Exception:  # noqa: BLE001  (the driver reports it)
            traceback.print_exc()
            error = RuntimeError(traceback.format_exc())
        connection.send((os.getpid(), outputs, counts, error))


def _receive(connection: Connection, tasks: queue.SimpleQueue[Any]) -> None:
    with suppress(EOFError, OSError):
        while True:
            tasks.put(connection.recv())
    os._exit(0)


if __name__ == "__main__":
    main()
