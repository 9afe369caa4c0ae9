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


# What a run without answers leaves out.
NO_ANSWERS = {"replay_prediction": None}


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
        "label 'label' is text (string) and prediction 'old' is a number (int64): they can never be",
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
        "does not contain classes; use text, integers or booleans",
    ),
    "labels of nothing": (
        lambda frame: {"label": None},
        "column 'label' of null does not contain classes",
    ),
    "fractions": (lambda frame: {"label": frame["label"] + 0.5}, "label 'label' holds fractions ("),
    "infinite answer": (
        lambda frame: {"new": frame["new"].astype(float).mask(frame.index == 9, np.inf)},
        "prediction 'new' holds fractions (inf): it is not a class",
    ),
    "labels beyond what floats hold": (
        lambda frame: {"label": frame["label"] + 2**53, "new": frame["new"].astype(float)},
        "'label' does not contain classes of the label's type",
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
        assert f"{role!r} has more than 1,000 distinct values: it is not a class" in said
    for column in ("distinct", "x1"):
        said = refuse(data=many, by=column)
        assert said.startswith(f"--by {column}: it has more than 1,000 different values, each of")
        assert said.endswith("name a column with few values")


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
    "fewer labels": (
        lambda told: changed(told, labels=[0, 1]),
        "new_matrix is not a matrix of 2 lab",
    ),
    "more predictions": (
        lambda told: changed(told, predictions=[0, 1, 2, None]),
        "new_matrix is not a matrix of 3 labels by 4 predictions",
    ),
    "labels twice": (lambda told: changed(told, labels=[0, 1, 1]), "its labels contain 1 twice"),
    "predictions twice": (
        lambda told: changed(told, predictions=[None, 1, None]),
        "its predictions contain null twice",
    ),
    "lists": (
        lambda told: changed(told, labels=[[0], 1, 2]),
        "its labels contain [0], which is not a class",
    ),
    "label of nothing": (
        lambda told: changed(told, labels=[None, 1, 2]),
        "contain None, which is not a class",
    ),
    "fractions": (
        lambda told: changed(told, predictions=[0, 1, 2.5]),
        "contain 2.5, which is not a class",
    ),
    "classes beyond integers": (
        lambda told: changed(told, predictions=[0, 1, 2**63]),
        "class 9223372036854775808 is not a class of label 'label', whose classes are whole numbers",
    ),
    "no rows": (
        lambda told: changed(told, new_matrix=[]),
        "new_matrix is not a matrix of 3 labels",
    ),
    "short row": (
        lambda told: changed(told, new_errors=[[0.1, 0.1, 0.1], [0.1, 0.1], [0.1, 0.1, 0.1]]),
        "new_errors is not a matrix of 3 labels by 3 predictions",
    ),
    "negative": (
        lambda told: with_cell(told, "new_matrix", -0.1),
        "new_matrix has -0.1 for label 1 and prediction 2, which is not a share",
    ),
    "above 1": (lambda told: with_cell(told, "new_matrix", 5), "new_matrix has 5 for label 1"),
    "sum": (
        lambda told: with_cell(told, "new_matrix", 0.9),
        "not to 1; give the unchanged document",
    ),
    "zero": (
        lambda told: changed(told, method="uniform", new_matrix=[[0] * 3] * 3),
        "label 0 does not occur in it",
    ),
    "negative error": (lambda told: with_cell(told, "new_errors", -0.1), "new_errors has -0.1 for"),
    "text": (lambda told: with_cell(told, "new_matrix", "0"), "new_matrix.1.2 has the wrong type"),
    "null": (lambda told: with_cell(told, "new_matrix", None), "new_matrix.1.2: Input should be a"),
    "NaN": (lambda told: with_cell(told, "new_matrix", np.nan), "NaN is not a number in JSON"),
    "confidence": (lambda told: changed(told, confidence=0), "its confidence is 0"),
    "no interval": (lambda told: with_accuracy(told, value=0.8), "its accuracy has no interval"),
    "turned interval": (
        lambda told: with_accuracy(told, value=0.8, lo=0.9, hi=0.7),
        "its accuracy is 0.8, 0.9 to 0.7",
    ),
    "no shift": (
        lambda told: {key: value for key, value in told.items() if key != "shift"},
        "incomplete ChangeList (shift: Field required)",
    ),
    "version": (lambda told: told | {"schema_version": "9.0"}, "a ChangeList of version 9.0, but"),
    "a list": (lambda told: [], "not a ChangeList; name the changelist.json of an earlier run"),
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
            assert said.startswith(f"{name} DIR/garbage.json: not readable as JSON (")
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
        (b"xx", "--model DIR/model.pkl: not readable as a pickle or joblib file (UnpicklingError"),
        (b"", "not readable as a pickle or joblib file (EOFError"),
        (pickle.dumps({"a": 1}), "--model DIR/model.pkl: a dict has no predict method"),
    ):
        path.write_bytes(content)
        assert message in said(path)
    fitted = LogisticRegression().fit(frame[["x1", "x2"]].to_numpy(), frame["label"])
    path.write_bytes(pickle.dumps(fitted))
    assert "does not say which columns it reads; name them with --features" in said(path)
    gone = said(path, features="x1,zz")
    assert gone == "--model DIR/model.pkl reads column 'zz', which the data does not have"
    for name, message in {
        "nomodule:f": "No module named 'nomodule'; write module:function, with a module that can be",
        "json:nothing": "module 'json' has no attribute 'nothing'; write module:function",
        "json:loads": "loads() failed: TypeError",
        "json:__name__": "__name__ is not a function that returns a model handler",
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
