"""The worker pool of a run, which gives an engine its workers."""

from __future__ import annotations

import secrets
from typing import TYPE_CHECKING, Any

from slicebeam.runner_configs.worker_processes import WorkerProcesses, serve_pool, start_thread

if TYPE_CHECKING:
    from pathlib import Path

    from slicebeam.runner_configs.network_access import NetworkAccess


class WorkerPool:
    """Workers of this machine: processes, or threads of this one.

    Parameters
    ----------
    processes : how many; 0 for threads

    Attributes
    ----------
    parameters : what a request for a worker must bring, since anybody may reach the pool's port
    """

    def __init__(self, processes: int) -> None:
        self._count = processes
        self._secret = secrets.token_urlsafe(32)
        self.parameters = {"secret": self._secret}
        self._network: NetworkAccess | None = None
        self._processes: WorkerProcesses | None = None
        self._threads: tuple[str, Any] | None = None

    def start(self, network: NetworkAccess | None) -> None:
        """Let processes import, which takes them a second.

        Parameters
        ----------
        network : that in which the engine is, if it has a private one
        """
        self._network = network
        if self._count and self._processes is None:
            self._processes = WorkerProcesses(self._count, self._sockets)

    @property
    def _sockets(self) -> Path | None:
        return self._network.sockets if self._network is not None else None

    def address(self, log: Path) -> str:
        """Return the address where the engine requests workers.

        Raises
        ------
        EngineError
            A process ended before it was ready.
        """
        at = self._network.pool if self._network is not None else "127.0.0.1:0"
        if self._processes is not None:
            address = self._processes.address(log, at, self._secret)
        else:
            if self._threads is None:
                sockets = self._sockets
                self._threads = serve_pool(
                    lambda request: start_thread(request, sockets), at, self._secret
                )
            address = self._threads[0]
        return self._network.pool_inside if self._network is not None else address

    def check(self) -> None:
        """Raise an EngineError where a process has ended."""
        if self._processes is not None:
            self._processes.check()

    def cpu_seconds(self) -> float:
        """Return the CPU seconds of the processes so far."""
        return self._processes.cpu_seconds() if self._processes is not None else 0.0

    def stop(self) -> None:
        """End the workers; they may be started again."""
        if self._threads is not None:
            self._threads[1].stop(0)
            self._threads = None
        if self._processes is not None:
            self._processes.stop()
            self._processes = None
