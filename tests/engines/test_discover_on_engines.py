"""A discovery whose every pass is a job of an engine finds what one process finds, to the byte."""

import pytest

from slicebeam.pipelines.discovery import fitting
from slicebeam.pipelines.prepare import shard_passes
from tests.discovered import COLUMNS, discovery, planted_file

pytestmark = pytest.mark.engine


def test_same_result(tmp_path, engines, monkeypatch):
    monkeypatch.setattr(shard_passes, "LEAST_PASS_SECONDS", 0.0)
    monkeypatch.setattr(fitting, "_GROUP_ROWS", 400)
    # Each is a job, which takes seconds to begin.
    monkeypatch.setattr(fitting, "MOST_ITERATIONS", 2)
    data = planted_file(tmp_path / "data.parquet", rows=1200, row_groups=3)
    options = {**COLUMNS, "components": (6,), "dimensions": 6, "chunk_rows": 300, "data": (data,)}
    alone = discovery(tmp_path / "alone", **options)
    found = discovery(tmp_path / "found", **options, **engines.options("prism"))
    assert found.slices_bytes == alone.slices_bytes
    for name in ("discovery", "slices", "testing", "global"):
        assert found.document[name] == alone.document[name]
    assert found.document["testing"]["significant"] >= 2
    assert found.document["discovery"]["resolutions"][0]["iterations"] == 2
