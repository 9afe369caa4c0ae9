"""Which items an assessment asks about, where calls are lost."""

import numpy as np
import pyarrow as pa
import pytest

from slicebeam.metrics.errors import EngineError
from slicebeam.pipelines.shift.answers import LOST
from slicebeam.pipelines.shift.assessment import Stopping, assess, check_budget, strata_of
from slicebeam.pipelines.shift.pool import LabelledPool, PoolItems


def drawn_pool(random):
    classes, strata = int(random.integers(2, 4)), int(random.integers(1, 7))
    sizes = random.integers(1, 60, strata)
    labels, row = np.unique(np.sort(random.integers(0, classes, strata)), return_inverse=True)
    stratum = np.repeat(np.arange(strata), sizes).astype(np.int32)
    old = random.integers(0, classes, stratum.size).astype(np.int32)
    counts = np.zeros((strata, classes), np.int64)
    np.add.at(counts, (stratum, old), 1)
    keys = pa.array([str(place) for place in range(stratum.size)])
    identity = random.integers(0, 2**63, stratum.size).astype(np.uint64)
    return LabelledPool(
        rows=stratum.size,
        classes=tuple(range(classes)),
        labels=labels,
        stratum_row=row,
        stratum_bin=np.zeros(strata, np.int64),
        edges=np.zeros(0),
        sizes=sizes,
        old=counts,
        items=PoolItems(stratum, identity, keys, old, None, pa.table({}), np.zeros(0, int), None),
        starts=np.concatenate([[0], np.cumsum(sizes)]),
        fingerprint=0,
        slices=None,
    )


class _LossyAnswers:
    """Answers of which some never come; it notes what it is asked."""

    def __init__(self, codes):
        self.all = codes
        self.asked = []

    def codes(self, items, most_calls):
        assert most_calls is None or items.size <= most_calls
        self.asked += items.tolist()
        return self.all[items]


@pytest.mark.parametrize("method", ["plus", "masa", "proportional"])
def test_each_item_is_asked_about_once_until_the_budget_or_the_pool_ends(method):
    random, estimated = np.random.default_rng(5), 0
    for _ in range(60):
        pool = drawn_pool(random)
        stratum = pool.items.stratum
        lossy = random.random(pool.sizes.size) < 0.5
        lost = (random.random(pool.rows) < random.choice([0, 0.1, 0.4, 0.8])) & lossy[stratum]
        codes = np.where(lost, LOST, random.integers(-1, len(pool.classes), pool.rows))
        least = 2 * pool.sizes.size
        calls = None if random.random() < 0.2 else int(random.integers(least, pool.rows + least))
        check_budget(strata_of(pool), method, calls)
        answers = _LossyAnswers(codes)
        try:
            found = assess(pool, method, answers, Stopping(calls, None, 0.95))
        except EngineError as error:
            assert "have no answer, because" in str(error)  # noqa: PT017
            continue
        expected = pool.rows if calls is None else min(calls, pool.rows)
        assert len(answers.asked) == len(set(answers.asked)) == expected
        assert found.lost == int(lost[answers.asked].sum())
        assert found.items.size == expected - found.lost
        assert found.stopped == ("pool" if expected == pool.rows else "budget")
        estimated += 1
    assert estimated > 45
