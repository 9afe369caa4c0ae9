"""Input that is most likely a mistake: the run says so, or refuses it."""

import numpy as np
import pandas as pd
import pytest

from slicebeam.metrics.errors import InputError
from slicebeam.pipelines.api import search as api_search
from slicebeam.pipelines.cli import run
from tests.refusals import refuses
from tests.running import refused, search

ROWS = 600
ROLES = {"label": "label", "prediction": "pred", "max_cross_size": 1}


def examples():
    rng = np.random.default_rng(1)
    label = rng.integers(0, 2, ROWS)
    frame = pd.DataFrame({"place": rng.choice(["a", "b", "c"], ROWS), "label": label})
    for name, wrong in (("pred", 0.2), ("old", 0.3)):
        frame[name] = np.where(rng.random(ROWS) < wrong, 1 - label, label)
    frame["score"] = np.clip(0.8 * frame["pred"] + rng.random(ROWS) / 5, 0, 1)
    return frame


def saved(folder, frame):
    frame.to_parquet(folder / "data.parquet")
    return str(folder / "data.parquet")


def warnings(found):
    return found.document["testing"]["warnings"]


@pytest.mark.parametrize(("ids", "test"), [("numbers", "bootstrap-rows"), ("texts", "auto")])
def test_repeated_ids_are_noted(tmp_path, ids, test):
    frame, number = examples(), np.arange(ROWS)
    number[[5, 90, 91]] = 400
    number[[7, 8]] = [70, 71]
    frame["id"] = number if ids == "numbers" else [f"é{one}" for one in number]
    data, options = saved(tmp_path, frame), ROLES | {"test": test, "chunk_rows": 60}
    found = search(tmp_path / "out", data=data, example_id="id", **options)
    (said,) = (one for one in warnings(found) if "--example-id" in one)
    # An oracle of its own: which ids occur more than once.
    times = frame["id"].value_counts()
    several = times[times > 1].index.tolist()
    assert said.startswith(f"--example-id id: {len(several)} values occur more than once, such as ")
    assert any(f"such as {one!r}" in said for one in several)
    assert ("resampled together" in said) == (test == "bootstrap-rows")


def test_distinct_ids_and_groups_are_not(tmp_path):
    data = saved(tmp_path, examples().assign(id=np.arange(ROWS), user=np.arange(ROWS) // 5))
    for number, options in enumerate(({"example_id": "id"}, {"group": "user", "replicates": 10})):
        found = search(tmp_path / f"{number}", data=data, **ROLES, **options)
        assert not any("more than once" in one for one in warnings(found))


def test_one_score_with_two_decisions_is_a_comparison(tmp_path):
    both = {"score": "score", "baseline_score": "score", "baseline_prediction": "old"}
    found = search(tmp_path / "out", data=saved(tmp_path, examples()), **ROLES, **both)
    assert not any("agree" in one for one in warnings(found))


WRONG = {
    "unknown column 'labell'": ["--label=labell"],
    "--positive-class 7 is not a value": ["--label=label", "--positive-class=7", "--metric=f1"],
    "--weight 'zero' is 0 for every example": ["--label=label", "--weight=zero"],
}


@pytest.mark.parametrize(("wrong", "work"), [*((one, "") for one in WRONG), ([*WRONG][-1], "elsewhere/work")])  # fmt: skip
def test_bad_input_leaves_nothing_behind(tmp_path, capsys, wrong, work):
    (tmp_path / "data").mkdir()
    data = saved(tmp_path / "data", examples().assign(zero=0))
    arguments = ["search", f"--data={data}", "--prediction=pred", *WRONG[wrong], "--quiet"]
    arguments += [f"--work-dir={tmp_path}/{work}"] if work else []
    assert wrong in refused([*arguments, f"--output={tmp_path}/a/b"], capsys, folder=tmp_path)
    assert [one.name for one in tmp_path.iterdir()] == ["data"]
    (tmp_path / "out").mkdir()
    refused([*arguments, f"--output={tmp_path}/out"], capsys, folder=tmp_path)
    assert sorted(one.name for one in tmp_path.iterdir()) == ["data", "out"]
    assert list((tmp_path / "out").iterdir()) == []


@pytest.mark.parametrize("command", ["check", "shift"])
def test_nor_do_other_commands(tmp_path, capsys, command):
    (tmp_path / "data").mkdir()
    data = saved(tmp_path / "data", examples())
    (tmp_path / "data" / "slices.yaml").write_text("- nothing = 1\n")
    arguments = {
        "check": ["check", f"--slices={tmp_path}/data/slices.yaml", "--prediction=pred"],
        "shift": ["shift", "--old-prediction=nothing", "--replay-prediction=pred", "--budget=50"],
    }[command]
    arguments += [f"--data={data}", "--label=label", f"--output={tmp_path}/out", "--quiet"]
    refused(arguments, capsys, folder=tmp_path)
    assert [one.name for one in tmp_path.iterdir()] == ["data"]


def slices_of(frame, **options):
    return api_search(frame, **ROLES, **options).slices["slice"].to_pylist()


def test_intervals_are_text():
    number = np.random.default_rng(4).normal(size=ROWS)
    number[:30] = np.nan
    cut = pd.cut(number, [-9, -1, 0.5, 9])
    frame = examples().assign(cut=cut, plain=pd.Series(cut).astype(object))
    frame["plain"] = pd.arrays.IntervalArray(pd.Series(cut).astype("interval"))
    found = slices_of(frame, features=["cut", "plain"])
    for name in ("cut", "plain"):
        for text in ('"(-9.0, -1.0]"', '"(-1.0, 0.5]"', '"(0.5, 9.0]"'):
            assert f"{name} = {text}" in found
        assert f"{name} is missing" in found
    assert isinstance(frame["cut"].cat.categories, pd.IntervalIndex)


def test_an_index_with_a_name_is_a_column():
    frame = examples()
    side = np.random.default_rng(5).choice(["left", "right"], ROWS)
    indexed = frame.assign(side=side).set_index("side")
    assert {"side = left", "side = right"} <= set(slices_of(indexed))
    assert slices_of(indexed, features=["side"]) == ["side = left", "side = right"]
    two = pd.MultiIndex.from_arrays([side, np.arange(ROWS)], names=["side", None])
    assert {"side = left", "place = a"} <= set(slices_of(frame.set_axis(two, axis=0)))
    assert slices_of(frame.sample(frac=1, random_state=1)) == slices_of(frame)
    assert "side" not in indexed.columns
    frame = examples()
    frame.index.name = "place"
    refuses(InputError, "the index is named 'place', as a column is", slices_of, frame)


@pytest.mark.parametrize(("metric", "side"), [("recall", "--score"), ("auc,f1_macro", "--baseline-score")])  # fmt: skip
def test_scores_that_are_cut_are_probabilities(tmp_path, capsys, metric, side):
    """Logits cut at .5 would be other predictions, without a word."""
    rng = np.random.default_rng(3)
    label = rng.integers(0, 2, 300)
    logit = rng.normal(2.0 * label - 1, 0.2)
    logit[:4] = 0.25
    sure = 1 / (1 + np.exp(-logit))
    frame = pd.DataFrame({"y": label, "f": rng.choice(list("ab"), 300), "logit": logit, "p": sure})
    frame.to_parquet(tmp_path / "data.parquet")
    other = "--baseline-score=p" if side == "--score" else "--score=p"
    arguments = ["search", f"--data={tmp_path}/data.parquet", "--label=y", f"{side}=logit"]
    arguments += [f"--output={tmp_path}/out", "--features=f", f"--metric={metric}"]
    assert run([*arguments, other]) == 2
    (said,) = capsys.readouterr().err.strip().splitlines()[-1:]
    assert f"score column 'logit' holds {logit[4]:g} in row 5 of" in said
    assert "--threshold 0.5 cuts probabilities, 0 to 1" in said


def test_auc_alone_takes_any_scores(tmp_path):
    rng = np.random.default_rng(3)
    frame = pd.DataFrame({"y": rng.integers(0, 2, 300), "f": rng.choice(list("ab"), 300)})
    frame.assign(logit=rng.normal(size=300)).to_parquet(tmp_path / "data.parquet")
    arguments = ["search", f"--data={tmp_path}/data.parquet", "--label=y", "--score=logit"]
    assert run([*arguments, f"--output={tmp_path}/out", "--features=f", "--metric=auc"]) == 0


def with_zeros(zero=0.0):
    rng = np.random.default_rng(6)
    x = rng.choice([-2.5, zero, 0.5, 3.0], 600)
    label = rng.integers(0, 2, 600)
    return pd.DataFrame({"x": x, "label": label, "pred": np.where(x == 3, 1 - label, label)})


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    path = tmp_path_factory.mktemp("data") / "data.parquet"
    with_zeros().to_parquet(path)
    return path
