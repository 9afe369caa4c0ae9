"""``slicebeam serve``: the page of a result, with a program behind it."""

from __future__ import annotations

import sys
import webbrowser
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from slicebeam.metrics.errors import OptionError
from slicebeam.pipelines.config.common import validated
from slicebeam.pipelines.config.serve import ServeConfig
from slicebeam.pipelines.show.terminal_text import json_line
from slicebeam.transforms.secrets.plain_http import allow

if TYPE_CHECKING:
    from collections.abc import Mapping

_NEEDED = ("starlette", "uvicorn", "duckdb")


def serve(_: str, given: Mapping[str, Any], __: Any) -> int:
    """Serve an output until the user ends it, and return the exit code."""
    config = validated(ServeConfig, given)
    allow(config.allow_http)
    absent = [one for one in _NEEDED if find_spec(one) is None]
    if absent:
        raise OptionError(
            f"slicebeam serve needs {' and '.join(absent)}: install it with pip install "
            "'slicebeam[serve]'"
        )
    from slicebeam.pipelines.serve.app import application
    from slicebeam.pipelines.serve.served import ServedOutput
    from slicebeam.pipelines.serve.server import (
        RunningError,
        bound_socket,
        only_server,
        run_server,
        session_of,
    )

    served = ServedOutput.open(config.changelist, config)
    try:
        with only_server(served.state) as publish, bound_socket(config.port) as bound:
            session = session_of(bound)

            def started() -> None:
                publish(session.address)
                _say(config, session.address, is_running=False)

            run_server(application(served, session), bound, started)
    except RunningError as error:
        _say(config, error.address, is_running=True)
    return 0


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
    if config.open:
        webbrowser.open(address)
