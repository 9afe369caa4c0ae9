"""A column that predicts the label, against a prediction of each example from all others."""

from collections import Counter

import numpy as np
import pytest

from slicebeam.metrics.measures.label_prediction import LabelPrediction, predicts_label


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
    draw = np.random.default_rng(seed)
    classes, size = int(draw.integers(2, 5)), int(draw.integers(60, 300))
    labels = draw.choice(classes, size, p=draw.dirichlet(np.ones(classes)))
    noisy = np.where(
        draw.random(size) < 0.06 * draw.random(), draw.integers(0, classes, size), labels
    )
    values = (noisy + classes * draw.integers(0, draw.choice([1, 2, 5, 40]), size)).tolist()
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


@pytest.mark.parametrize(("wrong", "is_found"), [(5, True), (6, False)])
def test_one_error_in_twenty_is_left_at_most(wrong, is_found):
    # 100 examples are not of the most frequent class.
    table = np.array([[900, wrong], [0, 100 - wrong]])
    assert (predicts_label(table, np.zeros(2, bool)) is not None) is is_found


def test_a_rare_class_has_to_be_predicted_too():
    # 99 % of the labels are right, as always: half of the rare ones are missed.
    assert predicts_label(np.array([[9900, 50], [0, 50]]), np.zeros(2, bool)) is None


@pytest.mark.parametrize(("rare", "is_found"), [(20, True), (19, False)])
def test_few_examples_say_nothing(rare, is_found):
    assert (
        predicts_label(np.array([[500, 0], [0, rare]]), np.zeros(2, bool)) is not None
    ) is is_found


def test_values_that_occur_once_predict_nothing():
    assert (
        predicts_label(np.eye(2, dtype=np.int64).repeat(200, axis=0), np.zeros(400, bool)) is None
    )


def test_a_border_may_lie_within_a_range_but_not_within_a_value():
    # Ten bins of a number that is below a threshold for all of one class only.
    table = np.array([[100, 0]] * 6 + [[60, 40]] + [[0, 100]] * 3)
    assert predicts_label(table, np.ones(10, bool)) == LabelPrediction(1.0, 600 / 900)
    assert predicts_label(table, np.zeros(10, bool)) is None


def test_the_range_of_the_border_must_leave_half_of_the_others():
    # All of the rare class are in one bin with as many of the other: no proof of a border.
    assert predicts_label(np.array([[100, 0]] * 9 + [[50, 50]]), np.ones(10, bool)) is None
    three = np.array([[100, 0]] * 8 + [[30, 70], [0, 30]])
    assert predicts_label(three, np.ones(10, bool)) is None
