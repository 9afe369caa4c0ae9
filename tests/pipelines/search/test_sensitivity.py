"""What a run that finds nothing worse says: its nearest misses, and the falls that it would have noticed."""

import json

import numpy as np
import pandas as pd
import pytest

from slicebeam.metrics.measures.multiplicity import adjusted
from slicebeam.pipelines.commands.cli import run
from slicebeam.pipelines.search.testing_section import _strictness
from tests.running import search


class Corrected:
    used_correction, metric, comparison = "fdr-level", ("accuracy", "recall"), "overall"

    @staticmethod
    def families(levels):
        return levels


def table(path, seed, fall=0.0, rows=4000, size=100):
    """Write a table in which a tenth of the predictions is wrong, and on ``group = p`` so much more."""
    rng = np.random.default_rng(seed)
    group = np.where(np.arange(rows) < size, "p", rng.choice(list("abcdefgh"), rows))
    label, wrong = rng.integers(0, 2, rows), rng.random(rows) < 0.1 + fall * (group == "p")
    columns = {"group": group, "kind": rng.choice(list("xyz"), rows), "label": label}
    pd.DataFrame({**columns, "prediction": np.where(wrong, 1 - label, label)}).to_parquet(path)
    return {"data": path, "label": "label", "prediction": "prediction"}


def told(found):
    return found.document["testing"]["metrics"][0]


def test_the_nearest_misses_are_those_of_the_table(tmp_path):
    found = search(tmp_path / "out", **table(tmp_path / "d.parquet", 1))
    assert told(found)["degraded"] == 0
    worse = found.table[found.table.delta < 0].sort_values("p_value", kind="stable")
    nearest = told(found)["nearest"]
    assert nearest[0]["slice_id"] == worse.slice_id.iloc[0]
    rows = worse.set_index("slice_id")
    for miss in nearest:
        row, change = rows.loc[miss["slice_id"]], miss["change"]
        told_of = (miss["name"], change["n"], change["p_value"], change["p_adjusted"])
        assert told_of == (row["slice"], row.n, row.p_value, row.q_value)
        assert (change["delta"]["lo"], change["delta"]["hi"]) == (row.ci_low, row.ci_high)
    sets = [set(miss["name"].split(" & ")) for miss in nearest]
    assert len(sets) == 3
    assert not any(a <= b for a in sets for b in sets if a is not b)


def test_the_same_examples_are_told_once(tmp_path):
    options = table(tmp_path / "d.parquet", 1)
    frame = pd.read_parquet(options["data"])
    frame.assign(code=frame.group.map(lambda name: f"code {name}")).to_parquet(options["data"])
    found = search(tmp_path / "out", **options)
    rows = found.table.set_index("slice_id").loc[
        [one["slice_id"] for one in told(found)["nearest"]]
    ]
    assert len(rows) == 3
    assert not rows.duplicated(["n", "value", "reference"]).any()


def test_different_examples_are_told_though_their_sums_are_equal(tmp_path):
    """Fourteen of a hundred are wrong on ``p``, and of a hundred others on ``q``; a tenth elsewhere."""
    options = table(tmp_path / "d.parquet", 1)
    frame = pd.read_parquet(options["data"])
    at = np.arange(len(frame))
    frame["kind"] = np.where((at >= 100) & (at < 200), "q", "x")
    frame["group"] = np.where(at < 100, "p", "a")
    wrong = np.where(at < 200, at % 100 < 14, at % 10 == 0)
    frame["prediction"] = np.where(wrong, 1 - frame["label"], frame["label"])
    frame.to_parquet(options["data"])
    found = search(tmp_path / "out", **options)
    names = [one["name"] for one in told(found)["nearest"]]
    assert set(names[:2]) == {"group = p", "kind = q"}
    rows = found.table.set_index("slice").loc[names[:2]]
    assert rows.duplicated(["n", "value"]).sum() == 1


def test_nothing_is_told_where_a_slice_is_worse(tmp_path):
    found = search(tmp_path / "out", **table(tmp_path / "d.parquet", 1, fall=0.6))
    assert told(found)["degraded"]
    assert (told(found)["nearest"], told(found)["noticeable"]) == ([], [])


def test_the_threshold_is_that_of_a_slice_that_alone_is_significant():
    factor = _strictness(Corrected, (9, 0, 41))
    for p, significant in ((0.0499 / factor, True), (0.0501 / factor, False)):
        assert (adjusted([p], [3], (9, 0, 41), "fdr-level", 3, 2) <= 0.05).all() == significant


@pytest.mark.slow
def test_a_noticeable_fall_is_noticed_in_four_of_five_runs(tmp_path):
    fall = {
        one["n"]: one["fall"]
        for one in told(search(tmp_path / "out", **table(tmp_path / "d.parquet", 0)))["noticeable"]
    }[100]
    noticed = 0
    for seed in range(1, 151):
        # The reference is over all examples, the planted ones too.
        options = table(tmp_path / "d.parquet", seed, fall=fall * 4000 / 3900)
        found = search(tmp_path / f"out{seed}", **options)
        rows = found.table[found.table["slice"] == "group = p"]
        noticed += bool(rows.significant.iloc[0])
    assert noticed / 150 == pytest.approx(0.8, abs=0.09)


def test_terminal_and_json_say_it(tmp_path, capsys):
    options = table(tmp_path / "d.parquet", 1)
    words = ["search", str(options["data"]), "--label=label", "--prediction=prediction"]
    assert run([*words, "--output", str(tmp_path / "out")]) == 0
    printed = " ".join(capsys.readouterr().out.split())
    assert "Nearest to significantly worse in accuracy: n " in printed
    document = json.loads((tmp_path / "out" / "changelist.json").read_text())
    tested = document["testing"]["metrics"][0]
    falls = {one["n"]: one["fall"] for one in tested["noticeable"]}
    assert set(falls) == {100, 1000}
    small, large = (f"{falls[n]:.2g}".removeprefix("0") for n in (100, 1000))
    said = f"Noticed with a probability of 80%: accuracy lower by {small} on slices of 100 examples, by {large} of 1,000."
    assert said in printed
    assert run([*words, "--output", str(tmp_path / "again"), "--json", "--quiet"]) == 0
    [metric] = json.loads(capsys.readouterr().out)["testing"]["metrics"]
    assert metric == tested
