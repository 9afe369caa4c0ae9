"""p-values of counts and corrections for many slices, directly from their definitions."""

import functools
import itertools

import numpy as np
from scipy import stats


@functools.cache
def hypergeometric_mid_p(n, x, N, K, tail):
    """Return the mid-p of x errors among n examples, of N examples with K errors in all.

    Where X can take one value only (n = 0, n = N, K = 0 or K = N) nothing can be tested and p is 1.
    """
    return _mid_p(stats.hypergeom(N, K, n), x, tail) if 0 < n < N and 0 < K < N else 1.0


@functools.cache
def mcnemar_mid_p(b, c, tail):
    """Return the mid-p of b discordant examples one way and c the other way, by the tails of b."""
    return _mid_p(stats.binom(b + c, 0.5), b, tail) if b + c else 1.0


def _mid_p(law, x, tail):
    """``upper`` is P(X > x) + P(X = x)/2; ``both`` is twice the smaller tail, at most 1."""
    half = 0.5 * law.pmf(x)
    tails = {"upper": law.sf(x) + half, "lower": law.cdf(x - 1) + half}
    return min(1.0, float(tails.get(tail, 2 * min(tails.values()))))


def level_bound(level, sizes, visited, N, min_size, list_features=()):
    """Return m_l, a bound on the slices of a level with at least `min_size` of N examples.

    `sizes` are those of the singletons, `visited` those of all slices generated so far, empty ones
    too.  Of a list feature an example may have many values or none.

    Summed over the tuples T of `level` features.  A slice with a singleton smaller than
    `min_size` is itself smaller, and at level 3 so is one with a visited pair that is smaller: such
    cells are not counted.  The cells of a tuple without list features are disjoint, so the examples
    that are in none of the visited cells fill at most (remaining examples // n_min) large cells.
    """
    features = sorted({feature for feature, _ in sizes})
    small_pairs = {c for c, n in visited.items() if len(c) == 2 and n < min_size and level == 3}
    seen_in = {}
    for conjunction, n in visited.items():
        chosen = tuple(sorted(feature for feature, _ in conjunction))
        seen_in.setdefault(chosen, {})[conjunction] = n
    bound = 0
    for chosen in itertools.combinations(features, level):
        large = [[i for i, n in sizes.items() if i[0] == one and n >= min_size] for one in chosen]
        seen, unseen = seen_in.get(chosen, {}), 0
        for cell in itertools.product(*large):
            pairs = {frozenset(pair) for pair in itertools.combinations(cell, 2)}
            unseen += frozenset(cell) not in seen and not pairs & small_pairs
        if not set(chosen) & set(list_features):
            remaining = N - sum(seen.values())
            if remaining < 0:
                raise ValueError(f"the cells of {chosen} hold more than {N} examples")
            unseen = min(unseen, remaining // min_size)
        bound += sum(n >= min_size for n in seen.values()) + unseen
    return bound


def q_values(p, m, correction, levels):
    """Return adjusted p-values of tested slices: a slice is significant where q <= alpha.

    Of m[level] slices those without a p-value count as p = 1.  ``fdr-level``: L times the
    Benjamini-Hochberg value within the level.  ``fwer-level``: p * L * m_l.
    """
    for level in {len(conjunction) for conjunction in p}:
        tested = sum(len(conjunction) == level for conjunction in p)
        if not 1 <= level <= levels or tested > m.get(level, 0):
            raise ValueError(f"{tested} slices of level {level}, with L={levels} and m={m}")
    q = {}
    for level in {len(conjunction) for conjunction in p}:
        within = {key: value for key, value in p.items() if len(key) == level}
        values, tests = list(within.values()), m[level]
        adjusted = {
            "fdr-level": benjamini_hochberg(values, tests, levels),
            "fwer-level": np.minimum(1.0, np.multiply(values, levels * tests)),
        }[correction]
        q |= dict(zip(within, adjusted.tolist(), strict=True))
    return q


def benjamini_hochberg(p, tests, factor=1.0):
    """Return the adjusted p-values, times a factor, of so many tests of which the others have p = 1."""
    padded = [*p, *[1.0] * (tests - len(p))]
    return np.minimum(1.0, factor * stats.false_discovery_control(padded)[: len(p)])
