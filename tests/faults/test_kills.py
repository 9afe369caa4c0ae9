"""Killed at any moment, a run that is started again with --resume ends as if nothing had happened."""

import json
import signal
import time

import numpy as np
import pandas as pd
import pytest

from tests.discover_runs import examples, written
from tests.shift_runs import REPLAYED, made

COMMANDS = ("search", "check", "discover", "shift")
ENGINES = ("direct", "direct_multi")
KILLS = 24
# The first are in process, and the very first, a search and a check, in the default run.
IN_PROCESS, QUICK = 8, 2
# At which share of an undisturbed run's time each is killed; a little beyond it too.
_SHARES = np.random.default_rng(20).uniform(0.0, 1.1, KILLS).tolist()


def command_of(kill):
    return COMMANDS[kill % len(COMMANDS)]


def engine_of(kill):
    return ENGINES[0 if kill < IN_PROCESS else kill // len(COMMANDS) % 2]


class Place:
    def __init__(self, commands, folder):
        self.commands, self.folder = commands, folder
        self._undisturbed = {}
        random = np.random.default_rng(5)
        label, of = random.integers(0, 2, 1500), random.integers(0, 6, 1500)
        wrong = random.random(1500) < np.where(of == 2, 0.5, 0.1)
        frame = pd.DataFrame({name: np.isin(of, (2, at)) for at, name in enumerate("abc")})
        frame["of"], frame["label"] = of.astype(str), label
        frame["new"] = np.where(wrong, 1 - label, label)
        frame.to_csv(folder / "eval.csv", index=False)
        (folder / "slices.yaml").write_text("- of = 2\n- a = true & b = true\n- c = true\n")
        written(folder / "vectors.parquet", examples(3, n=300, apart=1.2))
        made(400).to_csv(folder / "pool.csv", index=False)

    def arguments(self, command, engine):
        data = {"discover": "vectors.parquet", "shift": "pool.csv"}.get(command, "eval.csv")
        outcome = ["--label=label", "--prediction=new"]
        of_vectors = ["--baseline-prediction=old", "--embedding=z", "--components=4"]
        more = {
            "search": [*outcome, "--chunk-rows=700", "--memory-budget=16MB", "--max-cross-size=2"],
            "check": [*outcome, f"--slices={self.folder / 'slices.yaml'}"],
            "discover": [*outcome, *of_vectors, "--dimensions=4", "--chunk-rows=100"],
            "shift": [*REPLAYED, "--budget=150", "--chunk-rows=100"],
        }
        given = [command, f"--data={self.folder / data}", "--output=out", *more[command]]
        return [*given, "--fail-on=worse", f"--runner-config={engine}", "--quiet"]

    def undisturbed(self, command, engine):
        key = (command, engine)
        if key not in self._undisturbed:
            self.commands.await_ready()
            begun = time.monotonic()
            folder, ended = self.run("undisturbed", command, engine)
            assert ended.code in (0, 1), ended
            found = published(folder / "out")
            self._undisturbed[key] = ended.code, found, time.monotonic() - begun
        return self._undisturbed[key]

    def run(self, name, command, engine, *more):
        folder = self.folder / f"{name} {command} {engine}"
        folder.mkdir(exist_ok=True)
        given = [*self.arguments(command, engine), *more]
        return folder, self.commands.run(given, folder=folder)


def published(output):
    """All that is in an output, of which the document is without its times."""
    found = {path.name: None for path in output.iterdir()}
    found |= {path.name: path.read_bytes() for path in output.iterdir() if path.is_file()}
    document = json.loads(found["changelist.json"])
    # A hash of the document covers its times.
    del document["created_at"], document["provenance"]["run"]["content"]
    for record in document.get("search", {}).get("iterations", ()):
        for name in ("cpu_seconds", "wall_seconds", "shuffled_bytes"):
            del record[name]
    return {**found, "changelist.json": document}


@pytest.fixture(scope="module")
def place(commands, tmp_path_factory):
    return Place(commands, tmp_path_factory.mktemp("kills"))


@pytest.mark.parametrize("kill", [
    pytest.param(
        kill,
        marks=[] if kill < QUICK else pytest.mark.slow,
        id=f"{kill} {command_of(kill)} {engine_of(kill)} at {_SHARES[kill]:.2f}",
    )
    for kill in range(KILLS)
])  # fmt: skip
def test_killed_and_resumed(place, kill):
    command, engine = command_of(kill), engine_of(kill)
    code, wanted, seconds = place.undisturbed(command, engine)
    folder = place.folder / f"{kill} {command} {engine}"
    folder.mkdir()
    running = place.commands.start(place.arguments(command, engine), folder=folder)
    time.sleep(_SHARES[kill] * seconds)
    if running.runs():
        running.send(signal.SIGKILL)
    assert running.ended().code in (code, -signal.SIGKILL)
    _, ended = place.run(str(kill), command, engine, "--resume")
    assert ended.code == code, ended
    assert published(folder / "out") == wanted
