"""Embeddings from an endpoint: a server of our own that fails in all the ways that servers do."""

import asyncio
import base64
import json
import pickle
import re
import sys
import threading
import time
from collections import Counter
from dataclasses import dataclass, field
from hashlib import sha256
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import quote, quote_plus

import numpy as np
import pytest

from slicebeam.metrics.errors import EngineError, InputError, SlicebeamError
from slicebeam.transforms.discovery import endpoint_encoder as endpoint
from slicebeam.transforms.discovery.encoders import encoder
from slicebeam.transforms.http import calls as http_calls
from tests.refusals import refusal, refuses

KEY = "sk-a-very-secret-key"
DIMENSIONS = 6
TEXTS = [f"text {number}" for number in range(300)]


def _vector(text):
    return [byte / 8 for byte in sha256(text.encode()).digest()[:DIMENSIONS]]


def _answer(texts):
    items = [{"index": row, "embedding": _vector(text)} for row, text in enumerate(texts)]
    return {"object": "list", "data": items[::-1], "model": "some"}


@dataclass
class Server:
    """What the server does, and what it saw."""

    plan: list[Any] = field(default_factory=list)
    rule: Any = lambda _: None
    latency: float = 0.0
    url: str = ""
    asked: Counter[str] = field(default_factory=Counter)
    answered: Counter[str] = field(default_factory=Counter)
    requests: list[tuple[str, dict[str, str], dict[str, Any]]] = field(default_factory=list)
    in_flight: int = 0
    most: int = 0
    # Answers wait until so many requests were there at once.
    together: int = 0
    changing: threading.Lock = field(default_factory=threading.Lock)

    def encode(self, texts):
        return encoder(f"openai:{self.url}", cache=None).encode(texts)


@pytest.fixture
def server(monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    monkeypatch.setattr(http_calls, "_FIRST_WAIT", 0.01)
    told = Server()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, *_):
            pass

        def do_POST(self):
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            texts = body["input"]
            with told.changing:
                told.requests.append((self.path, dict(self.headers), body))
                told.asked.update(texts)
                told.in_flight += 1
                told.most = max(told.most, told.in_flight)
                fault = told.plan.pop(0) if told.plan else told.rule(texts)
            if not isinstance(fault, tuple):
                end = time.monotonic() + 20.0
                while told.most < told.together and time.monotonic() < end:
                    time.sleep(0.005)
                time.sleep(told.latency)
            with told.changing:
                told.in_flight -= 1
            if fault == "drop":
                self.close_connection = True
                self.connection.close()
                return
            if fault == "hang":
                time.sleep(1.0)
            status, headers, answer = fault if isinstance(fault, tuple) else (200, {}, None)
            if answer is None:
                with told.changing:
                    told.answered.update(texts)
                answer = json.dumps(_answer(texts))
            content = answer.encode()
            self.send_response(status)
            for name, value in headers.items():
                self.send_header(name, value)
            self.send_header("Content-Length", str(len(content) + (9 if fault == "half" else 0)))
            self.end_headers()
            self.wfile.write(content)
            if fault == "half":
                self.close_connection = True

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as running:
        running.daemon_threads = True
        thread = threading.Thread(target=running.serve_forever, args=(0.02,))
        thread.start()
        told.url = f"http://127.0.0.1:{running.server_port}/v1"
        yield told
        running.shutdown()
        thread.join()


def _expected(texts):
    return np.array([_vector(text) for text in texts], np.float32)


def test_vectors_come_in_the_order_of_the_texts(server):
    server.latency, server.together = 0.05, 4
    made = encoder(f"openai:{server.url}?model=small", cache=None)
    texts = [*TEXTS, *TEXTS[:7]]
    vectors = made.encode(texts)
    assert vectors.dtype == np.float32
    np.testing.assert_array_equal(vectors, _expected(texts))
    assert set(server.asked.values()) == {1}
    assert sorted(len(body["input"]) for _, _, body in server.requests) == [44, 64, 64, 64, 64]
    assert server.most == 4
    path, headers, body = server.requests[0]
    assert path == "/v1/embeddings"
    assert headers["Authorization"] == f"Bearer {KEY}"
    assert body["model"] == "small"


@pytest.mark.parametrize("end", ["", "/", "/embeddings", "/embeddings/"])
def test_addresses(server, end):
    made = encoder(f"openai:{server.url}{end}", cache=None)
    assert made.name == f"openai:{server.url}{end}"
    made.encode(["a"])
    path, _, body = server.requests[0]
    assert (path, body["model"]) == ("/v1/embeddings", "text-embedding-3-small")


def test_fingerprint_tells_address_and_model():
    specs = ["http://a/v1", "http://b/v1", "http://a/v1?model=b", "http://a/v2"]
    assert len({encoder(f"openai:{spec}", cache=None).fingerprint for spec in specs}) == 4
    same = ["http://a", "http://a/v1/", "http://a/v1/embeddings?model=text-embedding-3-small"]
    assert len({encoder(f"openai:{spec}", cache=None).fingerprint for spec in same}) == 1


def test_a_local_server_needs_no_key(server, monkeypatch):
    monkeypatch.delenv("OPENAI_API_KEY")
    server.encode(["a"])
    assert "Authorization" not in server.requests[0][1]


def test_empty_and_long_texts(server):
    made = encoder(f"openai:{server.url}", cache=None)
    texts = ["", "x" * 150_000, "y" * 150_000, "z" * 300_000, "", " "]
    np.testing.assert_array_equal(made.encode(texts), _expected([text or " " for text in texts]))
    assert sorted(len(body["input"]) for _, _, body in server.requests) == [1, 1, 2]
    assert made.encode([]).shape == (0, 0)


@pytest.mark.parametrize("fault", [
    (500, {}, "oh"),
    (503, {"Retry-After": "0"}, ""),
    (429, {"Retry-After": "0"}, "slow down"),
    (408, {}, ""),
    "drop",
    "half",
])  # fmt: skip
def test_what_may_pass_is_asked_again(server, fault):
    server.plan = [fault] * 3
    np.testing.assert_array_equal(server.encode(TEXTS), _expected(TEXTS))
    assert len(server.requests) == 8


def test_no_answer_in_time_is_asked_again(server, monkeypatch):
    monkeypatch.setattr(endpoint, "_TIMEOUT", 0.3)
    server.plan = ["hang"]
    np.testing.assert_array_equal(server.encode(TEXTS[:3]), _expected(TEXTS[:3]))
    assert len(server.requests) == 2


def test_an_endpoint_that_asks_for_hours(server):
    server.plan = [(429, {"Retry-After": "7200"}, "")]
    with pytest.raises(EngineError, match=r"HTTP 429: the endpoint asks for a wait of 2\.0 hours"):
        server.encode(["a"])


def test_an_endpoint_that_never_answers(server, monkeypatch):
    monkeypatch.setattr(endpoint, "_RETRIES", 2)
    server.rule = lambda _: (503, {}, f"no such day for {KEY}")
    with pytest.raises(EngineError, match=r"3 times HTTP 503: no such day for \*\*\*; run again"):
        server.encode(["a"])
    assert server.asked["a"] == 3
    with pytest.raises(EngineError, match="3 times no connection"):
        encoder("openai:http://127.0.0.1:9", cache=None).encode(["a"])


@pytest.mark.parametrize(("status", "remedy"), [
    (400, "a text may be too long"), (401, "set OPENAI_API_KEY"), (403, "permits"),
    (404, "address"),
])  # fmt: skip
def test_refused(server, status, remedy):
    server.rule = lambda _: (status, {}, f"wrong\nkey {KEY} " + "and so on " * 100)
    told = refusal(InputError, server.encode, ["a"])
    assert re.search(rf"HTTP {status}: wrong key \*\*\* and so on.*\n.*{remedy}", told)
    assert len(told) < 500
    assert server.asked["a"] == 1


def test_the_first_failure_is_told(server):
    server.rule = lambda texts: (400, {}, "long") if "text 150" in texts else (503, {}, "busy")
    refuses(InputError, "HTTP 400: long", server.encode, TEXTS)
    assert len(server.requests) < 12


def _data(*vectors, index=None):
    order = list(range(len(vectors))) if index is None else index
    items = [{"index": row, "embedding": one} for row, one in zip(order, vectors, strict=True)]
    return json.dumps({"data": items})


@pytest.mark.parametrize(("answer", "told"), [
    ("<html>hello</html>", "no list 'data' of index and embedding: <html>hello"),
    ("[]", "no list 'data'"),
    ('{"data": 3}', "no list 'data'"),
    ('{"data": [{"embedding": [1]}, {"embedding": [1]}]}', "no list 'data'"),
    ('{"error": "no"}', "no list 'data'"),
    ("[" * 100_000, "no list 'data'"),
    (_data([1, 2]), "it has 1 embeddings for 2 texts"),
    (_data([1], [2], [3]), "it has 3 embeddings for 2 texts"),
    (_data([1], [2], index=[0, 0]), "it has 2 embeddings for 2 texts"),
    (_data([1], [2], index=[1, None]), "it has 2 embeddings for 2 texts"),
    (_data([1, 2], [1]), "differ in length"),
    (_data([1, "a"], [1, 2]), "are not numbers"),
    (_data({"a": 1}, {"a": 1}), "are not numbers"),
    (_data(1, 2), "not lists of numbers"),
    (_data([], []), "not lists of numbers"),
    (_data([1, None], [1, 2]), "not finite"),
    (_data([1, float("nan")], [1, 2]), "not finite"),
    (_data([1, 1e300], [1, 2]), "not finite"),
])  # fmt: skip
def test_answers_that_are_none(server, answer, told):
    server.rule = lambda _: (200, {}, answer)
    said = f"the answer is not that of an embeddings endpoint: .*{told}"
    refuses(EngineError, said, server.encode, ["a", "b"])


def test_a_run_that_failed_asks_no_text_twice(server, tmp_path):
    made = encoder(f"openai:{server.url}", cache=tmp_path / "cache")
    server.latency = 0.05
    server.rule = lambda texts: (400, {}, "too long") if "text 150" in texts else None
    refuses(InputError, "HTTP 400", made.encode, TEXTS)
    # Those in flight with the one that was refused are kept.
    assert sum(server.answered.values()) >= 3 * 64
    server.rule = lambda _: None
    np.testing.assert_array_equal(_afresh(made).encode(TEXTS), _expected(TEXTS))
    assert set(server.answered.values()) == {1}
    assert set(server.answered) == set(TEXTS)
    calls = len(server.requests)
    np.testing.assert_array_equal(_afresh(made).encode(TEXTS[::-1]), _expected(TEXTS[::-1]))
    assert len(server.requests) == calls


def _afresh(made):
    from slicebeam.transforms.discovery import encoder_cache as cache

    cache._opened.cache_clear()
    return pickle.loads(pickle.dumps(made))


def test_another_model_behind_the_address(server, tmp_path):
    made = encoder(f"openai:{server.url}", cache=tmp_path)
    made.encode(["a"])
    server.rule = lambda _: (200, {}, _data([1.0] * 9))
    refuses(EngineError, r"gives vectors of 9 numbers, where .* gave 6 before", made.encode, ["b"])


def test_the_key_is_nowhere(server, tmp_path, monkeypatch):
    made = encoder(f"openai:{server.url}", cache=tmp_path)
    made.encode(TEXTS)
    held = [pickle.dumps(made), *(path.read_bytes() for path in tmp_path.iterdir())]
    assert len(held) == 2
    assert not any(KEY.encode() in one for one in held)
    monkeypatch.setenv("OPENAI_API_KEY", "sk-secret\nthing")
    told = refusal(InputError, made.encode, ["new"])
    assert "OPENAI_API_KEY in the environment contains characters" in told
    assert "secret" not in told


_ODD_KEY = 'sk-"odd"+key/with=signs'


@pytest.mark.parametrize("form", [
    _ODD_KEY,
    quote(_ODD_KEY, safe=""),
    quote_plus(_ODD_KEY).lower(),
    json.dumps(_ODD_KEY)[1:-1],
    json.dumps(json.dumps(_ODD_KEY))[3:-3],
    base64.b64encode(_ODD_KEY.encode()).decode(),
    base64.urlsafe_b64encode(f"user:{_ODD_KEY}".encode()).decode(),
])  # fmt: skip
def test_the_key_is_shown_in_no_form(form, server, monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", _ODD_KEY)
    shown = []
    for fault in (
        (400, {}, f"the key {form} is wrong"),
        (302, {"Location": f"https://elsewhere/?key={form}"}, ""),
        (200, {}, f"no answer, but {form}"),
    ):
        server.rule = lambda _, fault=fault: fault
        shown.append(refusal(SlicebeamError, server.encode, ["a"]))
    for one in shown:
        assert "***" in one
        # Of base64 the letters that are shared with what stands before stay.
        assert form[12:-8] not in one


def test_asked_from_inside_of_a_loop(server):
    async def cell():
        return server.encode(["a"])

    np.testing.assert_array_equal(asyncio.run(cell()), _expected(["a"]))


@pytest.mark.parametrize(("spec", "told"), [
    ("openai:", "'' is not an address; write openai:https://host/v1"),
    ("openai:text-embedding", "'text-embedding' is not an address"),
    ("openai:ftp://host/v1", "is not an address"),
    ("openai:https://host:port/v1", "not an address"),
    ("openai:https://[::1/v1", "not an address"),
    ("openai:https://me:secret@host/v1", "contains a user name or password"),
    ("openai:https://host/v1?key=secret", "unknown parameter 'key'; parameters: model"),
    ("openai:https://host/v1?modle=secret", "unknown parameter 'modle'; did you mean 'model'"),
    ("openai:https://host/v1?model=", "the name of the model is empty"),
])  # fmt: skip
def test_no_endpoint(spec, told):
    with pytest.raises(InputError, match=told) as error:
        encoder(spec, cache=None)
    assert "secret" not in str(error.value)


def test_without_aiohttp(monkeypatch):
    monkeypatch.setitem(sys.modules, "aiohttp", None)
    said = r"needs aiohttp; in the checkout, run pip install '\.\[api\]'"
    refuses(InputError, said, encoder, "openai:https://host/v1", cache=None)
