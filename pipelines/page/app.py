"""The application: the page, what it asks of each output, and who may ask."""

from __future__ import annotations

import threading
from importlib.resources import files
from typing import TYPE_CHECKING, Any

from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.responses import Response
from starlette.routing import Mount, Route, Router

from slicebeam.pipelines.page import (
    editing,
    judging,
    known_slices,
    labelling,
    own_data,
    playground,
    queries,
    slice_examples,
)
from slicebeam.pipelines.page import served_page as content
from slicebeam.pipelines.page.answers import HANDLERS, RefusedError, get, post
from slicebeam.pipelines.page.protection import ASSETS, SESSION, PageCode, PageSession, Protection
from slicebeam.pipelines.page.runs import OverRuns, Runs

if TYPE_CHECKING:
    from collections.abc import Callable

    from starlette.routing import BaseRoute
    from starlette.types import ASGIApp, Receive, Scope, Send

    from slicebeam.pipelines.page.served import ServedOutput


# The modules with what the page asks of an output; a path belongs to one of them.
FEATURES = (
    content,
    queries,
    slice_examples,
    labelling,
    editing,
    known_slices,
    own_data,
    judging,
    playground,
)

_PAGE = """\
<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>slicebeam</title>
<link rel="icon" href="data:,">
<link rel="stylesheet" href="/page.css">
<link rel="stylesheet" href="/served.css">
<script src="/served.js" defer></script>
</head>
<body>
<div id="page"><main><p role="status">The page is being loaded.</p>
<noscript><p>The page is made by its own script: allow scripts for this address.</p></noscript>
</main></div>
</body>
</html>
"""


def application(served: ServedOutput, session: PageSession) -> ASGIApp:
    """Return the server's application for an output."""
    return _protected([Mount("/api", routes=_features(served))], session)


def application_of_runs(
    runs: Runs, opened: Callable[[str], ServedOutput], session: PageSession
) -> ASGIApp:
    """Return the server's application for a folder of outputs."""
    api = Mount("/api", routes=[get("/page", lambda: {"runs": runs.listing()})])
    # The page is answered without a look at the run: who asks has shown no token yet.
    of_run = [get("/runs/{name}/", _page), Mount("/runs/{name}", app=_Outputs(runs, opened))]
    return _protected([api, *of_run], session)


class _Outputs:
    """The applications of the outputs in a folder, each made when it is asked first."""

    def __init__(self, runs: Runs, opened: Callable[[str], ServedOutput]) -> None:
        self.runs, self.opened = runs, opened
        self._apps: dict[str, ASGIApp] = {}
        self._lock = threading.Lock()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        app = await run_in_threadpool(self._app, scope["path_params"]["name"])
        await app(scope, receive, send)

    def _app(self, name: str) -> ASGIApp:
        with self._lock:
            if name not in self._apps:
                # What is not in the folder is nowhere, however its name is written.
                if name not in self.runs.names():
                    raise RefusedError(f"There is no run {name!r} in this folder.", 404)
                routes = [post("/history", OverRuns, self.runs.over), *_features(self.opened(name))]
                self._apps[name] = Router([Mount("/api", routes=routes)])
            return self._apps[name]


def _protected(routes: list[BaseRoute], session: PageSession) -> ASGIApp:
    assets = [get(f"/{name}", _asset(name, kind)) for name, kind in ASSETS.items()]
    page = [get("/", _page), post(SESSION, PageCode, session.begin), *assets]
    return Protection(Starlette(routes=[*page, *routes], exception_handlers=HANDLERS), session)


def _features(served: ServedOutput) -> list[Route]:
    return [route for feature in FEATURES for route in feature.routes(served)]


def _page() -> Response:
    return Response(_PAGE, media_type="text/html")


def _asset(name: str, kind: str) -> Any:
    def asset() -> Response:
        path = files("slicebeam.pipelines.page") / "bundle" / name
        return Response(path.read_bytes(), media_type=kind)

    return asset
