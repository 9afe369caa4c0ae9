"""Guards a program: ends it, and removes its folder, when the process that started it is gone.

Run by its path with ``FOLDER COMMAND [ARGUMENT ...]``; only the standard library is imported.
It says the program's number on stdout, and ends the program when its own stdin is closed.
"""

import ctypes
import os
import shutil
import signal
import subprocess
import sys
import threading

# Linux's option of a process: a signal that it gets when its parent is gone.
_SET_PARENT_DEATH_SIGNAL = 1
_libc = ctypes.CDLL(None)
# Seconds that a program has to end by itself: a job server tells its cluster, and clears up.
PATIENCE = 5.0


def main() -> int:
    """Start the program and wait for its end, or for that of the parent."""
    folder, command = sys.argv[1], sys.argv[2:]
    try:
        program = subprocess.Popen(  # noqa: S603
            command,
            stdin=subprocess.DEVNULL,
            stdout=sys.stderr,
            start_new_session=True,
            preexec_fn=_end_with_parent if sys.platform.startswith("linux") else None,  # noqa: PLW1509
        )
    except OSError as error:
        sys.stdout.write(f"{error.strerror}\n")
        return 1
    # Whoever ends the guardian means the program.
    for number in (signal.SIGINT, signal.SIGHUP, signal.SIGTERM):
        signal.signal(number, lambda *_: _signal(program, signal.SIGTERM))
    sys.stdout.write(f"{program.pid}\n")
    sys.stdout.flush()
    threading.Thread(target=_end_after_stdin, args=(program,), daemon=True).start()
    code = program.wait()
    # What it started may still be there.
    _signal(program, signal.SIGKILL)
    shutil.rmtree(folder, ignore_errors=True)
    return code if code >= 0 else 128 - code


def _end_with_parent() -> None:
    """Let the program end also where its guardian is killed."""
    _libc.prctl(_SET_PARENT_DEATH_SIGNAL, signal.SIGKILL)


def _end_after_stdin(program: subprocess.Popen[bytes]) -> None:
    while os.read(0, 1):
        continue
    _signal(program, signal.SIGTERM)
    try:
        program.wait(PATIENCE)
    except subprocess.TimeoutExpired:
        _signal(program, signal.SIGKILL)


def _signal(program: subprocess.Popen[bytes], number: int) -> None:
    try:
        os.killpg(program.pid, number)
    except ProcessLookupError:
        return


if __name__ == "__main__":
    sys.exit(main())
