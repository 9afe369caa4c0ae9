"""Sockets of a run that no other user of the machine can open: Unix sockets in a private folder.

Beam's in-process runner listens on every address of the machine for its worker processes, and gives
any file of the run's owner to anyone who asks. Here it listens on Unix sockets instead, in a folder
that only the owner can enter, and offers no files.
"""

from __future__ import annotations

import os
import re
import stat
import tempfile
from itertools import count
from pathlib import Path
from types import FunctionType
from typing import TYPE_CHECKING, Any

from slicebeam.metrics.errors import EngineError

if TYPE_CHECKING:
    from collections.abc import Sequence

# Bytes of the longest path of a Unix socket that every system takes, and of the longest name in it.
_LONGEST_PATH = 103
_LONGEST_NAME = 16
_PLAIN = re.compile(r"[\w/.+-]+", re.ASCII)
# Seconds that calls may take to end, as in Beam.
_GRACE = 5.0
_LAST = "/tmp"  # noqa: S108  (mkdtemp makes a folder in it that nobody else can enter)
# Beam's own settings: messages of any size, and workers that may ping an idle connection.
_UNLIMITED = (
    ("grpc.max_receive_message_length", -1),
    ("grpc.max_send_message_length", -1),
    ("grpc.http2.max_pings_without_data", 0),
    ("grpc.http2.max_ping_strikes", 0),
    ("grpc.http2.min_ping_interval_without_data_ms", 20_000),
)


def socket_folder() -> Path:
    """Return a new folder for sockets that only this user can enter.

    It is in the temporary folder, or in ``/tmp`` where that one's path is too long for a socket, or
    has signs that addresses of gRPC give a meaning.

    Raises
    ------
    EngineError
        The path is of no use in both, or the system lets others enter the folder.
    """
    tried = dict.fromkeys((tempfile.gettempdir(), _LAST))
    for parent in tried:
        if not os.path.isdir(parent) or not _PLAIN.fullmatch(parent):  # noqa: PTH112
            continue
        folder = Path(tempfile.mkdtemp(prefix="slicebeam-", dir=parent))
        if stat.S_IMODE(folder.stat().st_mode) & 0o077:
            folder.rmdir()
            raise EngineError(
                f"{parent} cannot hold private folders, which the sockets of worker processes "
                "need; set TMPDIR to a folder on a local disk"
            )
        if len(os.fsencode(folder)) + 1 + _LONGEST_NAME <= _LONGEST_PATH:
            return folder
        folder.rmdir()
    raise EngineError(
        f"the path of the temporary folder {next(iter(tried))} is too long for sockets, or "
        "contains special characters; set TMPDIR to another folder"
    )


def in_process_runner(pool: str, sockets: Path) -> Any:
    """Return Beam's in-process runner, whose workers reach it at Unix sockets only.

    Raises
    ------
    EngineError
        This Beam builds its servers in another way, and would listen on all addresses.
    """
    from apache_beam.runners.portability.fn_api_runner.fn_runner import FnApiRunner
    from apache_beam.transforms.environments import ExternalEnvironment

    manager, beams = _manager(pool, sockets), FnApiRunner.run_stages
    if manager.__name__ not in beams.__code__.co_names:
        from apache_beam.version import __version__ as version

        raise EngineError(
            f"slicebeam cannot keep the worker processes of Beam {version} from other users of this "
            "machine; install apache-beam 2.77, or use --runner-config direct"
        )

    class PrivateRunner(FnApiRunner):
        """Has its workers managed here, without a change to Beam for the rest of the process."""

        run_stages = FunctionType(
            beams.__code__,
            {**beams.__globals__, manager.__name__: manager},
            beams.__name__,
            beams.__defaults__,
            beams.__closure__,
        )

    return PrivateRunner(default_environment=ExternalEnvironment(pool))


_numbers = count()


def _manager(pool: str, sockets: Path) -> Any:
    """Return what starts workers for a job, in place of Beam's class of the same name."""
    import grpc
    from apache_beam.portability.api import beam_fn_api_pb2_grpc as fn_api
    from apache_beam.portability.api import beam_runner_api_pb2, endpoints_pb2
    from apache_beam.runners.portability.fn_api_runner import worker_handlers as beams
    from apache_beam.runners.worker.data_plane import BeamFnDataServicer
    from apache_beam.utils.thread_pool_executor import shared_unbounded_instance

    class PrivateServer:
        """Serves control, data and state; has what Beam's handlers look for in its GrpcServer."""

        def __init__(self, manager: Any) -> None:
            self.control_handler = beams.BeamFnControlServicer(manager)
            self.data_plane_handler = BeamFnDataServicer(beams.DATA_BUFFER_TIME_LIMIT_MS)
            self._servers: list[Any] = []
            # No two jobs have the same: a server removes its socket some time after its end.
            number = next(_numbers)
            self.control_port = self._serve(
                f"{number}-control",
                fn_api.add_BeamFnControlServicer_to_server,
                self.control_handler,
            )
            self.data_port = self._serve(
                f"{number}-data", fn_api.add_BeamFnDataServicer_to_server, self.data_plane_handler
            )
            self.state_port = self._serve(
                f"{number}-state",
                fn_api.add_BeamFnStateServicer_to_server,
                beams.GrpcStateServicer(manager.state_servicer),
            )
            # Workers write to a file, and ask for no logging service.
            self.logging_port = self.control_port

        def _serve(self, name: str, add: Any, servicer: Any) -> str:
            server = grpc.server(shared_unbounded_instance(), options=_UNLIMITED)
            address = f"unix:{sockets / name}"
            server.add_insecure_port(address)
            add(servicer, server)
            server.start()
            self._servers.append(server)
            return address

        def close(self) -> None:
            self.control_handler.done()
            for ended in [server.stop(_GRACE) for server in self._servers]:
                ended.wait()

    class PrivateHandler(beams.ExternalWorkerHandler):
        """A worker of the pool, told of sockets where Beam would tell it of ports."""

        def port_from_worker(self, port: str) -> str:
            return port

    class WorkerHandlerManager(beams.WorkerHandlerManager):
        """Starts workers in the pool, whatever the environment of a stage: all are this Python."""

        def __init__(self, environments: Any, provision: Any) -> None:
            super().__init__(environments, provision)
            self._grpc_server = PrivateServer(self)

        def get_worker_handlers(
            self, environment_id: str | None, num_workers: int
        ) -> Sequence[Any]:
            handlers = self._cached_handlers[environment_id or next(iter(self._environments))]
            while len(handlers) < num_workers:
                handler = PrivateHandler(
                    beam_runner_api_pb2.ExternalPayload(
                        endpoint=endpoints_pb2.ApiServiceDescriptor(url=pool)
                    ),
                    self.state_servicer,
                    self._job_provision_info,
                    self._grpc_server,
                )
                handlers.append(handler)
                self._workers_by_id[handler.worker_id] = handler
                handler.start_worker()
            return handlers[:num_workers]

    return WorkerHandlerManager
