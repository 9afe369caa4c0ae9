"""The playground: what the models say of an input, and the slices that it is in."""

import pickle
import sys

import pandas as pd
import pyarrow.parquet as pq
import pytest
from sklearn.tree import DecisionTreeClassifier

from slicebeam.pipelines.cli import run
from tests.conftest import ADULT
from tests.oracles.predicates import mask
from tests.pipelines.page.results import discovery_result
from tests.pipelines.serve.asking import asks, document, served_page

_HANDLER = """
from apache_beam.ml.inference.base import ModelHandler, PredictionResult


class Old(ModelHandler):
    def load_model(self):
        return 40

    def run_inference(self, batch, model, inference_args=None):
        for row in batch:
            yield PredictionResult(row, int(int(row["age"]) > model))


def old():
    return Old()
"""


@pytest.mark.slow
def test_both_models_and_the_slices_of_an_input(tmp_path, monkeypatch):
    rows = pq.read_table(ADULT).to_pandas()
    read = ["age", "education-num", "hours-per-week"]
    model = DecisionTreeClassifier(max_depth=3, random_state=0).fit(rows[read], rows["income"])
    path = tmp_path / "new.pickle"
    path.write_bytes(pickle.dumps(model))
    (tmp_path / "own_old_model.py").write_text(_HANDLER)
    monkeypatch.syspath_prepend(tmp_path)
    output = tmp_path / "out"
    command = ["search", "--data", str(ADULT), "--label", "income", "--prediction", "prediction"]
    command += ["--exclude-features", "row_id,fnlwgt,score,score_old,prediction_old", "--quiet"]
    assert run([*command, "--output", str(output)]) == 0
    page = served_page(output, model=str(path), baseline_model="own_old_model:old")
    ask = asks(page)
    example = ask("playground/example", row=17)
    values = {one["name"]: one["value"] for one in example["fields"]}
    assert values["age"] == str(rows["age"][17])
    assert [one["is"] for one in example["models"]] == ["old", "new"]
    for age in (rows["age"][17], 77, 19):
        values["age"] = str(age)
        found = ask("playground/answer", values=values)
        old, new = found["models"]
        given = rows.loc[[17], read].assign(age=age)
        assert old["predicted"] == str(int(age > 40))
        assert new["predicted"] == str(model.predict(given)[0])
        assert dict(new["scores"])["1"] == pytest.approx(model.predict_proba(given)[0, 1])
        changed = rows.loc[17].to_dict() | {"age": age}
        slices = document(output)["slices"]
        held = [mask(pd.DataFrame([changed]), one["definition"]["predicate"]) for one in slices]
        expected = [one["slice_id"] for one, is_in in zip(slices, held, strict=True) if is_in[0]]
        assert (found["slices"], found["unknown"]) == (expected, 0)
    # What a model makes of a missing value is for it to say.
    (old, _) = ask("playground/answer", values={**values, "age": ""})["models"]
    assert "NaN to integer" in old["error"]
    for wrong, status in (({"age": "old"}, 422), ({"nonsense": "1"}, 422), ({"age": 3}, 422)):
        assert asks(page, status)("playground/answer", values={**values, **wrong})
    assert asks(page, 404)("playground/example", row=10**7)
    # Nothing that a request names is ever loaded.
    assert asks(page, 422)("playground/answer", values=values, model="os:abort")
    sys.modules.pop("own_old_model")
    # A model of the playground has no part in what is checked.
    assert ask("examples", slice_id=slices[0]["slice_id"])["is_same"] is True


@pytest.mark.slow
def test_a_text_falls_into_the_groups_of_a_discovery(tmp_path):
    output = discovery_result(tmp_path)
    ask = asks(served_page(output))
    names = {one["slice_id"]: one["name"] for one in document(output)["slices"]}
    texts = ("soup bread waiter menu kitchen taste", "actor scene plot camera director ending")
    found = [ask("playground/answer", values={"text": text}) for text in texts]
    assert all(one["unknown"] == 0 for one in found)
    groups = [{names[slice_id] for slice_id in one["slices"]} for one in found]
    assert groups[0]
    assert not groups[0] & groups[1]
