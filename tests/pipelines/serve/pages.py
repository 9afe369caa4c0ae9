"""What asks the application of an output as its page does; nothing listens at a port."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from starlette.testclient import TestClient

from slicebeam.pipelines.config.serve import ServeConfig
from slicebeam.pipelines.serve.app import application
from slicebeam.pipelines.serve.protection import HEADER, Session
from slicebeam.pipelines.serve.served import ServedOutput

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


def page_of(result: Path, *data: Path, **options: Any) -> TestClient:
    """Return what asks the server of an output as its page does."""
    config = ServeConfig(changelist=str(result), data=tuple(map(str, data)), **options)
    session = Session(8000)
    app = application(ServedOutput.open(str(result), config), session)
    return TestClient(
        app,
        base_url="http://127.0.0.1:8000",
        headers={HEADER: session.header, "origin": "http://127.0.0.1:8000"},
        cookies={session.cookie_name: session.cookie},
        raise_server_exceptions=False,
    )


def document(result: Path, name: str = "changelist.json") -> dict[str, Any]:
    return json.loads((result / name).read_text())


def asks(page: TestClient, status: int = 200) -> Callable[..., Any]:
    """Return what sends an object to a path and returns the answer."""

    def ask(path: str, **given: Any) -> Any:
        answer = page.post(f"/api/{path}", json=given)
        assert answer.status_code == status, answer.text
        return answer.json()

    return ask
