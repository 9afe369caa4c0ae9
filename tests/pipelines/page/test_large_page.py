"""The page of a large search, in chromium: it is small, and has its surest rows."""

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from slicebeam.pipelines.changelist.reading import read_search
from slicebeam.pipelines.cli import run
from tests.pipelines.page.in_browser import opened

pytestmark = pytest.mark.browser


def credit_table(path):
    """Write 30,000 customers with 24 features; a model is wrong where payments are late."""
    rng = np.random.default_rng(3)
    n = 30_000
    late, wealth = rng.normal(size=n), rng.normal(size=n)
    limit = np.round(np.exp(11.5 + 0.8 * wealth - 0.3 * late) / 1e4) * 1e4
    columns = {"limit": limit}
    for month in range(1, 7):
        paid = np.round(late + rng.normal(scale=0.6, size=n))
        used = np.clip(0.3 + 0.25 * late + rng.normal(scale=0.2, size=n), 0, 1)
        columns[f"pay_{month}"] = np.clip(paid, -2, 4).astype(int)
        columns[f"bill_{month}"] = np.round(limit * used)
        columns[f"paid_{month}"] = np.round(np.exp(7 + wealth - 0.8 * late + rng.normal(size=n)))
    columns["age"] = np.clip(np.round(35 + 9 * rng.normal(size=n)), 21, 75).astype(int)
    columns["sex"] = rng.choice(["female", "male"], n)
    columns["education"] = rng.choice(["school", "university", "graduate", "other"], n)
    columns["marriage"] = rng.choice(["single", "married", "other"], n)
    columns["region"] = rng.choice([f"region {one}" for one in range(8)], n)
    columns["default"] = (rng.random(n) < 1 / (1 + np.exp(1.6 - 1.2 * late))).astype(int)
    columns["prediction"] = (late + rng.normal(scale=0.4, size=n) > 1.1).astype(int)
    pq.write_table(pa.table(columns), path)


def test_a_credit_table_is_small(browser, tmp_path):
    credit_table(tmp_path / "credit.parquet")
    output = tmp_path / "out"
    command = ["search", "--data", str(tmp_path / "credit.parquet"), "--label", "default"]
    command += ["--prediction", "prediction", "--max-cross-size", "3", "--quiet"]
    assert run([*command, "--output", str(output)]) == 0
    assert run(["report", str(output), "--quiet"]) == 0
    assert read_search(str(output / "changelist.json"), "").testing.significant >= 64_000
    assert (output / "report.html").stat().st_size <= 5_000_000
    # Neither significant ones only, nor without the inherited ones.
    with opened(browser, output, view="#slices?significant=no&inherited=yes") as page:
        assert page.locator(".found [role=status]").inner_text().startswith("40,000 of 40,000")
