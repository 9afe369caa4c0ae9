"""What asks an application as its page does, without a socket."""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING, Any

from starlette.testclient import TestClient

from slicebeam.pipelines.config.serve import ServeConfig
from slicebeam.pipelines.serve.app import application
from slicebeam.pipelines.serve.protection import HEADER, PageSession
from slicebeam.pipelines.serve.served import ServedOutput

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from starlette.types import ASGIApp

PORT = 8000
ORIGIN = f"http://127.0.0.1:{PORT}"


def stranger(app: ASGIApp, **headers: str) -> TestClient:
    """Return a client that has no cookie and no token."""
    client = TestClient(app, base_url=ORIGIN, raise_server_exceptions=False)
    client.headers.update(headers)
    return client


def page(app: ASGIApp, session: PageSession) -> TestClient:
    """Return a client that has both."""
    client = stranger(app, **{HEADER: session.header, "origin": ORIGIN})
    client.cookies.set(session.cookie_name, session.cookie)
    return client


def served_page(result: Path, *data: Path, **options: Any) -> TestClient:
    """Return the page of an output; options are those of the command."""
    session = PageSession(PORT)
    config = ServeConfig(changelist=str(result), data=tuple(map(str, data)), **options)
    return page(application(ServedOutput.open(str(result), config), session), session)


def asks(client: TestClient, status: int = 200) -> Callable[..., Any]:
    """Return what sends an object to a path and returns the answer."""

    def ask(path: str, **given: Any) -> Any:
        answer = client.post(f"/api/{path}", json=given)
        assert answer.status_code == status, answer.text
        return answer.json()

    return ask


def document(result: Path, name: str = "changelist.json") -> dict[str, Any]:
    """Return a document as JSON values."""
    found: dict[str, Any] = json.loads((result / name).read_text())
    return found


def ready(client: TestClient) -> TestClient:
    """Return the page of an output when its index is there."""
    while client.get("/api/index").json()["state"] == "building":
        time.sleep(0.02)
    return client


def rows(client: TestClient, limit: int = 500, offset: int = 0, **options: Any) -> dict[str, Any]:
    """Return some rows of a filtered table, when the index is ready."""
    ready(client)
    given = {"filter": {"metric": "accuracy", **options}, "tab": "t"}
    answer = client.post("/api/slices", json={**given, "limit": limit, "offset": offset})
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    return found
