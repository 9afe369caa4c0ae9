"""Passes over all shards by workers: what they find is what one process finds."""

import pytest

from slicebeam.pipelines.prepare import shard_passes
from tests.conftest import slow
from tests.running import search

OPTIONS = {"label": "income", "prediction": "prediction", "score": "score"}
OPTIONS |= {"features": ("age", "sex", "workclass"), "max_cross_size": 2, "chunk_rows": 1000}


@pytest.mark.parametrize("options", [
    {"metric": ("auc",)},
    slow({"metric": ("log_loss", "accuracy"), "weight": "fnlwgt"}),
], ids=["auc", "weighted loss"])  # fmt: skip
@pytest.mark.slow
def test_workers_find_what_one_process_finds(tmp_path, adult_path, monkeypatch, options):
    given = {"data": (str(adult_path),), **OPTIONS, **options}
    alone = search(tmp_path / "alone", **given)
    passes = []
    monkeypatch.setattr(shard_passes, "LEAST_PASS_SECONDS", 0.0)
    inner = shard_passes.WriteParts

    def noted(*arguments):
        passes.append(arguments)
        return inner(*arguments)

    monkeypatch.setattr(shard_passes, "WriteParts", noted)
    together = search(tmp_path / "together", runner_config="direct_multi", **given)
    assert len(passes) >= 2
    assert together.slices_bytes == alone.slices_bytes
    assert together.timeless() == alone.timeless()
