"""Runs commands as forks of one process that has imported what they need.

It reads requests as lines of JSON from its standard input and answers with lines on its standard
output. A command that is forked here is killed, limited and deprived like one that is started
anew, and takes a second or two less.
"""

import json
import os
import resource
import signal
import sys
import tempfile
import time
import traceback
from contextlib import suppress
from importlib import import_module
from pathlib import Path

from tests import quick_beam

_POLL = 0.002
_IMPORTED = (
    *("apache_beam.runners.portability.fn_api_runner.fn_runner", "pyarrow.csv", "pyarrow.parquet"),
    *("rich.console", "slicebeam.pipelines.commands.cli", "slicebeam.pipelines.search.search"),
    "slicebeam.pipelines.show.terminal",
)
# Loaded where a command uses it, which is then asked for more than once.
_OF_COMMANDS = {"discover": "sklearn.cluster"}
_DATA = Path(__file__).parent.parent / "pipelines" / "demo_data" / "adult_scored.parquet"


def _start(request):
    command = request["arguments"][0]
    if command in _OF_COMMANDS:
        import_module(_OF_COMMANDS[command])
    child = os.fork()
    if child:
        return child
    code = 99
    try:
        _arrange(request)
        from slicebeam.pipelines.commands import cli

        if request["hook"]:
            module, _, function = request["hook"].partition(":")
            getattr(import_module(module), function)()
        sys.argv = ["slicebeam", *request["arguments"]]
        cli.main()
        code = 98
    except BaseException:
        os.write(2, traceback.format_exc().encode())
        raise
    finally:
        os._exit(code)


def _arrange(request):
    # A group of its own, so that what it starts can be ended with it.
    os.setpgid(0, 0)
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        # Whoever started all this may ignore them.
        is_interrupt = number == signal.SIGINT
        signal.signal(number, signal.default_int_handler if is_interrupt else signal.SIG_DFL)
    closed = []
    for number, path, flags in (
        (0, request["stdin"], os.O_RDONLY),
        (1, request["stdout"], os.O_WRONLY | os.O_CREAT),
        (2, request["stderr"], os.O_WRONLY | os.O_CREAT),
    ):
        if path:
            file = os.open(path, flags, 0o666)
            os.dup2(file, number)
            os.close(file)
        else:
            closed.append(number)
    for number in closed:
        os.close(number)
    sys.stdin = os.fdopen(0, closefd=False) if request["stdin"] else None
    sys.stdout = os.fdopen(1, "w", closefd=False) if request["stdout"] else None
    sys.stderr = os.fdopen(2, "w", closefd=False) if request["stderr"] else None
    os.environ.update(request["environment"])
    for name in request["without"]:
        os.environ.pop(name, None)
    tempfile.tempdir = None
    os.chdir(request["folder"])
    os.umask(0o022)
    for name, value in request["limits"].items():
        _, most = resource.getrlimit(getattr(resource, name))
        resource.setrlimit(getattr(resource, name), (value, most))
    if request["user"]:
        os.setgroups([])
        os.setgid(request["user"])
        os.setuid(request["user"])


def _wait(child, seconds):
    """Return how a command ended, below 0 by a signal; None where it had to be killed."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        ended, status = os.waitpid(child, os.WNOHANG)
        if ended:
            return os.waitstatus_to_exitcode(status)
        time.sleep(_POLL)
    os.killpg(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return None


def _import_what_is_needed():
    for module in _IMPORTED:
        import_module(module)
    quick_beam.remember_answers(setattr)
    _remember()
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        from slicebeam.pipelines.commands.cli import run

        with tempfile.TemporaryDirectory() as folder:
            options = ["--label=income", "--prediction=prediction", "--features=sex,race"]
            run(["search", f"--data={_DATA}", f"--output={folder}", "--quiet", *options])
        with os.fdopen(writing, "w") as pipe:
            pipe.write(json.dumps(list(sys.modules)))
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as pipe:
        names = json.load(pipe)
    os.waitpid(child, 0)
    for name in names:
        # Some are made by others, and have no file to import them from.
        with suppress(ImportError):
            import_module(name)


def _remember():
    """Make once what every command makes of flags and options."""
    import apache_beam as beam

    from slicebeam.pipelines.commands import flags
    from slicebeam.runner_configs.in_process import InProcess
    from slicebeam.runner_configs.options import DirectOptions

    flags.PanelCommand("search")
    InProcess(DirectOptions()).run(lambda pipeline: pipeline | beam.Create([]), "first")


def main():
    _import_what_is_needed()
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    for line in sys.stdin:
        request = json.loads(line)
        if "arguments" in request:
            answer = _start(request)
        else:
            answer = _wait(request["wait"], request["seconds"])
        sys.stdout.write(json.dumps(answer) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
