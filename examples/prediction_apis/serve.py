"""Serves recorded answers over HTTP, as an API would: to try `slicebeam shift --api` for nothing.

    python examples/prediction_apis/serve.py imdb amazon &

A request is ``POST /v1/predict`` with ``{"item": 17}``, the answer ``{"result": {"class": 1}}``.
"""

from __future__ import annotations

import argparse
import json
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq


class Recorded(BaseHTTPRequestHandler):
    """Answers from a table."""

    protocol_version = "HTTP/1.1"
    # The answer and its headers would else wait for each other.
    disable_nagle_algorithm = True
    answers: dict[int, int]

    def do_POST(self) -> None:
        """Answer a request, with 422 where it names no item."""
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        try:
            answer: Any = {"result": {"class": self.answers[json.loads(body)["item"]]}}
            self.send_response(200)
        except (ValueError, KeyError, TypeError):
            answer = {"error": "no such item"}
            self.send_response(422)
        content = json.dumps(answer).encode()
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *_: Any) -> None:
        """Keep quiet."""


def main() -> None:
    """Serve until interrupted."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("data", help="name of a file in this folder, such as imdb")
    parser.add_argument("api", help="of a column, such as amazon")
    parser.add_argument("--port", type=int, default=8765)
    asked = parser.parse_args()
    columns = ["example_id", f"prediction_{asked.api}"]
    table = pq.read_table(Path(__file__).parent / f"{asked.data}.parquet", columns=columns)
    Recorded.answers = dict(zip(*(column.to_pylist() for column in table.columns), strict=True))
    ThreadingHTTPServer(("127.0.0.1", asked.port), Recorded).serve_forever()


if __name__ == "__main__":
    main()
