"""Another user of the machine, who tries what the sockets of a run let him do.

Reads a JSON task on stdin, becomes its ``user``, and prints what he could do.
"""

import json
import os
import socket
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

import grpc
from apache_beam.portability import common_urns
from apache_beam.portability.api import (
    beam_artifact_api_pb2,
    beam_artifact_api_pb2_grpc,
    beam_fn_api_pb2,
    beam_fn_api_pb2_grpc,
    beam_job_api_pb2,
    beam_job_api_pb2_grpc,
    beam_runner_api_pb2,
    endpoints_pb2,
)

_PATIENCE = 3.0


class Control(beam_fn_api_pb2_grpc.BeamFnControlServicer):
    def __init__(self):
        self.was_asked = threading.Event()

    def Control(self, iterator, context):
        self.was_asked.set()
        yield from ()


def connects(address):
    try:
        if address.startswith("unix:"):
            with socket.socket(socket.AF_UNIX) as one:
                one.settimeout(_PATIENCE)
                one.connect(address.removeprefix("unix:"))
        else:
            host, _, port = address.rpartition(":")
            host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host.strip("[]"), host.strip("[]"))
            socket.create_connection((host, int(port)), _PATIENCE).close()
    except OSError:
        return False
    return True


def target(address):
    return address.replace("0.0.0.0:", "127.0.0.1:").replace("[::]:", "[::1]:")


def reads(channel, path):
    request = beam_artifact_api_pb2.GetArtifactRequest(
        artifact=beam_runner_api_pb2.ArtifactInformation(
            type_urn=common_urns.artifact_types.FILE.urn,
            type_payload=beam_runner_api_pb2.ArtifactFilePayload(path=path).SerializeToString(),
        )
    )
    stub = beam_artifact_api_pb2_grpc.ArtifactRetrievalServiceStub(channel)
    with suppress(grpc.RpcError):
        return b"".join(part.data for part in stub.GetArtifact(request, timeout=_PATIENCE)).decode()
    return ""


def starts(channel, control, at):
    """Have a pool start a worker, which asks this process for code."""
    control.was_asked.clear()
    endpoint = endpoints_pb2.ApiServiceDescriptor(url=at)
    stub = beam_fn_api_pb2_grpc.BeamFnExternalWorkerPoolStub(channel)
    request = beam_fn_api_pb2.StartWorkerRequest(
        worker_id="mine", control_endpoint=endpoint, params={"secret": "guessed"}
    )
    with suppress(grpc.RpcError):
        answer = stub.StartWorker(request, timeout=_PATIENCE)
        return not answer.error and control.was_asked.wait(_PATIENCE)
    return False


def takes_jobs(channel):
    """Say whether a job service answers, which runs what it is sent."""
    stub = beam_job_api_pb2_grpc.JobServiceStub(channel)
    with suppress(grpc.RpcError):
        stub.GetJobs(beam_job_api_pb2.GetJobsRequest(), timeout=_PATIENCE)
        return True
    return False


def enters(network):
    """Enter a network namespace, or what of it the system shows."""
    try:
        os.close(os.open(network, os.O_RDONLY))
    except OSError:
        return False
    return True


def main():
    task = json.load(sys.stdin)
    # What these load, they load now: the other user may be unable to read the packages.
    server, control = grpc.server(ThreadPoolExecutor(4)), Control()
    beam_fn_api_pb2_grpc.add_BeamFnControlServicer_to_server(control, server)
    at = f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
    server.start()
    connects(at)
    with grpc.insecure_channel(at) as channel:
        takes_jobs(channel)
    os.setgroups([])
    os.setgid(task["user"])
    os.setuid(task["user"])
    told = {}
    for address in task["addresses"]:
        told[address] = {"connects": connects(address)}
        if told[address]["connects"]:
            with grpc.insecure_channel(target(address)) as channel:
                told[address]["reads"] = reads(channel, task["file"])
                told[address]["starts"] = starts(channel, control, at)
                told[address]["takes_jobs"] = takes_jobs(channel)
    for network in task["networks"]:
        told[network] = {"connects": enters(network)}
    sys.stdout.write(json.dumps(told))
    sys.stdout.flush()
    os._exit(0)


if __name__ == "__main__":
    main()
