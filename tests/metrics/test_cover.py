"""Greedy cover against a slow greedy choice, its bound by brute force, and its edges."""

from __future__ import annotations

from itertools import combinations

import numpy as np
import pytest

from slicebeam.metrics.measures.cover import greedy_cover


def covered_excess(members, excess, chosen):
    covered = [any(row[j] for j in chosen) for row in members]
    return sum(value for value, inside in zip(excess, covered, strict=True) if inside)


def slow_greedy(members, excess, most, smallest_gain):
    """The definition over whole numbers; the total needs the choice without any limit."""
    candidates = range(members.shape[1])
    rows, amounts = members.tolist(), [int(value) for value in excess]
    order, gains, covered = [], [], 0
    while True:
        steps = [covered_excess(rows, amounts, [*order, j]) - covered for j in candidates]
        if not steps or max(steps) <= 0:
            break
        order.append(steps.index(max(steps)))
        gains.append(max(steps))
        covered += max(steps)
    total = max(covered_excess(rows, amounts, candidates), sum(gains))
    count = 0
    while count < min(most, len(order)) and gains[count] >= smallest_gain * total:
        count += 1
    return order[:count], [sum(gains[: i + 1]) / total for i in range(count)]


@pytest.mark.parametrize("lowest", [0, -4])
def test_equals_the_slow_greedy_choice(lowest):
    rng = np.random.default_rng(1)
    for _ in range(60):
        patterns, candidates = rng.integers(1, 30), rng.integers(1, 9)
        members = rng.random((patterns, candidates)) < rng.choice([0.1, 0.3, 0.6])
        # Small whole numbers: many ties.
        excess = rng.integers(lowest, 5, patterns)
        for most, smallest_gain in ((20, 0.0), (20, 0.1), (2, 0.01), (0, 0.0)):
            cover = greedy_cover(members, excess, most=most, smallest_gain=smallest_gain)
            order, explained = slow_greedy(members, excess, most, smallest_gain)
            assert cover.chosen.tolist() == order
            np.testing.assert_allclose(cover.explained, explained, rtol=1e-12)


def test_first_choices_reach_the_bound_of_the_best_ones():
    rng = np.random.default_rng(2)
    tightest = 1.0
    for _ in range(60):
        members = rng.random((14, 7)) < 0.35
        excess = rng.integers(0, 9, 14)
        cover = greedy_cover(members, excess, smallest_gain=0.0)
        rows, amounts = members.tolist(), excess.tolist()
        union = covered_excess(rows, amounts, range(7))
        for k in range(1, min(4, cover.chosen.size) + 1):
            best = max(covered_excess(rows, amounts, few) for few in combinations(range(7), k))
            reached = cover.explained[k - 1] * union / best
            assert reached >= 1 - (1 - 1 / k) ** k - 1e-12
            tightest = min(tightest, reached)
        # The last choice leaves nothing uncovered.
        assert cover.explained[-1] == 1.0
    # The cases are hard enough to miss the best choice now and then.
    assert tightest < 0.95


def test_known_case_and_where_it_ends():
    members = np.array([[1, 0, 1, 0], [1, 0, 0, 0], [0, 1, 1, 0], [0, 1, 0, 0], [0, 0, 0, 1]], bool)
    excess = [6.0, 4.0, 5.0, 3.5, 0.1]
    cover = greedy_cover(members, excess, smallest_gain=0.0)
    # The third slice overlaps both of the others and adds nothing once they are chosen.
    assert cover.chosen.tolist() == [2, 0, 1, 3]
    np.testing.assert_allclose(cover.explained, np.array([11.0, 15.0, 18.5, 18.6]) / 18.6)
    assert greedy_cover(members, excess).chosen.tolist() == [2, 0, 1]
    assert greedy_cover(members, excess, smallest_gain=0.2).chosen.tolist() == [2, 0]
    assert greedy_cover(members, excess, most=1).chosen.tolist() == [2]
    assert greedy_cover(members, excess, smallest_gain=2.0).chosen.tolist() == []


def test_ties_go_to_the_lowest_position_also_through_rounding():
    # 3·0.1 and 0.1 + 0.2 differ in the last bit; the order of the columns decides.
    excess = np.array([0.3, 0.1, 0.2])
    members = np.array([[1, 0, 1], [0, 1, 0], [0, 1, 0]], dtype=bool)
    assert 0.1 + 0.2 > 0.3
    assert greedy_cover(members, excess).chosen.tolist() == [0, 1]
    assert greedy_cover(members[:, ::-1], excess).chosen.tolist() == [0, 1]
    assert greedy_cover(members[:, [1, 0, 2]], excess).chosen.tolist() == [0, 1]


def test_rounding_leaves_no_gain_behind():
    rng = np.random.default_rng(3)
    members = rng.random((5000, 12)) < 0.4
    members[:, 6:] = members[:, :6]
    cover = greedy_cover(members, rng.random(5000), smallest_gain=0.0)
    # A copy of a chosen candidate has nothing left.
    assert sorted(cover.chosen.tolist()) == [0, 1, 2, 3, 4, 5]
    assert cover.explained[-1] == 1.0


def test_negative_groups():
    # The second slice holds a group of few errors: alone it is worth 7 − 5, the union 15 − 5.
    members = np.array([[1, 0], [0, 1], [0, 1]], dtype=bool)
    cover = greedy_cover(members, [8.0, 7.0, -5.0])
    assert cover.chosen.tolist() == [0, 1]
    np.testing.assert_allclose(cover.explained, [0.8, 1.0])
    # The union has less than the choice: shares are of what the choice collects.
    cover = greedy_cover(members, [8.0, 3.0, -5.0])
    assert cover.chosen.tolist() == [0]
    assert cover.explained.tolist() == [1.0]
    # A group that was paid for makes the next gain larger.
    members = np.array([[1, 0], [1, 1], [0, 1]], dtype=bool)
    cover = greedy_cover(members, [10.0, -4.0, 9.0])
    assert cover.chosen.tolist() == [0, 1]
    np.testing.assert_allclose(cover.explained, [6 / 15, 1.0])


@pytest.mark.parametrize(
    ("members", "excess"),
    [
        (np.ones((3, 0), bool), np.ones(3)),
        (np.ones((0, 3), bool), np.ones(0)),
        (np.ones((0, 0), bool), np.ones(0)),
        (np.ones((3, 2), bool), np.zeros(3)),
        (np.zeros((3, 2), bool), np.ones(3)),
        (np.ones((3, 2), bool), -np.ones(3)),
        (np.ones((2, 2), bool), np.array([0.7, -0.7])),
    ],
)
def test_nothing_to_explain(members, excess):
    chosen, explained = greedy_cover(members, excess)
    assert chosen.shape == explained.shape == (0,)
    assert chosen.dtype == np.int64
    assert explained.dtype == np.float64


def test_result_does_not_depend_on_the_order_of_rows():
    rng = np.random.default_rng(4)
    members = rng.random((7000, 30)) < 0.1
    excess = rng.poisson(1.0, 7000) - 0.937 * rng.random(7000)
    cover = greedy_cover(members, excess, smallest_gain=0.0, most=30)
    assert cover.chosen.size > 20
    assert (np.diff(cover.explained) > 0).all()
    for _ in range(5):
        rows = rng.permutation(7000)
        other = greedy_cover(members[rows], excess[rows], smallest_gain=0.0, most=30)
        np.testing.assert_array_equal(other.chosen, cover.chosen)
        np.testing.assert_array_equal(other.explained, cover.explained)


@pytest.mark.parametrize("scale", [1e-310, 1e-9, 1e9, 1e307])
def test_scale_of_the_excess_does_not_matter(scale):
    members = np.array([[1, 0], [1, 0], [0, 1]], dtype=bool)
    cover = greedy_cover(members, np.array([4.0, 4.0, 8.5]) * scale)
    assert cover.chosen.tolist() == [1, 0]
    np.testing.assert_allclose(cover.explained, [8.5 / 16.5, 1.0], rtol=1e-9)


def test_wrong_input_is_refused():
    members = np.ones((3, 2), bool)
    with pytest.raises(ValueError, match=r"members of shape \(3, 2\) and excess of shape \(2,\)"):
        greedy_cover(members, [1.0, 2.0])
    with pytest.raises(ValueError, match="members of shape"):
        greedy_cover(members[0], [1.0, 2.0])
    with pytest.raises(ValueError, match="not a finite number"):
        greedy_cover(members, [1.0, np.nan, 2.0])
    with pytest.raises(ValueError, match="most = -1"):
        greedy_cover(members, np.ones(3), most=-1)
    for wrong in (-0.1, np.nan):
        with pytest.raises(ValueError, match="smallest_gain"):
            greedy_cover(members, np.ones(3), smallest_gain=wrong)
