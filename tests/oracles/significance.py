"""p-values of counts and corrections for many slices, directly from their definitions."""

from __future__ import annotations

import functools
import itertools
from typing import TYPE_CHECKING, Literal

from scipy import stats

if TYPE_CHECKING:
    from collections.abc import Collection

    from tests.oracles.lattice import Id, Slice

    Tail = Literal["upper", "lower", "both"]
    Correction = Literal["fdr-level", "fwer-level", "bh", "by", "none"]


@functools.cache
def hypergeometric_mid_p(n: int, x: int, N: int, K: int, tail: Tail) -> float:
    """Return the mid-p of x errors among n examples, of N examples with K errors in all.

    X ~ Hypergeom(N, K, n).  ``upper`` is P(X > x) + P(X = x)/2, ``lower`` is
    P(X < x) + P(X = x)/2, ``both`` is twice the smaller one, at most 1.  Where X can take one value
    only (n = 0, n = N, K = 0 or K = N) nothing can be tested and p is 1.
    """
    if not (0 <= n <= N and 0 <= K <= N and max(0, n + K - N) <= x <= min(n, K)):
        raise ValueError(f"impossible counts: n={n}, x={x}, N={N}, K={K}")
    if n in (0, N) or K in (0, N):
        return _tail(0.5, 0.5, tail, degenerate=True)
    half = 0.5 * stats.hypergeom.pmf(x, N, K, n)
    upper = stats.hypergeom.sf(x, N, K, n) + half
    lower = stats.hypergeom.cdf(x - 1, N, K, n) + half
    return _tail(upper, lower, tail)


@functools.cache
def mcnemar_mid_p(b: int, c: int, tail: Tail) -> float:
    """Return the mid-p of b discordant examples one way and c the other way.

    X ~ Binomial(b + c, 1/2) and the tails are those of b: ``upper`` is small when b is larger than
    c.  Without discordant examples p is 1.
    """
    if b < 0 or c < 0:
        raise ValueError(f"impossible counts: b={b}, c={c}")
    if b + c == 0:
        return _tail(0.5, 0.5, tail, degenerate=True)
    half = 0.5 * stats.binom.pmf(b, b + c, 0.5)
    upper = stats.binom.sf(b, b + c, 0.5) + half
    lower = stats.binom.cdf(b - 1, b + c, 0.5) + half
    return _tail(upper, lower, tail)


def _tail(upper: float, lower: float, tail: str, *, degenerate: bool = False) -> float:
    choices = {"upper": upper, "lower": lower, "both": 2 * min(upper, lower)}
    if tail not in choices:
        raise ValueError(f"unknown tail {tail!r}; tails: {', '.join(choices)}")
    return 1.0 if degenerate else min(1.0, float(choices[tail]))


def level_bound(
    level: int,
    sizes: dict[Id, int],
    visited: dict[Slice, int],
    N: int,
    min_size: int,
    list_features: Collection[str] = (),
) -> int:
    """Return m_l, a bound on the slices of a level with at least `min_size` examples.

    Parameters
    ----------
    level : int
        l, the cross size.
    sizes : dict
        The size of every singleton of every feature.
    visited : dict
        The size of every slice that was generated so far, of any level, empty ones included.
    N : int
        The number of examples.
    min_size : int
        n_min, at least 1.
    list_features : collection of str
        Features of which an example may have many values or none.  For all others the singletons
        of a feature hold every example exactly once.

    Notes
    -----
    Summed over the tuples T of `level` features.  A slice with a singleton smaller than
    `min_size` is itself smaller, and at level 3 so is one with a visited pair that is smaller: such
    cells are not counted.  The cells of a tuple without list features are disjoint, so the examples
    that are in none of the visited cells fill at most (remaining examples // n_min) large cells.
    """
    if level < 1 or min_size < 1:
        raise ValueError(f"level and min_size are at least 1: {level}, {min_size}")
    features = sorted({feature for feature, _ in sizes})
    small_pairs = {c for c, n in visited.items() if len(c) == 2 and n < min_size and level == 3}
    seen_in: dict[tuple[str, ...], dict[Slice, int]] = {}
    for conjunction, n in visited.items():
        chosen = tuple(sorted(feature for feature, _ in conjunction))
        seen_in.setdefault(chosen, {})[conjunction] = n
    bound = 0
    for chosen in itertools.combinations(features, level):
        large = [[i for i, n in sizes.items() if i[0] == one and n >= min_size] for one in chosen]
        seen = seen_in.get(chosen, {})
        unseen = 0
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


def q_values(
    p: dict[Slice, float], m: dict[int, int], correction: Correction, levels: int
) -> dict[Slice, float]:
    """Return adjusted p-values: a slice is significant where q <= alpha.

    Parameters
    ----------
    p : dict
        The p-value of every tested slice.
    m : dict
        For each level the number of slices, tested or not, that are corrected for; those without
        a p-value count as p = 1.
    correction : str
        ``fdr-level``: L times the Benjamini-Hochberg value within the level.  ``fwer-level``:
        p * L * m_l.  ``bh``, ``by``: Benjamini-Hochberg and Benjamini-Yekutieli over all levels
        together, with the sum of `m`.  ``none``: p.
    levels : int
        L, the maximal cross size.
    """
    for level in {len(conjunction) for conjunction in p}:
        tested = sum(len(conjunction) == level for conjunction in p)
        if not 1 <= level <= levels or tested > m.get(level, 0):
            raise ValueError(f"{tested} slices of level {level}, with L={levels} and m={m}")
    total = sum(m.values())
    if correction == "none":
        return dict(p)
    if correction == "fwer-level":
        return {key: min(1.0, value * levels * m[len(key)]) for key, value in p.items()}
    if correction == "bh":
        return _step_up(p, total)
    if correction == "by":
        return _step_up(p, total, factor=sum(1 / i for i in range(1, total + 1)))
    if correction == "fdr-level":
        q: dict[Slice, float] = {}
        for level in {len(conjunction) for conjunction in p}:
            within = {key: value for key, value in p.items() if len(key) == level}
            q.update(_step_up(within, m[level], factor=levels))
        return q
    raise ValueError(f"unknown correction {correction!r}")


def _step_up(p: dict[Slice, float], m: int, factor: float = 1) -> dict[Slice, float]:
    """Return min over ranks j >= i of p_(j) * m * factor / j, at most 1, for the i-th smallest p.

    The m - len(p) slices without a p-value come last with p = 1 and add only the cap at 1, since
    `factor` is at least 1.
    """
    ascending = sorted(p.items(), key=lambda item: item[1])
    q: dict[Slice, float] = {}
    lowest = 1.0
    for rank in range(len(ascending), 0, -1):
        key, value = ascending[rank - 1]
        lowest = min(lowest, value * m * factor / rank)
        q[key] = lowest
    return q
