"""A part of what a stage wrote that vanishes is missed, and named."""

import pytest

from slicebeam.metrics.errors import EngineError
from slicebeam.pipelines.search import duplicates, second_tests
from tests.conftest import slow
from tests.running import search


@pytest.mark.parametrize(("module", "stage", "options"), [
    (duplicates, "hashes", {}),
    slow(second_tests, "iteration-1-resampled-groups", {"group": "fnlwgt"}),
], ids=["hashes", "groups"])  # fmt: skip
def test_a_part_that_vanishes_is_named(tmp_path, adult_path, monkeypatch, module, stage, options):
    inner, removed = module.run_stage, []

    def run_stage(work, engine, name, *arguments, **keywords):
        noted = inner(work, engine, name, *arguments, **keywords)
        if name == stage:
            # The last of all, which no count of the others tells to be missing.
            removed.append(max(work.path_of(stage).glob("*.arrow")))
            removed[0].unlink()
        return noted

    monkeypatch.setattr(module, "run_stage", run_stage)
    roles = {"label": "income", "prediction": "prediction", "max_cross_size": 2}
    with pytest.raises(EngineError, match=r"\d{6}\.arrow"):
        search(tmp_path / "out", data=adult_path, **roles, **options)
    assert len(removed) == 1
