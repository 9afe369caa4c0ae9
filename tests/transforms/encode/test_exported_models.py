"""A search with a SavedModel or an ONNX model predicts what calling the model directly does."""

import json

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from slicebeam.pipelines.cli import run
from slicebeam.transforms.encode.models import load_model, predict, predict_scores
from tests.conftest import ADULT

pytestmark = pytest.mark.tfma


@pytest.fixture(scope="module")
def frame():
    found = pd.read_parquet(ADULT).head(1000).reset_index(drop=True)
    found = found.rename(columns={"hours-per-week": "hours"})
    found["label"] = found["income"].astype(np.int64)
    return found[["age", "hours", "sex", "race", "label"]]


@pytest.fixture(scope="module")
def saved(tmp_path_factory, frame):
    """A SavedModel with an input for each column, and its scores."""
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
    opset = [helper.make_opsetid("", 13)]
    model = helper.make_model(graph, opset_imports=opset, ir_version=8)
    path.write_bytes(model.SerializeToString())
    return str(path)


def searched(frame, folder, metric, features, *options):
    """Return what a search reports, of all examples and of every slice."""
    frame.to_parquet(folder / "data.parquet")
    out = folder / ("with_model" if "--model" in options else "with_column")
    arguments = ["search", "--data", str(folder / "data.parquet"), "--label", "label"]
    arguments += ["--metric", metric, "--features", features, *options, "--min-slice-size", "5"]
    assert run([*arguments, "--output", str(out), "--quiet"]) == 0
    document = json.loads((out / "changelist.json").read_text())
    table = pq.read_table(out / "slices.parquet").to_pylist()
    assert len(table) > 10
    return {"all": document["global"], "slices": table}


def test_a_saved_model(frame, saved, tmp_path):
    path, scores = saved
    with_scores = frame.assign(score=scores.astype(np.float64))
    options = ["--exclude-features", "score", "--positive-class", "1"]
    features = "age,hours,sex,race"
    ours = searched(with_scores, tmp_path, "accuracy,auc", features, "--model", path, *options)
    columns = searched(
        with_scores, tmp_path, "accuracy,auc", features, "--score", "score", *options
    )
    assert ours == columns
    assert 0 < ours["all"][0]["after"]["value"] < 1


@pytest.mark.parametrize("classes", [1, 3])
def test_an_onnx_model(classes, frame, tmp_path):
    import onnxruntime

    path = onnx_model(tmp_path / "model.onnx", classes)
    given = frame[["age", "hours"]].to_numpy(np.float32)
    found = onnxruntime.InferenceSession(path).run(None, {"x": given})[0]
    predicted = (found[:, 0] >= 0.5) * 1 if classes == 1 else found.argmax(axis=1)
    assert len(set(predicted.tolist())) > 1
    own = frame.assign(predicted=predicted.astype(np.int64))
    features, names = "age,hours", ["--exclude-features", "predicted"]
    ours = searched(own, tmp_path, "accuracy", features, "--model", path, *names)
    assert ours == searched(
        own, tmp_path, "accuracy", features, "--prediction", "predicted", *names
    )
    table = pa.Table.from_pandas(frame[["age", "hours"]])
    model = load_model(path)
    assert predict(model, table, ["age", "hours"], path).to_pylist() == predicted.tolist()
    one = predict_scores(model, table, ["age", "hours"], path, 1).to_numpy()
    np.testing.assert_allclose(one, found[:, 0 if classes == 1 else 1], rtol=1e-6)


def test_what_a_model_cannot_do_is_a_line(frame, tmp_path, capsys):
    frame.to_parquet(tmp_path / "data.parquet")
    path = onnx_model(tmp_path / "model.onnx", 1)
    (tmp_path / "broken.onnx").write_bytes(b"no model")
    begin = ["search", "--data", str(tmp_path / "data.parquet"), "--label", "label"]
    begin += ["--output", str(tmp_path / "out")]
    for options, message in (
        ((path, "age,hours,race"), "takes 2 columns, not 3; name them with --features"),
        ((str(tmp_path / "broken.onnx"), "age,hours"), "broken.onnx cannot be loaded"),
        ((str(tmp_path / "none.onnx"), "age,hours"), "no such file"),
    ):
        assert run([*begin, "--model", options[0], "--features", options[1]]) == 2
        assert message in capsys.readouterr().err
