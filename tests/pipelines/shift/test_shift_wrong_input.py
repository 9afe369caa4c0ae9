"""What is wrong with a shift is said in a line or two, before anything is paid or published."""

import json
import os
import pickle
import signal
import subprocess
import sys
import time
from copy import deepcopy

import numpy as np
import pandas as pd
import pytest
from sklearn.linear_model import LogisticRegression

from slicebeam.pipelines.commands.cli import run
from tests.refusals import refusing
from tests.running import importable, refused
from tests.shift_runs import REPLAYED, ROLES, asked_items, document, made, matrix, saved, shift

FRAME, FILE = made(120), "DIR/data.parquet"
# What a run without answers leaves out.
NO_ANSWERS = {"replay_prediction": None}


@pytest.fixture(scope="module")
def pool(tmp_path_factory):
    return saved(FRAME, tmp_path_factory.mktemp("pool"))


@pytest.fixture(scope="module")
def earlier(pool, tmp_path_factory):
    return shift(tmp_path_factory.mktemp("earlier"), "--data", pool, *REPLAYED, "--budget", 60)


@pytest.fixture
def refuse(tmp_path, capsys):
    roles = {"label": "label", "old_prediction": "old", "replay_prediction": "new"}
    return refusing("shift", tmp_path, capsys, FRAME, budget=60, **roles)


LABEL, OLD, NEW, HOW_SURE = (FRAME[name] for name in ("label", "old", "new", "confidence"))
ROW = FRAME.index
NO_VALUE = f"column '{{}}' has no value in row 4 of {FILE}"
# Name: the columns that are changed, and what the message says.
DATA = {
    "label without a value": ({"label": LABEL.astype("Int64").mask(ROW == 3)}, NO_VALUE.format("label") + "; drop such examples or fill"),
    "label that is NaN": ({"label": LABEL.astype("float").mask(ROW == 3)}, NO_VALUE.format("label")),
    "old without a value": ({"old": OLD.astype("Int64").mask(ROW == 3)}, NO_VALUE.format("old")),
    "labels of text": ({"label": LABEL.astype(str)}, "label 'label' is text (string) and prediction 'old' is a number (int64): they can never be"),
    "old of text": ({"old": OLD.astype(str)}, "label 'label' is a number (int64) and prediction 'old' is text (string)"),
    "new of text": ({"new": NEW.astype(str).astype("category")}, "label 'label' is a number (int64) and prediction 'new' is text (string)"),
    "dates": ({"label": pd.Timestamp("2020-01-01")}, "column 'label' of timestamp"),
    "labels of lists": ({"label": [[1]] * len(FRAME)}, "does not contain classes; use text, integers or booleans; lists are for metrics such as jaccard"),
    "labels of nothing": ({"label": None}, "column 'label' of null does not contain classes"),
    "fractions": ({"label": LABEL + 0.5}, "label 'label' holds fractions ("),
    "infinite answer": ({"new": NEW.astype(float).mask(ROW == 9, np.inf)}, "prediction 'new' holds fractions (inf): it is not a class"),
    "labels beyond what floats hold": ({"label": LABEL + 2**53, "new": NEW.astype(float)}, "'label' does not contain classes of the label's type"),
    "old of other classes": ({"old": OLD + 7}, "prediction 'old' never equals label 'label': labels are 0, 1, 2, predictions are 7, 8, 9;"),
    "new of other classes": ({"new": NEW + 7}, "'new' never equals label"),
    "text difficulty": ({"confidence": "high"}, "column 'confidence' is string, but"),
    "infinite difficulty": ({"confidence": HOW_SURE.mask(ROW == 2, -np.inf)}, f"column 'confidence' holds -inf in row 3 of {FILE}, but a difficulty is a finite"),
    "id twice": ({"key": FRAME["key"].mask(ROW == 5, "item-2")}, "--example-id: column 'key' holds 'item-2' more than once (examples 3 and 6 of the data)"),
    "no id": ({"key": FRAME["key"].mask(ROW == 5)}, f"--example-id has no value in row 6 of {FILE}"),
    "slices of records": ({"part": [{"a": 1}] * len(FRAME)}, "--by part: a column of struct<a: int64> has no values to compare; name a column with few"),
}  # fmt: skip


@pytest.mark.parametrize("name", DATA)
def test_wrong_data(refuse, name):
    columns, message = DATA[name]
    read = {"difficulty": "confidence", "example_id": "key", "by": "part"}
    assert message in refuse(data=FRAME.assign(**columns), **read)


def test_too_few_calls_no_example_and_too_many_slices(refuse):
    # Bins are named only where they help.
    assert refuse(budget=5, difficulty="confidence").endswith("; raise it, or lower --bins")
    assert refuse(budget=5).endswith("; raise it")
    assert (
        refuse(data=FRAME.iloc[:0])
        == f"--data {FILE}: there are no examples in it; name files with some"
    )
    many = made(1200).assign(distinct=range(1200))
    for column in ("distinct", "x1"):
        said = refuse(data=many, by=column)
        assert said.startswith(f"--by {column}: it has more than 1,000 different values, each of")
        assert said.endswith("name a column with few values")


SHARES = "is not a matrix of 3 labels by 3 predictions"
# Name: where the document of a shift says something else, and what, and the message.
MATRICES = {
    "other labels": ("shift labels", [4, 5, 6], "label 0 is not in it; give"),
    "labels of text": ("shift labels", ["0", "1", "2"], "label 0 is not in it"),
    "predictions of text": ("shift predictions", ["a", "b", "c"], "prediction 'a' is in it only; give the document of a shift with these classes"),
    "fewer labels": ("shift labels", [0, 1], "new_matrix is not a matrix of 2 lab"),
    "more predictions": ("shift predictions", [0, 1, 2, None], "new_matrix is not a matrix of 3 labels by 4 predictions"),
    "labels twice": ("shift labels", [0, 1, 1], "its labels contain 1 twice"),
    "predictions twice": ("shift predictions", [None, 1, None], "its predictions contain null twice"),
    "lists": ("shift labels", [[0], 1, 2], "its labels contain [0], which is not a class"),
    "label of nothing": ("shift labels", [None, 1, 2], "contain None, which is not a class"),
    "fractions": ("shift predictions", [0, 1, 2.5], "contain 2.5, which is not a class"),
    "classes beyond integers": ("shift predictions", [0, 1, 2**63], "class 9223372036854775808 is not a class of label 'label', whose classes are whole numbers"),
    "no rows": ("shift new_matrix", [], "new_matrix is not a matrix of 3 labels"),
    "short row": ("shift new_errors 1", [0.1, 0.1], f"new_errors {SHARES}"),
    "negative": ("shift new_matrix 1 2", -0.1, "new_matrix has -0.1 for label 1 and prediction 2, which is not a share"),
    "above 1": ("shift new_matrix 1 2", 5, "new_matrix has 5 for label 1"),
    "sum": ("shift new_matrix 1 2", 0.9, "not to 1; give the unchanged document"),
    "zero": ("shift", {"new_matrix": [[0, 0, 0], [0.5, 0, 0], [0, 0.5, 0]]}, "label 0 does not occur in it"),
    "negative error": ("shift new_errors 1 2", -0.1, "new_errors has -0.1 for"),
    "text": ("shift new_matrix 1 2", "0", "new_matrix.1.2: Input should be a valid number"),
    "null": ("shift new_matrix 1 2", None, "new_matrix.1.2: Input should be a"),
    "NaN": ("shift new_matrix 1 2", np.nan, "NaN is not a number in JSON"),
    "confidence": ("shift confidence", 0, "its confidence is 0"),
    "no interval": ("global 0 after", {"value": 0.8, "lo": ..., "hi": ...}, "its accuracy has no interval"),
    "turned interval": ("global 0 after", {"value": 0.8, "lo": 0.9, "hi": 0.7}, "its accuracy is 0.8, 0.9 to 0.7"),
    "no shift": ("", {"shift": ...}, "not a valid ChangeList (shift: Field required)"),
    "version": ("schema_version", "9.0", "a ChangeList of version 9.0, but"),
    "a list": ("", [], "not a ChangeList; name the changelist.json of an earlier run"),
}  # fmt: skip


def edited(document, path, value):
    """Return a document with another value at a path; a mapping is merged, ``...`` deletes a key."""
    if path:
        key, _, rest = path.partition(" ")
        key = int(key) if key.isdigit() else key
        copy = deepcopy(document)
        copy[key] = edited(document[key], rest, value)
        return copy
    if isinstance(value, dict):
        return {key: new for key, new in {**document, **value}.items() if new is not ...}
    return value


@pytest.mark.parametrize("name", MATRICES)
@pytest.mark.slow
def test_wrong_old_matrices(refuse, earlier, name, tmp_path):
    path, value, message = MATRICES[name]
    (tmp_path / "old.json").write_text(json.dumps(edited(earlier, path, value)))
    said = refuse(old_prediction=None, old_matrix=tmp_path / "old.json")
    assert message in said
    assert "--old-matrix DIR/old.json: " in said or name == "classes beyond integers"


def test_files_that_are_no_document(refuse, tmp_path):
    for option, others in (("old_matrix", {"old_prediction": None}), ("changelist", {})):
        name, path = "--" + option.replace("_", "-"), tmp_path / "garbage.json"
        for content in (b"", b'{"a":', b"\xff\xfe"):
            path.write_bytes(content)
            said = refuse(**{option: path}, **others)
            assert said.startswith(f"{name} DIR/garbage.json: not readable as JSON (")
        said = f"{name} DIR is a folder; name its changelist.json"
        assert refuse(**{option: tmp_path}, **others) == said
    data = saved(FRAME.astype({"label": str, "old": str, "new": str}), tmp_path, "text.parquet")
    shift(tmp_path / "text", "--data", data, *REPLAYED, "--budget", 60)
    other = {"old_prediction": None, "old_matrix": tmp_path / "text" / "changelist.json"}
    said = "label 0 is not in it; give the document of a shift with these classes"
    assert said in refuse(**other)


def test_slices_that_the_data_does_not_have(refuse, pool, tmp_path):
    (tmp_path / "slices.yaml").write_text("- part = b\n")
    flags = ["--data", pool, "--label", "label", "--prediction", "old", "--quiet"]
    slices = ["--slices", str(tmp_path / "slices.yaml"), "--output", str(tmp_path / "checked")]
    assert run(["check", *flags, *slices]) == 0
    given = {"changelist": tmp_path / "checked" / "changelist.json"}
    assert document(tmp_path / "checked")["slices"]
    said = refuse(data=FRAME.drop(columns="part"), **given)
    assert "--changelist DIR/checked/changelist.json, slice" in said
    assert "unknown column 'part'" in said
    assert "column 'part'" in refuse(data=FRAME.assign(part=1.5), **given)


def test_models_that_are_none(refuse, tmp_path):
    def said(model, **options):
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
    fitted = LogisticRegression().fit(FRAME[["x1", "x2"]].to_numpy(), FRAME["label"])
    path.write_bytes(pickle.dumps(fitted))
    assert "does not say which columns it reads; name them with --features" in said(path)
    gone = said(path, features="x1,zz")
    assert gone.startswith("--features: unknown column 'zz'; columns: ")
    for name, message in {
        "nomodule:f": "No module named 'nomodule'; write module:function, with a module that Python finds",
        "json:nothing": "module 'json' has no attribute 'nothing'; write module:function",
        "json:loads": "loads() failed: TypeError",
        "json:__name__": "__name__ is not a function that returns a model handler",
        "os:getcwd": "getcwd() returns a str, not a ModelHandler of apache_beam.ml.inference",
    }.items():
        assert said(name).startswith(f"--model {name}: {message}")


@pytest.fixture(scope="module")
def frame():
    return made()


@pytest.fixture(scope="module")
def texts(frame, tmp_path_factory):
    return saved(frame, tmp_path_factory.mktemp("texts"))


HANDLERS = '''
import time
from pathlib import Path

import numpy as np
from apache_beam.ml.inference.base import ModelHandler, RemoteModelHandler

HERE = Path(__file__).parent

def note(row):
    with (HERE / "calls").open("a") as log:
        log.write(row["key"] + "\\n")

class Local(ModelHandler):
    def load_model(self):
        return None

    def run_inference(self, batch, model, inference_args=None):
        for row in batch:
            note(row)
            if (HERE / "slow").exists():
                time.sleep(0.005)
            yield row["new"]

class Remote(RemoteModelHandler):
    def __init__(self):
        super().__init__(namespace="remote", num_retries=1)

    def create_client(self):
        return None

    def request(self, batch, model, inference_args=None):
        for row in batch:
            note(row)
        return [row["new"] for row in batch]

class Odd(Local):
    """Answers with what is no class, but every fifth time."""

    def run_inference(self, batch, model, inference_args=None):
        odd = [None, float("nan"), [1], {"a": 1}, np.int64(1)]
        for row in batch:
            note(row)
            yield odd[int(row["key"].split("-")[1]) % 5]
'''


@pytest.fixture
def handlers(tmp_path, monkeypatch):
    folder = tmp_path / "handlers"
    folder.mkdir()
    importable(monkeypatch, folder, "handlers_of_a_test", HANDLERS)
    monkeypatch.setenv("PYTHONPATH", str(folder))
    return folder


def calls_of(folder):
    log = folder / "calls"
    return log.read_text().split() if log.exists() else []


@pytest.mark.parametrize("handler", ["Local", "Remote"])
@pytest.mark.slow
def test_a_model_handler_answers_once(handler, frame, texts, handlers, tmp_path):
    flags = ["--data", texts, *ROLES, "--model", f"handlers_of_a_test:{handler}"]
    how = ["--budget", 100, "--by", "part"]
    found = shift(tmp_path / "out", *flags, *how)
    replayed = shift(tmp_path / "recorded", "--data", texts, *REPLAYED, *how)
    for told in (found, replayed):
        del told["shift"]["cost"]
    assert found["shift"] == replayed["shift"]
    asked = asked_items(frame["label"], [one["calls"] for one in found["shift"]["strata"]], 0)
    assert sorted(calls_of(handlers)) == sorted(frame["key"][asked])
    assert not (tmp_path / "out" / "_work").exists()
    again = shift(tmp_path / "out", *flags, "--budget", 130)["shift"]["cost"]
    assert (again["calls"], again["replayed"]) == (130, 100)
    assert len(calls_of(handlers)) == len(set(calls_of(handlers))) == 130
    adaptive = [*flags, "--method", "masa", "--ledger", tmp_path / "out" / "ledger"]
    shift(tmp_path / "masa", *adaptive, "--budget", 40)
    assert len(calls_of(handlers)) == len(set(calls_of(handlers))) < 170


@pytest.mark.slow
def test_what_is_no_class_is_no_result(texts, handlers, tmp_path):
    flags = ["--data", texts, *ROLES, "--model", "handlers_of_a_test:Odd", "--budget", 100]
    told = shift(tmp_path / "out", *flags)["shift"]
    asked = [int(key.split("-")[1]) % 5 for key in calls_of(handlers)]
    assert told["cost"]["no_result"] == sum(number < 4 for number in asked)
    assert told["predictions"] == [0, 1, 2, None]
    again = shift(tmp_path / "out", *flags)["shift"]
    assert (again["cost"]["replayed"], again["new_matrix"]) == (100, told["new_matrix"])
    assert len(calls_of(handlers)) == 100


@pytest.mark.slow
@pytest.mark.parametrize("resume", [True, False])
def test_a_killed_run_asks_only_what_it_has_no_answer_to(resume, texts, handlers, tmp_path):
    flags = ["shift", "--data", texts, *ROLES, "--model", "handlers_of_a_test:Local", "--quiet"]
    flags += ["--budget", "400", "--output", str(tmp_path / "out")]
    (handlers / "slow").touch()
    program = "from slicebeam.pipelines.commands.cli import main; main()"
    running = subprocess.Popen([sys.executable, "-c", program, *flags], env=os.environ)
    ledger = tmp_path / "out" / "ledger"
    while len(calls_of(handlers)) < 150:
        assert running.poll() is None
        time.sleep(0.01)
    running.send_signal(signal.SIGKILL)
    running.wait()
    # The last line may be half written.
    lines = "".join(path.read_text() for path in ledger.glob("*.jsonl")).split("\n")[:-1]
    records = [json.loads(line) for line in lines]
    settled = {record["key"] for record in records if record["kind"] == "answered"}
    before = len(calls_of(handlers))
    (handlers / "slow").unlink()
    assert run([*flags, *(["--resume"] if resume else [])]) == 0
    later = calls_of(handlers)[before:]
    assert settled
    assert not settled & {f"#{key.split('-')[1]}" for key in later}
    assert len(set(calls_of(handlers))) == 400
    assert run(flags) == 0
    assert len(calls_of(handlers)) == before + len(later)
    told = document(tmp_path / "out")["shift"]
    undisturbed = shift(tmp_path / "recorded", "--data", texts, *REPLAYED, "--budget", 400)["shift"]
    assert (told["new_matrix"], told["cost"]["replayed"]) == (undisturbed["new_matrix"], 400)


@pytest.mark.slow
def test_a_scikit_learn_model(frame, texts, tmp_path, capsys):
    named = LogisticRegression().fit(frame[["x1", "x2"]], frame["label"])
    unnamed = LogisticRegression().fit(frame[["x1", "x2"]].to_numpy(), frame["label"])
    for name, model in (("named", named), ("unnamed", unnamed)):
        (tmp_path / f"{name}.pkl").write_bytes(pickle.dumps(model))
    flags = ["--data", texts, *ROLES, "--budget", 600, "--model"]
    one = shift(tmp_path / "one", *flags, tmp_path / "named.pkl")
    two = shift(tmp_path / "two", *flags, tmp_path / "unnamed.pkl", "--features", "x1,x2")
    predicted = frame.assign(new=named.predict(frame[["x1", "x2"]]))
    for found in (one, two):
        told = found["shift"]
        np.testing.assert_allclose(told["new_matrix"], matrix(predicted, "new", told), atol=1e-12)
    # Another model under the same name does not answer with what the first one said.
    (tmp_path / "named.pkl").write_bytes(pickle.dumps(unnamed))
    arguments = ["shift", *map(str, flags), str(tmp_path / "named.pkl"), "--features", "x1,x2"]
    arguments += ["--output", str(tmp_path / "one"), "--quiet"]
    assert "belong to other requests" in refused(arguments, capsys, folder=tmp_path)


@pytest.mark.slow
def test_ledgers_that_are_no_folder(refuse, tmp_path):
    fitted = LogisticRegression().fit(FRAME[["x1", "x2"]], FRAME["label"])
    (tmp_path / "model.pkl").write_bytes(pickle.dumps(fitted))
    (tmp_path / "file").write_text("x")
    asking = {**NO_ANSWERS, "model": tmp_path / "model.pkl"}
    said = refuse(code=3, **asking, ledger=tmp_path / "file" / "x")
    assert said.startswith("cannot make DIR/file/x: Not a directory")
    said = refuse(**asking, ledger="gcs://bucket/ledger")
    assert said.startswith("--ledger gcs://bucket/ledger: unknown store 'gcs://'; did you mean")
    assert (tmp_path / "file").read_text() == "x"
