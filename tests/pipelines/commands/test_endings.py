"""Signals end a command in order, and streams that are gone do no harm."""

import errno
import logging
import os
import resource
import subprocess
import sys
from pathlib import Path

import apache_beam as beam
import pyarrow as pa
import pytest

from slicebeam.metrics.errors import EngineError
from slicebeam.pipelines import cli
from slicebeam.pipelines.run.engine import Engine, runner_config
from tests.refusals import refuses

BEGIN = """
import os, signal, sys
from slicebeam.pipelines.commands.signals import *
"""


def ran(program):
    command = [sys.executable, "-c", BEGIN + program]
    return subprocess.run(command, capture_output=True, text=True, check=False)


TOLD = {"INT": (130, "interrupted"), "TERM": (143, "terminated"), "HUP": (129, "hung up")}


@pytest.mark.parametrize(("name", "told"), TOLD.items())
def test_a_signal_is_an_interrupt_and_is_remembered(name, told):
    ended = ran(f"""
install_handlers()
assert not interrupted()
try:
    os.kill(os.getpid(), signal.SIG{name})
    raise SystemExit("not interrupted")
except KeyboardInterrupt:
    print(ending(), interrupted())
""")
    assert ended.stdout == f"{told} True\n", ended.stderr


def test_what_is_sent_again_does_not_disturb_the_tidying_up():
    ended = ran("""
install_handlers()
try:
    os.kill(os.getpid(), signal.SIGTERM)
except KeyboardInterrupt:
    os.kill(os.getpid(), signal.SIGTERM)
    print("tidied up")
""")
    assert ended.stdout == "tidied up\n", ended.stderr


def test_nohup_is_heeded():
    ended = ran("""
signal.signal(signal.SIGHUP, signal.SIG_IGN)
install_handlers()
os.kill(os.getpid(), signal.SIGHUP)
print("goes on")
""")
    assert ended.stdout == "goes on\n", ended.stderr


def test_a_closed_pipe_is_not_noticed_and_a_full_disk_is():
    ended = ran("""
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
""")
    assert (ended.returncode, ended.stderr) == (0, "No space left on device")


def test_no_file_takes_the_place_of_a_stream_that_is_closed(tmp_path):
    result = tmp_path / "result"

    def close():
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
    def process(self, element):
        logging.getLogger("test").error("%d", element)


class Failing(beam.DoFn):
    def __init__(self, kind, text):
        self.kind, self.text = kind, text

    def process(self, _):
        raise self.kind(*filter(None, [self.text]))


def do(function, log="/dev/null"):
    with Engine(runner_config("direct", ())) as engine:
        engine.log_to(Path(log))
        engine.run(lambda pipeline: pipeline | beam.Create([1]) | beam.ParDo(function), "test")


def test_a_log_that_can_t_be_written_fails_no_job():
    do(Logging(), "/dev/full")


@pytest.mark.parametrize("kind", [MemoryError, pa.ArrowMemoryError])
def test_too_little_memory_of_a_worker_is_a_line(kind):
    message = "^a worker is out of memory; lower --memory-budget"
    refuses(EngineError, message, do, Failing(kind, ""))


@pytest.mark.parametrize("error", [
    *(MemoryError(), RuntimeError("can't start new thread")),
    ImportError("libscipy.so: failed to map segment from shared object"),
    OSError(errno.ENOMEM, "Cannot allocate memory"),
])  # fmt: skip
def test_too_little_memory_of_a_command_is_a_line(error):
    message, code = cli._message_of(error)
    assert code == 3
    assert message.startswith("out of memory or threads (")
    assert message.endswith("); allow more (ulimit -v), or lower --memory-budget")


@pytest.mark.parametrize("megabytes", [100, 300, 600, 900, 1400])
def test_a_limit_of_memory_that_the_libraries_would_not_survive_is_a_line(tmp_path, megabytes):
    def limited():
        resource.setrlimit(resource.RLIMIT_AS, (megabytes << 20, megabytes << 20))

    command = [sys.executable, "-m", "slicebeam.pipelines.cli", "search", "--data", "x.csv"]
    command += ["--label", "y", "--output", str(tmp_path / "out")]
    how = {"capture_output": True, "text": True, "timeout": 60}
    ended = subprocess.run(command, preexec_fn=limited, check=False, **how)
    said = f"the limit on virtual memory is {megabytes:,} MB, and the libraries alone need 1,500 MB"
    assert ended.stderr == f"slicebeam: {said}; allow more (ulimit -v)\n"
    assert ended.returncode == 3
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(("kind", "text", "raised"), [
    (KeyboardInterrupt, "stopped", KeyboardInterrupt),
    (ValueError, "no such column: KeyboardInterrupt", EngineError),
])  # fmt: skip
def test_an_interrupt_is_one_by_its_type_and_not_by_what_a_text_says(kind, text, raised):
    refuses(raised, text, do, Failing(kind, text))
