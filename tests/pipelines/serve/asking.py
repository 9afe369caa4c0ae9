"""What asks an application as its page does, without a socket."""

import json
import time

from starlette.testclient import TestClient

from slicebeam.pipelines.config.serve import ServeConfig
from slicebeam.pipelines.serve.app import application
from slicebeam.pipelines.serve.protection import HEADER, PageSession
from slicebeam.pipelines.serve.served import ServedOutput

PORT = 8000
ORIGIN = f"http://127.0.0.1:{PORT}"


def stranger(app, **headers):
    """Return a client that has no token."""
    client = TestClient(app, base_url=ORIGIN, raise_server_exceptions=False)
    client.headers.update(headers)
    return client


def page(app, session):
    """Return a client that has it."""
    return stranger(app, **{HEADER: session.token, "origin": ORIGIN})


def served_page(result, *data, **options):
    """Return the page of an output; options are those of the command."""
    session = PageSession(PORT)
    config = ServeConfig(changelist=str(result), data=tuple(map(str, data)), **options)
    return page(application(ServedOutput.open(str(result), config), session), session)


def asks(client, status=200):
    """Return what sends an object to a path and returns the answer."""

    def ask(path, **given):
        answer = client.post(f"/api/{path}", json=given)
        assert answer.status_code == status, answer.text
        return answer.json()

    return ask


def document(result, name="changelist.json"):
    """Return a document as JSON values."""
    return json.loads((result / name).read_text())


def ready(client):
    """Return the page of an output when its index is there."""
    while client.get("/api/index").json()["state"] == "building":
        time.sleep(0.02)
    return client


def rows(client, limit=500, offset=0, **options):
    """Return some rows of a filtered table, when the index is ready."""
    ready(client)
    given = {"filter": {"metric": "accuracy", **options}, "tab": "t"}
    answer = client.post("/api/slices", json={**given, "limit": limit, "offset": offset})
    assert answer.status_code == 200, answer.text
    return answer.json()
