"""A budget of labels is divided so that both intervals get narrow."""

import numpy as np
import pytest

from slicebeam.metrics.attribution.estimates import Draws, alignment, split_labels


@pytest.mark.parametrize("budget", [1, 2, 7, 50, 400, 3000])
@pytest.mark.parametrize("sizes", [(300, 3700), (20, 100_000), (50, 0), (50, 3), (1000, 1000)])
def test_a_budget_is_divided_within_what_there_is(budget, sizes):
    size, outside = sizes
    for labelled in (0, size // 2, size):
        found = split_labels(budget, size=size, size_outside=outside, labelled=labelled, drawn=9)
        assert 0 <= found[0] <= size - labelled
        assert 0 <= found[1] <= outside
        assert sum(found) == min(budget, size - labelled + outside)


def expected_width(inside, outside, size, size_outside):
    """The widths of both intervals where a quarter of the draws hit, and both shares are 0.8."""
    labels = np.zeros(inside, np.int8)
    labels[: round(0.8 * inside)] = 1
    hits = round(outside / 4)
    share = 0.8 * size * 0.25 / size_outside
    weight = np.full(outside, 1.0)
    weight[:hits] = hits / outside / share
    answers = (np.arange(outside) < hits).astype(np.int8)
    # There are but so many to be hit.
    item = np.arange(outside)
    item[:hits] %= round(share * size_outside)
    item[hits:] += size_outside // 2
    draws = Draws(item, weight, answers, 0.2)
    found = alignment(labels, size, draws, size_outside)
    return found.precision.high - found.precision.low + found.recall.high - found.recall.low


@pytest.mark.parametrize("budget", [200, 400, 800])
def test_the_division_is_about_the_best_of_all(budget):
    size, size_outside = 500, 4000
    inside, outside = split_labels(budget, size=size, size_outside=size_outside)
    found = expected_width(inside, outside, size, size_outside)
    quarter = budget // 4
    every = [
        expected_width(one, budget - one, size, size_outside)
        for one in range(quarter, min(size, budget - quarter) + 1, 5)
    ]
    assert found < 1.05 * min(every)
    # It matters: half of the way to an end is worse.
    assert max(every) > 1.1 * found
