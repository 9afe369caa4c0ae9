"""Failure scores against their definitions, and states of topics."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from slicebeam.pipelines.adaptive.failure_scores import (
    change_failure,
    fails,
    output_failure,
    state_by_rule,
)


@given(st.lists(st.floats(0, 1), min_size=2, max_size=5), st.data())
def test_an_output_fails_just_where_another_class_is_more_probable(row, data):
    wanted = data.draw(st.integers(-1, len(row) - 1))
    (score,) = output_failure(np.array([row]), np.array([wanted]))
    assert 0 <= score <= 1
    if wanted < 0:
        assert score == 1
        return
    best = max(value for place, value in enumerate(row) if place != wanted)
    assert fails(score) == ((1 + best - row[wanted]) / 2 > 0.5)
    if len(row) == 2 and abs(sum(row) - 1) < 1e-9:
        assert score == pytest.approx(1 - row[wanted])


@given(st.lists(st.floats(-5, 5), min_size=1), st.sampled_from([0.0, 0.1, 2.0]))
def test_a_change_fails_just_beyond_the_tolerance(changes, tolerance):
    score = change_failure(changes, tolerance)
    assert ((score >= 0) & (score <= 1)).all()
    beyond = np.maximum(changes, 0) - tolerance
    # Of a change that differs by a rounding error from the tolerance either is right.
    clear = np.abs(beyond) > 1e-12
    assert (fails(score) == (beyond > 0))[clear].all()
    assert (np.diff(score[np.argsort(changes, kind="stable")]) >= -1e-15).all()


def test_a_change_without_a_number_has_no_score():
    assert np.isnan(change_failure([np.nan, 0.3], 0.1)).tolist() == [True, False]
    assert change_failure(np.inf, 0.1) == 1


def test_topics_by_the_rule_of_the_paper():
    # A fifth of five and of 45 tests is a whole number: with it a topic fails.
    states = ["failing", "passing", "failing", "passing", "failing"]
    assert state_by_rule([1, 8, 9, 0, 2], [5, 45, 45, 0, 3]) == states
    assert state_by_rule([1, 0], [5, 5], [0, 1]) == ["broken", "fixed"]
