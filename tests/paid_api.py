"""A paid API for the tests: a server of its own process, with faults by plan and a log of charges.

``POST /answer`` takes ``{"id": ..., "text": ...}`` and ``GET /answer/ID?text=...`` the same; the
answer is ``{"result": {"label": ...}, "id": ...}``. ``GET /stats`` tells the most calls in flight,
and how many connections they came by.
The log has one line of JSON for each request, which is there before the answer leaves:
``{"item", "key", "attempt", "fault", "outcome"}``, where the outcome is ``charged``, ``replayed``
(the API knew the idempotency key) or ``free``.

Started as ``python -m tests.paid_api --plan plan.json --log charges.jsonl`` it prints its address, and
ends when its standard input does.
"""

import argparse
import asyncio
import json
import os
import random
import sys
import threading
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen

import yaml

# What may befall a request and is not charged.
FREE = ("429", "429-at-once", "408", "500", "503", "401", "403", "404", "405", "redirect")
# Behind the name of a fault: what it says of the request's header it says of all the request.
_MIRROR = "-mirror"


@dataclass(frozen=True)
class Plan:
    """What the server does."""

    # The label of each text, and of texts that are not among them.
    answers: dict[str, Any] = field(default_factory=dict)
    default: Any = "POSITIVE"
    # Probabilities of faults, drawn by (seed, item, attempt); of an item's first attempts; of all.
    faults: dict[str, float] = field(default_factory=dict)
    forced: dict[str, list[str | None]] = field(default_factory=dict)
    always: dict[str, str] = field(default_factory=dict)
    # Seconds that an answer takes, at least and at most; the header of a 429.
    latency: tuple[float, float] = (0.0, 0.0)
    retry_after: str = "0"
    # Whether an idempotency key is known again, and what the header of that name must be.
    honours: bool = True
    authorization: str | None = None
    seed: int = 0


class _Server:
    def __init__(self, plan, log):
        from aiohttp import web

        self.plan, self.web = plan, web
        # One write for each line: what is charged is known whoever is killed.
        self.log = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666)
        self.attempts = {}
        self.known = {}
        self.in_flight = self.most = self.requests = 0
        self.connections = set()
        self.hanging = asyncio.Event()

    def drawn(self, item, attempt):
        if item in self.plan.always:
            return self.plan.always[item]
        forced = self.plan.forced.get(item, [])
        if attempt <= len(forced):
            return forced[attempt - 1]
        point = random.Random(f"{self.plan.seed} {item} {attempt}").random()
        for fault, probability in self.plan.faults.items():
            point -= probability
            if point < 0:
                return fault
        return None

    def note(self, item, key, attempt, fault, how):
        told = {"item": item, "key": key, "attempt": attempt, "fault": fault, "outcome": how}
        os.write(self.log, json.dumps(told).encode() + b"\n")

    async def stats(self, request):
        counts = {"most_in_flight": self.most, "requests": self.requests}
        return self.web.json_response({**counts, "connections": len(self.connections)})

    async def hang_up(self, request):
        for connection in self.connections:
            connection.close()
        # They are closed when the loop has gone round.
        await asyncio.sleep(0.01)
        return self.web.json_response({})

    async def answer(self, request):
        self.in_flight += 1
        self.requests += 1
        self.most = max(self.most, self.in_flight)
        if request.transport is not None:
            self.connections.add(request.transport)
        try:
            return await self._answer(request)
        finally:
            self.in_flight -= 1

    async def _answer(self, request):
        if request.method == "GET":
            item, text = request.match_info["id"], request.query.get("text", "")
        else:
            asked = await request.json()
            item, text = str(asked["id"]), asked["text"]
        key = request.headers.get("Idempotency-Key")
        attempt = self.attempts[item] = self.attempts.get(item, 0) + 1
        fault = self.drawn(item, attempt)
        low, high = self.plan.latency
        if high:
            seed = f"{self.plan.seed} {item} {attempt} latency"
            await asyncio.sleep(random.Random(seed).uniform(low, high))
        given = request.headers.get("Authorization", "")
        wanted = self.plan.authorization
        if wanted is not None and given != wanted:
            fault = "401"
        if fault is not None and fault.endswith(_MIRROR):
            fault = fault.removesuffix(_MIRROR)
            given = f"{given} {request.path_qs} {await request.text()}"
        if fault in FREE or fault == "drop-before":
            self.note(item, key, attempt, fault, "free")
            return self._free(request, fault, given)
        if self.plan.honours and key is not None and key in self.known:
            self.note(item, key, attempt, None, "replayed")
            return self.web.json_response(self.known[key])
        self.note(item, key, attempt, fault, "charged")
        label = self.plan.answers.get(text, self.plan.default)
        told = {"result": {"label": label}, "id": item}
        if key is not None:
            self.known[key] = told
        return await self._paid(request, fault, told, given)

    def _free(self, request, fault, given):
        if fault == "drop-before":
            return self._dropped(request)
        if fault == "redirect":
            return self.web.Response(status=307, headers={"Location": "/elsewhere"})
        status = int(fault[:3])
        headers = {"Retry-After": self.plan.retry_after} if fault == "429" else {}
        return self.web.json_response({"error": f"refused {given}"}, status=status, headers=headers)

    async def _paid(self, request, fault, told, given):
        if fault == "garbage":
            return self.web.Response(text=f"<html>{told['result']['label']} for {given}</html>")
        if fault == "elsewhere":
            return self.web.json_response({"other": told["result"]})
        if fault == "null":
            return self.web.json_response({"result": {"label": None}, "given": given})
        if fault == "echo":
            return self.web.json_response({"result": {"label": given}})
        if fault in ("400", "422"):
            return self.web.json_response({"error": f"bad {given}"}, status=int(fault))
        if fault == "drop-after":
            return self._dropped(request)
        if fault == "half":
            response = self.web.StreamResponse(headers={"Content-Length": "1000"})
            await response.prepare(request)
            await response.write(b'{"result":')
            return self._dropped(request)
        if fault == "hang":
            await self.hanging.wait()
        return self.web.json_response(told)

    def _dropped(self, request):
        # A client that was killed has hung up already.
        if request.transport is not None:
            request.transport.abort()
        return self.web.Response()


class _Current:
    """The server that follows the plan of now; what one before it still does goes on there."""

    def __init__(self, server):
        self.server = server

    def does(self, name):
        async def do(request):
            return await getattr(self.server, name)(request)

        return do

    async def anew(self, request):
        told = await request.json()
        self.server.hanging.set()
        self.server = _Server(Plan(**told["plan"]), Path(told["log"]))
        return self.server.web.json_response({})


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--plan", required=True, help="JSON of a Plan")
    parser.add_argument("--log", required=True)
    given = parser.parse_args()
    plan = Plan(**json.loads(Path(given.plan).read_text()))
    asyncio.run(_serve(_Server(plan, Path(given.log))))


async def _serve(first):
    from aiohttp import web

    current = _Current(first)
    app = web.Application(client_max_size=64 << 20)
    app.router.add_post("/answer", current.does("answer"))
    app.router.add_get("/answer/{id}", current.does("answer"))
    app.router.add_get("/stats", current.does("stats"))
    app.router.add_post("/hang-up", current.does("hang_up"))
    app.router.add_post("/anew", current.anew)
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=0)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0, backlog=2048).start()
    sys.stdout.write(f"http://127.0.0.1:{runner.addresses[0][1]}\n")
    sys.stdout.flush()
    ended, loop = asyncio.Event(), asyncio.get_running_loop()

    def watch():
        sys.stdin.buffer.read()
        loop.call_soon_threadsafe(ended.set)

    threading.Thread(target=watch, daemon=True).start()
    await ended.wait()
    current.server.hanging.set()
    await runner.cleanup()


@dataclass(frozen=True)
class PaidApi:
    """A server that runs at a `url`, and the folder of its log and of what `file` writes."""

    url: str
    folder: Path

    @property
    def requests(self):
        text = (self.folder / "charges.jsonl").read_text()
        return [json.loads(line) for line in text.split("\n")[:-1]]

    @property
    def charged(self):
        return [one["item"] for one in self.requests if one["outcome"] == "charged"]

    @property
    def stats(self):
        with urlopen(f"{self.url}/stats", timeout=30) as answer:
            return json.loads(answer.read())

    def hang_up(self):
        with urlopen(Request(f"{self.url}/hang-up", b""), timeout=30):
            pass

    def anew(self, folder, **plan):
        folder.mkdir(parents=True, exist_ok=True)
        told = {"plan": asdict(Plan(**plan)), "log": str(folder / "charges.jsonl")}
        with urlopen(Request(f"{self.url}/anew", json.dumps(told).encode()), timeout=30):
            return PaidApi(self.url, folder)

    def file(self, name="api.yaml", **changes):
        """Write a file that describes the API, a change of ... leaving a key out, and return its path."""
        told = {
            "url": f"{self.url}/answer",
            "headers": {"Authorization": "Bearer ${API_KEY}"},
            "json": {"id": "{id}", "text": "{text}"},
            "answer": "result.label",
            "timeout": 20,
            # Which the server honours, if its plan says so: a lost call may be repeated.
            "idempotency_header": "Idempotency-Key",
            **changes,
        }
        path = self.folder / name
        told = {key: value for key, value in told.items() if value is not ...}
        path.write_text(yaml.safe_dump(told, sort_keys=False))
        return str(path)


@contextmanager
def paid_api(folder, **plan):
    folder.mkdir(parents=True, exist_ok=True)
    file, log = folder / "plan.json", folder / "charges.jsonl"
    file.write_text(json.dumps(asdict(Plan(**plan))))
    log.touch()
    from tests.object_stores import python_server

    with python_server("tests.paid_api", f"--plan={file}", f"--log={log}") as url:
        yield PaidApi(url, folder)


def hurry():
    """Let this process wait for a moment only before it makes a call again."""
    from slicebeam.transforms.http import calls as http_calls

    http_calls._FIRST_WAIT = 0.01


if __name__ == "__main__":
    main()
