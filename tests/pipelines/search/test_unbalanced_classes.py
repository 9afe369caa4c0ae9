"""Accuracy of unbalanced classes is noted with its figures and a metric that says more."""

import shlex

import numpy as np
import pandas as pd
import pytest

from slicebeam.pipelines import api

ROWS = 1000


def of_sizes(labels, counts, wrong):
    label = np.repeat(np.array(labels), counts)
    prediction = label.copy()
    prediction[ROWS - wrong :] = labels[0]
    prediction[label == labels[0]] = labels[0]
    return pd.DataFrame(
        {"label": label, "prediction": prediction, "group": np.arange(ROWS) % 7 % 3}
    )


def lines(table, **options):
    options = {"label": "label", "prediction": "prediction", "max_cross_size": 1, **options}
    warnings = api.search(table, **options).changelist.testing.warnings
    return [one for one in warnings if "always predicting" in one or "Every label" in one]


@pytest.mark.parametrize(("rare", "is_noted"), [(100, True), (101, False)])
def test_from_nine_tenths_of_one_class(rare, is_noted):
    table = of_sizes([0, 1], [ROWS - rare, rare], wrong=30)
    found = lines(table)
    assert bool(found) is is_noted
    if is_noted:
        right = (table["label"] == table["prediction"]).mean()
        share = table["label"].value_counts(normalize=True).max()
        expected = (
            f"Accuracy ({right:.1%}) is mostly about one class: 0 is the label of {share:.1%} of the "
            f"examples, and always predicting it has {share:.1%}. --metric balanced_accuracy weighs "
            "both classes alike, --metric recall is about class 1 alone."
        )
        assert found == [expected]


@pytest.mark.parametrize(("wrong", "is_noted"), [(400, True), (399, False)])
def test_no_better_than_the_most_frequent_class(wrong, is_noted):
    table = of_sizes([0, 1], [600, 400], wrong)
    assert bool(lines(table)) is is_noted
    if is_noted:
        (line,) = lines(table, metric="error_rate")
        assert line.startswith("Error rate (40.0%) is no better than always predicting 0 (40.0%). ")


@pytest.mark.slow
def test_several_classes():
    (line,) = lines(of_sizes(["a", "b", "c"], [500, 300, 200], wrong=500))
    assert line == (
        "Accuracy (50.0%) is no better than always predicting 'a' (50.0%). --metric recall_macro weighs "
        "all classes alike, --metric recall --positive-class c is about class 'c' alone."
    )
    assert lines(of_sizes(["a", "b", "c"], [500, 300, 200], wrong=100)) == []
    assert len(lines(of_sizes(["a", "b", "c"], [920, 60, 20], wrong=10))) == 1


@pytest.mark.slow
@pytest.mark.parametrize(("labels", "extra"), [
    ([0, 1], {}),
    ([1, 0], {}),
    (["ok", "it's bad"], {}),
    ([1.0, 2.0], {}),
    ([False, True], {}),
    (["a", "b", "c"], {}),
    ([0, 1], {"score": "prediction", "prediction": None}),
    ([1, 0], {"score": "prediction", "prediction": None}),
])  # fmt: skip
def test_what_is_proposed_runs_and_says_more(labels, extra):
    rest = [40, 10] if len(labels) > 2 else [50]
    table = of_sizes(labels, [950, *rest], wrong=ROWS)
    (line,) = lines(table, **extra)
    for part in line.split(". ", 1)[1].split("--metric ")[1:]:
        words = shlex.split(part.partition(" weighs")[0].partition(" is about")[0])
        more = {"positive_class": words[2]} if len(words) > 1 else {}
        options = {"label": "label", "prediction": "prediction", "max_cross_size": 1, **extra}
        report = api.search(table, metric=words[0], **more, **options)
        # The model predicts the most frequent class only.
        value = report.changelist.global_[0].after.value
        expected = 0.0 if words[0] in ("recall", "specificity") else 1 / len(labels)
        assert value == pytest.approx(expected)
        assert [one for one in report.changelist.testing.warnings if "always" in one] == []


@pytest.mark.parametrize(("name", "value"), [
    *(("metric", one) for one in ("recall", "label_rate", ["accuracy", "balanced_accuracy"])),
    *(("metric", "mean:weight"), ("weight", "weight"), ("baseline_prediction", "old")),
])  # fmt: skip
def test_nothing_is_said_where_it_does_not_matter(name, value):
    table = of_sizes([0, 1], [950, 50], wrong=10)
    table = table.assign(weight=1.0, old=np.where(np.arange(ROWS) % 9, table["label"], 1))
    assert lines(table, features=["group"], **{name: value}) == []
    assert lines(table, features=["group"]) != []


def test_one_class_only():
    table = of_sizes([0, 1], [ROWS, 0], wrong=0).assign(prediction=np.arange(ROWS) % 5 % 2)
    assert lines(table) == ["Every label is 0: accuracy says nothing about any other class."]


def test_a_check_notes_it_too(tmp_path):
    table = of_sizes([0, 1], [950, 50], wrong=10)
    (tmp_path / "slices.yaml").write_text("- group = 1\n")
    options = {"label": "label", "prediction": "prediction"}
    found = api.check(table, slices=str(tmp_path / "slices.yaml"), **options)
    assert any("mostly about one class" in one for one in found.changelist.testing.warnings)
