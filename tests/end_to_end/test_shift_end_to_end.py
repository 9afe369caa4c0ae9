"""``slicebeam shift``: every number against a direct computation, and what it is told and tells."""

import json

import jsonschema
import numpy as np
import pytest
import yaml

from slicebeam.pipelines.changelist.document import json_schema
from slicebeam.pipelines.cli import run
from tests.running import refused
from tests.shift_runs import (
    METHODS,
    REPLAYED,
    ROLES,
    Z,
    document,
    made,
    matrix,
    saved,
    shift,
    timeless,
)


@pytest.fixture(scope="module")
def frame():
    return made()


@pytest.fixture(scope="module")
def pool(frame, tmp_path_factory):
    return saved(frame, tmp_path_factory.mktemp("pool"))


def test_an_earlier_document_tells_the_old_matrix(frame, tmp_path):
    first = ["--data", saved(frame, tmp_path, "one.parquet"), *REPLAYED]
    earlier = shift(tmp_path / "one", *first, "--budget", 150)
    later = made(seed=2, churn=0)
    # Other shares of the labels, and label 2 is gone; class 2 is known from the document only.
    later = later[(later["label"] == 0) | (later.index % 3 > 0)]
    later = later.assign(label=later["label"].replace(2, 1), new=later["old"].replace(2, 1))
    second = ["--data", saved(later, tmp_path, "two.parquet"), "--label", "label"]
    second += ["--replay-prediction", "new", "--old-matrix", tmp_path / "one" / "changelist.json"]
    found = shift(tmp_path / "two", *second, "--budget", 120)
    told = found["shift"]
    assert (told["labels"], told["predictions"]) == ([0, 1], [0, 1, 2])
    assert (told["method"], told["old_from"]) == ("proportional", "document")
    before = np.array(earlier["shift"]["new_matrix"])[:2]
    shares = later["label"].value_counts(normalize=True).sort_index().to_numpy()
    scale = (shares / before.sum(axis=1))[:, None]
    np.testing.assert_allclose(told["old_matrix"], before * scale, rtol=1e-9)
    assert any("--old-matrix" in line for line in told["warnings"])
    together = np.hypot(np.array(earlier["shift"]["new_errors"])[:2] * scale, told["new_errors"])
    moved = np.array(told["shift"])
    np.testing.assert_allclose(told["shift_lo"], np.maximum(moved - Z * together, -shares[:, None]))
    np.testing.assert_allclose(told["shift_hi"], np.minimum(moved + Z * together, shares[:, None]))
    was, now = earlier["global"][0]["after"], found["global"][0]["after"]
    delta = found["global"][0]["delta"]
    width = np.hypot(was["hi"] - was["lo"], now["hi"] - now["lo"])
    assert delta["hi"] - delta["lo"] == pytest.approx(width)
    assert found["global"][0]["before"]["value"] == pytest.approx(np.trace(before * scale))


@pytest.mark.slow
def test_answers_that_were_none_stay_in_the_old_matrix(frame, tmp_path):
    silent = frame.assign(new=frame["new"].where(frame.index % 5 > 0))
    first = ["--data", saved(silent, tmp_path, "one.parquet"), *REPLAYED]
    earlier = shift(tmp_path / "one", *first, "--budget", 600)["shift"]
    assert earlier["predictions"] == [0, 1, 2, None]
    second = ["--data", saved(frame, tmp_path), "--label", "label", "--replay-prediction", "new"]
    second += ["--old-matrix", tmp_path / "one" / "changelist.json"]
    told = shift(tmp_path / "two", *second, "--budget", 600)["shift"]
    assert told["predictions"] == [0, 1, 2, None]
    np.testing.assert_allclose(told["old_matrix"], earlier["new_matrix"])
    np.testing.assert_allclose(told["new_matrix"], matrix(frame, "new", told), atol=1e-12)
    assert {(one["label"], one.get("prediction")) for one in told["changed"]} >= {(0, None)}


def test_a_target_error_stops_early_or_warns(tmp_path):
    flags = ["--data", saved(made(3000, churn=0.03), tmp_path), *REPLAYED, "--target-error", "0.03"]
    reached = shift(tmp_path / "one", *flags)["shift"]
    assert reached["stopped"] == "target_error"
    assert 100 <= reached["cost"]["calls"] < 3000
    assert reached["frobenius_bound"] <= 0.03
    assert reached["warnings"] == []
    short = shift(tmp_path / "two", *flags, "--budget", 110)["shift"]
    assert (short["stopped"], short["cost"]["calls"]) == ("budget", 110)
    assert short["frobenius_bound"] > 0.03
    (warning,) = short["warnings"]
    assert "was spent before the target error was reached" in warning


@pytest.mark.parametrize(("budget", "price", "calls", "spent"), [
    ("$1.5", 0.025, 60, 1.5), ("1.51 eur", 0.03, 50, 1.5), ("1GBP", 0, 600, 0.0),
])  # fmt: skip
def test_a_budget_in_money(budget, price, calls, spent, pool, tmp_path):
    flags = ["--data", pool, *REPLAYED, "--budget", budget, "--price", price]
    cost = shift(tmp_path, *flags)["shift"]["cost"]
    currency = {"$1.5": "USD", "1.51 eur": "EUR", "1GBP": "GBP"}[budget]
    assert (cost["calls"], cost["spent"], cost["currency"]) == (calls, spent, currency)
    assert run(["run", str(tmp_path / "changelist.json"), "--quiet"]) == 0
    assert document(tmp_path)["shift"]["cost"] == cost


def described(folder, **options):
    (folder / "run.yaml").write_text(yaml.safe_dump({"command": "shift", **options}))
    return str(folder / "run.yaml")


def test_a_file_describes_a_shift(pool, tmp_path, monkeypatch):
    monkeypatch.setenv("WHERE", str(tmp_path / "there"))
    options = {"data": pool, "label": "label", "old_prediction": "old", "replay_prediction": "new"}
    file = described(tmp_path, **options, budget=150, output="${WHERE}/{date}", quiet=True)
    assert run(["run", file, "--date", "2026-03-01"]) == 0
    found = tmp_path / "there" / "2026-03-01"
    shift(tmp_path / "flags", "--data", pool, *REPLAYED, "--budget", 150)
    assert timeless(found) == timeless(tmp_path / "flags")
    again = tmp_path / "again"
    assert run(["run", str(found / "changelist.json"), "--output", str(again), "--quiet"]) == 0
    assert timeless(again) == timeless(found)


def test_the_document_of_a_shift_is_refused_where_slices_are_wanted(pool, tmp_path, capsys):
    shift(tmp_path / "out", "--data", pool, *REPLAYED, "--budget", 100)
    made_by = str(tmp_path / "out" / "changelist.json")
    outcome = ["--data", pool, "--label", "label", "--prediction", "new"]
    output = ["--output", str(tmp_path / "other")]
    for arguments in (
        ["search", *outcome, "--domains", made_by],
        ["search", *outcome, "--since", made_by],
        ["check", *outcome, "--changelist", made_by],
        ["shift", "--data", pool, *REPLAYED, "--budget", "100", "--changelist", made_by],
    ):
        told = refused([*arguments, *output], capsys, folder=tmp_path)
        assert "is the document of a shift; name the document of a search or a check" in told
    assert not (tmp_path / "other" / "changelist.json").exists()
    assert run(["search", *outcome, "--features", "part", "--quiet", *output]) == 0
    other = ["shift", "--data", pool, "--label", "label", "--replay-prediction", "new"]
    other += ["--budget", "100", "--old-matrix", str(tmp_path / "other" / "changelist.json")]
    told = refused([*other, "--output", str(tmp_path / "third")], capsys, folder=tmp_path)
    assert told.startswith("--old-matrix DIR/other/changelist.json is not the document of a shift")


@pytest.mark.slow
def test_fail_on_worse(frame, tmp_path):
    flags = ["--data", saved(frame, tmp_path), *ROLES, "--budget", 300, "--fail-on", "worse"]
    shift(tmp_path / "worse", *flags, "--replay-prediction", "new", code=1)
    document = json.loads((tmp_path / "worse" / "changelist.json").read_text())
    assert document["gate"]["exit_code"] == 1
    assert document["summary"].startswith("FAIL: Accuracy over all examples ")
    shift(tmp_path / "same", *flags, "--replay-prediction", "old")
    better = saved(frame.assign(new=frame["label"]), tmp_path, "better.parquet")
    shift(tmp_path / "better", "--data", better, *flags[2:], "--replay-prediction", "new")
    # Worse on one slice, better by far elsewhere.
    bad = frame["part"] == "a"
    mixed = frame.assign(old=frame["label"].where(bad, (frame["label"] + 1) % 3))
    mixed["new"] = frame["label"].mask(bad & (frame.index % 3 == 0), (frame["label"] + 1) % 3)
    data = saved(mixed, tmp_path, "mixed.parquet")
    arguments = ["--data", data, *flags[2:], "--replay-prediction", "new"]
    found = shift(tmp_path / "mixed", *arguments, "--by", "part", code=1)
    assert found["global"][0]["direction"] == "improved"
    shift(tmp_path / "mixed", *arguments)


def test_what_a_machine_reads(pool, tmp_path, capsys):
    flags = ["shift", "--data", pool, *REPLAYED, "--budget", "100", "--price", "0.01"]
    flags += ["--by", "part", "--output", str(tmp_path)]
    assert run([*flags, "--log-format", "json"]) == 0
    printed = capsys.readouterr()
    events = [json.loads(line) for line in printed.err.splitlines()]
    (published,) = (event for event in events if event["event"] == "published")
    assert (published["calls"], published["spent"], published["exit_code"]) == (100, 1.0, 0)
    assert published["changelist"] == str(tmp_path / "changelist.json")
    assert {"stage", "published"} <= {event["event"] for event in events}
    assert run([*flags, "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    found = document(tmp_path)
    assert (told["calls"], told["spent"], told["currency"]) == (100, 1.0, "USD")
    assert told["accuracy"] == found["global"][0]["after"]["value"]
    assert told["shift"] == found["shift"]["shift"]
    assert len(told["changed"]) == len(found["shift"]["changed"])
    assert len(told["slices"]) == 3
    assert set(told) == {
        *("summary", "gate", "changelist", "examples", "method", "calls", "replayed", "no_result"),
        *("unaccounted", "spent", "currency", "stopped", "frobenius_bound", "accuracy"),
        *("accuracy_was", "accuracy_shift", "significant", "labels", "predictions", "shift"),
        *("changed", "slices", "warnings", "focus"),
    }
    wrong = ["--output", str(tmp_path / "none"), "--log-format=json", "--seed=x"]
    assert run([*flags[:-4], *wrong]) == 2
    lines = [json.loads(line) for line in capsys.readouterr().err.splitlines()]
    assert [(line["event"], line["exit_code"]) for line in lines] == [("error", 2)]


def test_plans_and_studies_need_no_output(pool, tmp_path, monkeypatch, capsys):
    (tmp_path / "here").mkdir()
    (tmp_path / "temporary").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "temporary"))
    flags = ["shift", "--data", pool, "--json", "--budget", "60", "--repeat", "3"]
    assert run([*flags, *ROLES, "--plan", "--method", "plus"]) == 0
    planned = json.loads(capsys.readouterr().out)
    assert [one["churn"] for one in planned] == [0.02, 0.05, 0.1, None]
    assert run([*flags[:-4], *ROLES, "--plan", "--repeat=8", "--price=0.5"]) == 0
    planned = json.loads(capsys.readouterr().out)
    assert {one["method"] for one in planned} == set(METHODS)
    assert {(one["budget"], one["cost"]) for one in planned} == {(250, 125.0), (500, 250.0)}
    plan = [*flags[:3], *ROLES, "--plan", "--repeat=8", "--method=plus"]
    assert run([*plan, "--price=0.5", "--budget=50USD"]) == 0
    shown = capsys.readouterr().out
    for said in ("a completely new API", "2% of the predictions change", "50.00"):
        assert said in shown
    assert run([*flags, *REPLAYED]) == 0
    without = json.loads(capsys.readouterr().out)
    assert not list((tmp_path / "here").iterdir())
    assert not list((tmp_path / "temporary").iterdir())
    assert run([*flags, *REPLAYED, "--output", str(tmp_path / "out")]) == 0
    assert json.loads(capsys.readouterr().out) == without
    file = described(tmp_path, data=pool, label="label", old_prediction="old", plan=True, budget=60)
    assert run(["run", file, "--json"]) == 0
    assert len(json.loads(capsys.readouterr().out)) == 3 * 4


def test_the_schema_holds_for_every_command(pool, tmp_path):
    outcome = ["--data", pool, "--label", "label", "--prediction", "old", "--quiet"]
    assert run(["search", *outcome, "--features=part,size", "--output", str(tmp_path / "a")]) == 0
    (tmp_path / "slices.yaml").write_text("- part = b\n")
    slices = ["--slices", str(tmp_path / "slices.yaml"), "--output", str(tmp_path / "b")]
    assert run(["check", *outcome, *slices]) == 0
    flags = ["--data", pool, *REPLAYED, "--budget", 100, "--by", "part", "--price", "0.1"]
    shift(tmp_path / "c", *flags, "--difficulty", "confidence")
    validator = jsonschema.Draft202012Validator(json_schema())
    for name in "abc":
        validator.validate(document(tmp_path / name))
    wrong = document(tmp_path / "c")
    wrong["shift"]["method"] = "guess"
    with pytest.raises(jsonschema.ValidationError):
        validator.validate(wrong)
