"""What is measured of each example, by columns or models; and what is refused."""

import importlib.util
import json
import pickle
import re
from collections import Counter

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from sklearn.metrics import log_loss

from slicebeam.metrics.counting.counting import Ragged
from slicebeam.metrics.errors import InputError, OptionError
from slicebeam.metrics.registry import metric, needs_of
from slicebeam.pipelines.cli import run
from slicebeam.transforms.encode import models
from slicebeam.transforms.encode.extract_predictions import (
    Outcome,
    Predictor,
    count_labels,
    extract_predictions,
    sum_labels,
)
from slicebeam.transforms.encode.sources import Chunk
from tests import python_models
from tests.conftest import ADULT


def chunk(**columns):
    return Chunk(0, 0, "data.csv", 40, 40, pa.table(columns))


def outcome(name, *, weight=None):
    score = name in ("auc", "log_loss", "brier")
    new, positive = (Predictor(score="s"), 1) if score else (Predictor(column="p"), None)
    needs = metric(name).needs
    return Outcome("y", "int64", new, positive_class=positive, needs=needs, weight=weight)


INF, NAN = float("inf"), float("nan")
ERRORS = ("mse", "mae", "bias")


@pytest.mark.parametrize(("names", "columns", "message"), [
    (("auc", "log_loss", "brier"), {"y": [0, 1, 1], "s": [0.1, NAN, 0.7]}, r"'s' has no value in row 42 of data\.csv"),
    (("log_loss", "brier"), {"y": [0, 1, 1], "s": [-INF, INF, 0.7]}, "'s' holds -inf in row 41 .*probabilities, 0 to 1"),
    (ERRORS, {"y": [1.0, 2.0], "p": [0.5, INF]}, "'p' holds inf in row 42"),
    (ERRORS, {"y": [1.0, -INF], "p": [0.5, 1.0]}, "'y' holds -inf in row 42"),
    (ERRORS, {"y": [1.0, 2.0], "p": [1e80, 1.0]}, r"'p' holds 1e\+80 in row 41"),
    (ERRORS, {"y": [1.0, 2.0], "p": [1.0, NAN]}, "'p' has no value in row 42"),
    (("mape",), {"y": [1.0, 0.0], "p": [1.0, 1.0]}, "'y' holds 0 in row 42 .*, by which --metric mape divides; drop"),
    (("mape",), {"y": [1e-300, 1.0], "p": [1.0, 1.0]}, "'y' holds 1e-300 in row 41 .* too large to be summed"),
    (("poisson_deviance",), {"y": [0.0, -1.0], "p": [1.0, 1.0]}, "'y' holds -1 in row 42 .*, but --metric poisson_deviance takes labels of at least 0"),
    (("poisson_deviance",), {"y": [0.0, 1.0], "p": [1.0, 0.0]}, "'p' holds 0 in row 42 .* predictions above 0"),
    (("mean:x",), {"x": [1.0, INF]}, "'x' holds inf"),
    (("mean:x",), {"x": [1.0, NAN]}, "'x' has no value"),
    (("accuracy",), {"y": [0, 1], "p": [0, 1], "w": [1.0, -1.0]}, "'w' holds -1 in row 42"),
    (("accuracy",), {"y": [0, 1], "p": [0, 1], "w": [1.0, INF]}, "'w' holds inf in row 42"),
])  # fmt: skip
def test_values_that_are_refused(names, columns, message):
    for name in names:
        with pytest.raises(InputError, match=message):
            extract_predictions(
                chunk(**columns), outcome(name, weight="w" if "w" in columns else None)
            )


def test_infinite_scores_have_ranks():
    found = extract_predictions(chunk(y=[0, 1, 1], s=[-INF, INF, 0.7]), outcome("auc"))
    assert found.scores["prediction"].tolist() == [-INF, INF, 0.7]


def test_the_log_loss_of_certain_scores_is_finite():
    data = chunk(y=[0, 1, 0, 1], s=[0.0, 1.0, 1.0, 0.0])
    losses = extract_predictions(data, outcome("log_loss")).values["log_loss", False]
    assert np.isfinite(losses).all()
    assert (losses >= 0).all()
    np.testing.assert_allclose(losses[2:], -np.log(np.finfo(float).eps))


def test_scores_are_cut_at_the_threshold_and_have_losses():
    y, s = np.array([0, 1, 1, 0, 1]), np.array([0.3, 0.3, 0.9, 0.6, 0.2])
    needs = needs_of(["brier", "log_loss", "accuracy", "recall", "f1_macro"])
    cut = Outcome("y", "int64", Predictor(score="s"), positive_class=1, threshold=0.3, needs=needs)
    found = extract_predictions(chunk(y=y, s=s), cut)
    above = s >= 0.3
    wanted = {"positive": y == 1, "predicted": above, "wrong": above != (y == 1)}
    assert {name: mask.tolist() for (name, _), mask in found.indicators.items()} == {
        name: mask.tolist() for name, mask in wanted.items()
    }
    # The name of the other class may be in another chunk.
    assert found.pairs["prediction"].to_pylist() == [1 if one else None for one in above]
    np.testing.assert_allclose(found.values["brier", False], (s - y) ** 2)
    each = [log_loss([label], [score], labels=[0, 1]) for label, score in zip(y, s, strict=True)]
    np.testing.assert_allclose(found.values["log_loss", False], each)


def test_errors_are_predictions_minus_labels():
    data = chunk(y=[1.0, 2.0, -4.0], p=[3.0, 1.5, 0.0])
    for name, wanted in (
        ("bias", [2, -0.5, 4]),
        ("mae", [2, 0.5, 4]),
        ("mse", [4, 0.25, 16]),
        ("rmse", [4, 0.25, 16]),
        ("mape", [2, 0.25, 1]),
        ("smape", [1, 2 / 7, 2]),
        ("pinball:0.75", [0.5, 0.375, 1]),
    ):
        assert extract_predictions(data, outcome(name)).values[name, False].tolist() == wanted
    zeros = extract_predictions(chunk(y=[0.0], p=[0.0]), outcome("smape"))
    assert zeros.values["smape", False].tolist() == [0]


# Counts of the label by the values of features, against counting the pairs of all examples.


def summed(labels, codes, radix, cuts):
    parts = zip(np.split(np.array(labels), cuts), np.split(codes, cuts), strict=True)
    shards = [count_labels(pa.array(own.tolist()), [code], [radix]) for own, code in parts]
    return sum_labels(json.loads(json.dumps(shards)), [radix])


@pytest.mark.parametrize("names", [["no", "yes", "maybe"], [0, 1, 7], [0.0, 2.0, -1.0]])
def test_counts_are_those_of_the_pairs_however_the_rows_are_cut(names):
    draw = np.random.default_rng(3)
    labels = [names[at] for at in draw.choice(3, 500, p=[0.9, 0.09, 0.01])]
    codes = draw.integers(0, 5, 500)
    pairs = Counter(zip(codes.tolist(), labels, strict=True))
    for cuts in ([], [100, 101, 480], list(range(20, 500, 20))):
        found = summed(labels, codes, 6, cuts)
        assert found.classes == tuple(sorted(set(labels)))
        assert found.sizes.tolist() == [labels.count(name) for name in found.classes]
        (table,) = found.tables
        assert table.tolist() == [[pairs[c, name] for name in found.classes] for c in range(6)]


def test_equal_numbers_are_one_class():
    found = sum_labels([count_labels(pa.array([0.0, -0.0, 1.0]), [np.array([0, 0, 1])], [2])], [2])
    assert found.classes == (0.0, 1.0)
    assert found.sizes.tolist() == [2, 1]
    assert found.tables[0].tolist() == [[2, 0], [0, 1]]


def test_what_has_too_many_cells_is_not_counted_however_the_rows_are_cut():
    # A shard has two classes, all shards have four: 1,100 codes are few enough for a shard only.
    labels, codes = ["a", "b"] * 10 + ["c", "d"] * 10, np.arange(40)
    for cuts in ([], [20]):
        found = summed(labels, codes, 1100, cuts)
        assert found.tables == (None,)
        assert found.sizes.tolist() == [10, 10, 10, 10]


def test_lists_are_not_counted():
    lists = Ragged(np.array([0, 1, 3]), np.array([0, 0, 1]))
    found = sum_labels([count_labels(pa.array(["a", "b"]), [lists], [2])], [2])
    assert found.tables == (None,)


def test_without_classes_there_are_no_counts():
    numbers = pa.array(list(range(1001)))
    assert count_labels(None, [], []) is None
    assert count_labels(numbers, [], []) is None
    assert sum_labels([None], []) is None


@pytest.fixture(scope="module")
def frame():
    found = pd.read_parquet(ADULT).head(600).reset_index(drop=True)
    found = found.rename(columns={"hours-per-week": "hours"})
    found["label"] = found["income"].astype(np.int64)
    found["wage"] = found["hours"] * 1.1
    return found[["age", "hours", "sex", "race", "label", "wage"]]


def searched(frame, folder, name, *options, features="age,hours,sex"):
    """Return what a search reports, of all examples and of every slice."""
    frame.to_parquet(folder / "data.parquet")
    out = folder / name
    arguments = ["search", "--data", str(folder / "data.parquet"), "--features", features, *options]
    arguments += ["--max-cross-size", "1"] * (features == "age,hours,sex")
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


@pytest.fixture(scope="module")
def saved(tmp_path_factory, frame):
    import tensorflow as tf
    from tensorflow_model_analysis.utils.keras_lib import tf_keras as keras

    # Before the layers, which draw their first weights.
    keras.utils.set_random_seed(3)
    age, hours = keras.Input((1,), name="age"), keras.Input((1,), name="hours")
    sex = keras.Input((1,), name="sex", dtype="string")
    coded = keras.layers.StringLookup(vocabulary=["Male", "Female"], output_mode="one_hot")(sex)
    joined = keras.layers.Concatenate()([age / 50.0, hours / 40.0, coded])
    output = keras.layers.Dense(1, "sigmoid")(keras.layers.Dense(4, "relu")(joined))
    model = keras.Model([age, hours, sex], output)
    model.compile("adam", "binary_crossentropy")
    columns = {name: tf.constant(frame[name].to_numpy()[:, None]) for name in ("age", "hours")}
    columns = {name: tf.cast(values, tf.float32) for name, values in columns.items()}
    columns["sex"] = tf.constant(frame["sex"].astype(str).to_numpy()[:, None])
    model.fit(columns, frame["label"].to_numpy(), epochs=2, verbose=0)
    path = str(tmp_path_factory.mktemp("models") / "saved")
    model.save(path, save_format="tf")
    return path, model.predict(columns, verbose=0).ravel()


def onnx_model(path, classes):
    """Write a model with one input [rows, 2]: a linear function, and its sigmoid or softmax."""
    from onnx import TensorProto, helper

    weights = np.array([[1, -1, 0.1], [-1, 1, 0.2]], np.float32)[:, :classes] / 30
    last = helper.make_node("Sigmoid" if classes == 1 else "Softmax", ["z"], ["probabilities"])
    graph = helper.make_graph(
        [helper.make_node("MatMul", ["x", "w"], ["z"]), last],
        "model",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["rows", 2])],
        [helper.make_tensor_value_info("probabilities", TensorProto.FLOAT, ["rows", classes])],
        [helper.make_tensor("w", TensorProto.FLOAT, weights.shape, weights.ravel())],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8)
    path.write_bytes(model.SerializeToString())
    return str(path)


@pytest.mark.tfma
def test_a_saved_model(frame, saved, tmp_path):
    path, scores = saved
    with_scores = frame.assign(score=scores.astype(np.float64))
    options = ["--exclude-features", "score", "--positive-class", "1", "--metric", "accuracy,auc"]
    options += ["--min-slice-size", "5"]
    features = "age,hours,sex,race"
    ours, columns = (
        searched(with_scores, tmp_path, given[0], *given, *options, features=features)
        for given in (("--model", path), ("--score", "score"))
    )
    assert ours == columns
    assert 0 < ours[0][0]["after"]["value"] < 1


@pytest.mark.tfma
@pytest.mark.parametrize("classes", [1, 3])
def test_an_onnx_model(classes, frame, tmp_path):
    import onnxruntime

    path = onnx_model(tmp_path / "model.onnx", classes)
    given = frame[["age", "hours"]].to_numpy(np.float32)
    found = onnxruntime.InferenceSession(path).run(None, {"x": given})[0]
    predicted = (found[:, 0] >= 0.5) * 1 if classes == 1 else found.argmax(axis=1)
    assert len(set(predicted.tolist())) > 1
    own = frame.assign(predicted=predicted.astype(np.int64))
    options = ["--exclude-features", "predicted", "--min-slice-size", "5"]
    ours, columns = (
        searched(own, tmp_path, given[0], *given, *options, features="age,hours")
        for given in (("--model", path), ("--prediction", "predicted"))
    )
    assert ours == columns
    table = pa.Table.from_pandas(frame[["age", "hours"]])
    model = models.load_model(path)
    assert models.predict(model, table, ["age", "hours"], path).to_pylist() == predicted.tolist()
    one = models.predict_scores(model, table, ["age", "hours"], path, 1).to_numpy()
    np.testing.assert_allclose(one, found[:, 0 if classes == 1 else 1], rtol=1e-6)


@pytest.mark.tfma
@pytest.mark.parametrize("names", [["no", "yes"], [3, 5, 9]])
def test_a_classifier_as_skl2onnx_exports_it(names, tmp_path, frame):
    """Its outputs are the class and a map from each class to its probability."""
    import onnx
    from onnx import TensorProto, helper

    text = isinstance(names[0], str)
    plain = onnx.load(onnx_model(tmp_path / "plain.onnx", 2))
    weights = np.array([[1.01, -1, 0.1], [-1, 1, 0.2]], np.float32)[:, : len(names)] / 30
    labels = {"classlabels_strings" if text else "classlabels_int64s": names}
    graph = plain.graph
    graph.initializer[0].CopyFrom(
        helper.make_tensor("w", TensorProto.FLOAT, weights.shape, weights.ravel())
    )
    zipped = helper.make_node("ZipMap", ["probabilities"], ["map"], domain="ai.onnx.ml", **labels)
    chosen = helper.make_node("ArgMax", ["probabilities"], ["label"], axis=1, keepdims=0)
    graph.node.extend([zipped, chosen])
    key = TensorProto.STRING if text else TensorProto.INT64
    value = helper.make_tensor_type_proto(TensorProto.FLOAT, [])
    kind = helper.make_sequence_type_proto(helper.make_map_type_proto(key, value))
    del graph.output[:]
    graph.output.extend(
        [
            helper.make_tensor_value_info("label", TensorProto.INT64, ["rows"]),
            helper.make_value_info("map", kind),
        ]
    )
    plain.opset_import.append(helper.make_opsetid("ai.onnx.ml", 1))
    path = str(tmp_path / "zipped.onnx")
    onnx.save(plain, path)
    table = pa.Table.from_pandas(frame[["age", "hours"]])
    z = frame[["age", "hours"]].to_numpy(np.float32) @ weights
    shares = np.exp(z) / np.exp(z).sum(axis=1, keepdims=True)
    model = models.load_model(path)
    given = (table, ["age", "hours"], path)
    expected = [names[at] for at in shares.argmax(axis=1)]
    assert models.predict(model, *given).to_pylist() == expected
    assert len({*expected}) == len(names)
    scores = models.predict_scores(model.once(), *given, names[-1]).to_numpy()
    np.testing.assert_allclose(scores, shares[:, -1], rtol=1e-5)
    with pytest.raises(OptionError, match=rf"knows the classes {names[0]!r}, .*not --positive"):
        models.predict_scores(model, *given, "else")


@pytest.mark.tfma
def test_a_saved_model_of_serialized_examples(frame, tmp_path):
    import tensorflow as tf

    spec = {
        "age": tf.io.FixedLenFeature([], tf.int64),
        "hours": tf.io.FixedLenFeature([], tf.float32, default_value=40.0),
        "sex": tf.io.FixedLenFeature([], tf.string),
    }

    class Model(tf.Module):
        @tf.function(input_signature=[tf.TensorSpec([None], tf.string)])
        def serve(self, examples):
            columns = tf.io.parse_example(examples, spec)
            shift = tf.where(columns["sex"] == b"Male", 0.5, -0.5)
            age = tf.cast(columns["age"], tf.float32)
            return {"outputs": tf.sigmoid(age / 50.0 - columns["hours"] / 40.0 + shift)}

    model, path = Model(), str(tmp_path / "saved")
    tf.saved_model.save(model, path, signatures=model.serve)
    loaded = models.load_model(path)
    assert models.model_features(loaded) == ["age", "hours", "sex"]
    data = frame[["age", "hours", "sex"]].assign(age=frame["age"].astype(int))
    data.loc[data.index[:3], "hours"] = np.nan
    hours = data["hours"].fillna(40.0) / 40.0
    z = data["age"] / 50.0 - hours + np.where(data["sex"] == "Male", 0.5, -0.5)
    given = (pa.Table.from_pandas(data), ["age", "hours", "sex"], path)
    scores = models.predict_scores(loaded, *given, 1).to_numpy()
    np.testing.assert_allclose(scores, 1 / (1 + np.exp(-z)), rtol=1e-5)


def test_inputs_of_a_model_that_does_not_name_them(frame, tmp_path, capsys):
    from sklearn.linear_model import LogisticRegression

    fitted = LogisticRegression().fit(frame[["hours", "age"]].to_numpy(), frame["label"])
    path = tmp_path / "model.pkl"
    path.write_bytes(pickle.dumps(fitted))
    own = frame.assign(found=fitted.predict(frame[["hours", "age"]].to_numpy()))
    features = "age,hours,sex,race"
    given = ("--model", str(path), "--model-inputs", "hours,age")
    ours, columns = (
        searched(own, tmp_path, some[0], *some, "--exclude-features", "found", features=features)
        for some in (given, ("--prediction", "found"))
    )
    assert ours == columns
    begin = ["search", "--data", str(tmp_path / "data.parquet"), "--label", "label"]
    begin += ["--output", str(tmp_path / "out"), "--features", features]
    named = ("--model", "tests.python_models:probability", "--model-inputs", "age")
    for options, message in (
        ((*given[:3], "hours,agee"), "--model-inputs: unknown column 'agee'; did you mean 'age'"),
        (named, "--model-inputs: the model names its own columns"),
        (("--prediction", "found", *given[2:]), "--model-inputs is for --model"),
    ):
        assert run([*begin, *options]) == 2
        assert message in capsys.readouterr().err


@pytest.mark.tfma
def test_what_a_model_cannot_do_is_a_line(frame, tmp_path, capsys):
    frame.to_parquet(tmp_path / "data.parquet")
    path = onnx_model(tmp_path / "model.onnx", 1)
    (tmp_path / "broken.onnx").write_bytes(b"no model")
    begin = ["search", "--data", str(tmp_path / "data.parquet"), "--label", "label"]
    begin += ["--output", str(tmp_path / "out")]
    for options, message in (
        ((path, "age,hours,race"), "takes 2 columns, not 3; name them with --model-inputs"),
        ((str(tmp_path / "broken.onnx"), "age,hours"), "broken.onnx cannot be loaded"),
        ((str(tmp_path / "none.onnx"), "age,hours"), "no such file"),
    ):
        assert run([*begin, "--model", options[0], "--features", options[1]]) == 2
        assert message in capsys.readouterr().err
