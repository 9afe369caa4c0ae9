"""Who may ask the server: nobody but the page that it served, in the browser that has the token."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from starlette.routing import Mount, Router

from slicebeam.pipelines.serve.answers import Given, takes
from slicebeam.pipelines.serve.app import application_of_runs
from slicebeam.pipelines.serve.protection import HEADER, MOST_JSON, PageSession, Protection
from slicebeam.pipelines.serve.runs import Runs
from tests.pipelines.serve.asking import ORIGIN, PORT, page, stranger

if TYPE_CHECKING:
    from collections.abc import Iterator

    from starlette.types import ASGIApp


@pytest.fixture
def session() -> PageSession:
    return PageSession(PORT)


class _Anything(Given):
    text: str = ""


@pytest.fixture
def app(session: PageSession, tmp_path: Path) -> ASGIApp:
    """A server that has no output: what reaches it is answered with the path."""
    real = application_of_runs(Runs(tmp_path), lambda _: pytest.fail("opened"), session)
    assert isinstance(real, Protection)
    routes = [
        takes(path, _Anything, lambda _: {"came": True}) for path in ("/anything", "/upload/x")
    ]
    real.app.router.routes.insert(0, Mount("/api/test", app=Router(routes)))  # type: ignore[attr-defined]
    return real


def test_only_names_of_this_machine_are_answered(app: ASGIApp, session: PageSession) -> None:
    client = page(app, session)
    for host in (f"127.0.0.1:{PORT}", f"localhost:{PORT}", f"[::1]:{PORT}"):
        assert client.get("/", headers={"host": host}).status_code == 200, host
        assert client.get("/api/session", headers={"host": host}).status_code == 200, host
    # A name that another's name server points here, another port, and what only looks like it.
    for host in (
        *("evil.example", f"evil.example:{PORT}", "127.0.0.1", f"127.0.0.1:{PORT + 1}", ""),
        *(
            f"127.0.0.1.evil.example:{PORT}",
            f"localhost.:{PORT}",
            f"2130706433:{PORT}",
            f"0.0.0.0:{PORT}",
        ),
        f"127.0.0.1:{PORT}@evil.example",
    ):
        for path in ("/", "/served.js", "/api/session", "/api/page"):
            answer = client.get(path, headers={"host": host})
            assert answer.status_code == 403, (host, path)
            assert session.header not in answer.text


def test_nothing_of_an_output_is_answered_without_the_cookie(
    app: ASGIApp, session: PageSession
) -> None:
    client = stranger(app, **{HEADER: session.header, "origin": ORIGIN})
    for cookie in (
        "",
        "wrong",
        f"slicebeam_{PORT + 1}={session.cookie}",
        session.cookie,
        "a=\x01; ;=;",
    ):
        client.cookies.clear()
        headers = {"cookie": cookie if "=" in cookie else f"{session.cookie_name}={cookie}x"}
        for path in ("/api/page", "/api/session", "/runs/a/api/page", "/api/test/anything"):
            assert client.get(path, headers=headers).status_code == 401, (cookie, path)
        assert client.post("/api/test/anything", json={}, headers=headers).status_code == 401
    assert client.get("/").status_code == 200
    assert not any(
        one in client.get("/").text for one in (session.token, session.header, session.cookie)
    )


def test_the_token_is_exchanged_for_a_cookie_that_stays_here(
    app: ASGIApp, session: PageSession
) -> None:
    client = stranger(app, origin=ORIGIN)
    for token in ("", session.token[:-1], session.token + "x", session.cookie, session.header):
        answer = client.post("/api/session", json={"token": token})
        assert answer.status_code == 401
        assert "set-cookie" not in answer.headers
    answer = client.post("/api/session", json={"token": session.token})
    assert answer.json() == {"header": session.header}
    name, *flags = answer.headers["set-cookie"].split("; ")
    assert name == f"slicebeam_{PORT}={session.cookie}"
    assert set(flags) == {"Path=/", "HttpOnly", "SameSite=Strict"}
    assert client.get("/api/page").json() == {"runs": []}
    # Another site can't log a browser in, nor learn by it whether a token is right.
    for origin in ("http://evil.example", f"http://localhost:{PORT}", "null"):
        told = client.post(
            "/api/session", json={"token": session.token}, headers={"origin": origin}
        )
        assert told.status_code == 403, origin
    secrets = [one for _ in range(20) for one in _secrets(PageSession(PORT))]
    assert len(set(secrets)) == len(secrets)
    # 256 bits in letters of six bits.
    assert min(map(len, secrets)) == 43
    assert not any(one in repr(session) for one in _secrets(session))


def _secrets(session: PageSession) -> tuple[str, str, str]:
    return session.token, session.cookie, session.header


def test_only_the_page_itself_changes_anything(app: ASGIApp, session: PageSession) -> None:
    client = page(app, session)
    path = "/api/test/anything"
    assert client.post(path, json={}).json() == {"came": True}
    refused: list[tuple[int, dict[str, str]]] = [
        *(
            (403, {"origin": one})
            for one in ("http://evil.example", "null", "", f"http://127.0.0.1:{PORT + 1}")
        ),
        # Another port of this machine is the same site to a browser.
        (403, {"origin": f"http://localhost:{PORT}"}),
        (403, {"origin": f"https://127.0.0.1:{PORT}"}),
        *((403, {HEADER: one}) for one in ("", "x", session.token, session.cookie)),
        *((403, {"sec-fetch-site": one}) for one in ("cross-site", "same-site")),
    ]
    for status, headers in refused:
        assert client.post(path, json={}, headers=headers).status_code == status, headers
    # What a form of another page can send without asking is not taken.
    for kind in ("text/plain", "application/x-www-form-urlencoded", "multipart/form-data", ""):
        assert (
            client.post(path, content=b"{}", headers={"content-type": kind}).status_code == 415
        ), kind
    for name in ("origin", HEADER):
        held = client.headers.pop(name)
        assert client.post(path, json={}).status_code == 403, name
        client.headers[name] = held
    for method in ("PUT", "DELETE", "PATCH", "OPTIONS", "TRACE", "CONNECT"):
        assert client.request(method, path).status_code == 405, method
    assert client.get("/api/page", headers={"sec-fetch-site": "cross-site"}).status_code == 403
    assert client.post("/", json={}).status_code == 405


def test_every_answer_binds_the_page_and_lets_no_other_read(
    app: ASGIApp, session: PageSession
) -> None:
    client = page(app, session)
    answers = [
        *(client.get(one) for one in ("/", "/served.js", "/page.css", "/api/page", "/nowhere")),
        client.post("/api/test/anything", json={}),
        client.get("/", headers={"host": "evil.example"}),
        client.post(
            "/api/test/anything",
            content=b" " * (MOST_JSON + 1),
            headers={"content-type": "application/json"},
        ),
        stranger(app).get("/api/page"),
    ]
    assert {one.status_code for one in answers} == {200, 401, 403, 404, 413}
    for one in answers:
        policy = one.headers["content-security-policy"]
        assert policy.startswith("default-src 'none'; script-src 'self'; style-src 'self'; ")
        assert "base-uri 'none'" in policy
        assert "frame-ancestors 'none'" in policy
        assert "unsafe" not in policy
        assert one.headers["x-content-type-options"] == "nosniff"
        assert one.headers["referrer-policy"] == "no-referrer"
        assert one.headers["cross-origin-resource-policy"] == "same-origin"
        assert not any(name.startswith("access-control") for name in one.headers)
        assert "server" not in one.headers


def test_a_body_is_bounded_whatever_it_says_of_itself(
    app: ASGIApp, session: PageSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = page(app, session)
    json_headers = {"content-type": "application/json"}
    fits = b'{"text": "' + b"x" * (MOST_JSON - 12) + b'"}'
    path = "/api/test/anything"
    assert client.post(path, content=fits, headers=json_headers).status_code == 200
    assert client.post(path, content=fits + b" ", headers=json_headers).status_code == 413
    sent = []

    def pieces() -> Iterator[bytes]:
        for _ in range(400):
            sent.append(1)
            yield b"x" * (MOST_JSON // 100)

    answer = client.post(path, content=pieces(), headers=json_headers)
    assert (answer.status_code, answer.json()) == (413, {"error": "a request has at most 1 MB"})
    # A file is no JSON, and has a bound of its own.
    monkeypatch.setattr("slicebeam.pipelines.serve.protection.MOST_UPLOADED", 2 * MOST_JSON)
    bytes_headers = {"content-type": "application/octet-stream"}
    upload = "/api/upload/x"
    assert client.post(upload, content=b"x", headers=bytes_headers).status_code == 404
    assert client.post(upload, content=b"{}", headers=json_headers).status_code == 415
    assert client.post(path, content=b"{}", headers=bytes_headers).status_code == 415


def test_no_path_leads_out_of_what_is_served(
    app: ASGIApp, session: PageSession, tmp_path: Path
) -> None:
    (tmp_path / "secret").write_text("secret")
    client = page(app, session)
    for path in (
        *("/../secret", "/%2e%2e/secret", "/..%2fsecret", "/served.js/../../secret", "/secret"),
        *(
            "/etc/passwd",
            "//etc/passwd",
            "/api/../secret",
            "/runs/..%2f/",
            "/runs/secret/",
            "/runs//",
        ),
        *("/bundle/page.js", "/page.js", "/api/%00", "/src/main.tsx", "/runs/%2e%2e/api/page"),
    ):
        answer = client.get(path)
        assert answer.status_code in (401, 404), path
        assert "secret" not in answer.text.replace("no run 'secret'", ""), path


def test_errors_are_sentences_without_a_traceback(app: ASGIApp, session: PageSession) -> None:
    def fail(_: _Anything) -> None:
        raise ZeroDivisionError("by zero")

    app.app.router.routes.insert(0, Mount("/api/fault", app=Router([takes("/", _Anything, fail)])))  # type: ignore[attr-defined]
    answer = page(app, session).post("/api/fault/", json={})
    assert (answer.status_code, answer.json()) == (
        500,
        {"error": "unforeseen ZeroDivisionError: by zero"},
    )
    assert page(app, session).post("/api/test/anything", json={"other": 1}).json() == {
        "error": "other: Extra inputs are not permitted"
    }


def test_without_the_extra_the_command_says_what_to_install(tmp_path: Path) -> None:
    code = """
import sys
sys.modules["duckdb"] = None
from importlib import util
real = util.find_spec
util.find_spec = lambda name, *more: None if name == "duckdb" else real(name, *more)
from slicebeam.pipelines.cli import run
sys.exit(run(["serve", sys.argv[1]]))
"""
    found = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path)], capture_output=True, text=True, check=False
    )
    assert found.returncode == 2
    assert "serve needs duckdb: install it with pip install 'slicebeam[serve]'" in found.stderr
