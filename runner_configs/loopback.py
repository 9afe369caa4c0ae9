"""The worker pool of a run, which gives an engine threads of this process as its workers."""

from __future__ import annotations

import hmac
import secrets
import threading
import traceback
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

from slicebeam.runner_configs.guarded_process import private_address
from slicebeam.runner_configs.guardian import POOL, POOL_SOCKET

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

# Nodes of an engine that ask for a worker at the same time; each is kept until its worker is there.
_ASKED_AT_ONCE = 8


class LoopbackPool:
    """Threads of this process that work for an engine which brings a secret: anybody may reach the port.

    ``network``: the folder of the engine's program, where it has a private network.
    """

    def __init__(self, network: Path | None = None, secret: str = "") -> None:
        import grpc
        from apache_beam.portability.api import beam_fn_api_pb2, beam_fn_api_pb2_grpc

        self.secret = secret = secret or secrets.token_urlsafe(32)

        class PoolServicer(beam_fn_api_pb2_grpc.BeamFnExternalWorkerPoolServicer):
            """Starts workers, which end with the connection to the engine that asked for them."""

            def StartWorker(self, request: Any, context: Any) -> Any:  # noqa: N802
                if not hmac.compare_digest(request.params["secret"].encode(), secret.encode()):
                    context.abort(
                        grpc.StatusCode.PERMISSION_DENIED, "the worker pool of another run"
                    )
                return _start_thread(request, network)

            def StopWorker(self, request: Any, context: Any) -> Any:  # noqa: ARG002, N802
                # The nodes of an engine number their workers alike, so nobody knows which one is
                # meant: Beam's own pool would end that of another node.
                return beam_fn_api_pb2.StopWorkerResponse()

        self._server = grpc.server(ThreadPoolExecutor(_ASKED_AT_ONCE))
        at = f"unix:{network / POOL_SOCKET}" if network is not None else "127.0.0.1:0"
        port = self._server.add_insecure_port(at)
        self.address = f"127.0.0.1:{port if network is None else POOL}"
        beam_fn_api_pb2_grpc.add_BeamFnExternalWorkerPoolServicer_to_server(
            PoolServicer(), self._server
        )
        self._server.start()

    def stop(self) -> None:
        """Start no more workers."""
        self._server.stop(0)


def _start_thread(request: Any, network: Path | None) -> Any:
    """Answer a request for a worker with one that is a thread of this process."""
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

            def reach_data(url: str, **stream: str | None) -> Any:
                # Beam names a stream, from 2.77 on.
                return open_data(_reached(url), **stream)

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
