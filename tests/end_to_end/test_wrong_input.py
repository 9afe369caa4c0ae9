"""Wrong input is refused in a line or two, and likely mistakes are noted; columns of losses."""

import json
from decimal import Decimal
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml

from slicebeam.metrics.errors import InputError
from slicebeam.pipelines.commands.api import search as api_search
from slicebeam.pipelines.commands.cli import run
from slicebeam.pipelines.config.common import delimiter_character
from tests.conftest import slow
from tests.end_to_end import test_search_adult
from tests.pipelines.discovery.test_discover_data import LOSSES, WITH_TEXT
from tests.refusals import refusal, refuses, refusing
from tests.running import read, refused, rows_of, search
from tests.shift_runs import REPLAYED, made

ROWS = 300


def with_losses():
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
    frame = with_losses()
    losses = searched(tmp_path, frame, loss="new", baseline_loss="old", **options).table
    roles = {"label": "zero", "prediction": "new", "baseline_prediction": "old"}
    errors = searched(tmp_path, frame, metric=("mae",), **roles, **options).table
    pd.testing.assert_frame_equal(losses[NUMBERS], errors[NUMBERS])


@pytest.mark.parametrize("kind", ["decimal", *map(slow, ("whole", "boolean", "single"))])
def test_numbers_of_any_type(kind, tmp_path):
    frame = with_losses()
    tenths = (frame["new"] * 4).astype(int)
    same = frame.assign(new=tenths.astype(float) if kind != "boolean" else (tenths > 1) * 1.0)
    expected = searched(tmp_path, same, loss="new").table
    kinds = {"whole": tenths.astype("int8"), "single": tenths.astype("float32")}
    kinds |= {"boolean": tenths > 1, "decimal": [Decimal(int(one)) for one in tenths]}
    found = searched(tmp_path, frame.assign(new=kinds[kind]), loss="new").table
    pd.testing.assert_frame_equal(found[NUMBERS], expected[NUMBERS])


def test_losses_beside_another_metric(tmp_path):
    frame = with_losses()
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
    frame = with_losses()
    frame["old"] = 0.5
    frame["new"] = 0.5 + slope * 0.25 * (frame["sex"] == "F")
    frame.to_parquet(tmp_path / "e.parquet")
    arguments = ["search", "--data", str(tmp_path / "e.parquet"), "--features", "sex", "--quiet"]
    arguments += ["--loss", "new", "--fail-on", "worse", "--output", str(tmp_path / "out")]
    assert run([*arguments, "--baseline-loss", "old"]) == code
    # Held against all examples, either women's or men's losses are larger.
    assert run([*arguments, "--compare", "overall", "--output", str(tmp_path / "alone")]) == 1


def test_a_check_takes_the_losses_over(tmp_path):
    frame = with_losses()
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
    frame = with_losses()
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
def signs(tmp_path_factory):
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
def plain(signs):
    out = signs / "plain"
    assert run(["search", f"--data={signs}/comma.csv", f"--output={out}", *FLAGS]) == 0
    return read(out)


@pytest.mark.parametrize(("name", "sign"), [("semicolon", ";"), slow("tab", "tab"), ("tab", "\\t")])
def test_search_finds_the_same(signs, plain, tmp_path, name, sign):
    data = f"--data={signs}/{name}.csv"
    assert run(["search", data, f"--output={tmp_path}", *FLAGS, "--delimiter", sign]) == 0
    found = read(tmp_path)
    assert found.slices_bytes == plain.slices_bytes
    assert found.document["testing"]["significant"] > 0
    assert found.document["provenance"]["config"]["delimiter"] == {";": ";"}.get(sign, "\t")
    again = tmp_path / "again"
    assert run(["run", f"{tmp_path}/changelist.json", f"--output={again}", "--quiet"]) == 0
    assert read(again).slices_bytes == plain.slices_bytes


def test_check_shift_and_a_file_of_options(signs, plain, tmp_path):
    (tmp_path / "slices.yaml").write_text(json.dumps([{"predicate": 'place = "Kiel, Ost"'}]))
    options = {"command": "check", "data": f"{signs}/tab.csv", "delimiter": "\t", "label": "label"}
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


def test_errors_name_the_remedy(signs, tmp_path, capsys):
    def said(data, *flags):
        arguments = ["search", f"--data={data}", *FLAGS, f"--output={tmp_path}/out", *flags]
        return refused(arguments, capsys, folder=signs)

    for name, shown in (("semicolon", "';'"), ("tab", "tab")):
        frame = pd.read_csv(signs / "comma.csv", usecols=["size", "label", "pred"])
        frame.to_csv(tmp_path / "plain.csv", index=False, sep={"tab": "\t"}.get(name, ";"))
        message = said(f"{tmp_path}/plain.csv")
        assert "unknown column 'label'" in message
        assert f"are values separated by {shown}? give --delimiter {shown}" in message
    assert "--delimiter ';;' has 2 characters" in said(f"{signs}/comma.csv", "--delimiter=;;")
    frame.to_parquet(tmp_path / "data.parquet")
    message = said(f"{tmp_path}/data.parquet", "--delimiter=;")
    assert message == "--delimiter is for CSV, but the data is parquet"


MANY = 600
ROLES = {"label": "label", "prediction": "pred", "max_cross_size": 1}


def two_models():
    rng = np.random.default_rng(1)
    label = rng.integers(0, 2, MANY)
    frame = pd.DataFrame({"place": rng.choice(["a", "b", "c"], MANY), "label": label})
    for name, wrong in (("pred", 0.2), ("old", 0.3)):
        frame[name] = np.where(rng.random(MANY) < wrong, 1 - label, label)
    frame["score"] = np.clip(0.8 * frame["pred"] + rng.random(MANY) / 5, 0, 1)
    return frame


def saved(folder, frame):
    frame.to_parquet(folder / "data.parquet")
    return str(folder / "data.parquet")


def warnings(found):
    return found.document["testing"]["warnings"]


@pytest.mark.parametrize(("ids", "test"), [("numbers", "bootstrap-rows"), ("texts", "auto")])
def test_repeated_ids_are_noted(tmp_path, ids, test):
    frame, number = two_models(), np.arange(MANY)
    number[[5, 90, 91]] = 400
    number[[7, 8]] = [70, 71]
    frame["id"] = number if ids == "numbers" else [f"é{one}" for one in number]
    data, options = saved(tmp_path, frame), ROLES | {"test": test, "chunk_rows": 60}
    found = search(tmp_path / "out", data=data, example_id="id", **options)
    (said,) = (one for one in warnings(found) if "--example-id" in one)
    # An oracle of its own: which ids occur more than once.
    times = frame["id"].value_counts()
    several = times[times > 1].index.tolist()
    assert said.startswith(f"--example-id id: {len(several)} values occur more than once, such as ")
    assert any(f"such as {one!r}" in said for one in several)
    assert ("resampled together" in said) == (test == "bootstrap-rows")


def test_distinct_ids_and_groups_are_not(tmp_path):
    data = saved(tmp_path, two_models().assign(id=np.arange(MANY), user=np.arange(MANY) // 5))
    for number, options in enumerate(({"example_id": "id"}, {"group": "user", "replicates": 10})):
        found = search(tmp_path / f"{number}", data=data, **ROLES, **options)
        assert not any("more than once" in one for one in warnings(found))


def test_one_score_with_two_decisions_is_a_comparison(tmp_path):
    both = {"score": "score", "baseline_score": "score", "baseline_prediction": "old"}
    found = search(tmp_path / "out", data=saved(tmp_path, two_models()), **ROLES, **both)
    assert not any("agree" in one for one in warnings(found))


WRONG = {
    "unknown column 'labell'": ["--label=labell"],
    "--positive-class 7 is not a value": ["--label=label", "--positive-class=7", "--metric=f1"],
    "--weight 'zero' is 0 for every example": ["--label=label", "--weight=zero"],
}


@pytest.mark.parametrize(("wrong", "work"), [*((one, "") for one in WRONG), ([*WRONG][-1], "elsewhere/work")])  # fmt: skip
def test_bad_input_leaves_nothing_behind(tmp_path, capsys, wrong, work):
    (tmp_path / "data").mkdir()
    data = saved(tmp_path / "data", two_models().assign(zero=0))
    arguments = ["search", f"--data={data}", "--prediction=pred", *WRONG[wrong], "--quiet"]
    arguments += [f"--work-dir={tmp_path}/{work}"] if work else []
    assert wrong in refused([*arguments, f"--output={tmp_path}/a/b"], capsys, folder=tmp_path)
    assert [one.name for one in tmp_path.iterdir()] == ["data"]
    (tmp_path / "out").mkdir()
    refused([*arguments, f"--output={tmp_path}/out"], capsys, folder=tmp_path)
    assert sorted(one.name for one in tmp_path.iterdir()) == ["data", "out"]
    assert list((tmp_path / "out").iterdir()) == []


@pytest.mark.parametrize("command", ["check", "shift"])
def test_nor_do_other_commands(tmp_path, capsys, command):
    (tmp_path / "data").mkdir()
    data = saved(tmp_path / "data", two_models())
    (tmp_path / "data" / "slices.yaml").write_text("- nothing = 1\n")
    arguments = {
        "check": ["check", f"--slices={tmp_path}/data/slices.yaml", "--prediction=pred"],
        "shift": ["shift", "--old-prediction=nothing", "--replay-prediction=pred", "--budget=50"],
    }[command]
    arguments += [f"--data={data}", "--label=label", f"--output={tmp_path}/out", "--quiet"]
    refused(arguments, capsys, folder=tmp_path)
    assert [one.name for one in tmp_path.iterdir()] == ["data"]


def slices_of(frame, **options):
    return api_search(frame, **ROLES, **options).slices["slice"].to_pylist()


def test_intervals_are_text():
    number = np.random.default_rng(4).normal(size=MANY)
    number[:30] = np.nan
    cut = pd.cut(number, [-9, -1, 0.5, 9])
    frame = two_models().assign(cut=cut, plain=pd.Series(cut).astype(object))
    frame["plain"] = pd.arrays.IntervalArray(pd.Series(cut).astype("interval"))
    found = slices_of(frame, features=["cut", "plain"])
    for name in ("cut", "plain"):
        for text in ('"(-9.0, -1.0]"', '"(-1.0, 0.5]"', '"(0.5, 9.0]"'):
            assert f"{name} = {text}" in found
        assert f"{name} is missing" in found
    assert isinstance(frame["cut"].cat.categories, pd.IntervalIndex)


def test_an_index_with_a_name_is_a_column():
    frame = two_models()
    side = np.random.default_rng(5).choice(["left", "right"], MANY)
    indexed = frame.assign(side=side).set_index("side")
    assert {"side = left", "side = right"} <= set(slices_of(indexed))
    assert slices_of(indexed, features=["side"]) == ["side = left", "side = right"]
    two = pd.MultiIndex.from_arrays([side, np.arange(MANY)], names=["side", None])
    assert {"side = left", "place = a"} <= set(slices_of(frame.set_axis(two, axis=0)))
    assert slices_of(frame.sample(frac=1, random_state=1)) == slices_of(frame)
    assert "side" not in indexed.columns
    frame = two_models()
    frame.index.name = "place"
    refuses(InputError, "the index is named 'place', as a column is", slices_of, frame)


@pytest.mark.parametrize(("metric", "side"), [("recall", "--score"), ("auc,f1_macro", "--baseline-score")])  # fmt: skip
def test_scores_that_are_cut_are_probabilities(tmp_path, capsys, metric, side):
    """Logits cut at .5 would be other predictions, without a word."""
    rng = np.random.default_rng(3)
    label = rng.integers(0, 2, 300)
    logit = rng.normal(2.0 * label - 1, 0.2)
    logit[:4] = 0.25
    sure = 1 / (1 + np.exp(-logit))
    frame = pd.DataFrame({"y": label, "f": rng.choice(list("ab"), 300), "logit": logit, "p": sure})
    frame.to_parquet(tmp_path / "data.parquet")
    other = "--baseline-score=p" if side == "--score" else "--score=p"
    arguments = ["search", f"--data={tmp_path}/data.parquet", "--label=y", f"{side}=logit"]
    arguments += [f"--output={tmp_path}/out", "--features=f", f"--metric={metric}"]
    assert run([*arguments, other]) == 2
    (said,) = capsys.readouterr().err.strip().splitlines()[-1:]
    assert f"score column 'logit' holds {logit[4]:g} in row 5 of" in said
    assert "--threshold 0.5 cuts probabilities, 0 to 1" in said


def test_auc_alone_takes_any_scores(tmp_path):
    rng = np.random.default_rng(3)
    frame = pd.DataFrame({"y": rng.integers(0, 2, 300), "f": rng.choice(list("ab"), 300)})
    frame.assign(logit=rng.normal(size=300)).to_parquet(tmp_path / "data.parquet")
    arguments = ["search", f"--data={tmp_path}/data.parquet", "--label=y", "--score=logit"]
    assert run([*arguments, f"--output={tmp_path}/out", "--features=f", "--metric=auc"]) == 0


def with_zeros(zero=0.0):
    rng = np.random.default_rng(6)
    x = rng.choice([-2.5, zero, 0.5, 3.0], 600)
    label = rng.integers(0, 2, 600)
    return pd.DataFrame({"x": x, "label": label, "pred": np.where(x == 3, 1 - label, label)})


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    path = tmp_path_factory.mktemp("data") / "data.parquet"
    with_zeros().to_parquet(path)
    return path


def examples():
    rng = np.random.default_rng(0)
    frame = pd.DataFrame({
        "age": rng.integers(18, 80, ROWS), "sex": rng.choice(["F", "M"], ROWS),
        "label": rng.choice(["no", "yes"], ROWS), "score": rng.random(ROWS),
    })  # fmt: skip
    frame["pred"] = np.where(rng.random(ROWS) < 0.8, frame["label"], "no")
    frame["one"] = (frame["label"] == "yes").astype(int)
    return frame


@pytest.fixture
def folder(tmp_path):
    examples().to_parquet(tmp_path / "eval.parquet")
    return tmp_path


@pytest.fixture
def refuse(folder, capsys):
    return refusing("search", folder, capsys, "eval.parquet", label="label", prediction="pred")


def test_paths(folder, refuse):
    expected = "--data DIR/evl.parquet: no such file; did you mean 'DIR/eval.parquet'?"
    assert refuse(data="evl.parquet") == expected
    said = "--data DIR/no/x.csv: no such file; the folder DIR/no does not exist"
    assert refuse(data="no/x.csv") == said
    assert refuse(data="*.pq").startswith("--data DIR/*.pq: no file matches")
    assert refuse(data=".") == "--data DIR is a folder; name its files: 'DIR/*.parquet'"
    (folder / "eval.csv").write_text("a,label,pred\n1,x,x\n")
    mixed = refuse("--data", folder / "eval.csv")
    assert mixed == "--data mixes formats (csv, parquet); convert them to one format"
    mixed = refuse("--baseline-data", folder / "eval.csv")
    assert mixed.startswith("--data and --baseline-data mix formats (csv, parquet)")
    (folder / "eval.data").write_text("a,label,pred\n1,x,x\n")
    assert "the name does not show the format; give --format" in refuse(data="eval.data")
    said = refuse("--work-dir", "gcs://bucket/x.parquet")
    assert said.startswith("--work-dir gcs://bucket/x.parquet: unknown store 'gcs://'")
    assert "did you mean 'gs://'?" in said


def test_output(folder, refuse):
    file = folder / "file"
    file.write_text("x")
    assert refuse(output=file) == "--output DIR/file is a file; name a folder"
    said = "cannot make the output folder DIR/file/x: Not a directory"
    assert refuse(output=file / "x", code=3) == said
    assert "cannot make the output folder /proc/x" in refuse(output="/proc/x", code=3)
    assert refuse(work_dir=file) == "--work-dir DIR/file is a file; name a folder"
    assert file.read_text() == "x"


def test_damaged_parquet(folder, refuse):
    good = (folder / "eval.parquet").read_bytes()
    flipped = bytearray(good)
    flipped[100:1500] = bytes(byte ^ 0xA5 for byte in flipped[100:1500])
    damaged = {"empty": b"", "cut": good[: len(good) // 2], "flipped": bytes(flipped)}
    damaged |= {"csv": b"a,label,pred\n1,x,x\n"}
    for name, content in damaged.items():
        (folder / f"{name}.parquet").write_bytes(content)
        message = refuse(data=f"{name}.parquet")
        assert message.startswith(f"DIR/{name}.parquet: not readable as Parquet (")
    assert "it starts like Parquet: give --format parquet" in refuse(format="csv")


@pytest.mark.parametrize("kind", ["plain", "dictionary", "list"])
def test_parquet_with_text_that_is_not_utf8(folder, refuse, kind):
    table = pq.read_table(folder / "eval.parquet")
    codes = pa.array([b"a", b"\xc0\xff"]).take(np.arange(table.num_rows) % 2)
    column = pa.StringArray.from_buffers(table.num_rows, *codes.buffers()[1:])
    if kind == "list":
        column = pa.ListArray.from_arrays(np.arange(table.num_rows + 1, dtype=np.int32), column)
    table = table.append_column("f", column)
    pq.write_table(table, folder / "x.parquet", use_dictionary=kind == "dictionary")
    message = refuse(data="x.parquet")
    assert message.startswith("DIR/x.parquet: column 'f' cannot be read (Invalid UTF8 sequence")
    assert message.endswith("write it again, text as UTF-8")


@pytest.mark.parametrize(("name", "text", "message"), [
    ("x.csv", "age,label,pred\n", "--data DIR/x.csv: there are no examples in it; name files with some"),
    ("x.csv", "age,label,pred\n1,a,a\n2,b\n", "DIR/x.csv, line 3: 2 fields where the header has 3: '2,b'"),
    ("x.jsonl", '{"label": "a"}\n{"label": 1}\n', "DIR/x.jsonl, line 2: column 'label' holds the number 1"),
])  # fmt: skip
def test_text_files(folder, refuse, name, text, message):
    (folder / name).write_text(text)
    assert refuse(data=name).startswith(message)


SCORED = {"prediction": None, "score": "big", "positive_class": "yes"}
BEYOND = {
    "score": {**SCORED, "metric": "auc"},
    "threshold": SCORED,
    "mean": {"label": None, "prediction": None, "metric": "mean:big"},
    "weight": {"weight": "big"},
    "loss": {"label": None, "prediction": None, "loss": "big"},
    "number": {"label": "one", "prediction": "big", "metric": "mse"},
}


@pytest.mark.parametrize("name", BEYOND)
def test_integers_that_float64_rounds(folder, refuse, name):
    frame = examples()
    frame["big"] = 2**53
    frame.loc[237, "big"] = 2**60 + 1
    frame.to_parquet(folder / "big.parquet", row_group_size=100)
    assert refuse(data="big.parquet", **BEYOND[name]) == (
        "column 'big' holds 1152921504606846977 in row 238 of DIR/big.parquet, but integers "
        "beyond 2^53 lose digits as floating-point numbers; subtract a constant, or write the "
        "column as double"
    )
    assert not (folder / "out" / "_work").exists()


@pytest.mark.parametrize("column", ["label", "pred", "score"])
def test_missing_values_of_roles(folder, refuse, column):
    frame = examples()
    for name in ("a", "b"):
        frame.to_parquet(folder / f"{name}.parquet", row_group_size=100)
        frame.loc[237, column] = None
    options = {"prediction": None, "score": "score", "positive_class": "yes"}
    message = refuse(data="[ab].parquet", **(options if column == "score" else {}))
    assert message == (
        f"column {column!r} has no value in row 238 of DIR/b.parquet; drop such examples or fill "
        "the column"
    )


@pytest.mark.slow
def test_columns_that_are_no_classes(folder, refuse):
    frame = examples()
    changes = [
        ({"label": frame["score"] * 7, "pred": frame["score"]}, "label 'label' holds fractions ("),
        ({"label": np.inf, "pred": 1.0}, "label 'label' holds fractions (inf)"),
        ({"pred": "never"}, "prediction 'pred' never equals label 'label': labels are 'no', 'yes', predictions are"),
        ({"label": pd.Timestamp("2024-01-01")}, "column 'label' of timestamp["),
        ({"label": [[1]] * ROWS}, "column 'label' of list<"),
    ]  # fmt: skip
    for columns, message in changes:
        frame.assign(**columns).to_parquet(folder / "x.parquet")
        assert refuse(data="x.parquet").startswith(message)
    frame.iloc[:0].to_parquet(folder / "x.parquet")
    assert (
        refuse(data="x.parquet")
        == "--data DIR/x.parquet: there are no examples in it; name files with some"
    )
    assert refuse(label="one", prediction="score").endswith("is it a score? give it as --score")


def test_more_classes_than_a_label_has(folder, refuse):
    numbers = pa.array(range(5000))
    table = pa.table({"n": pa.array([1, 2] * 2500), "label": numbers, "pred": numbers})
    pq.write_table(table, folder / "x.parquet")
    assert "label 'label' has more than 1,000 distinct values" in refuse(data="x.parquet")
    examples().assign(label=["a", "b", "c"] * (ROWS // 3)).to_parquet(folder / "x.parquet")
    options = {"prediction": None, "score": "score", "positive_class": "a"}
    assert "label 'label' has 3 classes" in refuse(data="x.parquet", **options)


def test_files_that_do_not_fit(folder, refuse):
    columns = {"n": pa.array([1, 2]), "label": pa.array(["a", "b"]), "pred": pa.array(["a", "b"])}
    table = pa.table(columns)
    pq.write_table(table, folder / "a.parquet")
    pq.write_table(table.drop_columns(["n"]), folder / "b.parquet")
    begins = "DIR/b.parquet: column 'n' is missing, which DIR/a.parquet has"
    assert refuse(data="[ab].parquet").startswith(begins)
    pq.write_table(table.set_column(0, "n", pa.array([[True], [False]])), folder / "b.parquet")
    assert "column 'n' is int64 in DIR/a.parquet but list<" in refuse(data="[ab].parquet")
    twice = pa.table([*table.columns, table["n"]], names=[*table.column_names, "n"])
    pq.write_table(twice, folder / "b.parquet")
    said = "DIR/b.parquet: two columns are named 'n'; rename one of them"
    assert refuse(data="b.parquet") == said


def test_resume_over_what_is_no_document(refuse):
    message = "DIR/out/changelist.json is not a document of this command; leave --resume out to replace it"
    assert message in refuse("--resume")


OLD = '{"old": "document"}'
# What each part of the table is about: a command, its data, and the options that it has by default.
SUBJECTS = {
    "search": ("search", examples, {"label": "label", "prediction": "pred"}),
    "statistics": ("search", test_search_adult.examples, {"label": "label", "prediction": "pred"}),
    "losses": ("search", with_losses, {"features": "sex"}),
    "two models": ("search", two_models, {}),
    "check": ("check", examples, {"label": "label", "prediction": "pred"}),
    "discover": ("discover", lambda: WITH_TEXT, {"embedding": "z", "components": 3, **LOSSES}),
    "shift": ("shift", lambda: made(120), {"label": "label", "old_prediction": "old", "replay_prediction": "new", "budget": 60}),
}  # fmt: skip
# Name of a wrong use: its options, and how what the command says of them begins.
TABLE_OF = yaml.safe_load(Path(__file__).with_name("wrong_options.yaml").read_text("utf-8"))
# Beside the data, for a check.
FILES = {"s.yaml": "- age < 25\n", "empty.json": "{}", "like.json": '{"schema_version": "1.0"}'}


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    found = {}
    for subject, (_, data, _) in SUBJECTS.items():
        found[subject] = tmp_path_factory.mktemp(subject.replace(" ", "-"))
        made_of = data()
        table = made_of if isinstance(made_of, pa.Table) else pa.Table.from_pandas(made_of)
        pq.write_table(table, found[subject] / "eval.parquet")
        for name, text in FILES.items():
            (found[subject] / name).write_text(text)
    return found


@pytest.mark.parametrize(
    ("subject", "name"), [(subject, name) for subject in TABLE_OF for name in TABLE_OF[subject]]
)
def test_wrong_options(subject, name, folders, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(folders[subject])
    options, message = TABLE_OF[subject][name]
    assert refuse_options(subject, options, folders[subject], tmp_path, capsys).startswith(message)


def refuse_options(subject, options, folder, output, capsys):
    command, _, defaults = SUBJECTS[subject]
    (output / "changelist.json").write_text(OLD)
    arguments = [command]
    named = {"data": str(folder / "eval.parquet"), "output": str(output), **defaults, **options}
    for option, value in named.items():
        if value is not None:
            flag = "--" + option.replace("_", "-")
            arguments.append(flag if value is True else f"{flag}={value}")
    said = refused(arguments, capsys, folder=folder)
    assert (output / "changelist.json").read_text() == OLD
    # Not even a ledger of paid answers is begun.
    assert {path.name for path in output.iterdir()} <= {"changelist.json", "_work"}
    return said
