"""--save-slices decides which rows the table has, and nothing else."""

from itertools import product

import numpy as np
import pandas as pd
import pytest

from slicebeam.metrics.kinds import CORRECTIONS
from slicebeam.pipelines.config.search import STRATEGIES
from tests.conftest import slow
from tests.running import search

ROWS = 4000
OPTIONS = {"label": "label", "prediction": "pred", "positive_class": "1", "alternative": "both"}
OPTIONS |= {"metric": ("accuracy", "recall"), "max_cross_size": 2, "min_slice_size": 2}


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    rng = np.random.default_rng(11)
    frame = pd.DataFrame({name: rng.choice([*"stuvwxyz"], ROWS) for name in "abcd"})
    # Slices so small that nothing could make them significant.
    frame["e"] = rng.integers(0, 60, ROWS).astype(str)
    label = rng.integers(0, 2, ROWS)
    rate = (
        0.15
        + 0.2 * (frame["a"] == "u")
        + 0.05 * (frame["b"] == "v")
        + 0.3 * ((frame["c"] == "x") & (frame["d"] == "y"))
    )
    frame["label"] = label
    frame["pred"] = np.where(rng.random(ROWS) < rate, 1 - label, label)
    path = tmp_path_factory.mktemp("data") / "data.parquet"
    frame.to_parquet(path)
    return path


def said(found):
    """The document without what must differ: which rows the table has."""
    document = found.timeless()
    del document["files"], document["changelist_id"]
    del document["provenance"]["config"]["save_slices"]
    del document["search"]["saved_slices"], document["search"]["slices_fingerprint"]
    return document


@pytest.mark.parametrize(("correction", "strategy"), [
    one if "fdr-level" in one or one == ("none", "batch") else slow(*one)
    for one in product(CORRECTIONS, STRATEGIES)
])  # fmt: skip
def test_the_document_is_the_same(data, tmp_path, correction, strategy):
    options = OPTIONS | {"correction": correction, "strategy": strategy, "data": (str(data),)}
    if strategy == "priority":
        options |= {"iterations": 3, "max_candidates": 150}
    whole, part = (
        search(tmp_path / name, save_slices=name, **options) for name in ("tested", "significant")
    )
    assert said(part) == said(whole)
    assert 1 < len(whole.document["slices"]) < len(whole.table)
    rows = whole.table
    called = rows.groupby("slice_id")["significant"].transform("any")
    kept = rows[called | (rows["cross_size"] == 1)]
    assert part.table.equals(kept.reset_index(drop=True))
    assert len(kept) < len(rows)
