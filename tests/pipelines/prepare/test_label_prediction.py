"""A column that predicts the label, against a prediction of each example from all others."""

from collections import Counter

import numpy as np
import pytest

from slicebeam.pipelines.prepare.feature_hints import LabelPrediction, predicts_label


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
