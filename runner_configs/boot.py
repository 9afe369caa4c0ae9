"""A worker without a container: the program of Beam's own images, for a machine that has slicebeam.

Engines start it as the command of a PROCESS environment, and Beam's worker pool as its
``--container_executable``, with the arguments of Beam's container contract. Nothing that is staged
is installed: slicebeam must be there.
"""

from __future__ import annotations

import argparse
import os
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

# Seconds that the engine may take to say what is to be run.
_ANSWER = 60.0


def arguments(texts: Sequence[str]) -> argparse.Namespace:
    """Return the arguments of Beam's container contract; further ones are passed over."""
    parser = argparse.ArgumentParser(prog="slicebeam-worker", description=__doc__)
    parser.add_argument("--id", required=True)
    parser.add_argument("--provision_endpoint", required=True)
    for name in ("logging_endpoint", "control_endpoint"):
        parser.add_argument(f"--{name}", default="")
    args = parser.parse_known_args(texts)[0]
    # Prism quotes it, though no shell reads it.
    args.id = args.id.strip("'")
    return args


def main() -> None:
    """Get the work from the engine, and be its worker."""
    import grpc
    from apache_beam.portability.api import (
        beam_provision_api_pb2,
        beam_provision_api_pb2_grpc,
        endpoints_pb2,
    )
    from google.protobuf import json_format, text_format  # type: ignore[import-untyped]

    args = arguments(sys.argv[1:])
    with grpc.insecure_channel(args.provision_endpoint) as channel:
        info = (
            beam_provision_api_pb2_grpc.ProvisionServiceStub(channel)
            .GetProvisionInfo(
                beam_provision_api_pb2.GetProvisionInfoRequest(),
                metadata=(("worker_id", args.id),),
                timeout=_ANSWER,
            )
            .info
        )

    def descriptor(url: str) -> str:
        return text_format.MessageToString(endpoints_pb2.ApiServiceDescriptor(url=url))

    os.environ |= {
        "WORKER_ID": args.id,
        "PIPELINE_OPTIONS": json_format.MessageToJson(info.pipeline_options),
        "LOGGING_API_SERVICE_DESCRIPTOR": descriptor(
            args.logging_endpoint or info.logging_endpoint.url
        ),
        "CONTROL_API_SERVICE_DESCRIPTOR": descriptor(
            args.control_endpoint or info.control_endpoint.url
        ),
        "RUNNER_CAPABILITIES": " ".join(info.runner_capabilities),
    }

    from apache_beam.runners.worker import sdk_worker_main

    sdk_worker_main.main(sys.argv)


if __name__ == "__main__":
    main()
