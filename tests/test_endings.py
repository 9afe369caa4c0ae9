"""Signals end a command in order, and streams that are gone do no harm."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from typing import Any

import pytest

BEGIN = """
import os, signal, sys
from slicebeam.pipelines.endings import *
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
heed_signals()
assert not was_told_to_end()
try:
    os.kill(os.getpid(), {int(number)})
    raise SystemExit("not interrupted")
except KeyboardInterrupt:
    print(ending(), was_told_to_end())
"""
    )
    assert ended.stdout == f"{told} True\n", ended.stderr


def test_what_is_sent_again_does_not_disturb_the_tidying_up() -> None:
    ended = ran(
        """
heed_signals()
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
heed_signals()
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
