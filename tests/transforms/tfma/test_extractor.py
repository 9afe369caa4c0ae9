"""`AutoSliceKeyExtractor` in a pipeline of TFMA: Adult as tf.Example, a small Keras model."""

import json

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from slicebeam.metrics.errors import InputError
from slicebeam.pipelines.commands.cli import run
from slicebeam.transforms.encode.conditions import SliceMembership
from slicebeam.transforms.encode.predicates import Singleton
from slicebeam.transforms.tfma import AutoSliceKeyExtractor
from slicebeam.transforms.tfma.slice_keys import FoundSlices, NamedSlice, read_slices, slice_keys
from tests.conftest import ADULT
from tests.refusals import refuses
from tests.transforms.tfma.test_evaluation import NATIVE, key_of
from tests.transforms.tfma.tfma_runs import ours

NUMBERS, WORDS = ["age", "hours"], ["sex", "race", "occupation"]
ROWS = 3000


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """Adult as TFRecord and as Parquet with the predictions of a small saved model."""
    import tensorflow as tf
    from tensorflow_model_analysis.utils.keras_lib import tf_keras as keras

    folder = tmp_path_factory.mktemp("tfx")
    frame = (
        pd.read_parquet(ADULT)
        .rename(columns={"hours-per-week": "hours"})[[*NUMBERS, *WORDS, "income"]]
        .head(ROWS)
        .reset_index(drop=True)
    )
    frame["label"] = (
        frame["income"].astype(str).str.contains(">50K") | (frame["income"] == 1)
    ).astype("int64")
    assert 0.1 < frame["label"].mean() < 0.5
    frame[NUMBERS] = frame[NUMBERS].astype("float32")
    # A value that is missing, in every tenth example.
    frame["occupation"] = frame["occupation"].astype(object)
    frame.loc[::10, "occupation"] = None
    tf.random.set_seed(1)
    inputs = {
        **{name: keras.Input((1,), name=name) for name in NUMBERS},
        "sex": keras.Input((1,), name="sex", dtype=tf.string),
    }
    coded = keras.layers.StringLookup(
        vocabulary=sorted(frame["sex"].unique()), output_mode="one_hot"
    )(inputs["sex"])
    scaled = [inputs[name] / 50.0 for name in NUMBERS]
    hidden = keras.layers.Dense(8, activation="relu")(keras.layers.Concatenate()([*scaled, coded]))
    model = keras.Model(inputs, keras.layers.Dense(1, activation="sigmoid")(hidden))
    model.compile(optimizer=keras.optimizers.Adam(0.02), loss="binary_crossentropy")
    features = {name: frame[[name]].to_numpy() for name in NUMBERS}
    features["sex"] = frame[["sex"]].to_numpy().astype(str)
    model.fit(features, frame["label"].to_numpy(), epochs=3, batch_size=256, verbose=0)
    model.save(folder / "model", save_format="tf")
    frame["score"] = model.predict(features, verbose=0).ravel().astype("float32")
    pq.write_table(pa.Table.from_pandas(frame.drop(columns="income")), folder / "data.parquet")
    with tf.io.TFRecordWriter(str(folder / "data.tfrecord")) as writer:
        for row in frame.to_dict("records"):
            feature = {
                name: tf.train.Feature(float_list=tf.train.FloatList(value=[row[name]]))
                for name in NUMBERS
            }
            for name in WORDS:
                if row[name] is not None:
                    value = [row[name].encode()]
                    feature[name] = tf.train.Feature(bytes_list=tf.train.BytesList(value=value))
            feature["label"] = tf.train.Feature(int64_list=tf.train.Int64List(value=[row["label"]]))
            writer.write(
                tf.train.Example(features=tf.train.Features(feature=feature)).SerializeToString()
            )
    return folder


@pytest.mark.tfma
def test_a_tfx_pipeline_gets_the_found_slices(made, tmp_path):
    import tensorflow_model_analysis as tfma
    from google.protobuf import text_format
    from tensorflow_model_analysis.proto import config_pb2

    out = tmp_path / "out"
    data = ["--data", str(made / "data.parquet"), "--label", "label", "--score", "score"]
    features = ["--features", ",".join([*NUMBERS, *WORDS]), "--alternative", "both"]
    assert run(["search", *data, *features, "--output", str(out), "--quiet"]) == 0
    document = json.loads((out / "changelist.json").read_text())
    assert len(document["slices"]) > 10
    assert "occupation is missing" in " ".join(one["name"] for one in document["slices"]) or any(
        "is_null" in json.dumps(one["singletons"]) for one in document["dataset"]["domains"]
    )
    config = text_format.Parse(
        """
        model_specs { label_key: "label" }
        slicing_specs {}
        slicing_specs { feature_keys: "sex" }
        metrics_specs {
          metrics { class_name: "ExampleCount" }
          metrics { class_name: "BinaryAccuracy" }
        }
        """,
        config_pb2.EvalConfig(),
    )
    model = tfma.default_eval_shared_model(str(made / "model"), eval_config=config)
    extractors = tfma.default_extractors(eval_config=config, eval_shared_model=model)
    extractors.insert(-1, AutoSliceKeyExtractor(changelist=str(out)))
    result = tfma.run_model_analysis(
        eval_config=config,
        eval_shared_model=model,
        data_location=str(made / "data.tfrecord"),
        output_path=str(tmp_path / "tfma"),
        extractors=extractors,
    )
    keys = dict(zip(read_slices(str(out)).keys, document["slices"], strict=True))
    metrics = {key: found[""][""] for key, found in result.slicing_metrics}
    assert {(), (("sex", "Female"),), (("sex", "Male"),)} <= set(metrics)
    assert set(keys) <= set(metrics)
    for key, one in keys.items():
        assert metrics[key]["example_count"]["doubleValue"] == one["size"]["n"]
        expected = one["changes"][0]["after"]["value"]
        assert metrics[key]["binary_accuracy"]["doubleValue"] == pytest.approx(expected, abs=1e-9)
    overall = metrics[()]["binary_accuracy"]["doubleValue"]
    assert overall == pytest.approx(document["global"][0]["after"]["value"], abs=1e-9)
    assert np.isfinite(overall)


@pytest.mark.tfma
def test_a_check_runs_the_model_as_tfma_does(made, tmp_path):
    import tensorflow_model_analysis as tfma
    from google.protobuf import text_format
    from tensorflow_model_analysis.proto import config_pb2

    text = """model_specs { label_key: "label" } slicing_specs {} slicing_specs { feature_keys: "sex" }
    metrics_specs {
      metrics { class_name: "BinaryAccuracy" config: '"threshold": 0.3' }
      metrics { class_name: "Recall" config: '"thresholds": 0.3' }
      metrics { class_name: "MeanSquaredError" } metrics { class_name: "BinaryCrossentropy" }
      metrics { class_name: "MeanPrediction" } metrics { class_name: "Hinge" } }"""
    config = text_format.Parse(text, config_pb2.EvalConfig())
    result = tfma.run_model_analysis(
        eval_config=config,
        eval_shared_model=tfma.default_eval_shared_model(str(made / "model"), eval_config=config),
        data_location=str(made / "data.tfrecord"),
        output_path=str(tmp_path / "tfma"),
    )
    frame = pd.read_parquet(made / "data.parquet").drop(columns="score")
    code, document = ours(frame, text, tmp_path / "ours", "--model", str(made / "model"))
    assert code == 0
    own = {((), one["metric"]): one["after"]["value"] for one in document["global"]}
    keys = {one["slice_id"]: key_of(one) for one in document["slices"]}
    for one in document["slices"]:
        own |= {(key_of(one), part["metric"]): part["after"]["value"] for part in one["changes"]}
    for number in document["tfma_metrics"]:
        own[(), number["name"]] = number["overall"]["value"]
        for part in number["slices"]:
            own[keys[part["slice_id"]], number["name"]] = part["after"]["value"]
    compared = 0
    for key, found in result.slicing_metrics:
        for name, value in found[""][""].items():
            number = own[key, NATIVE.get(name, name)]
            assert number == pytest.approx(value["doubleValue"], abs=1e-6), (key, name)
            compared += 1
    assert compared == 18


def test_examples_get_the_keys_of_their_slices():
    predicates = (
        (Singleton("age", "between", [37, 41]), Singleton("sex", "==", "F")),
        (Singleton("age", "is_null"),),
        (Singleton("tags", "contains", "b"),),
        (Singleton("old", "==", True),),
    )
    keys = slice_keys([NamedSlice(str(at), "", one) for at, one in enumerate(predicates)])
    found = FoundSlices(tuple(keys), SliceMembership(predicates))
    examples = [
        {"age": np.array([40.0], np.float32), "sex": np.array([b"F"]), "old": np.array([1])},
        {"age": np.array([41.0], np.float32), "sex": np.array([b"F"]), "old": np.array([0])},
        {"age": np.array([], np.float32), "tags": np.array([b"a", b"b"]), "old": np.array([1])},
        {"sex": np.array([[b"F"]]), "tags": np.array([b"a"]), "old": np.array([0])},
    ]
    expected = [[keys[0], keys[3]], [], [keys[1], keys[2], keys[3]], [keys[1]]]
    assert found.keys_of(examples) == expected
    with pytest.raises(InputError, match="feature 'sex' has 2 values"):
        found.keys_of([{"sex": np.array([b"F", b"M"])}])


def test_a_document_that_is_none(tmp_path):
    refuses(InputError, "no such file", read_slices, str(tmp_path))
    (tmp_path / "changelist.json").write_text("{}")
    refuses(InputError, "no ChangeList with slices", read_slices, str(tmp_path))
