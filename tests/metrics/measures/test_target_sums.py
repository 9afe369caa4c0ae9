"""Columns of summed targets, and sums of expectations in any order."""

import numpy as np
import pytest

from slicebeam.metrics.measures.target_sums import Patterns, TargetSums, membership
from tests.encoded_table import target_columns


def test_columns_of_sums():
    x, w = np.array([0.5, -2.0]), np.array([3.0, 2.0])
    layout = TargetSums("mean", weighted=True)
    sums = target_columns(layout, x, w).sum(axis=0)
    for a in (1, 2):
        for b in range(a + 1):
            assert layout.moment(sums, a, b) == (w**a * x**b).sum()
    plain = TargetSums("mean")
    assert plain.moment(target_columns(plain, x).sum(axis=0), 2, 2) == (x**2).sum()
    assert membership([5], 3).tolist() == [[True, False, True]]


@pytest.mark.parametrize("scale", [1.0, -3e7, 5e-324, 1e-300, 1e308])
def test_rounded_expectations_sum_to_the_same_in_any_order(scale):
    rng, examples = np.random.default_rng(4), 100_003
    patterns = Patterns(np.array([examples, 5]), TargetSums("rate"), lambda sums: sums * 1.0)
    values = scale * rng.random(400)
    rounded = patterns.summable(values)
    of_rows = rounded[rng.integers(0, 400, examples)]
    # The sums themselves must be doubles.
    if scale < 1e300:
        forwards, backwards = np.add.accumulate(of_rows)[-1], np.add.accumulate(of_rows[::-1])[-1]
        assert forwards == backwards == np.add.accumulate(rng.permutation(of_rows))[-1]
    np.testing.assert_allclose(rounded, values, rtol=0, atol=examples * 2.0**-52 * abs(scale))
    weighted = Patterns(np.ones(4), TargetSums("rate", weighted=True), lambda sums: sums * 1.0)
    assert weighted.summable(values) is values
