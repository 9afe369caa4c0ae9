"""``slicebeam serve``: the page of a result, with a program behind it."""

from __future__ import annotations

import sys
import webbrowser
from contextlib import ExitStack
from html import escape
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from slicebeam.metrics.errors import OptionError
from slicebeam.pipelines.config.common import validated
from slicebeam.pipelines.config.option_fields import split_lists
from slicebeam.pipelines.config.serve import ServeConfig
from slicebeam.pipelines.show.terminal_text import json_line
from slicebeam.transforms.secrets.plain_http import allow
from slicebeam.transforms.storage.storage import temporary_beside

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from slicebeam.pipelines.serve.runs import Runs
    from slicebeam.pipelines.serve.served import ServedOutput

# Sends the browser on to the address; it is removed when the server ends.
_OPENS = "open.html"


def serve(_: str, given: Mapping[str, Any], __: Any) -> int:
    """Serve an output until the user ends it, and return the exit code."""
    config = validated(ServeConfig, split_lists(ServeConfig, given))
    allow(config.allow_http)
    from slicebeam.pipelines.serve.runs import Runs
    from slicebeam.pipelines.serve.served import ServedOutput, state_folder
    from slicebeam.pipelines.serve.server import RunningError, bound_socket, only_server

    shown = Runs.within(config.changelist) or ServedOutput.open(config.changelist, config)
    state = state_folder(shown.folder) if isinstance(shown, Runs) else shown.state
    try:
        with ExitStack() as stack:
            publish = stack.enter_context(only_server(state))
            bound = stack.enter_context(bound_socket(config.port))
            stack.callback((state / _OPENS).unlink, missing_ok=True)
            _run(config, shown, state, stack, bound, publish)
    except RunningError as error:
        _say(config, error.address, is_running=True)
        _open(config, error.address, state)
    return 0


def _run(
    config: ServeConfig,
    shown: ServedOutput | Runs,
    state: Path,
    stack: ExitStack,
    bound: socket.socket,
    publish: Callable[[str], None],
) -> None:
    from slicebeam.pipelines.serve.app import application, application_of_runs
    from slicebeam.pipelines.serve.protection import PageSession
    from slicebeam.pipelines.serve.runs import Runs
    from slicebeam.pipelines.serve.served import ServedOutput
    from slicebeam.pipelines.serve.server import RunningError, only_server, run_server

    session = PageSession(bound.getsockname()[1])

    def started() -> None:
        publish(session.address)
        _say(config, session.address, is_running=False)
        _open(config, session.address, state)

    def opened(name: str) -> ServedOutput:
        served = ServedOutput.open(str(shown.folder / name), config)
        try:
            own = stack.enter_context(only_server(served.state))
        except RunningError as error:
            raise OptionError(f"{name} is served already, at {error.address}") from error
        own(f"http://127.0.0.1:{session.port}/runs/{quote(name)}/#token={session.token}")
        stack.enter_context(served.at_end)
        return served

    if isinstance(shown, Runs):
        app = application_of_runs(shown, opened, session)
    else:
        stack.enter_context(shown.at_end)
        app = application(shown, session)
    run_server(app, bound, started)


def _say(config: ServeConfig, address: str, *, is_running: bool) -> None:
    if not address:
        raise OptionError(
            f"{config.changelist} is being served by a server that starts just now; try again"
        )
    if config.as_json:
        sys.stdout.write(f"{json_line({'address': address, 'running': is_running})}\n")
    else:
        if is_running and not config.quiet:
            sys.stderr.write(f"{config.changelist} is served already, at the address below\n")
        elif not config.quiet:
            sys.stderr.write("Ctrl-C ends the server. The address lets in whoever has it.\n")
        sys.stdout.write(f"{address}\n")
    sys.stdout.flush()


def _open(config: ServeConfig, address: str, state: Path) -> None:
    """Open the address in the browser, by a file that only this user can read.

    On a browser's command line every user of the machine could read the token.
    """
    if not config.open:
        return
    page = f'<!doctype html><meta http-equiv="refresh" content="0;url={escape(address)}">'
    with temporary_beside(state / _OPENS) as (stream, temporary):
        stream.write(page.encode())
        stream.flush()
        temporary.replace(state / _OPENS)
    webbrowser.open((state / _OPENS).as_uri())
