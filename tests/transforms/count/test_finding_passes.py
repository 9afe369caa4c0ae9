"""Passes over the examples for findings: the same however they are held and counted."""

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from slicebeam.metrics.findings import inside
from slicebeam.pipelines.prepare import encoded_dataset
from slicebeam.pipelines.search import findings
from tests.running import search

FEATURES = ("age", "education", "marital-status", "occupation", "relationship", "capital-gain")
ADULT = {"label": "income", "prediction": "prediction", "features": FEATURES}
BOTH_MODELS = {"baseline_prediction": "prediction_old"}
BOTH_MODELS |= {"score": "score", "baseline_score": "score_old"}
KINDS = {
    "accuracy": ADULT | {"metric": ("accuracy", "recall")},
    "weighted loss of two models": ADULT
    | BOTH_MODELS
    | {"metric": ("log_loss", "accuracy"), "weight": "fnlwgt", "alternative": "both"},
    "groups": ADULT | {"group": "fnlwgt", "replicates": 50},
}


def of(found):
    document = found.document
    return {name: document[name] for name in ("findings", "finding_models")}


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_the_same_held_with_codes_in_tables_row_by_row_and_by_workers(
    kind, adult_path, tmp_path, monkeypatch
):
    options = KINDS[kind] | {"data": (str(adult_path),), "max_cross_size": 2}
    expected = search(tmp_path / "held", **options)
    assert len(expected.document["findings"]) >= 5
    with monkeypatch.context() as patched:
        patched.setattr(findings, "PAIR_BYTES", 1 << 40)
        patched.setattr(inside, "_LEAST_IN_PLANE", 50)
        found = search(tmp_path / "codes", **options)
        assert of(found) == of(expected)
        assert found.slices_bytes == expected.slices_bytes
    monkeypatch.setattr(findings, "MOST_HELD", 0)
    for name, least, held, more in (
        ("tables", 1, 1 << 18, {}),
        ("few planes and small batches", 500, 1000, {"chunk_rows": 3000}),
        ("row by row", 1 << 40, 1 << 18, {}),
        ("workers", 4000, 1 << 18, {"runner_config": "direct_multi"}),
    ):
        monkeypatch.setattr(inside, "_LEAST_IN_PLANE", least)
        monkeypatch.setattr(inside, "_MOST_HELD", held)
        if name == "workers":
            monkeypatch.setattr(encoded_dataset, "LEAST_PASS_SECONDS", 0.0)
        found = search(tmp_path / name.replace(" ", "-"), **options, **more)
        assert of(found) == of(expected), name
        assert found.slices_bytes == expected.slices_bytes, name


def test_a_stopped_choice_goes_on(adult_path, tmp_path, monkeypatch):
    """What was counted for the first findings is read back, not counted again."""
    options = KINDS["accuracy"] | {"data": (str(adult_path),), "max_cross_size": 2}
    monkeypatch.setattr(findings, "MOST_HELD", 0)
    expected = search(tmp_path / "undisturbed", **options)
    counted, count = [], inside.InsideCounter.count

    class Killed(BaseException):
        """The process is gone."""

    def noting(counter, blocks, finding, earlier):
        if len(counted) == 4:
            raise Killed
        counted.append(finding)
        return count(counter, blocks, finding, earlier)

    with monkeypatch.context() as patched:
        patched.setattr(inside.InsideCounter, "count", noting)
        with pytest.raises(Killed):
            search(tmp_path / "out", **options)
    again = []

    def noting_again(counter, blocks, finding, earlier):
        again.append(finding)
        return count(counter, blocks, finding, earlier)

    monkeypatch.setattr(inside.InsideCounter, "count", noting_again)
    found = search(tmp_path / "out", resume=True, **options)
    assert of(found) == of(expected)
    assert (found.slices_bytes, len(counted)) == (expected.slices_bytes, 4)
    assert len(counted) + len(again) == len(expected.document["findings"])


def test_lists_of_values(tmp_path):
    """An example may be in several slices of one column."""
    rng, rows = np.random.default_rng(1), 3000
    tags = [sorted(set(rng.choice(["red", "green", "blue", "gray"], 2))) for _ in range(rows)]
    red, blue = (np.array([name in one for one in tags]) for name in ("red", "blue"))
    size = rng.integers(0, 3, rows)
    wrong = rng.random(rows) < 0.05 + 0.3 * red + 0.4 * (blue & (size == 2))
    columns = {"tags": pa.array(tags, pa.list_(pa.string()))}
    columns |= {"size": pa.array(size).cast(pa.string()), "label": np.zeros(rows, int)}
    table = pa.table({**columns, "prediction": wrong.astype(int)})
    pq.write_table(table, tmp_path / "data.parquet")
    roles = {"label": "label", "prediction": "prediction"}
    found = search(tmp_path / "out", data=tmp_path / "data.parquet", **roles)
    names = {one["slice_id"]: one["name"] for one in found.document["slices"]}
    first, second = found.document["findings"][:2]
    assert set(names[first["slice_id"]].split(" & ")) == {"tags contains blue", "size = 2"}
    assert names[second["slice_id"]] == "tags contains red"
    held = blue & (size == 2)
    rates = wrong[held].mean(), wrong[~held].mean()
    assert first["n"] == held.sum()
    assert second["n"] == red.sum()
    assert second["expected"] == pytest.approx(1 - np.where(held, *rates)[red].mean(), rel=1e-9)
