"""Models given as files: the same results as their predictions given as a column."""

import pickle
import re
import warnings

import joblib
import numpy as np
import pandas as pd
import pytest
from sklearn.compose import make_column_transformer
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder
from sklearn.tree import DecisionTreeClassifier

from slicebeam.metrics.errors import InputError
from tests.running import search

FEATURES = ["age", "hours-per-week", "sex", "workclass"]


class Stubborn:
    def predict(self, frame):
        raise ValueError(f"I do not like\n{len(frame)} rows")


class Fractions:
    def predict(self, frame):
        return frame["age"].to_numpy() / 100


class Wide:
    """A model that predicts a probability for each class."""

    def predict(self, frame):
        return np.ones((len(frame), 2))


def fitted(adult, features):
    words = [name for name in features if not pd.api.types.is_numeric_dtype(adult[name])]
    encode = make_column_transformer(
        (OneHotEncoder(handle_unknown="ignore"), words), remainder="passthrough"
    )
    model = make_pipeline(encode, DecisionTreeClassifier(max_depth=4, random_state=0))
    return model.fit(adult[features].iloc[:2000], adult["income"].iloc[:2000])


@pytest.fixture(scope="module")
def data(tmp_path_factory, adult):
    folder = tmp_path_factory.mktemp("models")
    few = adult[[*FEATURES, "income"]].iloc[:6000]
    new, old = fitted(adult, FEATURES), fitted(adult, ["age", "sex"])
    with (folder / "new.pkl").open("wb") as stream:
        pickle.dump(new, stream)
    joblib.dump(old, folder / "old.joblib")
    predicted = few.assign(new=new.predict(few[FEATURES]), old=old.predict(few[["age", "sex"]]))
    few.to_parquet(folder / "data.parquet", row_group_size=2500)
    predicted.to_parquet(folder / "predicted.parquet")
    return {"folder": folder, "data": (str(folder / "data.parquet"),), "label": "income"}


def test_a_model_is_its_predictions(tmp_path, data):
    folder = data["folder"]
    options = {"label": "income", "alternative": "both", "max_cross_size": 2, "chunk_rows": 1000}
    models = {"model": str(folder / "new.pkl"), "baseline_model": str(folder / "old.joblib")}
    by_model = search(tmp_path / "model", data=data["data"], **models, **options)
    columns = {"prediction": "new", "baseline_prediction": "old", **options}
    by_column = search(tmp_path / "column", data=folder / "predicted.parquet", **columns)
    assert by_model.slices_bytes == by_column.slices_bytes
    assert by_model.document["slices"] == by_column.document["slices"]
    assert by_model.document["slices"]
    models = {one["role"]: one["model_uri"] for one in by_model.document["models"]}
    assert models == {"after": str(folder / "new.pkl"), "before": str(folder / "old.joblib")}


def test_a_model_without_names_of_columns_reads_the_features(tmp_path, data, adult):
    numbers = ["age", "hours-per-week"]
    train = adult.iloc[:500]
    model = DecisionTreeClassifier(max_depth=3, random_state=0).fit(
        train[numbers].to_numpy(), train["income"]
    )
    joblib.dump(model, tmp_path / "plain.joblib")
    frame = pd.read_parquet(data["data"][0])
    frame["p"] = model.predict(frame[numbers].to_numpy())
    frame.to_parquet(tmp_path / "data.parquet")
    options = {"data": (str(tmp_path / "data.parquet"),), "label": "income", "features": numbers}
    with warnings.catch_warnings():
        # It is given no names either, of which it would warn.
        warnings.simplefilter("error", UserWarning)
        one = search(tmp_path / "a", model=str(tmp_path / "plain.joblib"), **options)
    other = search(tmp_path / "b", prediction="p", **options)
    assert one.slices_bytes == other.slices_bytes


def refused(output, options, model):
    with pytest.raises(InputError) as caught:
        search(output, data=options["data"], label="income", model=str(model))
    assert not (output / "changelist.json").exists()
    message = str(caught.value)
    assert "\n" not in message
    assert str(model) in message
    return message


def test_files_that_are_no_model(tmp_path, data):
    assert "no such file" in refused(tmp_path, data, tmp_path / "gone.pkl")
    (tmp_path / "text.pkl").write_text("I am no pickle")
    assert "not readable as a pickle" in refused(tmp_path, data, tmp_path / "text.pkl")
    (tmp_path / "text.joblib").write_text("I am no joblib file")
    assert "not readable as a pickle" in refused(tmp_path, data, tmp_path / "text.joblib")
    (tmp_path / "cut.pkl").write_bytes((data["folder"] / "new.pkl").read_bytes()[:300])
    assert "not readable as a pickle" in refused(tmp_path, data, tmp_path / "cut.pkl")
    (tmp_path / "dict.pkl").write_bytes(pickle.dumps({"a": 1}))
    assert "a dict has no predict method" in refused(tmp_path, data, tmp_path / "dict.pkl")
    (tmp_path / "package.pkl").write_bytes(b"cno_such_package\nModel\n.")
    message = refused(tmp_path, data, tmp_path / "package.pkl")
    assert "a package that it needs is missing" in message
    assert "no_such_package" in message


def test_columns_that_the_model_misses(tmp_path, data, adult):
    renamed = adult.rename(columns={"hours-per-week": "hours_per_week"})
    model = fitted(renamed, ["age", "hours_per_week", "sex"])
    joblib.dump(model, tmp_path / "m.joblib")
    message = refused(tmp_path, data, tmp_path / "m.joblib")
    assert "unknown column 'hours_per_week'; did you mean 'hours-per-week'?" in message


def test_models_that_fail(tmp_path, data):
    (tmp_path / "m.pkl").write_bytes(pickle.dumps(Stubborn()))
    message = refused(tmp_path, data, tmp_path / "m.pkl")
    assert re.search(r"failed on the columns age, .*: I do not like$", message)
    (tmp_path / "f.pkl").write_bytes(pickle.dumps(Fractions()))
    message = refused(tmp_path, data, tmp_path / "f.pkl")
    assert "does not contain classes of the label's type: Float value 0." in message
    (tmp_path / "w.pkl").write_bytes(pickle.dumps(Wide()))
    assert "not one class per row" in refused(tmp_path, data, tmp_path / "w.pkl")
