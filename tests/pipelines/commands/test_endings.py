"""Signals end a command in order, and streams that are gone do no harm."""

from __future__ import annotations

import errno
import logging
import os
import resource
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import apache_beam as beam
import pyarrow as pa
import pytest

from slicebeam.metrics.errors import EngineError
from slicebeam.pipelines import cli
from slicebeam.pipelines.run.engine import Engine, runner_config

BEGIN = """
import os, signal, sys
from slicebeam.pipelines.commands.signals import *
"""


def ran(program: str, **options: Any) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", BEGIN + program],
        capture_output=True,
        text=True,
        check=False,
        **options,
    )


@pytest.mark.parametrize(
    ("number", "told"),
    [
        (signal.SIGINT, "(130, 'interrupted')"),
        (signal.SIGTERM, "(143, 'terminated')"),
        (signal.SIGHUP, "(129, 'hung up')"),
    ],
)
def test_a_signal_is_an_interrupt_and_is_remembered(number: signal.Signals, told: str) -> None:
    ended = ran(
        f"""
install_handlers()
assert not interrupted()
try:
    os.kill(os.getpid(), {int(number)})
    raise SystemExit("not interrupted")
except KeyboardInterrupt:
    print(ending(), interrupted())
"""
    )
    assert ended.stdout == f"{told} True\n", ended.stderr


def test_what_is_sent_again_does_not_disturb_the_tidying_up() -> None:
    ended = ran(
        """
install_handlers()
try:
    os.kill(os.getpid(), signal.SIGTERM)
except KeyboardInterrupt:
    os.kill(os.getpid(), signal.SIGTERM)
    print("tidied up")
"""
    )
    assert ended.stdout == "tidied up\n", ended.stderr


def test_nohup_is_heeded() -> None:
    ended = ran(
        """
signal.signal(signal.SIGHUP, signal.SIG_IGN)
install_handlers()
os.kill(os.getpid(), signal.SIGHUP)
print("goes on")
"""
    )
    assert ended.stdout == "goes on\n", ended.stderr


def test_a_closed_pipe_is_not_noticed_and_a_full_disk_is() -> None:
    ended = ran(
        """
reading, writing = os.pipe()
os.close(reading)
os.dup2(writing, 1)
hold_streams()
print("to nobody")
sys.stdout.flush()
os.dup2(os.open("/dev/full", os.O_WRONLY), 1)
try:
    print("too much")
    sys.stdout.flush()
except OSError as error:
    sys.stderr.write(error.strerror)
sys.stderr.flush()
os.dup2(os.open("/dev/full", os.O_WRONLY), 2)
sys.stderr.write("to nobody")
sys.stderr.flush()
os._exit(0)
"""
    )
    assert (ended.returncode, ended.stderr) == (0, "No space left on device")


def test_no_file_takes_the_place_of_a_stream_that_is_closed(tmp_path: Any) -> None:
    result = tmp_path / "result"

    def close() -> None:
        for number in range(3):
            os.close(number)

    program = f"""
hold_streams()
file = os.open({str(result)!r}, os.O_WRONLY | os.O_CREAT)
sys.stderr.write("not into the result")
print("nor this", flush=True)
os.write(file, b"whole")
"""
    subprocess.run([sys.executable, "-c", BEGIN + program], preexec_fn=close, check=True)
    assert result.read_bytes() == b"whole"


class Logging(beam.DoFn):
    """Logs what it gets."""

    def process(self, element: int) -> None:
        logging.getLogger("test").error("%d", element)


def test_a_log_that_can_t_be_written_fails_no_job() -> None:
    with Engine(runner_config("direct", ())) as engine:
        engine.log_to(Path("/dev/full"))
        engine.run(lambda pipeline: pipeline | beam.Create([1]) | beam.ParDo(Logging()), "test")


@pytest.mark.parametrize("kind", [MemoryError, pa.ArrowMemoryError])
def test_too_little_memory_of_a_worker_is_a_line(kind: type[BaseException]) -> None:
    message = "^a worker is out of memory; lower --memory-budget"
    with Engine(runner_config("direct", ())) as engine, pytest.raises(EngineError, match=message):
        engine.run(
            lambda pipeline: pipeline | beam.Create([1]) | beam.ParDo(Failing(kind, "")), "test"
        )


@pytest.mark.parametrize(
    "error",
    [
        MemoryError(),
        RuntimeError("can't start new thread"),
        ImportError("libscipy.so: failed to map segment from shared object"),
        OSError(errno.ENOMEM, "Cannot allocate memory"),
    ],
)
def test_too_little_memory_of_a_command_is_a_line(error: Exception) -> None:
    message, code = cli._message_of(error)
    assert code == 3
    assert message.startswith("out of memory or threads (")
    assert message.endswith("); allow more (ulimit -v), or lower --memory-budget")


@pytest.mark.parametrize("megabytes", [100, 300, 600, 900, 1400])
def test_a_limit_of_memory_that_the_libraries_would_not_survive_is_a_line(
    tmp_path: Path, megabytes: int
) -> None:
    def limited() -> None:
        resource.setrlimit(resource.RLIMIT_AS, (megabytes << 20, megabytes << 20))

    command = [sys.executable, "-m", "slicebeam.pipelines.cli", "search", "--data", "x.csv"]
    ended = subprocess.run(
        [*command, "--label", "y", "--output", str(tmp_path / "out")],
        preexec_fn=limited,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert ended.stderr == (
        f"slicebeam: the limit on virtual memory is {megabytes:,} MB, and the libraries alone "
        "need 1,500 MB; allow more (ulimit -v)\n"
    )
    assert ended.returncode == 3
    assert not (tmp_path / "out").exists()


class Failing(beam.DoFn):
    """Raises an error, of a type and with a text."""

    def __init__(self, kind: type[BaseException], text: str) -> None:
        self.kind, self.text = kind, text

    def process(self, _: int) -> None:
        raise self.kind(*filter(None, [self.text]))


@pytest.mark.parametrize(
    ("kind", "text", "raised"),
    [
        (KeyboardInterrupt, "stopped", KeyboardInterrupt),
        (ValueError, "no such column: KeyboardInterrupt", EngineError),
    ],
)
def test_an_interrupt_is_one_by_its_type_and_not_by_what_a_text_says(
    kind: type[BaseException], text: str, raised: type[BaseException]
) -> None:
    with Engine(runner_config("direct", ())) as engine, pytest.raises(raised, match=text):
        engine.run(
            lambda pipeline: pipeline | beam.Create([1]) | beam.ParDo(Failing(kind, text)), "test"
        )
