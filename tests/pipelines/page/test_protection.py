"""Who may ask the server: nobody but the page that it served, in the browser that has the token."""

import ast
import asyncio
import re
import socket
import threading
from pathlib import Path
from random import Random
from types import SimpleNamespace
from unittest.mock import Mock
from urllib.parse import unquote

import pytest
import uvicorn
from starlette.routing import Mount, Router

from slicebeam.pipelines.page.answers import PageRequest, RefusedError, post
from slicebeam.pipelines.page.app import FEATURES, application_of_runs
from slicebeam.pipelines.page.protection import HEADER, MOST_JSON, PageSession, Protection
from slicebeam.pipelines.page.runs import Runs
from slicebeam.pipelines.page.server import bound_socket
from tests.pipelines.page.asking import ORIGIN, PORT, page, stranger


@pytest.fixture
def session():
    return PageSession(PORT)


class _Anything(PageRequest):
    text: str = ""


ANYTHING = "/api/test/anything"


@pytest.fixture
def app(session, tmp_path):
    """A server that has no output: what reaches it is answered with the path."""
    real = application_of_runs(Runs(tmp_path), lambda _: pytest.fail("opened"), session)
    assert isinstance(real, Protection)
    paths = ("/anything", "/upload/x")
    routes = [post(path, _Anything, lambda _: {"came": True}) for path in paths]
    real.app.router.routes.insert(0, Mount("/api/test", app=Router(routes)))
    return real


# A name that another's name server points here, another port, and what only looks like it.
OTHER_HOSTS = [
    "evil.example", f"evil.example:{PORT}", "127.0.0.1", f"127.0.0.1:{PORT + 1}", "",
    f"127.0.0.1.evil.example:{PORT}", f"localhost.:{PORT}", f"2130706433:{PORT}",
    f"0.0.0.0:{PORT}", f"127.0.0.1:{PORT}@evil.example",
]  # fmt: skip


def test_only_names_of_this_machine_are_answered(app, session):
    client = page(app, session)
    for host in (f"127.0.0.1:{PORT}", f"localhost:{PORT}", f"[::1]:{PORT}"):
        assert client.get("/", headers={"host": host}).status_code == 200, host
        assert client.get("/api/page", headers={"host": host}).status_code == 200, host
    for host in OTHER_HOSTS:
        for path in ("/", "/served.js", "/api/page"):
            assert client.get(path, headers={"host": host}).status_code == 403, (host, path)


def test_nothing_of_an_output_is_answered_without_the_token(app, session):
    client = stranger(app, origin=ORIGIN)
    wrong = ("", session.token[:-1], f"{session.token}x", session.token.swapcase(), b"\xff")
    cookie = {"cookie": f"slicebeam-token={session.token}"}
    for headers in ({}, cookie, *({HEADER: one} for one in wrong)):
        for path in ("/api/page", "/runs/a/api/page", ANYTHING):
            assert client.get(path, headers=headers).status_code == 401, (headers, path)
        assert client.post(ANYTHING, json={}, headers=headers).status_code == 401
    assert client.get("/").status_code == 200
    assert session.token not in client.get("/").text


def test_the_token_can_not_be_guessed_and_is_not_shown(session):
    tokens = [PageSession(PORT).token for _ in range(20)]
    assert len(set(tokens)) == len(tokens)
    # 256 bits in letters of six bits.
    assert min(map(len, tokens)) == 43
    assert session.token not in repr(session)


def test_only_the_page_itself_changes_anything(app, session):
    client, path = page(app, session), ANYTHING
    assert client.post(path, json={}).json() == {"came": True}
    # Another port of this machine is the same site to a browser.
    others = [f"127.0.0.1:{PORT + 1}", f"localhost:{PORT}", "evil.example"]
    origins = [f"https://127.0.0.1:{PORT}", "null", "", *(f"http://{one}" for one in others)]
    sites = [("sec-fetch-site", one) for one in ("cross-site", "same-site")]
    for name, value in [*(("origin", one) for one in origins), *sites]:
        assert client.post(path, json={}, headers={name: value}).status_code == 403, value
    # What a form of another page can send without asking is not taken.
    for kind in ("text/plain", "application/x-www-form-urlencoded", "multipart/form-data", ""):
        answer = client.post(path, content=b"{}", headers={"content-type": kind})
        assert answer.status_code == 415, kind
    held = client.headers.pop("origin")
    assert client.post(path, json={}).status_code == 403
    client.headers["origin"] = held
    for method in ("PUT", "DELETE", "PATCH", "OPTIONS", "TRACE", "CONNECT"):
        assert client.request(method, path).status_code == 405, method
    assert client.get("/api/page", headers={"sec-fetch-site": "cross-site"}).status_code == 403
    assert client.post("/", json={}).status_code == 405


OTHERS_OF_POLICY = {
    ("x-content-type-options", "nosniff"),
    ("referrer-policy", "no-referrer"),
    ("cross-origin-resource-policy", "same-origin"),
}


def test_every_answer_binds_the_page_and_lets_no_other_read(app, session):
    client = page(app, session)
    large = {"content": b" " * (MOST_JSON + 1), "headers": {"content-type": "application/json"}}
    answers = [
        *(client.get(one) for one in ("/", "/served.js", "/page.css", "/api/page", "/nowhere")),
        client.post(ANYTHING, json={}),
        client.get("/", headers={"host": "evil.example"}),
        client.post(ANYTHING, **large),
        stranger(app).get("/api/page"),
    ]
    assert {one.status_code for one in answers} == {200, 401, 403, 404, 413}
    for one in answers:
        policy = one.headers["content-security-policy"]
        assert policy.startswith("default-src 'none'; script-src 'self'; style-src 'self'; ")
        assert "base-uri 'none'" in policy
        assert "frame-ancestors 'none'" in policy
        assert "unsafe" not in policy
        assert set(one.headers.items()) >= OTHERS_OF_POLICY
        # Browsers would send a cookie to all ports of this machine.
        assert not any(name.startswith(("access-control", "set-cookie")) for name in one.headers)
        assert "server" not in one.headers


def test_a_body_is_bounded_whatever_it_says_of_itself(app, session, monkeypatch):
    client, json_headers = page(app, session), {"content-type": "application/json"}
    fits, path = b'{"text": "' + b"x" * (MOST_JSON - 12) + b'"}', ANYTHING
    assert client.post(path, content=fits, headers=json_headers).status_code == 200
    assert client.post(path, content=fits + b" ", headers=json_headers).status_code == 413
    sent = []

    def pieces():
        for _ in range(400):
            sent.append(1)
            yield b"x" * (MOST_JSON // 100)

    answer = client.post(path, content=pieces(), headers=json_headers)
    assert (answer.status_code, answer.json()) == (413, {"error": "a request has at most 1 MB"})
    # A file is no JSON, and has a bound of its own.
    monkeypatch.setattr("slicebeam.pipelines.page.protection.MOST_UPLOADED", 2 * MOST_JSON)
    bytes_headers, upload = {"content-type": "application/octet-stream"}, "/api/upload/x"
    assert client.post(upload, content=b"x", headers=bytes_headers).status_code == 404
    assert client.post(upload, content=b"{}", headers=json_headers).status_code == 415
    assert client.post(path, content=b"{}", headers=bytes_headers).status_code == 415


OUTSIDE = [
    "/../secret", "/%2e%2e/secret", "/..%2fsecret", "/served.js/../../secret", "/secret",
    "/etc/passwd", "//etc/passwd", "/api/../secret", "/runs/..%2f/", "/runs/secret/api/page", "/runs//",
    "/bundle/page.js", "/page.js", "/api/%00", "/src/main.tsx", "/runs/%2e%2e/api/page",
]  # fmt: skip


def test_no_path_leads_out_of_what_is_served(app, session, tmp_path):
    (tmp_path / "secret").write_text("secret")
    client = page(app, session)
    for path in OUTSIDE:
        answer = client.get(path)
        assert answer.status_code in (401, 404), path
        assert "secret" not in answer.text.replace("no run 'secret'", ""), path


PUBLIC = {"/", "/served.js", "/page.css", "/served.css", "/runs/a b/", "/runs/run/", "/runs/none/"}


@pytest.fixture(scope="module")
def full():
    """A server of a folder with every route of an output, none of which may be reached, and their paths."""
    reached = []
    runs = SimpleNamespace(listing=lambda: reached.append("listing"), names=lambda: ["run", "a b"])
    session = PageSession(PORT)

    def opened(name):
        reached.append(f"opened {name}")
        raise RefusedError("opened", 418)

    return application_of_runs(runs, opened, session), _paths_of_features(), reached


def _paths_of_features():
    written = [
        node.args[0].value
        for feature in FEATURES
        for node in ast.walk(ast.parse(Path(str(feature.__file__)).read_text("utf-8")))
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Name)
        and node.func.id in ("get", "post", "Route")
        and isinstance(node.args[0], ast.Constant)
    ]
    assert {"/page", "/slices.csv", "/upload/own", "/labels/begin", "/tests/judge"} <= set(written)
    of_output = [f"/api{one}" for one in [*written, "/history"]]
    return [*of_output, *(f"/runs/run{one}" for one in of_output), "/runs/run/", "/", "/served.js"]


def asked(app, raw, method, path=None, **more):
    """Return the status of a request without any secret, as a server hands it on; 0 for none."""
    target, _, query = raw.partition(b"?")
    path = unquote(target.decode("latin-1")) if path is None else path
    host = [(b"host", f"127.0.0.1:{PORT}".encode())]
    scope = {"type": "http", "asgi": {"version": "3.0"}, "http_version": "1.1", "scheme": "http"}
    scope |= {"method": method, "root_path": "", "query_string": query, "raw_path": target}
    scope |= {"path": path, "headers": host, "client": ("127.0.0.1", 1)}
    scope |= {"server": ("127.0.0.1", PORT), **more}
    found = []

    async def receive():
        return {"type": "http.request", "body": b"{}", "more_body": False}

    async def send(message):
        found.append(message)

    _LOOP.run_until_complete(app(scope, receive, send))
    return next((one["status"] for one in found if "status" in one), 0)


# A loop for all: ten thousand would take longer than what they ask.
_LOOP = asyncio.new_event_loop()
PIECES = [
    "%0a", "%0d", "%00", "%09", "%20", "%2f", "%2F", "%5c", "%5C", "%2e", "%2E%2E", "%25", "%3f",
    "//", "/./", "/../", "/", "\\", ".", "..", ";", ";a=b", "?", "#", "&", "@", ":", "%", "%zz",
    "%c0%af", "%ff", "\xe9", "\x00", "\n", "\t", " ", "~", "api", "/api", "/runs/", "runs/run",
    "%61pi", "p%61ge", "session", "/served.js", "%EF%BC%8F", "\x7f", "*", "http://127.0.0.1:8000",
]  # fmt: skip


def mutated(path, random):
    for _ in range(random.randint(1, 3)):
        at, piece = random.randrange(len(path) + 1), random.choice(PIECES)
        kind = random.randrange(5)
        if kind == 0:
            path = path[:at] + piece + path[at:]
        elif kind == 1:
            path += piece
        elif kind == 2:
            path = piece + path
        elif kind == 3 and at < len(path):
            path = f"{path[:at]}%{ord(path[at]) & 255:02x}{path[at + 1 :]}"
        else:
            path = path.replace("/", piece, 1) if random.random() < 0.5 else path.swapcase()
    return path


def secretive():
    """Return an application that answers anybody with a secret, and the paths that came to it."""
    came = []

    async def anything(scope, _, send):
        came.append(scope["path"])
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"secret"})

    return came, anything


def test_no_spelling_of_a_path_is_answered_without_the_token(full):
    app, paths, reached = full
    came, anything = secretive()
    # Whatever the routes are, nothing but the page and its files gets as far as them.
    open_app, random = Protection(anything, PageSession(PORT)), Random(41)
    methods = ["GET"] * 6 + ["HEAD", "POST", "OPTIONS", "PUT", "TRACE", "get", "GET\n", ""]
    public = 0
    for number in range(10_000):
        plain = paths[number % len(paths)]
        raw = plain if number < 2 * len(paths) else mutated(plain, random)
        method = random.choice(methods)
        came.clear()
        status = asked(open_app, raw.encode("latin-1"), method)
        if raw.partition("?")[0] in PUBLIC and method in ("GET", "HEAD"):
            assert status == 200, raw
            public += 1
        elif status == 200:
            # The page itself, of a run that nobody looks for.
            assert re.fullmatch(r"/runs/[^/?]+/(\?.*)?", raw, re.DOTALL), (raw, method)
        else:
            assert status in (401, 403, 404, 405), (raw, method, status)
            assert came == [], raw
        if number % 5 == 0:
            assert asked(app, raw.encode("latin-1"), method) == status, raw
    assert public >= 5
    assert reached == []


SPELLINGS = [
    b"/api//page%0a", b"/api/page%0A", b"/api/page\n", b"//api/page", b"/api/./page",
    b"/api/%70age", b"/api/page/..", b"/runs/run/api//page%0a", b"/runs/run%2Fapi/page",
    b"/runs/%72un/api/page", b"/runs/r\xc3\xbcn/", b"/runs/%c3%bcn/", b"/runs/%0A/",
    b"/runs/%2E%2E/", b"/runs/%5C/", b"/runs/%C3/", b"/runs/../", b"*", b"", b"api/page",
    b"http://127.0.0.1:8000/api/page", b"http://127.0.0.1:8000/", b"/served.js%0a", b"/served.js/",
    b"/Served.js", b"/api/session;/../page", b"/runs/a%20b/api/page", b"/runs/a%2520b/api/page",
]  # fmt: skip


@pytest.mark.parametrize("raw", SPELLINGS)
def test_a_path_has_one_spelling(raw, full):
    app, _, reached = full
    for method in ("GET", "HEAD"):
        assert asked(app, raw, method) in (401, 404)
    # Whatever the server makes of what was sent, both have to agree.
    for path in ("/", "/served.js", "/api/page", "/runs/run/api/page"):
        assert asked(app, raw, "GET", path) in (401, 404)
        assert asked(app, path.encode(), "GET", raw.decode("latin-1")) in (401, 404)
    assert asked(app, b"/api/page", "GET", raw_path=None) in (401, 404)
    assert reached == []


def test_names_of_runs_are_written_as_browsers_and_the_server_write_them(full):
    app, _, reached = full
    for name in (b"a%20b", b"r%C3%BCn", b"100%25", b"a(1)", b"a%281%29"):
        assert asked(app, b"/runs/" + name + b"/", "GET") == 200
    assert reached == []


def test_other_kinds_of_connections_are_closed(full):
    app, paths, reached = full
    for path in paths:
        for kind in ("websocket", "webtransport"):
            assert asked(app, path.encode(), "GET", type=kind) == 0
    assert reached == []


def heads(port, host):
    base = f"http://127.0.0.1:{port}"
    targets = [
        "/api/page", "/api//page%0a", "//api/page", f"{base}/api/page", f"{base}/", "/api/page#",
        "/api/page?a=/served.js", "/served.js/../api/page", "*", "\\api", "/%61pi/page",
        "/runs/a/api//page%0a", f"//127.0.0.1:{port}/api/page", "?",
    ]  # fmt: skip
    lines = [f"{method} {target} HTTP/1.1" for method in ("GET", "HEAD") for target in targets]
    lines += [f"{method} /api/page HTTP/1.1" for method in ("OPTIONS", "X", "PRI")]
    lines += ["OPTIONS * HTTP/1.1", f"CONNECT 127.0.0.1:{port} HTTP/1.1"]
    lines += [f"GET /api/page HTTP/{version}" for version in ("1.0", "0.9", "2.0", "1.1 ")]
    hosts = [
        *("Host: evil.example", f"{host}\r\nHost: evil.example", "X: y", f"{host}.evil.example"),
        *(f"{host}\tx", f"X-Forwarded-Host: 127.0.0.1:{port}\r\nHost: a"),
    ]
    upgrade = "Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13"
    more = [f"{upgrade}\r\nSec-WebSocket-Key: eA==", "X-Original-URL: /\r\nX-Rewrite-URL: /"]
    return [
        *(f"{line}\r\n{host}" for line in lines),
        *(f"GET / HTTP/1.1\r\n{one}" for one in hosts),
        *(f"GET /api/page HTTP/1.1\r\n{host}\r\n{one}" for one in more),
    ]


def test_nothing_that_a_socket_sends_is_answered_without_the_token():
    came, anything = secretive()
    with bound_socket(0) as bound:
        # What connects before the server runs waits for it.
        bound.listen()
        port = bound.getsockname()[1]
        app = Protection(anything, PageSession(port))
        options = {"log_config": None, "ws": "none", "lifespan": "off"}
        server = uvicorn.Server(uvicorn.Config(app, **options))
        thread = threading.Thread(target=server.run, kwargs={"sockets": [bound]})
        thread.start()
        try:
            host = f"Host: 127.0.0.1:{port}"
            status, body = sent(port, f"GET / HTTP/1.1\r\n{host}\r\n")
            assert (status, b"secret" in body) == (200, True)
            came.clear()
            for one in heads(port, host):
                status, body = sent(port, f"{one}\r\n")
                assert status in (0, 400, 401, 403, 404, 405), one
                assert b"secret" not in body, one
            assert came == []
        finally:
            server.should_exit = True
            thread.join(20)


def sent(port, head):
    """Return the status of a request as it stands, and the rest; 0 where nothing is answered."""
    with socket.create_connection(("127.0.0.1", port), timeout=20) as connection:
        connection.sendall(f"{head}Connection: close\r\n\r\n".encode("latin-1"))
        answer = b"".join(iter(lambda: connection.recv(1 << 16), b""))
    head_of, _, body = answer.partition(b"\r\n\r\n")
    return int(head_of.split()[1]) if head_of.startswith(b"HTTP/") else 0, body


def test_errors_are_sentences_without_a_traceback(app, session):
    fail = Mock(side_effect=ZeroDivisionError("by zero"))
    app.app.router.routes.insert(0, Mount("/api/fault", app=Router([post("/", _Anything, fail)])))
    answer = page(app, session).post("/api/fault/", json={})
    assert answer.status_code == 500
    assert answer.json() == {"error": "unforeseen ZeroDivisionError: by zero"}
    answer = page(app, session).post(ANYTHING, json={"other": 1})
    assert answer.json() == {"error": "other: Extra inputs are not permitted"}
