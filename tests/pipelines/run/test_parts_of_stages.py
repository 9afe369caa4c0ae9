"""A part of what a stage wrote that vanishes is missed, and named."""

import pytest

from slicebeam.metrics.errors import EngineError
from slicebeam.pipelines.run import run_stage
from tests.conftest import slow
from tests.running import search


@pytest.mark.parametrize(("stage", "options"), [
    ("hashes", {}),
    slow("iteration-1-resampled-groups", {"group": "fnlwgt"}),
], ids=["hashes", "groups"])  # fmt: skip
def test_a_part_that_vanishes_is_named(tmp_path, adult_path, monkeypatch, stage, options):
    inner, removed = run_stage.run_stage, []

    def without_a_part(work, engine, name, *arguments, **keywords):
        noted = inner(work, engine, name, *arguments, **keywords)
        if name == stage:
            # The last of all, which no count of the others tells to be missing.
            removed.append(max(work.path_of(stage).glob("*.arrow")))
            removed[0].unlink()
        return noted

    monkeypatch.setattr(run_stage, "run_stage", without_a_part)
    roles = {"label": "income", "prediction": "prediction", "max_cross_size": 2}
    with pytest.raises(EngineError, match=r"\d{6}\.arrow"):
        search(tmp_path / "out", data=adult_path, **roles, **options)
    assert len(removed) == 1
