"""A discovery that was killed, resumed, repeated, or whose files were exchanged."""

import signal

import numpy as np
import pytest

from slicebeam.metrics.errors import InputError
from slicebeam.pipelines.discovery import fitting
from slicebeam.pipelines.discovery.model import DiscoveryModel
from tests.conftest import slow
from tests.discover_runs import discover, examples, read_discovery, written
from tests.faults.faults import half_published, published, whole
from tests.running import names_of, own_file

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
    """Check that a run published the same as another, and left nothing else."""
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


class Interruption(BaseException):
    """Nothing that the product knows of."""


@pytest.mark.parametrize(
    "saves", [pytest.param(True, id="saved each time"), slow(False, id="not saved")]
)
def test_iterations_go_on_where_they_were_saved(data, undisturbed, tmp_path, monkeypatch, *, saves):
    updated, left = fitting.updated, [5]
    total = sum(one["iterations"] for one in undisturbed.resolutions.values())

    def interrupted(sums):
        if not left[0]:
            raise Interruption
        left[0] -= 1
        return updated(sums)

    monkeypatch.setattr(fitting, "_SAVED_EVERY", -1.0 if saves else 1e9)
    monkeypatch.setattr(fitting, "updated", interrupted)
    output = tmp_path / "out"
    with pytest.raises(Interruption):
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
    assert not np.array_equal(
        seeded.mixture["cluster@4/means"], undisturbed.mixture["cluster@4/means"]
    )
    assert seeded.document["provenance"]["seed"] == 1
    own = published(undisturbed.folder)["membership.parquet"]
    assert published(seeded.folder)["membership.parquet"] != own


@pytest.mark.slow
def test_any_harm_to_a_mixture_is_found_or_harmless(undisturbed, tmp_path):
    fingerprint = undisturbed.document["discovery"]["mixture_fingerprint"]
    content = (undisturbed.folder / "mixture.npz").read_bytes()
    path, told = tmp_path / "mixture.npz", 0
    whole = range(0, len(content), 37)
    for at in whole:
        for harmed in (
            content[:at],
            content[:at] + bytes([content[at] ^ 0xFF]) + content[at + 1 :],
        ):
            path.write_bytes(harmed)
            try:
                own = DiscoveryModel.read(path, fingerprint).fingerprint
            except InputError:
                own, told = fingerprint, told + 1
            assert own == fingerprint
    assert told > 1.5 * len(whole)
