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
    one_hot = OneHotEncoder(handle_unknown="ignore")
    encode = make_column_transformer((one_hot, words), remainder="passthrough")
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
    numbers, train = ["age", "hours-per-week"], adult.iloc[:500]
    model = DecisionTreeClassifier(max_depth=3, random_state=0)
    model.fit(train[numbers].to_numpy(), train["income"])
    joblib.dump(model, tmp_path / "plain.joblib")
    frame = pd.read_parquet(data["data"][0])
    frame["p"] = model.predict(frame[numbers].to_numpy())
    frame.to_parquet(tmp_path / "data.parquet")
    options = {"data": (str(tmp_path / "data.parquet"),), "label": "income", "features": numbers}
    with warnings.catch_warnings():
        # It is given no names either, of which it would warn.
        warnings.simplefilter("error", UserWarning)
        one = search(tmp_path / "a", model=str(tmp_path / "plain.joblib"), **options)
    assert one.slices_bytes == search(tmp_path / "b", prediction="p", **options).slices_bytes


GONE = None


# Content of the file and its name, and what is said of it.
REFUSED = {
    "gone": (GONE, "m.pkl", "no such file"),
    "no pickle": (b"I am no joblib file", "m.joblib", "not readable as a pickle"),
    "no model": (pickle.dumps({"a": 1}), "m.pkl", "a dict has no predict method"),
    "no package": (b"cno_such_package\nModel\n.", "m.pkl", "a package that it needs is missing.*no_such_package"),
    "fails": (pickle.dumps(Stubborn()), "m.pkl", "failed on the columns age, .*: I do not like$"),
    "no classes": (pickle.dumps(Fractions()), "m.pkl", "does not contain classes of the label's type: Float value 0."),
    "a matrix": (pickle.dumps(Wide()), "m.pkl", "not one class per row"),
}  # fmt: skip


@pytest.mark.parametrize("what", REFUSED)
def test_models_that_are_refused(what, tmp_path, data):
    content, name, message = REFUSED[what]
    if content is not GONE:
        (tmp_path / name).write_bytes(content)
    assert re.search(message, refused(tmp_path / name, data))


def refused(model, data):
    output = model.parent / "out"
    with pytest.raises(InputError) as caught:
        search(output, data=data["data"], label="income", model=str(model))
    assert not (output / "changelist.json").exists()
    assert "\n" not in str(caught.value)
    assert str(model) in str(caught.value)
    return str(caught.value)


def test_columns_that_the_model_misses(tmp_path, data, adult):
    renamed = adult.rename(columns={"hours-per-week": "hours_per_week"})
    joblib.dump(fitted(renamed, ["age", "hours_per_week", "sex"]), tmp_path / "m.joblib")
    message = refused(tmp_path / "m.joblib", data)
    assert "unknown column 'hours_per_week'; did you mean 'hours-per-week'?" in message
