import json
import pickle
import re
from importlib.util import find_spec

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from slicebeam.metrics.errors import OptionError
from slicebeam.pipelines.commands.cli import run
from slicebeam.transforms.encode import models
from tests import python_models
from tests.conftest import ADULT

INPUTS = ["age", "hours", "sex"]


@pytest.fixture(scope="module")
def frame():
    found = pd.read_parquet(ADULT).head(600).reset_index(drop=True)
    found = found.rename(columns={"hours-per-week": "hours"})
    found["label"] = found["income"].astype(np.int64)
    found["wage"] = found["hours"] * 1.1
    return found[[*INPUTS, "race", "label", "wage"]]


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
TORCH = pytest.mark.skipif(find_spec("torch") is None, reason="needs the extra [text]")


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
    own = frame.assign(new=python_models.probability, old=python_models.old_probability)
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
    ("none", "classes", "has no attribute 'none'; write module:function"),
    ("NOT_CALLABLE", "classes", "is a int; name a function"),
    ("too_few", "classes", "gives an array of shape (599,) for 600 examples"),
    ("failing", "numbers", "failed on the columns age, hours, sex: no such"),
    ("hours", "classes", "gives 39.5, which is no probability"),
    ("predicted_class", "scores", "gives classes (int64) and no probabilities"),
    ("of_each_class", "numbers", "gives 3 numbers a row, not one"),
    ("of_each_class", "above", "knows the classes 0, 1, 2, and --threshold 0.3 tells 1 from one"),
    ("words", "outputs", "gives text"),
])  # fmt: skip
def test_what_a_function_cannot_do_is_a_line(name, wants, message, frame):
    path, table = f"tests.python_models:{name}", pa.Table.from_pandas(frame)
    more = {"scores": [1], "above": [1, 0.3], "outputs": [1]}.get(wants, [])
    with pytest.raises(OptionError, match=re.escape(message)):
        getattr(models.LoadedModel(models.load_model(path), INPUTS, path), wants)(table, *more)


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
    assert (
        models.LoadedModel(model, ["age", "hours"], path).classes(table).to_pylist()
        == predicted.tolist()
    )
    one = models.LoadedModel(model, ["age", "hours"], path).scores(table, 1).to_numpy()
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
    given = (["age", "hours"], path)
    expected = [names[at] for at in shares.argmax(axis=1)]
    assert models.LoadedModel(model, *given).classes(table).to_pylist() == expected
    assert len({*expected}) == len(names)
    scores = models.LoadedModel(model.once(), *given).scores(table, names[-1]).to_numpy()
    np.testing.assert_allclose(scores, shares[:, -1], rtol=1e-5)
    with pytest.raises(OptionError, match=rf"knows the classes {names[0]!r}, .*not --positive"):
        models.LoadedModel(model, *given).scores(table, "else")


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
    assert models.model_features(loaded) == INPUTS
    data = frame[INPUTS].assign(age=frame["age"].astype(int))
    data.loc[data.index[:3], "hours"] = np.nan
    hours = data["hours"].fillna(40.0) / 40.0
    z = data["age"] / 50.0 - hours + np.where(data["sex"] == "Male", 0.5, -0.5)
    table = pa.Table.from_pandas(data)
    scores = models.LoadedModel(loaded, INPUTS, path).scores(table, 1).to_numpy()
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
        (("--prediction", "found", *given[2:]), "--model-inputs needs --model or --baseline-model"),
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
