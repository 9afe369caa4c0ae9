"""The application: the page, what it asks of each output, and who may ask."""

from __future__ import annotations

import hmac
from importlib.resources import files
from typing import TYPE_CHECKING, Any, Protocol

from starlette.applications import Starlette
from starlette.responses import JSONResponse, Response
from starlette.routing import Mount, Route

from slicebeam.pipelines.serve import (
    content,
    editing,
    judging,
    labelling,
    own_data,
    queries,
    slice_examples,
)
from slicebeam.pipelines.serve.answers import HANDLERS, Given, RefusedError, reads, takes
from slicebeam.pipelines.serve.protection import Protection, Session

if TYPE_CHECKING:
    from starlette.routing import BaseRoute
    from starlette.types import ASGIApp

    from slicebeam.pipelines.serve.served import ServedOutput

    class Feature(Protocol):
        """A module that answers some of what the page asks."""

        def routes(self, served: ServedOutput) -> list[Route]:
            """Return its routes; their paths are below ``/api``."""


# The modules with what the page asks of an output; a path belongs to one of them.
FEATURES: tuple[Feature, ...] = (
    content,
    queries,
    slice_examples,
    labelling,
    editing,
    own_data,
    judging,
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
_ASSETS = {"served.js": "text/javascript", "page.css": "text/css", "served.css": "text/css"}


class _Token(Given):
    token: str


def application(served: ServedOutput, session: Session) -> ASGIApp:
    """Return the server's application for an output."""
    routes: list[BaseRoute] = [*_page_routes(), Mount("/api", routes=_api(served, session))]
    return Protection(Starlette(routes=routes, exception_handlers=HANDLERS), session)


def _api(served: ServedOutput, session: Session) -> list[Route]:
    own = [one for feature in FEATURES for one in feature.routes(served)]
    return [*_session_routes(session), *own]


def _page_routes() -> list[Route]:
    def page() -> Response:
        return Response(_PAGE, media_type="text/html")

    assets = [reads(f"/{name}", _asset(name, kind)) for name, kind in _ASSETS.items()]
    return [reads("/", page), *assets]


def _asset(name: str, kind: str) -> Any:
    def asset() -> Response:
        path = files("slicebeam.pipelines.page") / "bundle" / name
        return Response(path.read_bytes(), media_type=kind)

    return asset


def _session_routes(session: Session) -> list[Route]:
    def begin(given: _Token) -> Response:
        if not hmac.compare_digest(given.token.encode(), session.token.encode()):
            raise RefusedError("the token in the address is of an earlier server", 401)
        return JSONResponse({"header": session.header}, headers={"set-cookie": session.set_cookie})

    return [
        takes("/session", _Token, begin),
        reads("/session", lambda: {"header": session.header}),
    ]
