"""Makes the demo data: UCI Adult's test examples with the predictions of two models.

    python examples/make_demo_data.py adult.data adult.test pipelines/demo_data/adult_scored.parquet

``adult.data`` and ``adult.test`` are the files of the UCI Machine Learning Repository (B. Becker and
R. Kohavi, Adult, 1996, https://doi.org/10.24432/C5XW20, CC BY 4.0). Both models are trained on
``adult.data``: gradient boosting (``prediction``), and a tree of depth 3 (``prediction_old``).
Needs scikit-learn and pandas.
"""

from __future__ import annotations

import sys

import pandas as pd
from sklearn.compose import make_column_transformer
from sklearn.ensemble import HistGradientBoostingClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OrdinalEncoder
from sklearn.tree import DecisionTreeClassifier

FEATURES = [
    "age",
    "workclass",
    "fnlwgt",
    "education",
    "education-num",
    "marital-status",
    "occupation",
    "relationship",
    "race",
    "sex",
    "capital-gain",
    "capital-loss",
    "hours-per-week",
    "native-country",
]


def read_adult(path: str, lines_before: int) -> pd.DataFrame:
    """Read one of the published files; the test file has a junk first line and final dots."""
    columns = [*FEATURES, "income"]
    table = pd.read_csv(path, names=columns, skiprows=lines_before, skipinitialspace=True)
    table["income"] = (table["income"].str.rstrip(".") == ">50K").astype("int8")
    return table


def main(train_path: str, test_path: str, output: str) -> None:
    """Train both models, score the test examples and write them as Parquet."""
    train, test = read_adult(train_path, 0), read_adult(test_path, 1)
    texts = [name for name in FEATURES if train[name].dtype.kind not in "if"]

    def pipeline(model: object) -> object:
        encode = OrdinalEncoder(handle_unknown="use_encoded_value", unknown_value=-1)
        columns = make_column_transformer((encode, texts), remainder="passthrough")
        return make_pipeline(columns, model).fit(train[FEATURES], train["income"])

    models = {
        "": pipeline(HistGradientBoostingClassifier(random_state=0)),
        "_old": pipeline(DecisionTreeClassifier(max_depth=3, random_state=0)),
    }
    test.insert(0, "row_id", range(len(test)))
    for suffix, model in models.items():
        score = model.predict_proba(test[FEATURES])[:, 1]
        test["prediction" + suffix] = (score >= 0.5).astype("int8")
        test["score" + suffix] = score.round(4).astype("float32")
        error = (test["prediction" + suffix] != test["income"]).mean()
        print(f"prediction{suffix}: error {error:.1%}")
    for name in test.columns:
        if test[name].dtype == "int64":
            test[name] = test[name].astype("int32")
    test.to_parquet(output, index=False, compression="zstd")


if __name__ == "__main__":
    main(*sys.argv[1:])
