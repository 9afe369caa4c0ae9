"""The command line. Expensive imports are inside the commands, so ``--help`` is quick."""

from __future__ import annotations

import io
import logging
import os
import re
import resource
import sys
import tempfile
import traceback
from contextlib import suppress
from itertools import pairwise

import click
from click.shell_completion import shell_complete

from slicebeam.metrics.errors import EngineError, SlicebeamError, nearest, printable
from slicebeam.pipelines.commands.command import Invocation
from slicebeam.pipelines.commands.flags import program
from slicebeam.pipelines.commands.signals import (
    ending,
    guard_streams,
    install_handlers,
    interrupted,
)
from slicebeam.runner_configs.job_log import ignore_warnings_of_clients
from slicebeam.transforms.storage.secrets import allow_http, forget, redacted

INTERRUPTED = 130
# What the system says where it refuses memory for a thread or a library.
_REFUSED = re.compile("can't start new thread|failed to map segment|[Cc]annot allocate memory")
_JSON_LOG = "--log-format=json"
# What a shell that completes a command sets.
_COMPLETES = "_SLICEBEAM_COMPLETE"
# Below this limit of virtual memory the libraries hang, or end the process, while they are loaded.
_LEAST_MEMORY = 1_500 << 20


def _usage_message(error: click.ClickException) -> str:
    """Return a usage error as the rest of the errors are: what, the value, the nearest name."""
    message = error.format_message().rstrip(".").replace("a valid float", "a valid number")
    if isinstance(error, click.NoSuchOption):
        name, options = error.option_name, error.possibilities or []
        near = nearest(name, options) or next(iter(options), None)
        message = f"no such option: {name}" + (f"; did you mean {near}?" if near else "")
    elif isinstance(error, click.MissingParameter) and error.ctx:
        message += f"; see {error.ctx.command_path} --help"
    return message[:1].lower() + message[1:]


def main() -> None:
    """Run the command line and exit with its code."""
    guard_streams()
    install_handlers()
    # What the network library has to say of a failure is not a line for a user, who can ask for it.
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")
    code = run(sys.argv[1:])
    # All files are written and closed. Taking down what Beam imported and started would take a third
    # of a second, and forever where threads of an interrupted engine wait for what was ended.
    with suppress(OSError):
        sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def run(arguments: list[str]) -> int:
    """Run a command and return its exit code; errors are a line or two on stderr."""
    # Beam warns on import of client libraries that only other engines need, and these of old Pythons.
    logging.getLogger().setLevel(logging.ERROR)
    ignore_warnings_of_clients()
    for stream in (sys.stdout, sys.stderr):
        # Signs that the terminal's encoding lacks are shown as question marks.
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")
    forget()
    allow_http(False)
    invocation = Invocation()
    if _JSON_LOG in (*arguments, *map("=".join, pairwise(arguments))):
        from slicebeam.pipelines.config.run_options import RunOptions

        # Errors of usage are events too.
        invocation.log(RunOptions.model_validate({"log_format": "json"}))
    try:
        code = _executed(arguments, invocation)
    except KeyboardInterrupt:
        code = INTERRUPTED
    except Exception as error:  # noqa: BLE001  (a user sees a line, never a traceback)
        # An engine makes an error of its own of an interrupt.
        if not interrupted():
            message, code = _message_of(error)
            _say(invocation, message, code)
            return code
        code = INTERRUPTED
    if code == INTERRUPTED:
        code, how = ending()
        again = "run the same command to continue"
        if invocation.command is not None:
            again = f"a {invocation.command} continues with the same options and --resume"
        _say(invocation, f"{how}; {again}", code)
    return code


def _executed(arguments: list[str], invocation: Invocation) -> int:
    if completes := os.environ.get(_COMPLETES):
        return shell_complete(program(), {}, "slicebeam", _COMPLETES, completes)
    if not {"-h", "--help", "--help-all", "--version"} & {*(arguments or ["--help"])}:
        _check_memory()
    try:
        with program().make_context("slicebeam", arguments, obj=invocation) as context:
            code: int = context.command.invoke(context)
    except click.exceptions.Exit as ended:
        code = ended.exit_code
    sys.stdout.flush()
    return code


def _check_memory() -> None:
    """Raise an EngineError where the libraries can't be loaded, which they would not survive."""
    limit, _ = resource.getrlimit(resource.RLIMIT_AS)
    if limit != resource.RLIM_INFINITY and limit < _LEAST_MEMORY:
        raise EngineError(
            f"the limit on virtual memory is {limit >> 20:,} MB, and the libraries alone need "
            f"{_LEAST_MEMORY >> 20:,} MB; allow more (ulimit -v)"
        )


def _say(invocation: Invocation, message: str, code: int) -> None:
    message = redacted(message)
    if invocation.events is not None:
        invocation.events.error(message, code)
    else:
        sys.stderr.write(f"slicebeam: {printable(message)}\n")


def _message_of(error: Exception) -> tuple[str, int]:
    if isinstance(error, click.ClickException):
        return _usage_message(error), 2
    if isinstance(error, SlicebeamError):
        return str(error), error.exit_code
    if isinstance(error, MemoryError) or _REFUSED.search(str(error)):
        what = str(error) or "refused"
        return (
            f"out of memory or threads ({what}); allow more (ulimit -v), or lower --memory-budget",
            3,
        )
    if isinstance(error, OSError):
        return f"{error.filename or 'output'}: {error.strerror or error}", 3
    return _unforeseen(error), 3


def _unforeseen(error: Exception) -> str:
    """Return a line about a fault of ours, and keep its traceback in a file."""
    try:
        with tempfile.NamedTemporaryFile(
            "w", prefix="slicebeam-", suffix=".log", delete=False, encoding="utf-8"
        ) as log:
            log.write(redacted("".join(traceback.format_exception(error))))
        where = log.name
    except OSError:
        # No folder for it, or no room.
        where = "its location: " + str(traceback.extract_tb(error.__traceback__)[-1])
    reason = (str(error).splitlines() or ["no message"])[0]
    return f"unforeseen {type(error).__name__}: {reason}; please report it with {where}"


if __name__ == "__main__":
    main()
