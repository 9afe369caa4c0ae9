"""A discovery that was killed, resumed, repeated, or whose files were exchanged."""

import signal
import time

import numpy as np
import pandas as pd
import pytest

from slicebeam.pipelines.discovery import fitting
from tests.conftest import slow
from tests.discover_runs import discover, examples, read_discovery, written
from tests.faults.faults import half_published, published, whole
from tests.running import Killed, all_published, names_of, own_file
from tests.shift_runs import REPLAYED, made

NAMES = {"changelist.json", "slices.parquet", "membership.parquet", "mixture.npz"}
FLAGS = (
    *("--embedding=z", "--example-id=id", "--loss=loss_new", "--baseline-loss=loss_old"),
    *("--components=4,7", "--dimensions=4", "--loss-weight=1", "--features=source"),
    *("--chunk-rows=60", "--quiet"),
)
OPTIONS = (
    {"embedding": "z", "example_id": "id", "loss": "loss_new", "baseline_loss": "loss_old"}
    | {"components": (4, 7), "dimensions": 4, "loss_weight": 1.0, "features": ("source",)}
    | {"chunk_rows": 60}
)


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    table = examples(3, n=600, apart=1.2)
    return written(tmp_path_factory.mktemp("data") / "data.parquet", table)


@pytest.fixture(scope="module")
def undisturbed(data, tmp_path_factory):
    return discover(tmp_path_factory.mktemp("undisturbed") / "out", data=(data,), **OPTIONS)


def arguments(data, output, *more):
    return ["discover", f"--data={data}", f"--output={output}", *FLAGS, *more]


def assert_same(output, wanted):
    found = read_discovery(output)
    assert found.timeless() == wanted.timeless()
    own, other = published(output), published(wanted.folder)
    assert sorted(own) == sorted(path.name for path in output.iterdir()) == names_of(found.document)
    for name in NAMES - {"changelist.json"}:
        assert own[name] == other[name], name


def assert_nothing_counts(output, wanted):
    if (output / "changelist.json").exists():
        assert whole(output, wanted) == "equal result"
        for name in ("membership.parquet", "mixture.npz"):
            assert own_file(output, name).read_bytes() == published(wanted.folder)[name], name
        return
    assert half_published(output) == "equal result"


def killed_and_resumed(commands, data, output, wanted, strike):
    running = commands.start(arguments(data, output))
    strike(running)
    if running.runs():
        running.send(signal.SIGKILL)
    ended = running.ended()
    assert ended.code in (0, -signal.SIGKILL), ended
    if ended.code != 0:
        assert_nothing_counts(output, wanted)
        ended = commands.run(arguments(data, output, "--resume"))
        assert ended.code == 0, ended
    assert_same(output, wanted)


MARKS = """
    run.json stages/embeddings/000000-000004.arrow stages/embeddings.json
    stages/projected/000000-000004.arrow stages/mixtures/state.arrow stages/derived.json
    stages/shards.json
"""


@pytest.mark.parametrize("mark", [*(f"_work/{one}" for one in MARKS.split()), ".mixture.npz.*"])
@pytest.mark.slow
def test_killed_at_a_mark_it_is_resumed(commands, data, undisturbed, tmp_path, mark):
    output = tmp_path / "out"

    def strike(running):
        assert running.stopped_when(lambda: any(output.glob(mark))), mark

    killed_and_resumed(commands, data, output, undisturbed, strike)


@pytest.mark.parametrize(
    "saves", [pytest.param(True, id="saved each time"), slow(False, id="not saved")]
)
def test_iterations_go_on_where_they_were_saved(data, undisturbed, tmp_path, monkeypatch, *, saves):
    updated, left = fitting.updated, [5]
    total = sum(one["iterations"] for one in undisturbed.resolutions.values())

    def interrupted(sums):
        if not left[0]:
            raise Killed
        left[0] -= 1
        return updated(sums)

    monkeypatch.setattr(fitting, "_SAVED_EVERY", -1.0 if saves else 1e9)
    monkeypatch.setattr(fitting, "updated", interrupted)
    output = tmp_path / "out"
    with pytest.raises(Killed):
        discover(output, data=(data,), **OPTIONS)
    assert not (output / "changelist.json").exists()
    left[0] = 1000
    discover(output, resume=True, data=(data,), **OPTIONS)
    # Two mixtures a pass: four updates were saved, and the fifth was not.
    assert 1000 - left[0] == total - (4 if saves else 0)
    assert_same(output, undisturbed)


@pytest.mark.slow
def test_the_seed_decides_and_nothing_else(data, undisturbed, tmp_path):
    seeded = discover(tmp_path / "seeded", data=(data,), **OPTIONS, seed=1)
    means = [found.mixture["cluster@4/means"] for found in (seeded, undisturbed)]
    assert not np.array_equal(*means)
    assert seeded.document["provenance"]["seed"] == 1
    own = published(undisturbed.folder)["membership.parquet"]
    assert published(seeded.folder)["membership.parquet"] != own


COMMANDS = ("search", "check", "discover", "shift")
ENGINES = ("direct", "direct_multi")
KILLS = 24
# The first are in process, and the very first, a search and a check, in the default run.
IN_PROCESS, QUICK = 8, 1
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
            found = all_published(folder / "out")
            self._undisturbed[key] = ended.code, found, time.monotonic() - begun
        return self._undisturbed[key]

    def run(self, name, command, engine, *more):
        folder = self.folder / f"{name} {command} {engine}"
        folder.mkdir(exist_ok=True)
        return folder, self.commands.run([*self.arguments(command, engine), *more], folder=folder)


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
    if not (folder / "out" / "changelist.json").exists():
        assert half_published(folder / "out") == "equal result"
    _, ended = place.run(str(kill), command, engine, "--resume")
    assert ended.code == code, ended
    assert all_published(folder / "out") == wanted
