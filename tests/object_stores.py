"""Object storage for the tests: servers of this machine, each ended with the test run.

The tests look into the stores by clients of their own, past the code that they test and past the
proxy that makes faults.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import socket
import subprocess
import sys
import time
import uuid
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from urllib.error import HTTPError, URLError
from urllib.request import urlopen

import pytest

ROOT = Path(__file__).parent.parent
ACCESS_KEY, SECRET_KEY, REGION = "slicebeam-tests", "slicebeam-tests-secret", "us-east-1"
# Where the real servers come from when they are not there: the variable that names the binary,
# and the Go package.
_BINARIES = {
    "minio": ("SLICEBEAM_MINIO", "github.com/minio/minio@v0.0.0-20260212201848-7aac2a2c5b7c"),
    "fake-gcs-server": ("SLICEBEAM_FAKE_GCS_SERVER", "github.com/fsouza/fake-gcs-server@v1.56.1"),
}
_STARTS_WITHIN = 60.0


@dataclass(frozen=True)
class TestStore:
    """A server of object storage, and a client that looks into it."""

    __test__ = False

    name: str
    scheme: str
    endpoint: str

    def environment(self, endpoint=None):
        address = endpoint or self.endpoint
        if self.scheme == "gs":
            return {"STORAGE_EMULATOR_HOST": address, "NO_GCE_CHECK": "true"}
        return (
            {"AWS_ENDPOINT_URL": address, "AWS_ACCESS_KEY_ID": ACCESS_KEY}
            | {"AWS_SECRET_ACCESS_KEY": SECRET_KEY, "AWS_REGION": REGION}
            | {"AWS_DEFAULT_REGION": REGION, "AWS_EC2_METADATA_DISABLED": "true"}
        )

    @property
    def client(self):
        return _client(self.scheme, self.endpoint)

    def new_bucket(self):
        bucket = Bucket(self, f"tests-{uuid.uuid4().hex[:20]}")
        if self.scheme == "gs":
            self.client.create_bucket(bucket.name)
        else:
            self.client.create_bucket(Bucket=bucket.name)
        return bucket


@lru_cache(maxsize=16)
def _client(scheme, endpoint):
    if scheme == "gs":
        from google.auth.credentials import AnonymousCredentials
        from google.cloud import storage

        how = {"api_endpoint": endpoint}
        return storage.Client("tests", AnonymousCredentials(), client_options=how)
    import boto3

    keys = {"aws_access_key_id": ACCESS_KEY, "aws_secret_access_key": SECRET_KEY}
    return boto3.client("s3", endpoint_url=endpoint, region_name=REGION, **keys)


@dataclass(frozen=True)
class Bucket:
    """A bucket of a store; keys are names of objects in it."""

    store: TestStore
    name: str

    @property
    def uri(self):
        return f"{self.store.scheme}://{self.name}"

    def write(self, key, data):
        if self.store.scheme == "gs":
            self.store.client.bucket(self.name).blob(key).upload_from_string(data)
        else:
            self.store.client.put_object(Bucket=self.name, Key=key, Body=data)

    def upload(self, file, key=None):
        self.write(key or file.name, file.read_bytes())
        return f"{self.uri}/{key or file.name}"

    def read(self, key):
        if self.store.scheme == "gs":
            return bytes(self.store.client.bucket(self.name).blob(key).download_as_bytes())
        return bytes(self.store.client.get_object(Bucket=self.name, Key=key)["Body"].read())

    def delete(self, key):
        if self.store.scheme == "gs":
            self.store.client.bucket(self.name).blob(key).delete()
        else:
            self.store.client.delete_object(Bucket=self.name, Key=key)

    def keys(self, prefix=""):
        if self.store.scheme == "gs":
            blobs = self.store.client.list_blobs(self.name, prefix=prefix)
            return sorted(blob.name for blob in blobs)
        paginator = self.store.client.get_paginator("list_objects_v2")
        pages = paginator.paginate(Bucket=self.name, Prefix=prefix)
        return sorted(one["Key"] for page in pages for one in page.get("Contents", ()))


@contextmanager
def gcs_store():
    with python_server("tests.gcs_server") as endpoint:
        yield TestStore("gcs_server", "gs", endpoint)


@contextmanager
def moto_store():
    """Moto, which is quick to start, and forgives what MinIO does not."""
    with python_server("tests.moto_server") as endpoint:
        yield TestStore("moto", "s3", endpoint)


@contextmanager
def minio_store():
    environment = {"MINIO_ROOT_USER": ACCESS_KEY, "MINIO_ROOT_PASSWORD": SECRET_KEY}
    address = ["--address=127.0.0.1:{port}", "--console-address=127.0.0.1:{other_port}"]
    command = [str(binary("minio")), "server", "--quiet", *address, "{folder}"]
    with _binary_server(command, "/minio/health/live", environment) as endpoint:
        yield TestStore("minio", "s3", endpoint)


@contextmanager
def fake_gcs_store():
    command = [str(binary("fake-gcs-server")), "-scheme=http", "-host=127.0.0.1", "-port={port}"]
    command += ["-backend=memory", "-log-level=error", "-external-url=http://127.0.0.1:{port}"]
    with _binary_server(command, "/_internal/healthcheck", {}) as endpoint:
        yield TestStore("fake-gcs-server", "gs", endpoint)


def binary(name):
    variable, package = _BINARIES[name]
    if os.environ.get(variable):
        return Path(os.environ[variable])
    folder = Path(os.environ.get("SLICEBEAM_CACHE") or Path.home() / ".cache" / "slicebeam") / "bin"
    path = folder / name
    if not path.exists() and not shutil.which("go"):
        pytest.skip(f"no {name}: name the binary by {variable}, or install Go, which builds it")
    if not path.exists():
        folder.mkdir(parents=True, exist_ok=True)
        with (folder / f"{name}.lock").open("w") as lock:
            # Test processes that run at once build it once.
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not path.exists():
                environment = {**os.environ, "GOBIN": str(folder), "GOFLAGS": "-p=2"}
                subprocess.run(["go", "install", package], env=environment, check=True)
    return path


@contextmanager
def python_server(module, *arguments):
    """Start a module that prints its address, and ends when its standard input does."""
    command = [sys.executable, "-m", module, *arguments]
    pipe = subprocess.PIPE
    process = subprocess.Popen(command, stdin=pipe, stdout=pipe, cwd=ROOT)
    with _ended(process):
        endpoint = process.stdout.readline().decode().strip()
        assert endpoint, f"{module} did not start"
        yield endpoint


@contextmanager
def _binary_server(command, health, environment):
    """Start a server that is told its port, which somebody else may have taken meanwhile."""
    for attempt in range(5):
        port, other = str(free_port()), str(free_port())
        filled = [one.replace("{port}", port).replace("{other_port}", other) for one in command]
        command = [sys.executable, str(ROOT / "tests" / "ends_with_parent.py"), *filled]
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.DEVNULL}
        process = subprocess.Popen(command, env={**os.environ, **environment}, **pipes)
        with _ended(process):
            endpoint = f"http://127.0.0.1:{port}"
            if _healthy(process, endpoint + health):
                yield endpoint
                return
        assert attempt < 4, f"{command[0]} did not start"


@contextmanager
def _ended(process):
    try:
        yield
    finally:
        process.stdin.close()
        try:
            process.wait(timeout=20)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        if process.stdout is not None:
            process.stdout.close()


def _healthy(process, address):
    until = time.monotonic() + _STARTS_WITHIN
    while time.monotonic() < until and process.poll() is None:
        with suppress(URLError, HTTPError, ConnectionError), urlopen(address, timeout=5) as answer:
            if answer.status == 200:
                return True
        time.sleep(0.05)
    return False


def free_port():
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


def one_line(error, *parts):
    """The message is a line that a user can act on."""
    message = str(getattr(error, "value", error))
    assert "\n" not in message
    assert len(message) < 400
    for part in parts:
        assert part in message
