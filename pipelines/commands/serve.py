"""``slicebeam serve``: the page of a result, with a program behind it."""

from __future__ import annotations

import sys
import webbrowser
from contextlib import ExitStack
from functools import partial
from html import escape
from pathlib import Path
from urllib.parse import quote

from slicebeam.metrics.errors import OptionError
from slicebeam.pipelines.config.adapt import ServeConfig
from slicebeam.pipelines.page.app import application, application_of_runs
from slicebeam.pipelines.page.known_slices import entries_in
from slicebeam.pipelines.page.protection import PageSession
from slicebeam.pipelines.page.runs import Runs
from slicebeam.pipelines.page.served import ServedOutput, state_folder
from slicebeam.pipelines.page.server import RunningError, bound_socket, only_server, run_server
from slicebeam.pipelines.show.terminal_text import json_line
from slicebeam.transforms.storage.storage import StoragePath, temporary_beside

# Sends the browser on to the address; it is removed when the server ends.
_OPENS = "open.html"


def serve(config: ServeConfig, _: object) -> None:
    """Serve an output until the user ends it."""
    if config.known is not None:
        # A file that cannot be read is said before anything is marked.
        entries_in(config.known)
    shown = Runs.within(config.changelist) or ServedOutput.open(config.changelist, config)
    state = state_folder(shown.folder) if isinstance(shown, Runs) else shown.state
    try:
        with ExitStack() as stack:
            publish = stack.enter_context(only_server(state))
            bound = stack.enter_context(bound_socket(config.port))
            stack.callback((state / _OPENS).unlink, missing_ok=True)
            session = PageSession(bound.getsockname()[1])
            if isinstance(shown, Runs):
                opened = partial(_opened, config, shown.folder, session, stack)
                app = application_of_runs(shown, opened, session)
            else:
                stack.enter_context(shown.at_end)
                app = application(shown, session)

            def renew() -> None:
                publish(session.address())

            session.on_new_code.append(renew)

            def started() -> None:
                renew()
                _say(config, session.address(), is_running=False)
                _open(config, session.address(), state)

            run_server(app, bound, started)
    except RunningError as error:
        _say(config, error.address, is_running=True)
        _open(config, error.address, state)


def _opened(
    config: ServeConfig, folder: StoragePath, session: PageSession, stack: ExitStack, name: str
) -> ServedOutput:
    """Open a run of a folder of runs, which this server alone serves."""
    served = ServedOutput.open(str(folder / name), config)
    try:
        publish = stack.enter_context(only_server(served.state))
    except RunningError as error:
        raise OptionError(f"{name} is served already, at {error.address}") from error

    def renew() -> None:
        publish(session.address(f"/runs/{quote(name)}/"))

    renew()
    session.on_new_code.append(renew)
    stack.enter_context(served.at_end)
    return served


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
            sys.stderr.write(
                "Ctrl-C ends the server. The address opens one tab; run the command again for another.\n"
            )
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
