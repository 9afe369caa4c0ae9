"""Losses that are not finite, and sums that cannot be added, are refused."""

import numpy as np
import pytest

from slicebeam.metrics.discovery.change import ChangeSums, OverlapSums
from slicebeam.metrics.errors import InputError
from tests.refusals import refuses


@pytest.mark.parametrize("wrong", [np.nan, np.inf, -1e200])
def test_a_change_that_is_not_finite_is_named_with_its_row(wrong):
    D = np.zeros(9)
    D[4] = wrong
    refuses(
        InputError,
        r"row 4 is (nan|inf|-1e\+200); losses must be finite",
        lambda: ChangeSums.of(np.zeros((2, 9), bool), D),
    )


def test_sums_of_different_slices_cannot_be_added():
    of_two = ChangeSums.of(np.zeros((2, 9), bool), np.zeros(9))
    for other in (ChangeSums.zero(3), ChangeSums.zero(1), OverlapSums.zero(2)):
        with pytest.raises(ValueError, match="cannot be added"):
            of_two + other
