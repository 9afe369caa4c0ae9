import decimal

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

from tests.transforms.encode.test_domains import assert_encodes, count, learn, masks

SMALL = 1 << 15


def _times(numbers):
    return pa.array(numbers, pa.timestamp("us"))


SKETCHED = {
    "double": lambda n: pa.array(n / 8),
    "float": lambda n: pa.array((n / 8).astype(np.float32)),
    "int": pa.array,
    "uint64": lambda n: pa.array(n.astype(np.uint64) + np.uint64(2**40)),
    "decimal": lambda n: pa.array([decimal.Decimal(v) / 100 for v in n.tolist()]),
    "timestamp": _times,
    "date": lambda n: pa.array((n % 40_000).astype(np.int32)).view(pa.date32()),
}


@pytest.mark.parametrize("share", [0.0, 0.3], ids=["all light", "one heavy"])
@pytest.mark.parametrize("kind", SKETCHED)
def test_numbers_beyond_the_exact_limit(kind, share):
    rng = np.random.default_rng(4)
    numbers = rng.integers(1, 20_000, 30_000)
    numbers[rng.random(30_000) < share] = 4000
    # No quantile is below or above these.
    numbers[:2] = [0, 30_000]
    values = SKETCHED[kind](numbers)
    domain = learn(values, SMALL, exact_edges=True)
    assert 0 < domain.error < 0.005
    held = masks(domain, values[:3000])
    assert (held.sum(0) == 1).all()
    np.testing.assert_array_equal(domain.encode(values[:3000]), held.argmax(0))
    codes = domain.encode(values)
    assert codes.max() < domain.size
    # An edge is off by the stated error at the most, and at each end by the grid of quantiles.
    sizes = np.bincount(codes, minlength=domain.size) / len(codes)
    ranges = [s for s, one in zip(sizes, domain.singletons, strict=True) if one.op != "=="]
    assert max(ranges) <= (1 - share) / 10 + 2 * (domain.error + 1 / 2000)
    points = [s for s, one in zip(sizes, domain.singletons, strict=True) if one.op == "=="]
    assert len(points) == bool(share)


def test_texts_beyond_the_exact_limit():
    numbers = np.minimum(np.random.default_rng(4).zipf(1.4, 60_000), 20_000)
    values = pa.array([f"word {n}" for n in numbers])
    counted = count(values, SMALL)
    true = pd.Series(values.to_pylist()).value_counts()
    assert 0 < counted.error < 1e-3
    off = np.array(counted.counts) - true[counted.values.to_pylist()].to_numpy()
    assert np.abs(off).max() <= counted.error * len(values)
    assert counted.distinct == pytest.approx(len(true), rel=0.05)
    domain = learn(values, SMALL, top_values=20)
    assert {one.value for one in domain.singletons[:20]} == set(true.index[:20])
    assert domain.singletons[-1].op == "not_in"
    assert_encodes(domain, values[:2000])


def test_lists_beyond_the_exact_limit():
    numbers = np.random.default_rng(4).integers(10**6, 2 * 10**6, 15_000)
    values = pa.array([[int(n), int(n) % 3, int(n) % 3] for n in numbers] + [None, []])
    domain = learn(values, SMALL, top_values=3)
    assert {one.value for one in domain.singletons[:3]} == {0, 1, 2}
    offsets, codes = domain.encode_lists(values)
    held = masks(domain, values)
    assert np.diff(offsets).tolist() == held.sum(0).tolist()
    np.testing.assert_array_equal(np.bincount(codes), held.sum(1))
