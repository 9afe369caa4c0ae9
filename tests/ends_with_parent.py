"""Runs a command that ends when this process's standard input does, thus with whoever started it.

``{folder}`` in the command is a new folder, which is removed afterwards.
"""

import subprocess
import sys
import tempfile
import threading


def main(command):
    how = {"prefix": "slicebeam-test-", "ignore_cleanup_errors": True}
    with tempfile.TemporaryDirectory(**how) as folder:
        arguments = [part.replace("{folder}", folder) for part in command]
        process = subprocess.Popen(arguments, stdin=subprocess.DEVNULL)

        def watch():
            sys.stdin.buffer.read()
            process.kill()

        threading.Thread(target=watch, daemon=True).start()
        return process.wait()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
