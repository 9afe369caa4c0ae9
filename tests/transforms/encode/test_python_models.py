"""A search with ``--model module:function`` gives what a search with its predictions gives."""

import importlib.util
import json
import re

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from slicebeam.metrics.errors import OptionError
from slicebeam.pipelines.cli import run
from slicebeam.transforms.encode import models
from tests import python_models
from tests.conftest import ADULT


@pytest.fixture(scope="module")
def frame():
    found = pd.read_parquet(ADULT).head(600).reset_index(drop=True)
    found = found.rename(columns={"hours-per-week": "hours"})
    found["label"] = found["income"].astype(np.int64)
    found["wage"] = found["hours"] * 1.1
    return found[["age", "hours", "sex", "label", "wage"]]


def searched(frame, folder, name, *options):
    """Return what a search reports, of all examples and of every slice."""
    frame.to_parquet(folder / "data.parquet")
    out = folder / name
    arguments = ["search", "--data", str(folder / "data.parquet")]
    arguments += ["--features", "age,hours,sex", "--max-cross-size", "1", *options]
    arguments += [] if "--label" in options else ["--label", "label"]
    assert run([*arguments, "--output", str(out), "--quiet"]) == 0
    table = pq.read_table(out / "slices.parquet").to_pylist()
    assert len(table) > 10
    return json.loads((out / "changelist.json").read_text())["global"], table


SLOW = pytest.mark.slow
TORCH = pytest.mark.skipif(
    importlib.util.find_spec("torch") is None, reason="needs the extra [text]"
)


@pytest.mark.parametrize(("names", "column", "options"), [
    (("handler",), "--score", ("--metric", "accuracy,auc,mse", "--threshold", "0.4")),
    (("hours",), "--prediction", ("--label", "wage", "--metric", "mae")),
    pytest.param(("predicted_class", "probability"), "--prediction", ("--metric", "f1"), marks=SLOW),
    pytest.param(("of_each_class",), "--prediction", ("--metric", "accuracy"), marks=SLOW),
    pytest.param(("torch_model",), "--score", ("--metric", "auc"), marks=[TORCH, SLOW]),
])  # fmt: skip
def test_a_function_predicts_as_it_does_alone(names, column, options, frame, tmp_path):
    for name in names:
        function = getattr(python_models, name)
        made = function if name not in ("loaded", "handler", "torch_model") else None
        made = made or (function() if name == "torch_model" else python_models.probability)
        given = made(frame)
        found = np.asarray(given.detach() if name == "torch_model" else given)
        if found.ndim == 2:
            found = found.argmax(axis=1)
        elif "f1" in options and name == "probability":
            found = (found >= 0.5) * 1
        own = frame.assign(found=found)
        expected = searched(own, tmp_path, f"{name} column", column, "found", *options)
        model = ("--model", f"tests.python_models:{name}")
        assert searched(frame, tmp_path, name, *model, *options) == expected, name


@SLOW
def test_two_models_and_a_check(frame, tmp_path):
    own = frame.assign(
        new=python_models.probability(frame), old=python_models.old_probability(frame)
    )
    (tmp_path / "slices.json").write_text(
        '[{"all": [{"field": "sex", "op": "==", "value": "Male"}]}]'
    )
    own.to_parquet(tmp_path / "data.parquet")
    models = "tests.python_models:probability", "tests.python_models:old_probability"
    found = []
    for options in (
        ("--score", "new", "--baseline-score", "old"),
        ("--model", models[0], "--baseline-model", models[1]),
    ):
        arguments = ["check", "--data", str(tmp_path / "data.parquet"), "--label", "label"]
        arguments += [*options, "--metric", "log_loss", "--slices", str(tmp_path / "slices.json")]
        out = tmp_path / options[0]
        assert run([*arguments, "--output", str(out), "--quiet"]) == 0
        document = json.loads((out / "changelist.json").read_text())
        found.append((document["global"], [one["changes"] for one in document["slices"]]))
    assert found[0] == found[1]


@pytest.mark.parametrize(("name", "wants", "message"), [
    ("none", "class", "has no attribute 'none'; write module:function"),
    ("NOT_CALLABLE", "class", "is a int; name a function"),
    ("too_few", "class", "gives an array of shape (599,) for 600 examples"),
    ("failing", "number", "failed on the columns age, hours, sex: no such"),
    ("hours", "class", "gives 39.5, which is no probability"),
    ("predicted_class", "score", "gives classes (int64) and no probabilities"),
    ("of_each_class", "number", "gives 3 numbers a row, not one"),
    ("of_each_class", "above", "knows the classes 0, 1, 2, and --threshold 0.3 tells 1 from one"),
    ("words", "output", "gives text"),
])  # fmt: skip
def test_what_a_function_cannot_do_is_a_line(name, wants, message, frame):
    path, table = f"tests.python_models:{name}", pa.Table.from_pandas(frame)
    given = (table, ["age", "hours", "sex"], path)
    with pytest.raises(OptionError, match=re.escape(message)):
        {
            "class": lambda model: models.predict(model, *given),
            "score": lambda model: models.predict_scores(model, *given, 1),
            "number": lambda model: models.predict_numbers(model, *given),
            "above": lambda model: models.predict_above(model, *given, 1, 0.3),
            "output": lambda model: models.predict_outputs(model, *given, 1),
        }[wants](models.load_model(path))


def test_a_module_that_is_not_there(frame, tmp_path, capsys):
    frame.to_parquet(tmp_path / "data.parquet")
    arguments = ["search", "--data", str(tmp_path / "data.parquet"), "--label", "label"]
    arguments += ["--output", str(tmp_path / "out"), "--model", "tests.no_such:f"]
    assert run(arguments) == 2
    error = capsys.readouterr().err.strip().splitlines()[-1]
    assert error.startswith("slicebeam: --model tests.no_such:f: No module named 'tests.no_such'")
    model = models.load_model("tests.python_models:loaded")
    pd.testing.assert_series_equal(
        pd.Series(model.predict(frame)), pd.Series((python_models.probability(frame) >= 0.5) * 1)
    )
