"""A part of what a stage wrote that vanishes is missed, and named."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from slicebeam.metrics.errors import EngineError
from slicebeam.pipelines.search import duplicates, second_tests
from tests.running import search


@pytest.mark.parametrize(
    ("module", "stage", "options"),
    [
        (duplicates, "hashes", {}),
        pytest.param(
            second_tests,
            "iteration-1-resampled-groups",
            {"group": "fnlwgt"},
            marks=pytest.mark.slow,
        ),
    ],
    ids=["hashes", "groups"],
)
def test_a_part_that_vanishes_is_named(
    tmp_path: Path,
    adult_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    module: Any,
    stage: str,
    options: dict[str, Any],
) -> None:
    inner, removed = module.run_stage, []

    def run_stage(work: Any, engine: Any, name: str, *arguments: Any, **keywords: Any) -> Any:
        noted = inner(work, engine, name, *arguments, **keywords)
        if name == stage:
            # The last of all, which no count of the others tells to be missing.
            removed.append(max(work.path_of(stage).glob("*.arrow")))
            removed[0].unlink()
        return noted

    monkeypatch.setattr(module, "run_stage", run_stage)
    with pytest.raises(EngineError, match=r"\d{6}\.arrow"):
        search(
            tmp_path / "out",
            data=(str(adult_path),),
            label="income",
            prediction="prediction",
            max_cross_size=2,
            **options,
        )
    assert len(removed) == 1
