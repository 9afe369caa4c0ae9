"""What asks an application as its page does, without a socket."""

import json
import time

from starlette.testclient import TestClient

from slicebeam.pipelines.config.adapt import ServeConfig
from slicebeam.pipelines.page.app import application
from slicebeam.pipelines.page.protection import HEADER, PageSession
from slicebeam.pipelines.page.served import ServedOutput

PORT = 8000
ORIGIN = f"http://127.0.0.1:{PORT}"


def stranger(app, **headers):
    client = TestClient(app, base_url=ORIGIN, raise_server_exceptions=False)
    client.headers.update(headers)
    return client


def page(app, session):
    return stranger(app, **{HEADER: session.token, "origin": ORIGIN})


def served_page(result, *data, **options):
    session = PageSession(PORT)
    config = ServeConfig(changelist=str(result), data=tuple(map(str, data)), **options)
    return page(application(ServedOutput.open(str(result), config), session), session)


def asks(client, status=200):
    def ask(path, **given):
        answer = client.post(f"/api/{path}", json=given)
        assert answer.status_code == status, answer.text
        return answer.json()

    return ask


def document(result, name="changelist.json"):
    return json.loads((result / name).read_text())


def ready(client):
    while client.get("/api/index").json()["state"] == "building":
        time.sleep(0.02)
    return client


def rows(client, limit=500, offset=0, **options):
    ready(client)
    given = {"filter": {"metric": "accuracy", **options}, "tab": "t"}
    answer = client.post("/api/slices", json={**given, "limit": limit, "offset": offset})
    assert answer.status_code == 200, answer.text
    return answer.json()
