"""Findings confirmed on reserved examples, against models of the reserved rows, and without bias."""

import json

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from scipy import stats

from slicebeam.metrics.randomness import hash64, uniform
from slicebeam.pipelines.changelist.document import SearchChangeList
from slicebeam.pipelines.commands.cli import run
from slicebeam.pipelines.show.finding_tables import finding_tables
from slicebeam.transforms.encode.column import id_hashes
from tests.conftest import slow
from tests.end_to_end.test_findings import CASES, FEATURES, OPTIONS, Rows, _members, table  # noqa: F401
from tests.running import refused, search

SHARE = 0.4


def reserved_rows(frame, column=None):
    ids = np.arange(len(frame), dtype=np.uint64)
    if column is not None:
        ids = id_hashes(pa.array(frame[column]), None)
    return uniform(hash64(0, -5, ids)) < SHARE


@pytest.mark.parametrize("case", [
    "accuracy", slow("recall"), slow("weighted accuracy"), slow("log loss"),
    slow("log loss of two models"), "accuracy by groups",
])  # fmt: skip
def test_confirmed_findings_equal_a_model_of_the_reserved_rows(case, table, tmp_path):  # noqa: F811
    metric, options = CASES[case]
    paired, group = "baseline_prediction" in options, options.get("group")
    options = {"metric": (metric,), "features": FEATURES, "alternative": "both", **options}
    frame = pd.read_parquet(table)
    found = search(tmp_path / "out", data=table, confirm=SHARE, **OPTIONS, **options)
    reserved = reserved_rows(frame, group)
    confirmation = found.document["confirmation"]
    assert confirmation["n"] == reserved.sum()
    assert confirmation.get("column") == group
    assert found.document["dataset"]["n"] == (~reserved).sum()
    parts = [
        Rows(frame[rows], metric, paired=paired, weight=options.get("weight"))
        for rows in (~reserved, reserved)
    ]
    (overall,) = confirmation["overall"]
    shown = overall["delta"] if paired else overall["after"]
    assert shown["value"] == pytest.approx(parts[1].value(parts[1].mean(True)), rel=1e-9)
    for side in found.document["finding_models"]:
        members = []
        for one in found.document["findings"]:
            if one["direction"] != side["direction"]:
                continue
            inside = _members(found, frame, one)
            searched, own = inside[~reserved], inside[reserved]
            assert one["n"] == (searched & parts[0].kept).sum()
            assert one["value"] == pytest.approx(parts[0].value(parts[0].mean(searched)), rel=1e-9)
            _check_confirmed(parts[1], one, members, own)
            if not members and case == "accuracy":
                _check_p_value(parts[1], one, own)
            members.append(own)


def _check_confirmed(rows, one, members, inside):
    again = one["confirmed"]
    assert again["examples"] == (inside & rows.kept).sum()
    if again["examples"] < 10:
        assert set(again) == {"examples"}
        return
    value = rows.value(rows.mean(inside))
    fitted, own = rows.fitted(members), inside[rows.kept]
    expected = rows.value(np.average(fitted[own], weights=rows.weight[rows.kept][own]))
    assert again["value"] == pytest.approx(value, rel=1e-9, abs=1e-10)
    assert again["difference"] == pytest.approx(value - expected, rel=1e-6, abs=1e-8)
    assert again["low"] < again["difference"] < again["high"]
    assert 0 < again["p_value"] <= 1


def _check_p_value(rows, one, inside):
    """The first finding of counts: the mid-p of the hypergeometric law."""
    errors = int(rows.target[inside].sum())
    law = stats.hypergeom(inside.size, int(rows.target.sum()), int(inside.sum()))
    beyond = law.sf(errors) if one["direction"] == "worse" else law.cdf(errors - 1)
    assert one["confirmed"]["p_value"] == pytest.approx(beyond + law.pmf(errors) / 2, rel=0.02)


def test_the_rows_decide_and_not_how_they_are_read(table, tmp_path):  # noqa: F811
    frame = pd.read_parquet(table)
    for at, rows in enumerate((slice(0, 3001), slice(3001, 3002), slice(3002, None))):
        frame[rows].to_parquet(tmp_path / f"part{at}.parquet")
    paths = tuple(str(tmp_path / f"part{at}.parquet") for at in range(3))
    options = {**OPTIONS, "features": FEATURES, "confirm": SHARE}
    whole = search(tmp_path / "whole", data=table, **options)
    parts = search(tmp_path / "parts", data=paths, **options, chunk_rows=700)
    assert parts.document["findings"] == whole.document["findings"]
    assert parts.document["confirmation"] == whole.document["confirmation"]
    assert parts.slices_bytes == whole.slices_bytes


def test_later_commands_are_about_the_searched_examples(table, tmp_path):  # noqa: F811
    options = {**OPTIONS, "features": FEATURES, "confirm": SHARE, "max_cross_size": 1}
    first = search(tmp_path / "first", data=table, **options)
    since = first.folder / "changelist.json"
    second = search(tmp_path / "second", data=table, **options, since=since)
    assert second.document["since"]["changelist_id"] == first.document["changelist_id"]
    assert second.document["findings"] == first.document["findings"]
    document = SearchChangeList.model_validate(first.document)
    cells = finding_tables(document)[0].columns["confirmed [95%]"]
    for text, one in zip(cells, first.document["findings"], strict=True):
        again = one["confirmed"]
        numbers = [f"{again[end]:+.3f}".replace("0.", ".") for end in ("difference", "low", "high")]
        assert text == "{} [{}, {}]".format(*numbers)
    places = ["--changelist", str(first.folder), "--name", "young", "--where", "age < 30"]
    assert run(["define", *places]) == 0
    defined = json.loads((first.folder / "changelist.r1.json").read_text())
    (size,) = [one["size"]["n"] for one in defined["slices"] if one["name"] == "young"]
    frame = pd.read_parquet(table)
    assert size == ((frame["age"] < 30) & ~reserved_rows(frame)).sum()


@pytest.mark.parametrize(("share", "rows", "why"), [
    ("0", 1, "0.0: it must be greater than 0"),
    ("0.51", 1, "0.51: it must be less than or equal to 0.5"),
    ("0.01", 3, "0.01 reserves 0 of 3 examples, and one at least is needed to search and to measure; give more data"),
])  # fmt: skip
def test_shares_that_leave_nothing(share, rows, why, tmp_path, capsys):
    pd.DataFrame({"x": range(rows), "y": [1] * rows}).to_parquet(tmp_path / "few.parquet")
    places = ["--data", str(tmp_path / "few.parquet"), "--output", str(tmp_path / "out")]
    flags = ["--label", "y", "--prediction", "x", "--confirm", share]
    assert refused(["search", *places, *flags], capsys, folder=tmp_path) == f"--confirm {why}"
