"""Endpoints that mean harm: what they send is bounded, never followed, and never steers a terminal."""

import json
import socket
import threading
import time
import tracemalloc
import zlib
from contextlib import contextmanager
from functools import cache
from pathlib import Path

import pytest
import yaml

from slicebeam.metrics.errors import SlicebeamError, printable
from slicebeam.pipelines.paid_api.api_file import ApiFile
from slicebeam.pipelines.paid_api.calls import Item
from slicebeam.pipelines.paid_api.http_api import HttpApi
from slicebeam.pipelines.paid_api.ledger import Ledger
from slicebeam.transforms.discovery import endpoint_encoder as endpoint
from slicebeam.transforms.discovery.encoders import encoder
from slicebeam.transforms.http import calls
from tests.refusals import refusal, refuses

KEY = "sk-a-very-secret-key"
_OK = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n"


def _whole(body, head=_OK):
    def reply(to):
        to.sendall(head + b"Content-Length: %d\r\n\r\n" % len(body) + body)

    return reply


def _forever(head, piece, wait=0.0):
    def reply(to):
        to.sendall(head)
        while True:
            to.sendall(piece)
            time.sleep(wait)

    return reply


@cache
def _bomb():
    packer = zlib.compressobj(9, zlib.DEFLATED, 31)
    return b"".join(packer.compress(bytes(1 << 20)) for _ in range(400)) + packer.flush()


def _explode(to):
    _whole(_bomb(), _OK + b"Content-Encoding: gzip\r\n")(to)


REPLIES = {
    "endless": _forever(_OK + b"\r\n", b"x" * 65536),
    "endless headers": _forever(b"HTTP/1.1 200 OK\r\n", b"X-A: " + b"y" * 4000 + b"\r\n"),
    "drip": _forever(_OK + b"\r\n", b" ", 0.02),
    "interim": _forever(b"", b"HTTP/1.1 100 Continue\r\n\r\n", 0.02),
    "bomb": _explode,
    "deep": _whole(b"[" * 200_000),
    "digits": _whole(b'{"data": [{"index": 0, "embedding": [%s]}]}' % (b"9" * 6000)),
    "escapes": _whole(b"\x1b]0;owned\x07\xff\xc2\x9b31m", b"HTTP/1.1 401 No\r\n"),
    "redirect": _whole(b"", b"HTTP/1.1 302 No\r\nLocation: http://there/\x1b[31m\r\n"),
}


@contextmanager
def served(reply):
    """Serve an address; also what was sent to it."""
    asked = []

    def answer(to):
        with to:
            try:
                asked.append(to.recv(1 << 16))
                reply(to)
            except OSError:
                return

    def serve(listener):
        while True:
            try:
                to, _ = listener.accept()
            except OSError:
                return
            threading.Thread(target=answer, args=(to,), daemon=True).start()

    with socket.create_server(("127.0.0.1", 0)) as listener:
        threading.Thread(target=serve, args=(listener,), daemon=True).start()
        yield f"http://127.0.0.1:{listener.getsockname()[1]}", asked
        listener.shutdown(socket.SHUT_RDWR)


@pytest.fixture(autouse=True)
def _hurry(monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    monkeypatch.setattr(calls, "_FIRST_WAIT", 0.01)
    monkeypatch.setattr(endpoint, "_RETRIES", 0)
    monkeypatch.setattr(endpoint, "_TIMEOUT", 0.5)
    monkeypatch.setattr(endpoint, "_LARGEST_BODY", 4 << 20)
    monkeypatch.setattr("slicebeam.pipelines.paid_api.http_api._LARGEST_BODY", 4 << 20)


@contextmanager
def bounded(most_bytes, seconds):
    tracemalloc.start()
    begun = time.monotonic()
    try:
        yield
        assert time.monotonic() - begun < seconds
        assert tracemalloc.get_traced_memory()[1] < most_bytes
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("kind", REPLIES)
def test_an_endpoint_of_embeddings(kind):
    with served(REPLIES[kind]) as (url, _), bounded(200 << 20, 10.0):
        message = refusal(SlicebeamError, encoder(f"openai:{url}/v1", cache=None).encode, ["a"])
        assert len(message) < 1000
        assert KEY not in message


def api_file(folder, url):
    path = folder / "api.yaml"
    content = {"url": f"{url}/answer", "headers": {"Authorization": "Bearer ${K}"}}
    content |= {"json": {"text": "{text}"}, "answer": "label", "lost_calls": "count"}
    content |= {"timeout": 0.5, "retries": 0}
    path.write_text(yaml.safe_dump(content))
    return str(path)


def ask(path, folder, text="words"):
    api = ApiFile.read(path, {"K": KEY})
    told = {"api": api.identity}
    with Ledger.open(folder / "ledger", told, count_lost=True, redact=api.redact) as ledger:
        with HttpApi(api) as http:
            http.buy([Item("1", {"text": text})], ledger)
        return list(ledger.answers.values())


@pytest.mark.parametrize("kind", REPLIES)
def test_a_paid_api(kind, tmp_path):
    with served(REPLIES[kind]) as (url, _), bounded(200 << 20, 10.0):
        said, answers = "", []
        try:
            answers = ask(api_file(tmp_path, url), tmp_path)
        except SlicebeamError as error:
            said = str(error)
        assert len(said) < 1000
        assert KEY not in said
        assert "\x1b" not in printable(said)
        assert all(one.value is None and one.problem for one in answers)
    kept = b"".join(path.read_bytes() for path in (tmp_path / "ledger").rglob("segment-*"))
    assert KEY.encode() not in kept
    assert len(kept) < 8 << 20


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
@pytest.mark.parametrize("caller", ["encoder", "api"])
def test_no_redirect_gets_the_key(status, caller, tmp_path):
    """Neither another host nor another scheme or port, in whatever way it redirects."""
    with served(_whole(b"{}")) as (there, reached):
        head = f"HTTP/1.1 {status} Moved\r\nLocation: {there}/v1\r\n".encode()
        with served(_whole(b"", head)) as (url, asked):
            own, path = encoder(f"openai:{url}/v1", cache=None), api_file(tmp_path, url)
            with pytest.raises(SlicebeamError, match="it redirects to"):
                _ = own.encode(["a"]) if caller == "encoder" else ask(path, tmp_path)
            assert len(asked) == 1
            assert KEY.encode() in asked[0]
        assert reached == []


def test_an_item_adds_no_header(tmp_path):
    """A column in a header, or in the URL, with line breaks in it."""
    text = "a\r\nX-Injected: 1\r\n\r\nGET /other HTTP/1.1"
    with served(_whole(json.dumps({"label": "x"}).encode())) as (url, asked):
        path = api_file(tmp_path, url)
        content = yaml.safe_load(Path(path).read_text()) | {"params": {"q": "{text}"}}
        Path(path).write_text(yaml.safe_dump(content))
        assert ask(path, tmp_path, text)[0].value == "x"
        (request,) = asked
        head = request.split(b"\r\n\r\n")[0]
        assert b"\r\nX-Injected" not in request
        assert b"%0D%0AX-Injected" in head.splitlines()[0]
        content["headers"]["X-Text"] = "{text}"
        (tmp_path / "other").mkdir()
        (tmp_path / "other" / "api.yaml").write_text(yaml.safe_dump(content))
        control, other = "would contain a line break or a control character", tmp_path / "other"
        refuses(SlicebeamError, control, ask, str(other / "api.yaml"), other, text)
        assert len(asked) == 1
