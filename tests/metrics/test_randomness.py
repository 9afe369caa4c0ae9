"""Hashes against published values, and the law of what is made of them."""

from fractions import Fraction

import numpy as np
from scipy import stats

from slicebeam.metrics import randomness

IDS = np.arange(200_000, dtype=np.uint64)
PINNED_HASHES = [11248596980798508817, 1173472824657711729]
PINNED_WEIGHTS = [1, 0, 0, 0, 1, 3, 0, 0, 1, 0, 1, 1, 1, 1, 0, 1, 0, 0, 3, 2]


def test_splitmix64_gives_the_published_sequence():
    # The first outputs of Vigna's splitmix64.c from the seed 1234567.
    gamma = 0x9E3779B97F4A7C15
    states = np.array([(1234567 + k * gamma) % 2**64 for k in range(5)], dtype=np.uint64)
    assert randomness.splitmix64(states).tolist() == [
        6457827717110365317,
        3203168211198807973,
        9817491932198370423,
        4593380528125082431,
        16408922859458223821,
    ]


def test_splitmix64_equals_python_integers_and_leaves_its_input():
    def slow(x):
        z = (x + 0x9E3779B97F4A7C15) % 2**64
        z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9 % 2**64
        z = (z ^ (z >> 27)) * 0x94D049BB133111EB % 2**64
        return z ^ (z >> 31)

    x = np.random.default_rng(1).integers(0, 2**64, (10, 20), dtype=np.uint64)
    before, mixed = x.copy(), randomness.splitmix64(x)
    assert mixed.tolist() == [[slow(int(value)) for value in row] for row in before]
    np.testing.assert_array_equal(x, before)
    assert randomness.splitmix64(np.array(7, dtype=np.uint64)).shape == ()


def test_hash_depends_on_all_three_and_not_on_order_or_company():
    base = randomness.hash64(1, 2, IDS)
    assert np.unique(base).size == IDS.size
    np.testing.assert_array_equal(randomness.hash64(1, 2, IDS[::-1])[::-1], base)
    np.testing.assert_array_equal(randomness.hash64(1, 2, IDS[500:700]), base[500:700])
    for other in (randomness.hash64(2, 2, IDS), randomness.hash64(1, 3, IDS)):
        assert not (other == base).any()
    many = randomness.hash64(1, np.arange(4)[:, None], IDS[:50])
    assert many.shape == (4, 50)
    np.testing.assert_array_equal(many[2], base[:50])
    assert randomness.hash64(-5, 0, IDS[:2]).dtype == np.uint64


def test_values_do_not_change_between_versions():
    # Results of resumed searches depend on these.
    assert randomness.hash64(7, 3, IDS[:2]).tolist() == PINNED_HASHES
    assert randomness.poisson_weights(7, 3, IDS[:20]).tolist() == PINNED_WEIGHTS


def test_poisson_thresholds_are_the_exact_floor():
    inverse_e = sum(Fraction((-1) ** k, _factorial(k)) for k in range(40))
    total = Fraction(0)
    for k, threshold in enumerate(randomness._poisson_thresholds().tolist()):
        total += inverse_e / _factorial(k)
        assert threshold == int(total * 2**64)
    assert k == 20


def _factorial(k):
    return 1 if k == 0 else k * _factorial(k - 1)


def test_poisson_weights_are_the_quantile_of_the_hash():
    words = randomness.hash64(3, 1, IDS)
    searched = np.searchsorted(randomness._poisson_thresholds(), words, side="right")
    weights = randomness.poisson_weights(3, 1, IDS)
    assert weights.dtype == np.uint8
    np.testing.assert_array_equal(weights, searched)


def test_poisson_weights_have_their_law_and_are_independent():
    weights = randomness.poisson_weights(11, np.arange(10)[:, None], IDS[:100_000]).astype(float)
    seen = np.bincount(weights.astype(int).ravel(), minlength=9)
    expected = stats.poisson.pmf(np.arange(8), 1.0) * weights.size
    seen, expected = np.append(seen[:8], seen[8:].sum()), np.append(expected, 0.0)
    expected[8] = weights.size - expected.sum()
    assert stats.chisquare(seen, expected).pvalue > 1e-3
    # 45 correlations between replicates, and those of neighbouring ids.
    assert np.abs(np.corrcoef(weights)[np.triu_indices(10, 1)]).max() < 4 / np.sqrt(100_000)
    along = [np.corrcoef(row[:-1], row[1:])[0, 1] for row in weights]
    assert np.abs(along).max() < 4 / np.sqrt(100_000)


def test_uniform_is_open_and_uniform():
    ends = randomness.uniform(np.array([0, 2**64 - 1], dtype=np.uint64))
    assert 0.0 < ends[0] < 1e-15
    assert ends[1] < 1.0
    assert stats.kstest(randomness.uniform(randomness.hash64(5, 0, IDS)), "uniform").pvalue > 1e-3
