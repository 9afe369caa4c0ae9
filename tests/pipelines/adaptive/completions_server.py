"""A language model behind an endpoint like OpenAI's, with faults by plan and a log of what it charged."""

import hashlib
import json
import threading
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


@dataclass
class Completions:
    """The server, as tests see it."""

    url: str = ""
    faults: list[str] = field(default_factory=list)
    answer: str | None = None
    requests: list[tuple[str, dict[str, str], dict[str, Any]]] = field(default_factory=list)
    charged: dict[str, int] = field(default_factory=dict)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def text(self, key):
        if self.answer is not None:
            return self.answer
        return f'The place {hashlib.sha256(key.encode()).hexdigest()[:12]} was bad."\nAnd more'


@contextmanager
def completions_server():
    told = Completions()
    server = ThreadingHTTPServer(("127.0.0.1", 0), type("Handler", (_Handler,), {"told": told}))
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
    told.url = f"http://127.0.0.1:{server.server_port}/v1"
    try:
        yield told
    finally:
        server.shutdown()
        server.server_close()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    told: Completions

    def log_message(self, *_):
        """Print nothing."""

    def do_POST(self):
        told = self.told
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        key = self.headers.get("Idempotency-Key", "")
        with told.lock:
            told.requests.append((self.path, dict(self.headers), body))
            fault = told.faults.pop(0) if told.faults else ""
            if fault not in ("drop", "401", "404", "429", "500"):
                told.charged[key] = told.charged.get(key, 0) + 1
        if fault.isdecimal():
            self._send(int(fault), b'{"error": "no"}', "application/json")
        elif fault == "garbage":
            self._send(200, b"<html>busy</html>", "text/html")
        elif fault == "drop":
            self.close_connection = True
        else:
            self._answer(told.text(key), bool(body.get("stream")), fault)

    def _answer(self, text, streams, fault):
        is_chat = self.path.endswith("/chat/completions")
        if not streams:
            choice = {"message": {"content": text}} if is_chat else {"text": text}
            self._send(200, json.dumps({"choices": [choice]}).encode(), "application/json")
            return
        events = []
        for start in range(0, len(text), 5):
            piece = text[start : start + 5]
            events.append({"delta": {"content": piece}} if is_chat else {"text": piece})
        lines = [f"data: {json.dumps({'choices': [one]})}\n\n" for one in events]
        if fault == "error":
            lines[1:] = ['data: {"error": {"message": "overloaded"}}\n\n', "data: [DONE]\n\n"]
        elif fault != "broken":
            lines += [": a comment\n\n", "data: [DONE]\n\n"]
        self._send(200, "".join(lines).encode(), "text/event-stream")

    def _send(self, status, body, kind):
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        if status == 429:
            self.send_header("Retry-After", "0")
        self.end_headers()
        self.wfile.write(body)
