"""Slices that a person makes have an interval, and no test."""

import json

import numpy as np
import pandas as pd
import pytest

from slicebeam.pipelines.changelist.reading import read_search
from slicebeam.pipelines.changelist.revisions import latest
from slicebeam.pipelines.cli import run
from slicebeam.pipelines.page.overview import shown_slices
from tests.conftest import slow
from tests.running import refused


@pytest.mark.parametrize("edited", [slow("define"), slow("merge"), "split"])
def test_a_hand_made_slice_is_not_significant(edited, tmp_path, capsys):
    rng = np.random.default_rng(0)
    feature, label = rng.choice(list("abcdef"), 3000), rng.integers(0, 2, 3000)
    wrong = rng.random(3000) < np.where(np.isin(feature, ["a", "b"]), 0.4, 0.1)
    frame = pd.DataFrame({"f": feature, "y": label, "p": np.where(wrong, 1 - label, label)})
    frame["g"] = rng.choice(list("uv"), 3000)
    frame.to_parquet(tmp_path / "data.parquet")
    out = tmp_path / "out"
    data = f"--data={tmp_path}/data.parquet"
    search = ["search", data, "--label=y", "--prediction=p", "--features=f"]
    assert run([*search, f"--output={out}", "--quiet"]) == 0
    before = {one.slice_id for one in read_search(f"{out}/changelist.json", "--changelist").slices}
    command = {
        "define": ["define", "--where=f = a & g = u", "--name=hard"],
        "merge": ["edit", "merge", "--slice=f = a", "--slice=f = b", "--name=hard"],
        "split": ["edit", "split", "--slice=f = a", "--where=g = u"],
    }[edited]
    assert run([*command, f"--changelist={out}", "--json"]) == 0
    summary = json.loads(capsys.readouterr().out)
    assert all(one["lo"] < one["delta"] < one["hi"] for one in summary["slices"])
    document = read_search(str(latest(out)), "--changelist")
    new = [one for one in document.slices if one.slice_id not in before]
    assert len(new) == (2 if edited == "split" else 1)
    for one in new:
        (change,) = one.changes
        assert change.after.value is not None
        assert change.delta.lo is not None
        assert change.delta.lo < 0
        assert change.delta.hi is not None
        assert (change.p_value, change.p_adjusted, change.significant) == (None, None, False)
        assert (change.test, change.place, change.label) == (None, None, None)
        assert change.reason == "it was made by hand, so it is not tested"
        assert one.slice_id not in shown_slices(document)
    assert run(["report", str(out), "--quiet"]) == 0
    # A check tests them.
    checked = ["check", f"--changelist={latest(out)}", data]
    assert run([*checked, f"--output={tmp_path}/again", "--quiet"]) == 0
    again = read_search(f"{tmp_path}/again/changelist.json", "--changelist")
    tested = {one.slice_id: one.changes[0] for one in again.slices}
    assert tested[new[0].slice_id].significant


@pytest.mark.parametrize(
    ("value", "hint"), [("Zürich", ""), ("rome", "; did you mean 'city = Rome'?")]
)
def test_the_nearest_value_is_named(value, hint, tmp_path, capsys):
    cities = {"city": ["Rome", "Oslo"] * 50, "y": "a", "p": ["a", "b"] * 50}
    pd.DataFrame(cities).to_csv(tmp_path / "t.csv", index=False)
    search = ["search", f"--data={tmp_path}/t.csv", "--label=y", "--prediction=p"]
    assert run([*search, "--features=city", f"--output={tmp_path}/out", "--quiet"]) == 0
    define = ["define", f"--changelist={tmp_path}/out", "--name=x", f"--where=city = {value}"]
    message = refused([*define, "--quiet"], capsys, folder=tmp_path)
    assert message == f"slice 'x' would have no examples; change its definition{hint}"
