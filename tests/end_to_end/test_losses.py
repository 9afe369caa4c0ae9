"""Columns of losses that a search, a check or a discovery averages; and CSV with other signs between the values."""

import json
from decimal import Decimal

import numpy as np
import pandas as pd
import pytest

from slicebeam.metrics.errors import InputError
from slicebeam.pipelines.cli import run
from slicebeam.pipelines.config.common import delimiter_character
from tests.conftest import slow
from tests.refusals import refusal
from tests.running import read, refused, rows_of, search
from tests.shift_runs import REPLAYED, made

ROWS = 300


def examples():
    rng = np.random.default_rng(5)
    columns = {"age": rng.integers(18, 80, ROWS), "sex": rng.choice(["F", "M"], ROWS)}
    columns |= {"label": rng.choice(["no", "yes"], ROWS), "new": rng.gamma(2.0, 0.3, ROWS)}
    columns |= {"old": rng.gamma(2.0, 0.2, ROWS), "zero": 0.0}
    frame = pd.DataFrame({**columns, "weight": rng.choice([0.5, 1.0, 3.0], ROWS)})
    frame.loc[frame["sex"] == "F", "new"] += 0.5
    frame["prediction"] = np.where(rng.random(ROWS) < 0.8, frame["label"], "no")
    return frame


OPTIONS = {"features": "age,sex", "min_slice_size": 5, "alternative": "both"}
NUMBERS = ["slice", "n", "value", "reference", "delta", "ci_low", "ci_high", "p_value", "q_value"]
NUMBERS += ["significant", "test", "reason"]


def searched(folder, frame, **options):
    path = folder / "e.parquet"
    frame.to_parquet(path)
    given = {**OPTIONS, **options}
    given["features"] = tuple(given["features"].split(","))
    return search(folder / "out", data=path, **given)


@pytest.mark.parametrize("options", [{}, slow({"weight": "weight"})], ids=["plain", "weighted"])
def test_a_loss_is_what_an_error_is(options, tmp_path):
    """Of a label 0 the absolute error is the prediction itself, so that all numbers are the same."""
    frame = examples()
    losses = searched(tmp_path, frame, loss="new", baseline_loss="old", **options).table
    roles = {"label": "zero", "prediction": "new", "baseline_prediction": "old"}
    errors = searched(tmp_path, frame, metric=("mae",), **roles, **options).table
    pd.testing.assert_frame_equal(losses[NUMBERS], errors[NUMBERS])


@pytest.mark.parametrize("kind", ["decimal", *map(slow, ("whole", "boolean", "single"))])
def test_numbers_of_any_type(kind, tmp_path):
    frame = examples()
    tenths = (frame["new"] * 4).astype(int)
    same = frame.assign(new=tenths.astype(float) if kind != "boolean" else (tenths > 1) * 1.0)
    expected = searched(tmp_path, same, loss="new").table
    kinds = {"whole": tenths.astype("int8"), "single": tenths.astype("float32")}
    kinds |= {"boolean": tenths > 1, "decimal": [Decimal(int(one)) for one in tenths]}
    found = searched(tmp_path, frame.assign(new=kinds[kind]), loss="new").table
    pd.testing.assert_frame_equal(found[NUMBERS], expected[NUMBERS])


def test_losses_beside_another_metric(tmp_path):
    frame = examples()
    both = {"metric": ("accuracy", "loss"), "label": "label", "prediction": "prediction"}
    found = searched(tmp_path, frame, loss="new", **both)
    right = (frame["label"] == frame["prediction"]).to_numpy()
    told = {one["name"]: one for one in found.document["slices"]}
    alone = searched(tmp_path, frame, loss="new").table.set_index("slice")
    tables = found.table.set_index(["metric", "slice"])
    for row, held in rows_of(found, frame[["age", "sex"]]):
        if row.metric == "accuracy":
            assert row.value == pytest.approx(right[held].mean(), rel=1e-12)
            assert tables.loc[("loss", row.slice)]["value"] == alone.loc[row.slice, "value"]
    assert all(len(one["changes"]) == 2 for one in told.values())


@pytest.mark.parametrize(("slope", "code"), [(1, 1), (-1, 0)])
def test_the_gate_sees_constants(slope, code, tmp_path):
    """Neither a constant change nor two constants pass for no difference."""
    frame = examples()
    frame["old"] = 0.5
    frame["new"] = 0.5 + slope * 0.25 * (frame["sex"] == "F")
    frame.to_parquet(tmp_path / "e.parquet")
    arguments = ["search", "--data", str(tmp_path / "e.parquet"), "--features", "sex", "--quiet"]
    arguments += ["--loss", "new", "--fail-on", "worse", "--output", str(tmp_path / "out")]
    assert run([*arguments, "--baseline-loss", "old"]) == code
    # Held against all examples, either women's or men's losses are larger.
    assert run([*arguments, "--compare", "overall", "--output", str(tmp_path / "alone")]) == 1


def test_a_check_takes_the_losses_over(tmp_path):
    frame = examples()
    first = searched(tmp_path, frame, loss="new", baseline_loss="old")
    document = str(tmp_path / "out" / "changelist.json")
    check = ["check", "--changelist", document, "--data", str(tmp_path / "e.parquet"), "--quiet"]
    assert run([*check, "--output", str(tmp_path / "new")]) == 0
    checked = {one["slice_id"]: one for one in read(tmp_path / "new").document["slices"]}
    assert first.document["slices"]
    for one in first.document["slices"]:
        assert checked[one["slice_id"]]["changes"][0]["delta"] == one["changes"][0]["delta"]
    other = ["--output", str(tmp_path / "new"), "--loss", "old", "--compare", "overall"]
    assert run([*check, *other]) == 0
    for row, held in rows_of(read(tmp_path / "new"), frame):
        assert row.value == pytest.approx(frame["old"][held].mean(), rel=1e-12)


def test_losses_of_new_data_are_needed(tmp_path, capsys):
    frame = examples()
    searched(tmp_path, frame, loss="new", baseline_loss="old")
    frame.drop(columns="old").to_parquet(tmp_path / "new.parquet")
    check = ["check", "--changelist", str(tmp_path / "out" / "changelist.json")]
    check += ["--data", str(tmp_path / "new.parquet"), "--output", str(tmp_path / "checked")]
    said = refused(check, capsys, folder=tmp_path)
    assert said.startswith("--baseline-loss: unknown column 'old'")
    document = json.loads((tmp_path / "out" / "changelist.json").read_text())
    assert document["provenance"]["config"]["metric"] == ["loss"]


FLAGS = ("--label=label", "--prediction=pred", "--max-cross-size=2", "--quiet")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """The same examples in three files; among them values that hold each of the signs."""
    rng, rows = np.random.default_rng(2), 800
    label = rng.integers(0, 2, rows)
    place = rng.choice(["Bonn; Rhein", "Kiel, Ost", "a\tb"], rows)
    wrong = rng.random(rows) < np.where(place == "Kiel, Ost", 0.5, 0.1)
    frame = pd.DataFrame({
        "place": place, "size": rng.normal(size=rows).round(2),
        "day": rng.choice(["2026-01-02", "2026-01-03"], rows), "label": label,
        "pred": np.where(wrong, 1 - label, label),
    })  # fmt: skip
    path = tmp_path_factory.mktemp("signs")
    for name, sign in (("comma", ","), ("semicolon", ";"), ("tab", "\t")):
        frame.to_csv(path / f"{name}.csv", index=False, sep=sign)
    return path


@pytest.fixture(scope="module")
def plain(folder):
    out = folder / "plain"
    assert run(["search", f"--data={folder}/comma.csv", f"--output={out}", *FLAGS]) == 0
    return read(out)


@pytest.mark.parametrize(("name", "sign"), [("semicolon", ";"), slow("tab", "tab"), ("tab", "\\t")])
def test_search_finds_the_same(folder, plain, tmp_path, name, sign):
    data = f"--data={folder}/{name}.csv"
    assert run(["search", data, f"--output={tmp_path}", *FLAGS, "--delimiter", sign]) == 0
    found = read(tmp_path)
    assert found.slices_bytes == plain.slices_bytes
    assert found.document["testing"]["significant"] > 0
    assert found.document["provenance"]["config"]["delimiter"] == {";": ";"}.get(sign, "\t")
    again = tmp_path / "again"
    assert run(["run", f"{tmp_path}/changelist.json", f"--output={again}", "--quiet"]) == 0
    assert read(again).slices_bytes == plain.slices_bytes


def test_check_shift_and_a_file_of_options(folder, plain, tmp_path):
    (tmp_path / "slices.yaml").write_text(json.dumps([{"predicate": 'place = "Kiel, Ost"'}]))
    options = {"command": "check", "data": f"{folder}/tab.csv", "delimiter": "\t", "label": "label"}
    options |= {"prediction": "pred", "slices": f"{tmp_path}/slices.yaml", "quiet": True}
    (tmp_path / "run.yaml").write_text(json.dumps(options | {"output": f"{tmp_path}/check"}))
    assert run(["run", str(tmp_path / "run.yaml")]) == 0
    checked = read(tmp_path / "check").table
    whole = plain.table[plain.table["slice"] == 'place = "Kiel, Ost"']
    assert checked["n"].tolist() == whole["n"].tolist()
    assert checked["value"].tolist() == whole["value"].tolist()
    made().to_csv(tmp_path / "pool.csv", index=False, sep=";")
    flags = ["shift", f"--data={tmp_path}/pool.csv", "--delimiter=;", *REPLAYED, "--budget=100"]
    assert run([*flags, f"--output={tmp_path}/shift", "--quiet"]) == 0
    assert (tmp_path / "shift" / "changelist.json").exists()


@pytest.mark.parametrize(("text", "said"), [
    ("", "--delimiter is empty; give one character, such as ';' or tab"),
    (";;", "--delimiter ';;' has 2 characters; give a single one, such as ';', or tab"),
    ("semicolon", "--delimiter 'semicolon' has 9 characters"),
    ('"', "--delimiter '\"' can't separate values"),
    ("\n", "--delimiter '\\n' can't separate values"),
    ("x", "--delimiter 'x' can't separate values"),
    ("§", "--delimiter '§' can't separate values"),
])  # fmt: skip
def test_what_is_no_delimiter(text, said):
    assert refusal(InputError, delimiter_character, text).startswith(said)


def test_errors_name_the_remedy(folder, tmp_path, capsys):
    def said(data, *flags):
        arguments = ["search", f"--data={data}", *FLAGS, f"--output={tmp_path}/out", *flags]
        return refused(arguments, capsys, folder=folder)

    for name, shown in (("semicolon", "';'"), ("tab", "tab")):
        frame = pd.read_csv(folder / "comma.csv", usecols=["size", "label", "pred"])
        frame.to_csv(tmp_path / "plain.csv", index=False, sep={"tab": "\t"}.get(name, ";"))
        message = said(f"{tmp_path}/plain.csv")
        assert "unknown column 'label'" in message
        assert f"are values separated by {shown}? give --delimiter {shown}" in message
    assert "--delimiter ';;' has 2 characters" in said(f"{folder}/comma.csv", "--delimiter=;;")
    frame.to_parquet(tmp_path / "data.parquet")
    message = said(f"{tmp_path}/data.parquet", "--delimiter=;")
    assert message == "--delimiter is for CSV, but the data is parquet"
