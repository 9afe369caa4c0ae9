"""What a run listens at, and what another user of the machine can do with it."""

from __future__ import annotations

import ipaddress
import json
import os
import struct
import subprocess
import sys
import threading
import time
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest

from slicebeam.pipelines.run.engine import Engine, runner_config

NOBODY = 65534
# In /proc/net: the state and the flag of sockets that listen.
_TCP_LISTENS, _UNIX_LISTENS = "0A", 0x10000
_ATTACK = Path(__file__).with_name("socket_attack.py")
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can act as another user")


@dataclass(frozen=True)
class Listening:
    """A socket that listens."""

    address: str
    pid: int
    is_private: bool

    @property
    def is_unix(self):
        return self.address.startswith("unix:")

    @property
    def is_loopback(self):
        host = self.address.rpartition(":")[0].strip("[]")
        return self.is_unix or ipaddress.ip_address(host).is_loopback


def listening():
    """Return what this process and those that it started listen at."""
    here, found = psutil.Process(), set()
    for process in (here, *here.children(recursive=True)):
        with suppress(OSError):
            found |= _of(process.pid)
    return found


def _of(pid):
    proc, inodes = Path(f"/proc/{pid}"), set()
    for entry in (proc / "fd").iterdir():
        with suppress(OSError):
            name = os.readlink(entry)  # noqa: PTH115
            if name.startswith("socket:["):
                inodes.add(name[len("socket:[") : -1])
    is_private = (proc / "ns" / "net").stat().st_ino != Path("/proc/self/ns/net").stat().st_ino
    addresses = []
    for table in ("tcp", "tcp6"):
        for line in (proc / "net" / table).read_text().splitlines()[1:]:
            fields = line.split()
            if fields[3] == _TCP_LISTENS and fields[9] in inodes:
                addresses.append(_address(fields[1]))
    for line in (proc / "net" / "unix").read_text().splitlines()[1:]:
        fields = line.split(maxsplit=7)
        if int(fields[3], 16) & _UNIX_LISTENS and fields[6] in inodes:
            addresses.append(f"unix:{fields[7]}")
    return {Listening(address, pid, is_private) for address in addresses}


def _address(text):
    host, port = text.split(":")
    words = [int(host[at : at + 8], 16) for at in range(0, len(host), 8)]
    address = ipaddress.ip_address(struct.pack(f"={len(words)}I", *words))
    # gRPC binds addresses of IPv4 by sockets of IPv6.
    address = getattr(address, "ipv4_mapped", None) or address
    return f"{f'[{address}]' if address.version == 6 else address}:{int(port, 16)}"


@contextmanager
def at_work(folder, name, options=(), beam=()):
    """An engine in the middle of a job, and what it listens at; the job ends afterwards."""
    begun, may_end = folder / "begun", folder / "may-end"

    def wait(number):
        begun.touch()
        while not may_end.exists():
            time.sleep(0.01)
        return number

    def build(pipeline):
        import apache_beam as beam

        return pipeline | beam.Create([1]) | beam.Map(wait)

    errors = []

    def work(engine):
        try:
            engine.run(build, "test")
        except BaseException as error:  # noqa: BLE001  (told below)
            errors.append(error)

    before = listening()
    with Engine(runner_config(name, options, beam)) as engine:
        engine.log_to(folder / "log")
        thread = threading.Thread(target=work, args=(engine,))
        thread.start()
        try:
            while not begun.exists():
                assert thread.is_alive(), errors
                time.sleep(0.01)
            yield engine, listening() - before
        finally:
            may_end.touch()
            thread.join(60)
    assert not errors


def attacked(sockets, folder):
    """Return what user nobody could do at each address: connect, read a file of ours, run code.

    Names in a private network are attacked by entering it.
    """
    secret = folder / "secret"
    secret.write_text("of the owner alone")
    secret.chmod(0o600)
    task = {
        "addresses": sorted(one.address for one in sockets if one.is_unix or not one.is_private),
        "networks": sorted({f"/proc/{one.pid}/ns/net" for one in sockets if one.is_private}),
        "file": str(secret),
        "user": NOBODY,
    }
    command, given = [sys.executable, str(_ATTACK)], json.dumps(task)
    done = subprocess.run(command, input=given, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)
