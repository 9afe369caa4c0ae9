"""The interval of MASA's accuracy covers its bias."""

import numpy as np
import pytest

from slicebeam.metrics.shift.estimates import estimate, starved_variance, summarise
from slicebeam.metrics.shift.quality import qualities
from tests.oracles import shift_oracle as oracle

pytestmark = pytest.mark.filterwarnings("error::RuntimeWarning")


def test_the_error_of_the_accuracy_is_the_formula():
    rng = np.random.default_rng(1)
    for _ in range(30):
        labels = int(rng.integers(2, 6))
        pool = oracle.random_pool(rng, labels=labels, strata=8, largest=15)
        asked = oracle.random_asked(rng, pool, least=1)
        strata, sample = pool.strata(), oracle.sample_of(pool, [asked, asked])
        found = estimate(strata, sample, control=False)
        slow = oracle.starved_variance(pool, asked)
        fast = starved_variance(strata, sample, found.accuracy_unseen)
        assert fast == pytest.approx([slow, slow], rel=1e-9, abs=1e-15)
        whole = summarise("masa", strata, sample)
        np.testing.assert_array_equal(whole.accuracy_variance, fast)
        np.testing.assert_array_equal(whole.matrix, found.matrix)
        np.testing.assert_array_equal(whole.variance, found.variance)


# Without the widening: 0.85, 0.87, 0.88 and 0.91.
@pytest.mark.parametrize(("name", "api", "rows", "calls", "most_width"), [
    ("digit", "ibm", 2000, 200, 0.18),
    ("digit", "ibm", 2000, 500, 0.08),
    ("imdb", "amazon", 500, 50, 0.31),
    ("imdb", "amazon", 500, 250, 0.08),
])  # fmt: skip
def test_intervals_of_small_pools_cover(name, api, rows, calls, most_width):
    strata, items = oracle.recorded(name, api, rows=rows)
    (found,) = qualities(strata, items, "masa", [calls], 1000, 1)
    # Of a true .95 fewer than this come by chance three times of ten thousand.
    assert found.accuracy_coverage >= 0.95 - 3.4 * (0.95 * 0.05 / 1000) ** 0.5
    assert found.accuracy_width < most_width
