from itertools import pairwise

import numpy as np
import pytest

from slicebeam.metrics.discovery import pca
from slicebeam.metrics.discovery.mixture import CategoricalHead, initial
from slicebeam.pipelines.discovery import fitting
from slicebeam.pipelines.prepare import encoded_dataset
from slicebeam.transforms.discovery import mixture_passes
from tests.conftest import slow
from tests.discover_runs import discover, embeddings, examples, written
from tests.fitted_mixture import fit
from tests.running import names_of

SEED = 9
CLASSES = {"label": "label", "prediction": "new", "baseline_prediction": "old"}
LOSSES = {"loss": "loss_new", "baseline_loss": "loss_old"}
CLOSE = {"rtol": 1e-10, "atol": 1e-10}


@pytest.fixture
def small_groups(monkeypatch):
    """Let little data be in several groups of files, of which each is work for an engine."""
    monkeypatch.setattr(fitting, "_GROUP_ROWS", 150)
    monkeypatch.setattr(encoded_dataset, "LEAST_PASS_SECONDS", 0.0)


def counting(jobs):
    """Return what makes an engine of this process take passes for work, and notes its jobs."""

    def prepare(engine):
        run = engine.run

        def noted(build, stage, *rest, **more):
            jobs.append(stage)
            return run(build, stage, *rest, **more)

        engine._backend.workers = 2
        engine.run = noted

    return prepare


def ran(output, table, data, *, components=(5,), engine_seen=None, **options):
    """Return what a run published, and which examples shaped its mixtures."""
    options |= {"components": components, "embedding": "z", "example_id": "id", "seed": SEED}
    found = discover(output, engine_seen=engine_seen, data=data, **options)
    split = found.membership.drop_duplicates("id").set_index("id")["split"].astype(str)
    return found, (split[table.column("id").to_pylist()] != "evaluation").to_numpy()


def in_memory(table, shaping, options, K, *, dimensions=128):
    """Return the mixture that `fit` makes of the same examples, and its number of iterations."""
    z = embeddings(table).astype(np.float32)[shaping]
    if dimensions < z.shape[1]:
        z = pca.projected(z, pca.components(pca.sums(z), dimensions))
    frame, losses, is_zero_one = table.to_pandas()[shaping], [], "label" in options
    if options.get("loss_weight"):
        names = ["new", "old"] if is_zero_one else ["loss_new", "loss_old"]
        losses = [frame[name] for name in names]
        if is_zero_one:
            losses = [(answers != frame["label"]).to_numpy(float) for answers in losses]
    how = {"classes": [2 if is_zero_one else None] * len(losses), "components": K, "seed": SEED}
    found = fit(z, losses, initial(z, losses, loss_weight=options.get("loss_weight", 0.0), **how))
    assert found.converged
    return found.mixture, len(found.mean_log_likelihoods)


def assert_same(found, wanted, iterations, K):
    field, arrays = f"cluster@{K}", found.mixture
    for name in ("weights", "means", "variances"):
        np.testing.assert_allclose(arrays[f"{field}/{name}"], getattr(wanted, name), **CLOSE)
    for number, head in enumerate(wanted.heads):
        if isinstance(head, CategoricalHead):
            np.testing.assert_allclose(arrays[f"{field}/shares{number}"], head.shares, **CLOSE)
        else:
            for name in ("means", "variances"):
                own = arrays[f"{field}/loss_{name}{number}"]
                np.testing.assert_allclose(own, getattr(head, name), **CLOSE)
    assert found.resolutions[field]["iterations"] == iterations > 2
    of_heads = sum(1 if isinstance(head, CategoricalHead) else 3 for head in wanted.heads)
    assert sum(name.startswith(f"{field}/") for name in arrays) == 4 + of_heads


@pytest.mark.parametrize(("outcome", "loss_weight"), [
    slow(CLASSES, 10.0, id="classes, 10"),
    pytest.param(LOSSES, 1.0, id="losses, 1"),
    slow(CLASSES, 0.0, id="classes, 0"),
    slow(CLASSES, 1.0, id="classes, 1"),
    slow(LOSSES, 0.0, id="losses, 0"),
    slow(LOSSES, 10.0, id="losses, 10"),
])  # fmt: skip
def test_passes_of_an_engine_are_em(tmp_path, small_groups, outcome, loss_weight):
    table = examples(4, n=300, apart=1.5)
    told, jobs = {**outcome, "loss_weight": loss_weight}, []
    data = (written(tmp_path / "data.parquet", table),)
    how = {"chunk_rows": 75, "engine_seen": counting(jobs)}
    found, shaping = ran(tmp_path / "out", table, data, **how, **told)
    mixture, iterations = in_memory(table, shaping, told, 5)
    assert_same(found, mixture, iterations, 5)
    passes = [f"em-{number}" for number in range(iterations)]
    assert [job for job in jobs if job.startswith("em-")] == passes
    assert shaping.all() == (loss_weight == 0)


@pytest.mark.slow
def test_how_data_is_cut_changes_no_byte_of_what_is_published(tmp_path, monkeypatch):
    # Several groups of several blocks, whose ends are not those of files.
    monkeypatch.setattr(fitting, "_GROUP_ROWS", 512)
    monkeypatch.setattr(mixture_passes, "_BLOCK", 128)
    table = examples(6, n=1300, dimensions=9, apart=0.9)
    told = {**LOSSES, "loss_weight": 1.0, "discovery_share": 0.6, "dimensions": 7}
    wanted = {}
    for name, edges, chunk_rows in (("whole", [0, 1300], 2600), ("cut", [0, 3, 90, 91, 1300], 50)):
        (tmp_path / name).mkdir()
        files = tuple(
            written(tmp_path / name / f"{begin}.parquet", table.slice(begin, end - begin))
            for begin, end in pairwise(edges)
        )
        found, _ = ran(tmp_path / name / "out", table, files, chunk_rows=chunk_rows, **told)
        members = found.membership
        columns = {name: members[name].to_numpy() for name in ("responsibility", "log_odds")}
        stored = {name: one.tobytes() for name, one in {**found.mixture, **columns}.items()}
        wanted = wanted or stored
        assert stored == wanted
    assert members["log_odds"].nunique() > 1290


@pytest.mark.slow
def test_several_resolutions_and_principal_components_in_one_pass(tmp_path, small_groups):
    table = examples(5, n=300, dimensions=9, apart=0.8)
    told, jobs = {**CLASSES, "loss_weight": 1.0}, []
    data = (written(tmp_path / "data.parquet", table),)
    how = {"components": (3, 6), "chunk_rows": 60, "dimensions": 4}
    found, shaping = ran(tmp_path / "out", table, data, engine_seen=counting(jobs), **how, **told)
    both = {K: in_memory(table, shaping, told, K, dimensions=4) for K in (3, 6)}
    for K, (mixture, iterations) in both.items():
        assert_same(found, mixture, iterations, K)
    lengths = [iterations for _, iterations in both.values()]
    # One that is done waits for the other, and is not changed by it.
    assert lengths[0] != lengths[1]
    passes = ["pca", "projecting", *(f"em-{number}" for number in range(max(lengths)))]
    assert [job for job in jobs if job in passes or job.startswith("em-")] == passes


def published(found):
    files = [path for path in found.folder.iterdir() if path.is_file()]
    return {path.name: path.read_bytes() for path in files if path.name != "changelist.json"}


@pytest.mark.parametrize("told", [
    pytest.param({**LOSSES, "dimensions": 4, "group": "author"}, id="groups"),
    pytest.param({**CLASSES, "loss_weight": 10.0, "discovery_share": 0.4, "features": ("source",)}, id="features"),
])  # fmt: skip
@pytest.mark.slow
def test_worker_processes_publish_the_same_bytes(tmp_path, small_groups, told):
    table = examples(3, n=500, apart=2.0)
    data = (written(tmp_path / "data.parquet", table),)
    told = {**told, "chunk_rows": 125}
    one, _ = ran(tmp_path / "one", table, data, **told)
    several, _ = ran(tmp_path / "several", table, data, runner_config="direct_multi", **told)
    assert several.document["provenance"]["runner"] == "direct, 2 processes"
    assert (several.timeless(), published(several)) == (one.timeless(), published(one))
    assert sorted(published(one)) == sorted(set(names_of(one.document)) - {"changelist.json"})
    assert {"slices.parquet", "membership.parquet", "mixture.npz"} < set(published(one))
    assert one.document["slices"]
