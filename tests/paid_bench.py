"""A table in a folder, a paid API that follows a plan, and commands that buy answers there."""

import json
import random
import signal
import time

import pyarrow.parquet as pq
import pytest

from tests.object_stores import free_port
from tests.paid_api import PaidApi

# Faults of the way to the API, which its server does not make itself.
NO_PLAN = (None, "unreachable", "broken", "crash")
KEY = {"API_KEY": "swordfish/+ 17"}


def fail(*arguments, **options):
    raise RuntimeError(f"{arguments} {options}")


class PaidBench:
    """What the tests of a command have; a subclass says how it saves its table and starts."""

    environment = KEY
    secrets = ("swordfish", "c3dvcmRmaXNo")

    def __init__(self, folder, api, frame):
        self.folder, self.api, self.frame = folder, api, frame
        self.save()

    def file(self, name="api.yaml", **changes):
        return PaidApi(self.api.url, self.folder).file(name, **changes)

    def document(self, output="out"):
        return json.loads((self.folder / output / "changelist.json").read_text())

    def ledger(self):
        # What a kill cut off ends in no line.
        texts = (path.read_text() for path in sorted(self.folder.rglob("segment-*")))
        return [json.loads(line) for text in texts for line in text.split("\n")[:-1]]

    def answered(self):
        return [record["key"] for record in self.ledger() if record["kind"] == "answered"]

    def everything(self):
        files = [path for path in self.folder.rglob("*") if path.is_file()]
        return "".join(
            str(pq.read_table(path).to_pydict())
            if path.suffix == ".parquet"
            else path.read_bytes().decode("utf-8", "replace")
            for path in files
        )

    def hides(self, *texts):
        assert not [word for word in self.secrets if word in "".join(texts)]

    def struck(self, fault, monkeypatch):
        """Return the API's address after a fault of the way to it."""
        if fault == "broken":
            monkeypatch.setattr("aiohttp.ClientSession.request", fail)
        return f"http://127.0.0.1:{free_port()}" if fault == "unreachable" else self.api.url

    def start(self, commands, arguments):
        return commands.start(arguments, environment=self.environment, hook="tests.paid_api:hurry")

    def wait_for(self, requests, command):
        while command.runs() and len(self.api.requests) < requests:
            time.sleep(0.005)

    def killed(self, commands, arguments, times, seed, *, most=30, resume=()):
        drawn = random.Random(seed)
        again, kills = [], 0
        for _ in range(times):
            command = self.start(commands, [*arguments, *again])
            if drawn.random() < 0.4:
                # Some while the table or the ledger is read, or the document written.
                time.sleep(drawn.uniform(0.0, 0.6))
            else:
                self.wait_for(len(self.api.requests) + drawn.randrange(1, most), command)
            if command.runs():
                command.send(signal.SIGKILL)
                kills += 1
            ended = command.ended()
            assert ended.code in (-signal.SIGKILL, 0) or "no run to resume" in ended.said, ended
            self.hides(ended.said)
            again = resume if drawn.random() < 0.5 and ended.code else ()
        assert kills > times / 2
        ended = self.start(commands, arguments).ended()
        assert ended.code == 0, ended


def bench_fixture(kind, planned):
    """Return a fixture that begins benches of a kind; `planned` is a plan for a table."""

    @pytest.fixture
    def bench(quick_calls, paid_server, tmp_path, tmp_path_factory, monkeypatch):
        for name, value in kind.environment.items():
            monkeypatch.setenv(name, value)
        # Where tracebacks are kept.
        (tmp_path / "tmp").mkdir()
        monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "tmp"))

        def begin(frame=None, **plan):
            frame, usual = planned(frame)
            plan = {"authorization": f"Bearer {kind.environment['API_KEY']}", **usual, **plan}
            return kind(tmp_path, paid_server.anew(tmp_path_factory.mktemp("api"), **plan), frame)

        return begin

    return bench
