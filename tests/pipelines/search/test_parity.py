"""Gaps between groups, and columns that predict the label, from the counts of the search."""

import json
from collections import Counter

import numpy as np
import pandas as pd
import pytest

from slicebeam.metrics.errors import OptionError
from slicebeam.pipelines.api import search
from slicebeam.pipelines.cli import run
from slicebeam.pipelines.prepare.feature_hints import LabelPrediction, predicts_label
from tests.refusals import refuses

SIZES = {"student": 300, "retired": 400, "clerk": 1000, "rare": 25}
COMMON = {"label": "y", "features": ["age", "job"], "max_cross_size": 1}


@pytest.fixture(scope="module")
def people():
    rng = np.random.default_rng(1)
    job = np.repeat(list(SIZES), list(SIZES.values()))
    y = rng.integers(0, 2, job.size)
    wrong = rng.random((2, job.size)) < np.where(job == "student", 0.4, 0.2)
    columns = {"job": job, "age": rng.integers(18, 80, job.size), "y": y}
    return pd.DataFrame(columns | {"new": y ^ wrong[0], "old": y ^ wrong[1]})


def of_groups(data, model, measure):
    """The share of each job with 30 examples of which it is."""
    within = {"true_positive_rate": data.y == 1, "false_positive_rate": data.y == 0}
    chosen = data[within.get(measure, data.y >= 0)]
    marked = chosen[model] == chosen.y if measure == "accuracy" else chosen[model]
    groups = marked.groupby(chosen.job).agg(["mean", "size"])
    return groups[groups["size"] >= 30]


@pytest.mark.parametrize("strategy", ["batch", "priority"])
def test_gaps_of_both_models_are_those_of_the_data(people, strategy):
    models = {"prediction": "new", "baseline_prediction": "old", "strategy": strategy}
    report = search(people, **COMMON, **models, parity="job", metric=["error_rate", "npv"])
    gaps = report.parity.to_pylist()
    assert [one["model"] for one in gaps] == ["before"] * 4 + ["after"] * 4
    for one in gaps:
        groups = of_groups(people, {"after": "new", "before": "old"}[one["model"]], one["measure"])
        for end, at in (("lowest", groups["mean"].idxmin()), ("highest", groups["mean"].idxmax())):
            assert one[end] == {
                "name": f"job = {at}",
                "n": groups["size"][at],
                "value": pytest.approx(groups["mean"][at]),
            }
        assert (one["left_out"], one["groups"]) == (["job = rare"], 3)
    accuracy = gaps[3]
    assert (accuracy["lowest"]["name"], accuracy["p_value"]) == ("job = student", 0.0001)
    assert accuracy["gap"]["lo"] > 0.1
    # The same slices as without.
    plain = search(people, **COMMON, **models, metric=["error_rate", "npv"])
    assert plain.slices.equals(report.slices)
    assert plain.parity.num_rows == 0


def test_what_the_command_prints(people, tmp_path, capsys):
    people.to_parquet(tmp_path / "data.parquet")
    flags = ["--label=y", "--prediction=new", "--features=job,age", "--max-cross-size=1"]
    command = ["search", str(tmp_path / "data.parquet"), *flags, f"--output={tmp_path / 'out'}"]
    assert run([*command, "--parity=age,job"]) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "Largest gaps between groups of age, in bins: prediction rate: lowest" in said
    assert "Largest gaps between groups of job: prediction rate: lowest" in said
    text = f"{of_groups(people, 'new', 'accuracy')['mean'].min():.3f}".removeprefix("0")
    assert f"accuracy: lowest {text} in job = student (n 300), highest " in said
    assert "fewer than 30 examples: job = rare." in said
    assert run([*command, "--parity=job", "--json", "--min-slice-size=350"]) == 0
    published = json.loads((tmp_path / "out" / "changelist.json").read_text())["parity"]
    printed = json.loads(capsys.readouterr().out)["parity"]
    assert [{k: v for k, v in one.items() if v is not None} for one in printed] == published
    assert printed[3]["left_out"] == ["job = rare", "job = student"]
    # Fewer than two groups have enough positive labels.
    assert printed[1]["gap"] is None


@pytest.mark.parametrize(("column", "message"), [
    (lambda y: ["a"] * len(y), r"--parity 'it' has no groups: one value only \('a'\)"),
    (lambda y: [["a", "b"], ["b"]] * (len(y) // 2) + [["a"]], "whose groups overlap"),
    (lambda y: [f"v{at // 6}" for at in range(len(y))], "more than 200; lower --top-values or --bins"),
])  # fmt: skip
def test_columns_without_groups_are_refused(people, column, message):
    data = people.assign(it=column(people.y))
    options = {"label": "y", "prediction": "new", "features": ["it", "job"], "parity": "it"}
    refuses(OptionError, message, search, data, **options, top_values=300, min_slice_size=2)


def left_out_errors(values, labels):
    """Predict each example by the others with its value; no value or a tie is an error."""
    wrong = 0
    for at, (value, label) in enumerate(zip(values, labels, strict=True)):
        others = Counter(
            labels[i] for i in range(len(values)) if i != at and values[i] == value
        ).most_common(2)
        is_tie = len(others) == 2 and others[0][1] == others[1][1]
        wrong += not others or is_tie or others[0][0] != label
    return wrong


def table_of(values, labels):
    table = np.zeros((max(values) + 1, max(labels) + 1), np.int64)
    np.add.at(table, (values, labels), 1)
    return table


def drawn(seed):
    """From no noise to some, and from a value for each class to very few examples a value."""
    rng = np.random.default_rng(seed)
    classes, size = int(rng.integers(2, 5)), int(rng.integers(60, 300))
    labels = rng.choice(classes, size, p=rng.dirichlet(np.ones(classes)))
    noisy = np.where(rng.random(size) < 0.06 * rng.random(), rng.integers(0, classes, size), labels)
    values = (noisy + classes * rng.integers(0, rng.choice([1, 2, 5, 40]), size)).tolist()
    return values, labels.tolist()


def test_agrees_with_predicting_each_example_by_the_others():
    answers = Counter()
    for seed in range(40):
        values, labels = drawn(seed)
        size, wrong = len(labels), left_out_errors(values, labels)
        others = size - Counter(labels).most_common(1)[0][1]
        table = table_of(values, labels)
        found = predicts_label(table, np.zeros(len(table), bool))
        expected = None
        if others >= 20 and wrong <= 0.05 * others:
            expected = LabelPrediction((size - wrong) / size, (size - others) / size)
        assert found == expected, seed
        answers[found is None] += 1
    assert min(answers[True], answers[False]) >= 5


BORDER = [[100, 0]] * 6 + [[60, 40]] + [[0, 100]] * 3
RANGES, VALUES = "ranges", "values"


@pytest.mark.parametrize(("table", "kind", "share"), [
    # Of the 100 examples not of the most frequent class one error in twenty is left at most.
    ([[900, 5], [0, 95]], VALUES, 0.995),
    ([[900, 6], [0, 94]], VALUES, None),
    # 99 % of the labels are right, as always: half of the rare ones are missed.
    ([[9900, 50], [0, 50]], VALUES, None),
    # Few examples say nothing.
    ([[500, 0], [0, 20]], VALUES, 1.0),
    ([[500, 0], [0, 19]], VALUES, None),
    # Values that occur once predict nothing.
    ([[1, 0]] * 200 + [[0, 1]] * 200, VALUES, None),
    # A border may lie within a range, but not within a value, and must leave half of the others.
    (BORDER, RANGES, 1.0),
    (BORDER, VALUES, None),
    ([[100, 0]] * 9 + [[50, 50]], RANGES, None),
    ([[100, 0]] * 8 + [[30, 70], [0, 30]], RANGES, None),
])  # fmt: skip
def test_what_predicts_the_label(table, kind, share):
    found = predicts_label(np.array(table), np.full(len(table), kind == RANGES))
    assert (found and found.right) == share
    if table is BORDER and found:
        assert found.most_frequent == 600 / 900
