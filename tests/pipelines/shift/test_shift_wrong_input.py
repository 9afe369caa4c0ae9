"""What is wrong with a shift is said in a line or two, before anything is paid or published."""

from __future__ import annotations

import json
import pickle
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
import pytest
from sklearn.linear_model import LogisticRegression

from slicebeam.pipelines.cli import run
from tests.running import refused
from tests.shift_runs import REPLAYED, document, made, saved, shift

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    # What a run wrote on stderr, after its exit code was checked.
    Refuse = Callable[..., str]

BEFORE = '{"old": "document"}'


@pytest.fixture(scope="module")
def frame() -> pd.DataFrame:
    return made(120)


@pytest.fixture(scope="module")
def pool(frame: pd.DataFrame, tmp_path_factory: pytest.TempPathFactory) -> str:
    return saved(frame, tmp_path_factory.mktemp("pool"))


@pytest.fixture(scope="module")
def earlier(pool: str, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """The document of a shift of the pool."""
    return shift(tmp_path_factory.mktemp("earlier"), "--data", pool, *REPLAYED, "--budget", 60)


@pytest.fixture
def refuse(pool: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Refuse:
    """Run a shift that must fail and leave what was published before, and return its message."""

    def run_it(code: int = 2, data: pd.DataFrame | None = None, **options: Any) -> str:
        output = tmp_path / "out"
        output.mkdir(exist_ok=True)
        (output / "changelist.json").write_text(BEFORE)
        defaults = {"old_prediction": "old", "replay_prediction": "new", "budget": 60}
        named = {"label": "label", "output": output, **defaults, **options}
        arguments = ["shift", "--quiet", "--data"]
        arguments.append(pool if data is None else saved(data, tmp_path))
        for name, value in named.items():
            if value is not None:
                flag = "--" + name.replace("_", "-")
                arguments.append(flag if value is True else f"{flag}={value}")
        said = refused(arguments, capsys, folder=tmp_path, code=code)
        assert (output / "changelist.json").read_text() == BEFORE
        # Not even a ledger is begun.
        assert {path.name for path in output.iterdir()} <= {"changelist.json", "_work"}
        return said

    return run_it


# What a plan, and a run without old predictions or answers, leave out.
PLAN = {"plan": True, "replay_prediction": None, "budget": None}
NO_OLD = {"old_prediction": None}
NO_ANSWERS = {"replay_prediction": None}
PRICED = {"price": 0.5}

OPTIONS: dict[str, tuple[dict[str, Any], str]] = {
    "nothing answers": (NO_ANSWERS, "nothing answers: give --api, --model or --replay-prediction"),
    "api and model": (
        {**NO_ANSWERS, "api": "a.yaml", "model": "m.pkl"},
        "--api and --model both give answers; choose one",
    ),
    "api and replay": ({"api": "a.yaml"}, "--api and --replay-prediction both give answers"),
    "model and replay": ({"model": "m.pkl"}, "--model and --replay-prediction both give answers"),
    "features": ({"features": "x1"}, "--features are what a --model reads, which is not given"),
    "ledger": ({"ledger": "l"}, "--ledger keeps the answers of --api or --model; leave it out"),
    "no end": ({"budget": None}, "when to stop is not said: give --budget, --target-error or both"),
    "no old": (NO_OLD, "the old confusion matrix is not known: give --old-prediction, or --old-m"),
    "both olds": ({"old_matrix": "o.json"}, "--old-matrix has no effect beside --old-prediction"),
    "plus without old": (
        {**NO_OLD, "old_matrix": "o.json", "method": "plus"},
        "--method plus compares with the old predictions item by item: give --old-prediction, or",
    ),
    "by without old": (
        {**NO_OLD, "old_matrix": "o.json", "by": "part"},
        "--by compares slices with their own old matrices: give --old-prediction",
    ),
    "slices without old": (
        {**NO_OLD, "old_matrix": "o.json", "changelist": "c.json"},
        "--changelist compares slices with their own old matrices: give --old-prediction",
    ),
    "two slicings": ({"by": "part", "changelist": "c.json"}, "--by and --changelist both name sli"),
    "uniform slices": (
        {"by": "part", "method": "uniform"},
        "--method uniform says nothing about sl",
    ),
    "bins of nothing": ({"bins": 3}, "--bins cuts --difficulty, which is not given; leave it out"),
    "replacement": ({"replacement": True}, "is for studies of a method: add --repeat"),
    "plan and answers": ({"plan": True, "budget": None}, "--plan simulates answers: leave --repla"),
    "plan and model": ({**PLAN, "model": "m.pkl"}, "--plan simulates answers: leave"),
    "plan without old": ({**PLAN, **NO_OLD}, "--plan simulates updates of the old predictions"),
    "plan with replacement": ({**PLAN, "replacement": True}, "--replacement has no effect on --pl"),
    "plan to a target": ({**PLAN, "target_error": 0.1}, "--target-error has no effect on --plan"),
    "plan with a ledger": (
        {**PLAN, "api": "a.yaml", "ledger": "l"},
        "--ledger has no effect on --plan; leave it out",
    ),
    "plan with slices": ({**PLAN, "by": "part"}, "--by has no effect on --plan and --repeat"),
    "plan with a document": ({**PLAN, "old_matrix": "o.json"}, "--old-matrix has no effect on --p"),
    "no output": ({"output": None}, "--output is missing: name a folder for changelist.json"),
    "plan to resume": (
        {**PLAN, "output": None, "resume": True},
        "--resume goes on in the folder that a run began with: give its --output or --work-dir",
    ),
    "plan that fails": ({**PLAN, "fail_on": "worse"}, "--fail-on has no effect on --plan and --re"),
    "plan of few calls": ({**PLAN, "budget": 3}, "--budget buys 3 calls, but --method plus needs"),
    "plan in money": ({**PLAN, "budget": "$5"}, "--budget 5 USD is money, and no call has a price"),
    "plan of no file": ({**PLAN, "api": "none.yaml"}, "none.yaml: no such file"),
    "repeated calls": (
        {**NO_ANSWERS, "model": "m.pkl", "repeat": 3},
        "--repeat measures a method on recorded answers: give --replay-prediction",
    ),
    "repeat without plus": (
        {**NO_OLD, "repeat": 3, "method": "plus"},
        "--method plus compares with the old predictions item by item",
    ),
    "repeated slices": ({"repeat": 3, "by": "part"}, "--by has no effect on --plan and --repeat"),
    "repeated slices of a search": (
        {"repeat": 3, "changelist": "c.json"},
        "--changelist has no effect on --plan and --repeat",
    ),
    "repeat of few calls": ({"repeat": 3, "budget": 2}, "buys 2 calls, but --method plus needs 6"),
    "repeat without an end": ({"repeat": 3, "budget": None}, "when to stop is not said"),
    "repeat never": ({"repeat": 0}, "--repeat 0: it must be greater than or equal to 1"),
    "repeat as text": ({"repeat": "x"}, "invalid value for '--repeat': 'x': it must be a valid"),
    "method": ({"method": "mas"}, "--method 'mas'; did you mean 'masa'? choose from plus, masa,"),
    "unknown method": ({"method": "bandit"}, "--method 'bandit'; choose from plus, masa, prop"),
    "unknown flag": ({"metric": "f1"}, "no such option: --metric"),
    "fail on": ({"fail_on": "better"}, "--fail-on 'better': only 'worse' is known"),
    "label": ({"label": "labl"}, "--label: unknown column 'labl'; did you mean 'label'? columns:"),
    "old": ({"old_prediction": "ol"}, "--old-prediction: unknown column 'ol'; did you mean 'old'?"),
    "new": ({"replay_prediction": "nw"}, "--replay-prediction: unknown column 'nw'; did you mean"),
    "difficulty": ({"difficulty": "confidnce"}, "--difficulty: unknown column 'confidnce'; did yo"),
    "id": ({"example_id": "ky"}, "--example-id: unknown column 'ky'; did you mean 'key'?"),
    "by": ({"by": "prt"}, "--by: unknown column 'prt'; did you mean 'part'?"),
    "label as old": ({"old_prediction": "label"}, "--old-prediction 'label' is the label; name an"),
    "label as new": ({"replay_prediction": "label"}, "--replay-prediction 'label' is the label"),
    "label as difficulty": ({"difficulty": "label"}, "--difficulty 'label' is the label; name"),
    "label as id": ({"example_id": "label"}, "--example-id 'label' is the label; name another"),
    "empty by": ({"by": ""}, "--by holds an empty name; give one or leave it out"),
    "fractional id": ({"example_id": "x1"}, "--example-id column is double; an id is text or an"),
    "no bins": ({"difficulty": "confidence", "bins": 0}, "--bins 0: it must be greater than or"),
    "many bins": ({"difficulty": "confidence", "bins": 101}, "--bins 101: it must be less than"),
    "budget of nothing": ({"budget": 0}, "--budget '0' buys nothing; give more"),
    "negative budget": ({"budget": -5}, "--budget '-5': write calls as 2000, or money as 5USD"),
    "half a call": ({"budget": 1.5}, "--budget '1.5': a number of calls is whole; write money as"),
    "apples": ({"budget": "5 apples"}, "--budget '5 apples': write calls as 2000, or money as"),
    "two signs": ({"budget": "$5€"}, "--budget '$5€': write calls as 2000, or money as 5USD or $5"),
    "no money": ({"budget": "$0", **PRICED}, "--budget '$0' buys nothing; give more"),
    "no price": ({"budget": "0.5 EUR"}, "--budget 0.5 EUR is money, and no call has a price; give"),
    "price above the budget": ({"budget": "0.01USD", **PRICED}, "--budget 0.01 USD buys no call a"),
    "budget of masa": (
        {"budget": 5, "method": "masa", "difficulty": "confidence"},
        "--budget buys 5 calls, but --method masa needs 18 at least: two for each of the 9 strata;",
    ),
    "budget of uniform": ({"budget": 1, "method": "uniform"}, "--budget buys 1 call, but --method"),
    "no error at all": ({"target_error": 0}, "--target-error 0.0: it must be greater than 0"),
    "negative error": ({"target_error": -1}, "--target-error -1.0: it must be greater than 0"),
    "any error": ({"target_error": 2}, "--target-error 2.0: it must be less than 2"),
    "no number": ({"target_error": "nan"}, "--target-error nan: it must be"),
    "sure": ({"confidence": 1}, "--confidence 1.0: it must be less than 1"),
    "unsure": ({"confidence": 0.4}, "--confidence 0.4: it must be greater than or equal to 0.5"),
    "negative price": ({"price": -1}, "--price -1.0: it must be greater than or equal to 0"),
    "infinite price": ({"price": "inf"}, "--price inf: it must be a finite number"),
    "price as text": ({"price": "x"}, "invalid value for '--price': 'x': it must be a valid num"),
    "seed": ({"seed": -1}, "--seed -1: it must be greater than or equal to 0"),
    "no api": ({**NO_ANSWERS, "api": "none.yaml"}, "none.yaml: no such file"),
    "no slices": ({"changelist": "none.json"}, "--changelist none.json: no such file"),
    "no document": ({**NO_OLD, "old_matrix": "none.json"}, "--old-matrix none.json: no such file"),
}


@pytest.mark.parametrize("name", OPTIONS)
def test_wrong_options(refuse: Refuse, name: str) -> None:
    options, message = OPTIONS[name]
    assert message in refuse(**options)


def test_bins_are_named_only_where_they_help(refuse: Refuse) -> None:
    assert refuse(budget=5, difficulty="confidence").endswith("; raise it, or lower --bins")
    assert refuse(budget=5).endswith("; raise it")


def gap(column: pd.Series, kind: str) -> pd.Series:
    return column.astype(kind).mask(column.index == 3)


DATA: dict[str, tuple[Callable[[pd.DataFrame], dict[str, Any]], str]] = {
    "label without a value": (
        lambda frame: {"label": gap(frame["label"], "Int64")},
        "column 'label' has no value in row 4 of DIR/pool.parquet; drop such examples or fill",
    ),
    "label that is NaN": (
        lambda frame: {"label": gap(frame["label"], "float")},
        "column 'label' has no value in row 4 of DIR/pool.parquet",
    ),
    "old without a value": (
        lambda frame: {"old": gap(frame["old"], "Int64")},
        "column 'old' has no value in row 4 of DIR/pool.parquet",
    ),
    "labels of text": (
        lambda frame: {"label": frame["label"].astype(str)},
        "label 'label' is text (string) and prediction 'old' is a number (int64): they would never",
    ),
    "old of text": (
        lambda frame: {"old": frame["old"].astype(str)},
        "label 'label' is a number (int64) and prediction 'old' is text (string)",
    ),
    "new of text": (
        lambda frame: {"new": frame["new"].astype(str).astype("category")},
        "label 'label' is a number (int64) and prediction 'new' is text (string)",
    ),
    "dates": (lambda frame: {"label": pd.Timestamp("2020-01-01")}, "column 'label' of timestamp"),
    "labels of lists": (
        lambda frame: {"label": [[1]] * len(frame)},
        "holds no classes; use text, integers or booleans",
    ),
    "labels of nothing": (lambda frame: {"label": None}, "column 'label' of null holds no classes"),
    "fractions": (lambda frame: {"label": frame["label"] + 0.5}, "label 'label' holds fractions ("),
    "infinite answer": (
        lambda frame: {"new": frame["new"].astype(float).mask(frame.index == 9, np.inf)},
        "prediction 'new' holds fractions (inf): it is no class",
    ),
    "labels beyond what floats hold": (
        lambda frame: {"label": frame["label"] + 2**53, "new": frame["new"].astype(float)},
        "'label' holds no classes of the label's kind",
    ),
    "old of other classes": (
        lambda frame: {"old": frame["old"] + 7},
        "prediction 'old' never equals label 'label': labels are 0, 1, 2, predictions are 7, 8, 9;",
    ),
    "new of other classes": (lambda frame: {"new": frame["new"] + 7}, "'new' never equals label"),
    "text difficulty": (lambda frame: {"confidence": "high"}, "column 'confidence' is string, but"),
    "infinite difficulty": (
        lambda frame: {"confidence": frame["confidence"].mask(frame.index == 2, -np.inf)},
        "column 'confidence' holds -inf in row 3 of DIR/pool.parquet, but a difficulty is a finite",
    ),
    "id twice": (
        lambda frame: {"key": frame["key"].mask(frame.index == 5, "item-2")},
        "--example-id: column 'key' holds 'item-2' more than once (examples 3 and 6 of the data)",
    ),
    "no id": (
        lambda frame: {"key": frame["key"].mask(frame.index == 5)},
        "--example-id has no value in row 6 of DIR/pool.parquet",
    ),
    "slices of records": (
        lambda frame: {"part": [{"a": 1}] * len(frame)},
        "--by part: a column of struct<a: int64> has no values to compare; name a column with few",
    ),
}


@pytest.mark.parametrize("name", DATA)
def test_wrong_data(refuse: Refuse, frame: pd.DataFrame, name: str) -> None:
    change, message = DATA[name]
    read = {"difficulty": "confidence", "example_id": "key", "by": "part"}
    assert message in refuse(data=frame.assign(**change(frame)), **read)


def test_data_without_examples(refuse: Refuse, frame: pd.DataFrame) -> None:
    assert refuse(data=frame.iloc[:0]) == "--data DIR/pool.parquet: there are no examples in it"


def test_too_many_values(refuse: Refuse) -> None:
    many = made(1200).assign(distinct=range(1200))
    for role in ("label", "old", "new"):
        said = refuse(data=many.assign(**{role: range(1200)}), budget=2400)
        assert f"{role!r} has more than 1,000 distinct values: it is no class" in said
    for column in ("distinct", "x1"):
        said = refuse(data=many, by=column)
        assert said.startswith(f"--by {column}: it has more than 1,000 different values, and each")
        assert said.endswith("--by takes a column with few values")


def changed(told: dict[str, Any], **parts: Any) -> dict[str, Any]:
    """A document whose section of the shift says something else."""
    document = json.loads(json.dumps(told))
    document["shift"].update(parts)
    return document


def with_accuracy(told: dict[str, Any], **parts: Any) -> dict[str, Any]:
    document = json.loads(json.dumps(told))
    document["global"][0]["after"] = {"confidence": 0.95, **parts}
    return document


def with_cell(told: dict[str, Any], name: str, value: Any) -> dict[str, Any]:
    matrix = [list(row) for row in told["shift"][name]]
    matrix[1][2] = value
    return changed(told, **{name: matrix})


MATRICES: dict[str, tuple[Callable[[dict[str, Any]], Any], str]] = {
    "other labels": (lambda told: changed(told, labels=[4, 5, 6]), "label 0 is not in it; give"),
    "labels of text": (lambda told: changed(told, labels=["0", "1", "2"]), "label 0 is not in it"),
    "predictions of text": (
        lambda told: changed(told, predictions=["a", "b", "c"]),
        "prediction 'a' is in it only; give the document of a shift with these classes",
    ),
    "fewer labels": (lambda told: changed(told, labels=[0, 1]), "new_matrix is no matrix of 2 lab"),
    "more predictions": (
        lambda told: changed(told, predictions=[0, 1, 2, None]),
        "new_matrix is no matrix of 3 labels by 4 predictions",
    ),
    "labels twice": (lambda told: changed(told, labels=[0, 1, 1]), "its labels hold 1 twice"),
    "predictions twice": (
        lambda told: changed(told, predictions=[None, 1, None]),
        "its predictions hold null twice",
    ),
    "lists": (lambda told: changed(told, labels=[[0], 1, 2]), "its labels hold [0], which is no"),
    "label of nothing": (lambda told: changed(told, labels=[None, 1, 2]), "hold None, which is no"),
    "fractions": (lambda told: changed(told, predictions=[0, 1, 2.5]), "hold 2.5, which is no"),
    "classes beyond integers": (
        lambda told: changed(told, predictions=[0, 1, 2**63]),
        "class 9223372036854775808 is none of label 'label', whose classes are whole numbers",
    ),
    "no rows": (lambda told: changed(told, new_matrix=[]), "new_matrix is no matrix of 3 labels"),
    "short row": (
        lambda told: changed(told, new_errors=[[0.1, 0.1, 0.1], [0.1, 0.1], [0.1, 0.1, 0.1]]),
        "new_errors is no matrix of 3 labels by 3 predictions",
    ),
    "negative": (
        lambda told: with_cell(told, "new_matrix", -0.1),
        "new_matrix has -0.1 for label 1 and prediction 2, which no share has",
    ),
    "above 1": (lambda told: with_cell(told, "new_matrix", 5), "new_matrix has 5 for label 1"),
    "sum": (lambda told: with_cell(told, "new_matrix", 0.9), "and not to 1; give the document"),
    "zero": (
        lambda told: changed(told, method="uniform", new_matrix=[[0] * 3] * 3),
        "has no share",
    ),
    "negative error": (lambda told: with_cell(told, "new_errors", -0.1), "new_errors has -0.1 for"),
    "text": (lambda told: with_cell(told, "new_matrix", "0"), "new_matrix.1.2 has another type"),
    "null": (lambda told: with_cell(told, "new_matrix", None), "new_matrix.1.2: Input should be a"),
    "NaN": (lambda told: with_cell(told, "new_matrix", np.nan), "NaN is no number in JSON"),
    "confidence": (lambda told: changed(told, confidence=0), "its confidence is 0"),
    "no interval": (lambda told: with_accuracy(told, value=0.8), "its accuracy has no interval"),
    "turned interval": (
        lambda told: with_accuracy(told, value=0.8, lo=0.9, hi=0.7),
        "its accuracy is 0.8, 0.9 to 0.7",
    ),
    "no shift": (
        lambda told: {key: value for key, value in told.items() if key != "shift"},
        "no whole ChangeList (shift: Field required)",
    ),
    "version": (lambda told: told | {"schema_version": "9.0"}, "a ChangeList of version 9.0, but"),
    "a list": (lambda told: [], "no ChangeList; name a changelist.json of an earlier run"),
}


@pytest.mark.parametrize("name", MATRICES)
@pytest.mark.slow
def test_wrong_old_matrices(
    refuse: Refuse, earlier: dict[str, Any], name: str, tmp_path: Path
) -> None:
    change, message = MATRICES[name]
    (tmp_path / "old.json").write_text(json.dumps(change(earlier)))
    said = refuse(old_prediction=None, old_matrix=tmp_path / "old.json")
    assert message in said
    assert "--old-matrix DIR/old.json: " in said or name == "classes beyond integers"


def test_files_that_are_no_document(refuse: Refuse, frame: pd.DataFrame, tmp_path: Path) -> None:
    for option, others in (("old_matrix", {"old_prediction": None}), ("changelist", {})):
        name = "--" + option.replace("_", "-")
        path = tmp_path / "garbage.json"
        for content in (b"", b'{"a":', b"\xff\xfe"):
            path.write_bytes(content)
            said = refuse(**{option: path}, **others)
            assert said.startswith(f"{name} DIR/garbage.json: no readable JSON (")
        assert refuse(**{option: tmp_path}, **others) == (
            f"{name} DIR is a folder; name its changelist.json"
        )
    text = frame.astype({"label": str, "old": str, "new": str})
    data = saved(text, tmp_path, "text.parquet")
    shift(tmp_path / "text", "--data", data, *REPLAYED, "--budget", 60)
    other = {"old_prediction": None, "old_matrix": tmp_path / "text" / "changelist.json"}
    assert "label 0 is not in it; give the document of a shift with these classes" in refuse(
        **other
    )


def test_slices_that_the_data_does_not_have(
    refuse: Refuse, frame: pd.DataFrame, pool: str, tmp_path: Path
) -> None:
    (tmp_path / "slices.yaml").write_text("- part = b\n")
    flags = ["--data", pool, "--label", "label", "--prediction", "old", "--quiet"]
    slices = ["--slices", str(tmp_path / "slices.yaml"), "--output", str(tmp_path / "checked")]
    assert run(["check", *flags, *slices]) == 0
    given = {"changelist": tmp_path / "checked" / "changelist.json"}
    assert document(tmp_path / "checked")["slices"]
    said = refuse(data=frame.drop(columns="part"), **given)
    assert "--changelist DIR/checked/changelist.json, slice" in said
    assert "unknown column 'part'" in said
    assert "column 'part'" in refuse(data=frame.assign(part=1.5), **given)


def test_models_that_are_none(refuse: Refuse, frame: pd.DataFrame, tmp_path: Path) -> None:
    def said(model: Any, **options: Any) -> str:
        return refuse(**{**NO_ANSWERS, "model": model, **options})

    assert said("none.pkl") == "--model none.pkl: no such file"
    path = tmp_path / "model.pkl"
    for content, message in (
        (b"xx", "--model DIR/model.pkl: no readable pickle or joblib file (UnpicklingError"),
        (b"", "no readable pickle or joblib file (EOFError"),
        (pickle.dumps({"a": 1}), "--model DIR/model.pkl: a dict has no predict method"),
    ):
        path.write_bytes(content)
        assert message in said(path)
    fitted = LogisticRegression().fit(frame[["x1", "x2"]].to_numpy(), frame["label"])
    path.write_bytes(pickle.dumps(fitted))
    assert "does not say which columns it reads; name them by --features" in said(path)
    gone = said(path, features="x1,zz")
    assert gone == "--model DIR/model.pkl reads column 'zz', which the data does not have"
    for name, message in {
        "nomodule:f": "No module named 'nomodule'; write module:function, of a module that can be",
        "json:nothing": "module 'json' has no attribute 'nothing'; write module:function",
        "json:loads": "loads() failed: TypeError",
        "json:__name__": "__name__ is no function that returns a model handler",
        "os:getcwd": "getcwd() returns a str, not a ModelHandler of apache_beam.ml.inference",
    }.items():
        assert said(name).startswith(f"--model {name}: {message}")


@pytest.mark.slow
def test_ledgers_that_are_no_folder(refuse: Refuse, frame: pd.DataFrame, tmp_path: Path) -> None:
    fitted = LogisticRegression().fit(frame[["x1", "x2"]], frame["label"])
    (tmp_path / "model.pkl").write_bytes(pickle.dumps(fitted))
    (tmp_path / "file").write_text("x")
    asking = {**NO_ANSWERS, "model": tmp_path / "model.pkl"}
    said = refuse(**asking, ledger=tmp_path / "file")
    assert said == "--ledger DIR/file is a file; name a folder"
    said = refuse(3, **asking, ledger=tmp_path / "file" / "x")
    assert said.startswith("cannot make DIR/file/x: Not a directory")
    said = refuse(**asking, ledger="gcs://bucket/ledger")
    assert said.startswith("--ledger gcs://bucket/ledger: unknown store 'gcs://'; did you mean")
    assert (tmp_path / "file").read_text() == "x"
