"""``slicebeam check``: numbers against pandas and scipy, and against a search of the same slices."""

import json
from unittest.mock import Mock

import jsonschema
import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from scipy import stats

from slicebeam.metrics.errors import InputError
from slicebeam.pipelines.changelist.document import json_schema
from slicebeam.pipelines.config.check import check_config, inherited_options
from slicebeam.pipelines.run.engine import Engine, runner_config
from slicebeam.pipelines.search.search import run_check
from slicebeam.pipelines.show.terminal import Terminal
from tests.conftest import ADULT_ROLES
from tests.refusals import refuses
from tests.running import as_options, read, refused, rows_of, search

SLICES = """\
slices:
  - name: young women
    predicate: age < 25 & sex = Female
  - age in [42, 46) & occupation = Protective-serv
  - {field: capital-gain, op: ">=", value: 10000}
  - all:
      - {field: relationship, op: ==, value: Husband}
      - {field: education, op: in, value: [Masters, Assoc-voc]}
  - occupation not in {Exec-managerial, Sales}
  - age >= 200
  - age >= 89 & sex = Female
"""
OPTIONS = {"label": "income", "prediction": "prediction"}
NO_FEATURES = (*ADULT_ROLES[:1], *ADULT_ROLES[3:], "fnlwgt")


def check(output, *, resume=False, **options):
    config = check_config(as_options({"output": output, **options}))
    with Engine(runner_config(config.runner_config, config.runner_option, config.beam)) as engine:
        run_check(config, engine, Terminal(quiet=True), resume=resume)
    return read(output)


@pytest.fixture
def slices(tmp_path):
    (tmp_path / "slices.yaml").write_text(SLICES)
    return str(tmp_path / "slices.yaml")


@pytest.fixture(scope="module")
def searched(tmp_path_factory, adult_path):
    options = {"exclude_features": NO_FEATURES, "max_cross_size": 2, **OPTIONS}
    return search(tmp_path_factory.mktemp("search"), data=adult_path, **options)


def test_numbers_against_pandas_and_scipy(slices, tmp_path, adult_path, adult):
    found = check(tmp_path / "out", data=adult_path, slices=slices, **OPTIONS)
    table = found.table
    wrong = (adult["income"] != adult["prediction"]).to_numpy()
    age, sex, occupation = adult["age"], adult["sex"], adult["occupation"]
    studied = adult["education"].isin(["Masters", "Assoc-voc"])
    masks = {
        "age < 25 & sex = Female": (age < 25) & (sex == "Female"),
        "age in [42, 46) & occupation = Protective-serv": age.between(42, 45) & (occupation == "Protective-serv"),
        "capital-gain >= 10000": adult["capital-gain"] >= 10000,
        "relationship = Husband & education in {Assoc-voc, Masters}": (adult["relationship"] == "Husband") & studied,
        "occupation not in {Exec-managerial, Sales}": ~occupation.isin(["Exec-managerial", "Sales"]) & occupation.notna(),
        "age >= 200": age >= 200,
        "age >= 89 & sex = Female": (age >= 89) & (sex == "Female"),
    }  # fmt: skip
    assert table["slice"].tolist() == list(masks)
    sizes = [int(mask.sum()) for mask in masks.values()]
    assert table["n"].tolist() == sizes
    assert (sizes[-2], 0 < sizes[-1] < 20) == (0, True)
    tested = table["n"] >= 20
    p = []
    for row, mask in zip(table.itertuples(), masks.values(), strict=True):
        if row.n:
            assert row.value == pytest.approx(1 - wrong[mask].mean(), abs=1e-12)
            assert row.complement == pytest.approx(1 - wrong[~mask].mean(), abs=1e-12)
        law, x = stats.hypergeom(len(adult), int(wrong.sum()), row.n), int(wrong[mask].sum())
        p.append(float(law.sf(x) + law.pmf(x) / 2))
    p_values = table["p_value"][tested].tolist()
    assert p_values == pytest.approx(np.array(p)[tested].tolist(), rel=1e-4, abs=1e-290)
    q = stats.false_discovery_control(table["p_value"][tested])
    assert table["q_value"][tested].tolist() == pytest.approx(q.tolist(), rel=1e-9)
    assert table["significant"].tolist() == (table["q_value"] <= 0.05).tolist()
    reasons = ["no examples satisfy it", "fewer examples than the metric needs"]
    assert table["reason"].tolist()[-2:] == reasons
    assert table["p_value"].tolist()[-2:] == table["q_value"].tolist()[-2:] == [1.0, 1.0]
    assert table["label"].isna().all()
    assert table["cross_size"].tolist() == [2, 2, 1, 2, 1, 1, 2]
    document = found.document
    jsonschema.validate(document, json_schema())
    testing = document["testing"]
    assert document["search"]["strategy"] == "given"
    assert (testing["family_per_level"], testing["significant"]) == ([5], 2)
    assert document["summary"].endswith("2 of the 7 checked slices are significantly worse.")
    assert (document["check"]["empty"], document["check"]["too_small"]) == (1, 1)
    listed = [one["name"] for one in document["slices"]]
    assert len(listed) == 7
    assert "young women" in listed
    assert [one["changes"][0]["significant"] for one in document["slices"]][:3] == [1, 1, 0]
    assert all("refinement" not in one for one in document["slices"])


@pytest.fixture(scope="module")
def again(searched, tmp_path_factory, adult_path):
    """What a check finds of all slices of the search, on the same data."""
    changelist = searched.folder / "changelist.json"
    return check(tmp_path_factory.mktemp("again"), data=adult_path, changelist=changelist)


def test_predicates_applied_to_the_raw_data_give_n(searched, again, adult):
    assert len(again.table) == len(searched.document["slices"]) > 50
    for row, held in rows_of(again, adult):
        assert row.n == held.sum()


def test_the_same_slices_as_a_search(searched, again):
    """The same data: every number of a slice is that of the search, only q is of fewer slices."""
    found, changelist = again, str(searched.folder / "changelist.json")
    ids = [one["slice_id"] for one in searched.document["slices"]]
    assert found.table["slice_id"].tolist() == ids
    own = searched.table.set_index("slice_id").loc[found.table["slice_id"]].reset_index()
    same = ["slice", "predicate", "cross_size", "n", "share", "value", "reference", "complement"]
    same += ["delta", "ci_low", "ci_high", "p_value", "impact", "test"]
    pd.testing.assert_frame_equal(found.table[same], own[same], check_exact=True)
    assert (found.table["q_value"] <= own["q_value"]).all()
    of_searched = {"uri": changelist, "changelist_id": searched.document["changelist_id"]}
    counts = {"slices": len(own), "too_small": 0, "empty": 0}
    assert found.document["check"] == {"source": "changelist", **of_searched, **counts}
    assert {one["origin"]["method"] for one in found.document["slices"]} == {"imported"}


@pytest.mark.parametrize("more", [
    {"metric": ("auc", "log_loss", "recall"), "score": "score"},
    # So that many slices are resampled.
    {"group": "native-country", "metric": ("error_rate",), "alpha": 0.5, "correction": "none"},
    {"weight": "fnlwgt", "metric": ("accuracy", "mean:hours-per-week")},
    {"baseline_prediction": "prediction_old", "alternative": "both", "correction": "by"},
    # Without ids, draws depend on an example's features, and a check reads fewer of them.
    {"test": "paper", "example_id": "row_id"},
    {"correction": "fwer-level", "metric": ("precision",)},
], ids=lambda more: "-".join(map(str, more)))  # fmt: skip
@pytest.mark.slow
def test_every_kind_of_test_agrees_with_a_search(more, tmp_path, adult_path):
    options = {**OPTIONS, **more, "data": adult_path}
    found = search(tmp_path / "one", features=("sex", "race", "workclass"), **options)
    rows = found.table[found.table["metric"] == found.table["metric"][0]]
    wanted = rows.sample(12, random_state=1)["predicate"]
    file = tmp_path / "slices.yaml"
    file.write_text(json.dumps([json.loads(text) for text in wanted]))
    again = check(tmp_path / "two", slices=file, **options)
    both = again.table.merge(found.table, on=["slice_id", "metric"], suffixes=("", "_searched"))
    assert len(both) == len(again.table) == 12 * len(more.get("metric", ["accuracy"]))
    # A search leaves the AUC of a slice that is not significant within its bound.
    error = both["value_error_searched"].fillna(0.0)
    assert ((both["value"] - both["value_searched"]).abs().fillna(0.0) <= error).all()
    both = both[error == 0.0]
    assert set(both["metric"]) == set(again.table["metric"])
    for name in ("n", "value", "delta", "p_value", "ci_low", "ci_high", "reason", "test"):
        pair = both[name], both[f"{name}_searched"]
        pd.testing.assert_series_equal(*pair, check_names=False, check_exact=True)
    assert both["reason"].isna().any()


def test_lists_missing_values_and_types(tmp_path):
    rng, rows = np.random.default_rng(5), 3000
    frame = pd.DataFrame(
        {
            "tags": [list(rng.choice(["a", "b", "c"], rng.integers(0, 3))) for _ in range(rows)],
            "x": np.where(rng.random(rows) < 0.2, np.nan, rng.normal(size=rows)),
            "day": pd.to_datetime("2026-01-01") + pd.to_timedelta(rng.integers(0, 30, rows), "D"),
            "label": rng.integers(0, 2, rows),
        }
    )
    frame["pred"] = np.where(rng.random(rows) < 0.2, 1 - frame["label"], frame["label"])
    frame.loc[:9, "tags"] = None
    types = {"tags": pa.list_(pa.string()), "x": pa.float64(), "day": pa.timestamp("us")}
    types |= {"label": pa.int64(), "pred": pa.int64()}
    table = pa.Table.from_pandas(frame).cast(pa.schema(types))
    pq.write_table(table, tmp_path / "data.parquet", row_group_size=500)
    (tmp_path / "s.yaml").write_text(
        "- tags contains a\n- tags is missing\n- x is missing\n- x < 0.5 & tags contains b\n"
        "- {field: day, op: between, value: [2026-01-05, 2026-01-10]}\n- label = 1\n"
        "- tags contains a & tags contains b\n"
    )
    options = {"data": tmp_path / "data.parquet", "slices": tmp_path / "s.yaml", "chunk_rows": 400}
    found = check(tmp_path / "out", label="label", prediction="pred", **options)
    sizes = []
    for row, held in rows_of(found, pq.read_table(tmp_path / "data.parquet").to_pandas()):
        assert row.n == held.sum()
        sizes.append(row.n)
    assert 0 < min(sizes) < max(sizes) < rows


@pytest.mark.slow
def test_the_result_does_not_depend_on_how_it_is_run(slices, tmp_path, adult_path):
    options = {"data": adult_path, "slices": slices, **OPTIONS}
    one = check(tmp_path / "one", **options)
    two = check(tmp_path / "two", chunk_rows=1111, runner_config="direct_multi", **options)
    assert one.slices_bytes == two.slices_bytes
    assert one.timeless() == two.timeless()


def test_options_are_those_of_the_earlier_run_unless_given(searched, tmp_path, adult_path):
    changelist = str(searched.folder / "changelist.json")
    base = {"data": (str(adult_path),), "output": "o", "changelist": changelist}
    config = check_config(base)
    roles = (config.label, config.prediction, config.alternative)
    assert roles == ("income", "prediction", "worse")
    other = check_config({**base, "score": "score", "metric": ("auc",), "alternative": "both"})
    assert (other.prediction, other.score, other.alternative) == (None, "score", "both")
    # Options that belong together are taken over together.
    old = check_config({**base, "baseline_prediction": "prediction_old"})
    assert (old.comparison, old.prediction) == ("baseline", "prediction")
    was = (
        {"label": "y", "prediction": "p", "baseline_prediction": "q", "compare": "baseline"}
        | {"metric": ["auc"], "positive_class": "a", "threshold": 0.3, "bins": 10, "data": ["x"]}
        | {"test": "bootstrap-rows", "replicates": 50, "group": "g", "output": "o", "test_x": 1}
        | {"alpha": 0.1, "correction": "bh", "min_slice_size": 20}
    )
    everything = inherited_options(was, {})
    never = ("bins", "data", "output", "test_x")
    assert everything == {name: was[name] for name in was if name not in never}
    left = {
        "compare": (("compare", "overall"), {"baseline_prediction", "compare", "replicates"}),
        "same": (("compare", "baseline"), {"compare", "replicates"}),
        "old": (("baseline_model", "m"), {"baseline_prediction", "compare"}),
        "new": (("model", "m"), {"prediction", "positive_class", "threshold"}),
        "metric": (("metric", "f1"), {"metric", "positive_class", "replicates", "min_slice_size"}),
        "test": (("test", "auto"), {"test", "alpha", "correction", "replicates", "min_slice_size"}),
        "id": (("example_id", "i"), {"group"}),
    }
    for (name, value), gone in left.values():
        assert set(everything) - set(inherited_options(was, {name: value})) == gone
    # What a document says is checked as flags are.
    refuses(
        InputError,
        "--features contains an empty name",
        check_config,
        {**base, "features": ["a", ""]},
    )


def test_resume(slices, tmp_path, adult_path, monkeypatch):
    options = {"data": adult_path, "slices": slices, **OPTIONS}
    whole = check(tmp_path / "whole", **options)

    with monkeypatch.context() as patched:
        fault = Mock(side_effect=KeyboardInterrupt)
        patched.setattr("slicebeam.pipelines.search.search.build", fault)
        with pytest.raises(KeyboardInterrupt):
            check(tmp_path / "out", **options)
    assert (tmp_path / "out" / "_work" / "stages" / "shards.json").exists()

    with monkeypatch.context() as patched:
        fault = Mock(side_effect=AssertionError("counted twice"))
        patched.setattr("slicebeam.transforms.count.search_graph.encode_chunk", fault)
        found = check(tmp_path / "out", resume=True, **options)
    assert found.slices_bytes == whole.slices_bytes


WRONG_SLICES = {
    "nothing": ("", "a list of slices is expected, such as '- age < 25'"),
    "empty": ("slices: []", "a list of slices is expected"),
    "key": ("slice: [age < 5]", "unknown key 'slice'; did you mean 'slices'?"),
    "text": ("age < 5", "a list of slices is expected"),
    "yaml": ("- [", "not readable as YAML"),
    "number": ("- 5", "slice 1: 5 is not a predicate; write text such as 'age < 25'"),
    "condition": ("- {field: age, opp: '<'}", "unknown key 'opp'; did you mean 'op'?"),
    "op": ("- {field: age, op: betwen, value: [1, 2]}", "did you mean 'between'?"),
    "no value": ("- {field: age, op: '<'}", "slice 1: op '<' of 'age' has no value"),
    "value": ("- {field: age, op: is_null, value: 5}", "op 'is_null' takes no value, not 5"),
    "no field": ("- {op: '<', value: 5}", "slice 1: field None is not text"),
    "column": ("- agee < 5", "slice 1: unknown column 'agee'; did you mean 'age'?"),
    "type": ("- {field: age, op: ==, value: five}", "column 'age': values ['five'] do not fit"),
    "order": ("- sex < Male", "column 'sex': op '<' is for numbers, dates and times"),
    "name": ("- {name: 5, predicate: age < 5}", "slice 1: name 5 is not text; put it in quotes"),
    "alone": ("- {name: young}", "slice 1: key 'predicate' is missing next to 'name'"),
    "twice": ("- age < 5\n- age < 5.0", "slice 2: the same predicate as slice 1"),
    "all": ("- {all: []}", "is not a predicate"),
    "unreadable": ("- age <= 5", "unknown op '<='; ops: ="),
}


@pytest.mark.parametrize("case", WRONG_SLICES)
def test_wrong_slices(case, tmp_path, adult_path, capsys):
    file = tmp_path / "s.yaml"
    text, message = WRONG_SLICES[case]
    file.write_text(text)
    arguments = ["check", f"--data={adult_path}", f"--output={tmp_path}/out", "--label=income"]
    more = ["--prediction=prediction", f"--slices={file}"]
    said = refused([*arguments, *more], capsys, folder=tmp_path)
    assert message in said
    assert "DIR/s.yaml" in said


@pytest.mark.parametrize("more", [
    {"metric": ("auc", "log_loss", "brier", "mcc", "balanced_accuracy", "f1_macro")},
    {"metric": ("precision", "recall", "f1", "fbeta:2", "fpr", "mse", "bias", "label_rate")},
    {"metric": ("accuracy", "mean:age"), "weight": "fnlwgt"},
    {"metric": ("log_loss", "f1"), "group": "native-country"},
    {"metric": ("auc", "f1", "mcc", "log_loss", "accuracy"), "baseline_prediction": "prediction_old", "baseline_score": "score_old"},
    {"metric": ("accuracy",), "test": "bootstrap-rows"},
], ids=lambda more: "-".join(map(str, more["metric"])))  # fmt: skip
@pytest.mark.slow
def test_slices_with_few_or_no_examples_in_every_metric(more, tmp_path, adult_path):
    (tmp_path / "s.yaml").write_text("- age >= 200\n- row_id = 7\n- row_id < 5\n- sex = Male\n")
    roles = {"label": "income", "prediction": "prediction", "score": "score"}
    options = {"data": adult_path, "slices": tmp_path / "s.yaml", **roles, **more}
    for _, rows in check(tmp_path / "out", **options).table.groupby("metric"):
        assert rows["n"].tolist()[:3] == [0, 1, 5]
        assert rows["p_value"].notna().all()
        assert rows["p_value"].tolist()[0] == 1.0
        assert rows["reason"].tolist()[0] == "no examples satisfy it"
        assert rows[["value", "delta", "ci_low", "ci_high"]].iloc[0].isna().all()
        assert rows["reason"].notna().tolist()[1] or "paper" in str(more.get("test"))
