"""Corrections for testing many slices: adjusted p-values (q-values) that compare with α, and how many tests there were.

The family of a level is every slice of at least ``min_size`` examples, visited or not (then p = 1): those that were
visited were chosen by p-values. Where slices were not visited its size is bounded from above.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations
from math import comb

import numpy as np
from scipy.special import digamma

from slicebeam.metrics.arrays import ArrayLike, BoolArray, FloatArray, IntArray
from slicebeam.metrics.chunks import blocks
from slicebeam.metrics.counting.lattice import Keys, Lattice
from slicebeam.metrics.kinds import Correction


def bh_adjusted(p: ArrayLike, m: int, factor: float = 1.0) -> FloatArray:
    """Return Benjamini and Hochberg's (1995, J. R. Stat. Soc. B 57:289) adjusted p-values; tests not given have p = 1.

    >>> bh_adjusted([0.0001, 0.03, 0.0008], m=100).round(3)
    array([0.01, 1.  , 0.04])
    """
    values = np.asarray(p, dtype=np.float64)
    order = np.argsort(values, kind="stable")
    scaled = values[order] * (factor * m / np.arange(1, values.size + 1))
    # The tests not given have p = 1 and adjusted values ≥ 1, so they never lower the others.
    lowest = np.minimum.accumulate(scaled[::-1])[::-1]
    adjusted_p = np.empty(values.size)
    adjusted_p[order] = np.minimum(1.0, lowest)
    return adjusted_p


def holm_adjusted(p: ArrayLike) -> FloatArray:
    """Return Holm's (1979, Scand. J. Stat. 6:65) adjusted p-values of a whole family, any dependence."""
    values = np.asarray(p, dtype=np.float64)
    order = np.argsort(values, kind="stable")
    steps = values[order] * np.arange(values.size, 0, -1)
    adjusted_p = np.empty(values.size)
    adjusted_p[order] = np.minimum(np.maximum.accumulate(steps), 1.0)
    return adjusted_p


def by_adjusted(p: ArrayLike, m: int) -> FloatArray:
    """Return Benjamini and Yekutieli's (2001, Ann. Stat. 29:1165) adjusted p-values, any dependence."""
    return bh_adjusted(p, m, float(digamma(m + 1.0)) + float(np.euler_gamma))


def adjusted(
    p: ArrayLike,
    level: ArrayLike,
    tests_per_level: Sequence[int],
    correction: Correction,
    levels: int,
    metrics: int = 1,
) -> FloatArray:
    """Return the q-values [slices] of slices of several cross sizes (level, 1-based); called where q ≤ α.

    They are multiplied by the number of metrics that are tested, so that each has α/`metrics`.
    ``fdr-level``: Benjamini–Hochberg within the level, times `levels` (at α/L); ``fwer-level``: p·L·m_l,
    valid under any order of search; ``bh``, ``by``: over the tests of all levels; ``none``: q = p.

    >>> adjusted([0.0001, 0.004, 0.0002], [1, 1, 2], [10, 45], "fdr-level", levels=2).round(3)
    array([0.002, 0.04 , 0.018])
    """
    p_values = np.asarray(p, dtype=np.float64)
    at = np.asarray(level, dtype=np.int64)
    tests = np.asarray(tests_per_level, dtype=np.int64)
    given = np.bincount(at, minlength=levels + 1)[1:]
    if (given > tests).any():
        worst = int(np.argmax(given > tests))
        raise ValueError(
            f"level {worst + 1} has {given[worst]} p-values but only {tests[worst]} tests: "
            "tests_per_level must be an upper bound"
        )
    if correction == "none":
        return p_values.copy()
    if correction == "bh":
        q = bh_adjusted(p_values, int(tests.sum()))
    elif correction == "by":
        q = by_adjusted(p_values, int(tests.sum()))
    elif correction == "fwer-level":
        q = p_values * (levels * tests[at - 1].astype(np.float64))
    else:
        q = np.ones(p_values.size)
        for cross_size in range(1, levels + 1):
            here = at == cross_size
            q[here] = levels * bh_adjusted(p_values[here], int(tests[cross_size - 1]))
    return np.minimum(1.0, metrics * q)


# Above so many pairs of digits, or tuples of a level, the bound of level 3 does not look at known small pairs; tuples
# without any visited slice are then bounded together.
_MOST_PAIRS, _MOST_TUPLES = 1 << 26, 2_000_000
# Slices whose predicates are looked at together, and pairs that are multiplied.
_KEYS_AT_A_TIME, _PAIRS_AT_A_TIME = 1 << 18, 1 << 20


@dataclass(frozen=True)
class Visited:
    """The slices that a search has counted: sorted keys, and examples of each [slices]."""

    keys: Keys
    sizes: IntArray


def tests_per_level(lattice: Lattice, visited: Visited, rows: int, min_size: int) -> list[int]:
    """Return an upper bound of the slices of at least ``min_size`` examples, for each level."""
    # Of each feature tuple: visited slices that are large enough, and of the other cells at most as many as examples are
    # left for (without list columns an example is in one cell), none below a small singleton or, at level 3, pair.
    large = np.zeros(lattice.base, bool)
    for keys, sizes in _of_level(lattice, visited, 1):
        large[lattice.digits(keys)[:, 0]] = sizes >= min_size
    features = len(lattice.sizes)
    owners = lattice.feature_of[np.flatnonzero(large)]
    widths = np.bincount(owners, minlength=features)
    bounds = [int(np.count_nonzero(large))]
    is_open: BoolArray | None = None
    for level in range(2, lattice.max_cross_size + 1):
        if level > features:
            bounds.append(0)
            continue
        of_level = is_open if level == 3 else None
        bounds.append(_level(lattice, level, visited, widths, rows, min_size, of_level))
        few = comb(features, 3) <= _MOST_TUPLES and lattice.base**2 <= _MOST_PAIRS
        if level == 2 and few and lattice.max_cross_size > 2:
            # Of digits [first, second]: whether both predicates together may be large.
            is_open = np.outer(large, large)
            for keys, sizes in _of_level(lattice, visited, 2):
                first, second = lattice.digits(keys[sizes < min_size])[:, :2].T
                is_open[first, second] = False
    return bounds


def _of_level(lattice: Lattice, visited: Visited, level: int) -> Iterator[tuple[Keys, IntArray]]:
    """Yield the visited slices of one level with their sizes, some at a time."""
    for now in blocks(visited.keys.size, _KEYS_AT_A_TIME):
        mine = lattice.cross_sizes(visited.keys[now]) == level
        yield visited.keys[now][mine], visited.sizes[now][mine]


def _level(
    lattice: Lattice,
    level: int,
    visited: Visited,
    widths: IntArray,
    rows: int,
    min_size: int,
    is_open: BoolArray | None,
) -> int:
    """Return the bound of a level, of level 3 perhaps with which pairs of digits may be large."""
    unseen_elsewhere = 0
    if comb(len(lattice.sizes), level) <= _MOST_TUPLES:
        tuples = lattice.tuples(level)
    else:
        some = [lattice.feature_sets(keys)[1] for keys, _ in _of_level(lattice, visited, level)]
        tuples = np.unique(np.concatenate(some)[:, :level], axis=0)
        ways = [1] + [0] * level
        for width in widths.tolist():
            for size in range(level, 0, -1):
                ways[size] += ways[size - 1] * width
        unseen_elsewhere = ways[level] - int(widths[tuples].prod(axis=1).sum())
    seen, tested, held = (np.zeros(len(tuples), np.int64) for _ in range(3))
    for keys, sizes in _of_level(lattice, visited, level):
        # Lexicographic order of tuples is the order of these numbers.
        powers = (len(lattice.sizes) + 1) ** np.arange(level)[::-1]
        number = np.searchsorted(tuples @ powers, lattice.features(keys)[:, :level] @ powers)
        # A visited slice below a pair that was found small later is not among the open cells.
        among = np.ones(keys.size, bool)
        if is_open is not None:
            for first, second in combinations(lattice.digits(keys)[:, :3].T, 2):
                among &= is_open[first, second]
        seen += np.bincount(number[among], minlength=seen.size)
        tested += np.bincount(number[sizes >= min_size], minlength=seen.size)
        held += np.bincount(number, sizes, minlength=seen.size).astype(np.int64)
    cells = widths[tuples].astype(np.float64).prod(axis=1)
    if is_open is not None:
        cells = _open_cells(lattice, is_open)
    unseen = np.maximum(cells - seen, 0)
    multi = np.array([lattice.is_multi(f) for f in range(len(lattice.sizes))])
    capped = ~multi[tuples].any(axis=1)
    unseen[capped] = np.minimum(unseen, (rows - held) // min_size)[capped]
    return int((tested + unseen).sum()) + unseen_elsewhere


def _open_cells(lattice: Lattice, is_open: BoolArray) -> FloatArray:
    """Return of all feature triples the cells [triples] of which no pair is known to be small."""
    begins, cells = lattice.offsets + 1, {}
    for b in range(1, len(lattice.sizes) - 1):
        middle, rest = slice(begins[b], begins[b + 1]), slice(begins[b + 1], None)
        right, ends = is_open[middle, rest].astype(np.float32), begins[b + 1 :] - begins[b + 1]
        step = max(1, _PAIRS_AT_A_TIME // max(right.shape))
        for a in range(b):
            total = np.zeros(right.shape[1])
            for now in blocks(lattice.sizes[a], step):
                rows = is_open[begins[a] + now.start : begins[a] + now.stop]
                # Whole numbers below 2^24, which 32 bits hold exactly.
                ways = rows[:, middle].astype(np.float32) @ right
                total += np.where(rows[:, rest], ways, 0).sum(axis=0, dtype=np.float64)
            cells[a, b] = np.diff(np.append(0.0, np.cumsum(total))[ends])
    return np.concatenate([cells[pair] for pair in sorted(cells)])
