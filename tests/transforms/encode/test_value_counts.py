import decimal

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

from slicebeam.transforms.encode.value_counts import NumberCounts, rounded_down
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


def test_rounding_keeps_the_order_and_may_be_done_in_steps():
    rng = np.random.default_rng(7)
    values = rng.normal(size=500) * 10.0 ** rng.integers(-300, 300, 500)
    values = np.sort(np.concatenate([values, [0.0, -0.0]]))
    for bits in (52, 20, 8, 1):
        found = rounded_down(values, bits)
        assert (found <= values).all()
        assert (np.diff(found) >= 0).all()
        # The oracle: a floor of the number's own multiple of its last bit that is kept.
        mantissa, exponent = np.frexp(values)
        wanted = np.ldexp(np.floor(np.ldexp(mantissa, bits + 1)), exponent - bits - 1)
        assert found.tolist() == wanted.tolist()
        steps = rounded_down(rounded_down(values, min(bits + 3, 52)), bits)
        assert steps.tolist() == found.tolist()


@pytest.mark.parametrize(("size", "most"), [(40, 50), (3000, 50), (3000, 2000), (3000, 5000)])
def test_counts_of_difficulties_do_not_depend_on_how_they_come(size, most):
    rng = np.random.default_rng(size + most)
    # Those of the second half are close together: only some parts are many.
    values = [rng.integers(0, 40, size) / 40, 0.75 + rng.random(size) * 1e-5, -rng.random(20)]
    values = np.concatenate(values)
    sizes = {b: np.unique(rounded_down(values, b)).size for b in (52, 20, 18, 16, 14, 12, 10)}
    resolution = next((bits for bits, size in sizes.items() if size <= most), 8)
    wanted = np.unique(rounded_down(values, resolution), return_counts=True)
    for parts in (1, 3, 17, 40):
        counts = NumberCounts(pa.float64(), most)
        for part in np.array_split(rng.permutation(values), parts):
            counts.add(pa.array(part))
        counts.compact()
        for column, expected in zip(counts.counted(), wanted, strict=True):
            np.testing.assert_array_equal(column, expected)
