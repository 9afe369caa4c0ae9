"""How much listed slices explain after edits, and hand-made ones, against a regression in numpy."""

import json

import numpy as np
import pandas as pd
import pytest

from slicebeam.pipelines.changelist.reading import read_search
from slicebeam.pipelines.changelist.revisions import latest
from slicebeam.pipelines.commands.cli import run
from slicebeam.pipelines.show.worst_slices import shown_slices
from tests.conftest import slow
from tests.running import refused

DEFINED = {
    "hard": lambda frame: (frame.f == "a") & (frame.g == "u"),
    "f = a & g = u": lambda frame: (frame.f == "a") & (frame.g == "u"),
    "f = a & not (g = u)": lambda frame: (frame.f == "a") & (frame.g != "u"),
    "either": lambda frame: frame.f.isin(["a", "b"]),
    **{f"f = {value}": lambda frame, value=value: frame.f == value for value in "abcdef"},
}


def examples(rows, seed):
    rng = np.random.default_rng(seed)
    frame = pd.DataFrame({"f": rng.choice(list("abcdef"), rows), "y": rng.integers(0, 2, rows)})
    frame["g"] = rng.choice(list("uv"), rows)
    for name, chance in (("p", 0.4), ("q", 0.25)):
        wrong = rng.random(rows) < np.where(np.isin(frame.f, ["a", "b"]), chance, 0.1)
        frame[name] = np.where(wrong, 1 - frame.y, frame.y)
    return frame


def is_explained(document, frame, *, paired):
    """Whether the document's r² is that of a regression on its slices, by their names."""
    (one,) = document.coverage
    assert one.slices == len(document.slices) > 1
    D = (frame.p == frame.y) * 1.0 - ((frame.q == frame.y) if paired else 0.0)
    members = np.stack([DEFINED[each.name](frame) * 1.0 for each in document.slices], axis=1)
    X = np.column_stack([np.ones(len(frame)), members])
    left = D - X @ np.linalg.lstsq(X, D, rcond=None)[0]
    assert one.r2 == pytest.approx(1 - left.var() / D.var(), rel=1e-9)
    rank = np.linalg.matrix_rank(X) - 1
    assert one.r2_expected == pytest.approx(rank / (len(frame) - 1), rel=1e-12)


@pytest.mark.parametrize("paired", [slow(False), True], ids=["one model", "two models"])
def test_coverage_follows_the_edits(paired, tmp_path, capsys):
    frame, others = examples(3000, 0), examples(1000, 1)
    frame.to_parquet(tmp_path / "data.parquet")
    others.to_parquet(tmp_path / "new.parquet")
    out = tmp_path / "out"

    def last():
        return read_search(str(latest(out)), "--changelist")

    def edit(*words):
        assert run([*words, f"--changelist={out}"]) == 0
        return capsys.readouterr()

    old = ["--baseline-prediction=q"] if paired else []
    search = ["search", f"--data={tmp_path}/data.parquet", "--label=y", "--prediction=p", *old]
    assert run([*search, "--features=f", "--alternative=both", f"--output={out}"]) == 0
    of = "the change of accuracy" if paired else "accuracy"
    sentence = f"of the variance of {of} between examples"
    said = capsys.readouterr().out
    assert f"listed slices explain {last().coverage[0].r2:.1%} {sentence}" in said
    is_explained(last(), frame, paired=paired)
    searched = last()
    # Not one of the listed slices is needed to define another.
    shown = edit("define", "--where=f = a & g = u", "--name=hard").out
    assert f"listed slices explain {last().coverage[0].r2:.1%} {sentence}" in shown
    is_explained(last(), frame, paired=paired)
    defined = last()
    edit("edit", "rename", "--slice=hard", "--name=f = a & g = u")
    assert last().coverage == defined.coverage
    edit("edit", "undo")
    shown = edit("edit", "remove", "--slice=hard")
    assert (last().coverage, "explain" in shown.out) == ((), False)
    assert "note: how much the slices explain together is not known" in shown.err
    edit("edit", "undo")
    assert last().coverage == defined.coverage
    edit("edit", "undo")
    assert (last().coverage, last().slices) == (searched.coverage, searched.slices)
    edit("edit", "split", "--slice=f = a", "--where=g = u")
    is_explained(last(), frame, paired=paired)
    edit("edit", "undo")
    edit("edit", "merge", "--slice=f = a", "--slice=f = b", "--name=either")
    is_explained(last(), frame, paired=paired)
    # On other data the same slices explain something else.
    checked = ["check", f"--changelist={latest(out)}", f"--data={tmp_path}/new.parquet", "--json"]
    assert run([*checked, f"--output={tmp_path}/again"]) == 0
    again = read_search(f"{tmp_path}/again/changelist.json", "--changelist")
    is_explained(again, others, paired=paired)
    assert json.loads(capsys.readouterr().out)["coverage"][0]["r2"] == again.coverage[0].r2


def test_an_edit_that_can_count_only_its_own_slice_says_so(tmp_path, capsys):
    frame = examples(3000, 0)
    frame.to_parquet(tmp_path / "data.parquet")
    frame.drop(columns="f").to_parquet(tmp_path / "without.parquet")
    search = ["search", f"--data={tmp_path}/data.parquet", "--label=y", "--prediction=p"]
    assert run([*search, f"--output={tmp_path}/out", "--max-cross-size=1", "--quiet"]) == 0
    define = ["define", f"--changelist={tmp_path}/out", "--where=g = u", "--name=u"]
    capsys.readouterr()
    other = [*define, f"--data={tmp_path}/without.parquet"]
    assert run(other) == 2
    assert "without.parquet is not the data that" in capsys.readouterr().err
    assert run([*other, "--other-data"]) == 0
    said = capsys.readouterr().err
    assert "is not known: " in said
    assert "'f'" in said
    assert read_search(str(latest(tmp_path / "out")), "--changelist").coverage == ()


@pytest.mark.parametrize("edited", [slow("define"), slow("merge"), "split"])
def test_a_hand_made_slice_is_not_significant(edited, tmp_path, capsys):
    rng = np.random.default_rng(0)
    feature, label = rng.choice(list("abcdef"), 3000), rng.integers(0, 2, 3000)
    wrong = rng.random(3000) < np.where(np.isin(feature, ["a", "b"]), 0.4, 0.1)
    frame = pd.DataFrame({"f": feature, "y": label, "p": np.where(wrong, 1 - label, label)})
    frame["g"] = rng.choice(list("uv"), 3000)
    frame.to_parquet(tmp_path / "data.parquet")
    out, data = tmp_path / "out", f"--data={tmp_path}/data.parquet"
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
        assert None not in (change.after.value, change.delta.lo, change.delta.hi)
        assert change.delta.lo < 0
        assert (change.p_value, change.p_adjusted, change.significant) == (None, None, False)
        assert (change.test, change.place, change.label) == (None, None, None)
        assert change.reason == "it was made by hand, so it is not tested"
        assert one.slice_id not in shown_slices(document)
    assert run(["report", str(out), "--quiet"]) == 0
    checked = ["check", f"--changelist={latest(out)}", data]
    assert run([*checked, f"--output={tmp_path}/again", "--quiet"]) == 0
    again = read_search(f"{tmp_path}/again/changelist.json", "--changelist")
    assert {one.slice_id: one.changes[0] for one in again.slices}[new[0].slice_id].significant


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
