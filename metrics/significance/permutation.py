"""Cell permutation: a metric's law if the slice were a random subset, far into the tails.

The part of a metric that is linear in the counts has exact moments, the rest those of draws; a Pearson type III law of
them reaches tails that no draw does.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import NamedTuple, TypeAlias

import numpy as np
from scipy.special import gammainc, gammaincc, ndtr

from slicebeam.metrics.arrays import ArrayLike, FloatArray, IntArray, NDArray, Pair, floats, ratio
from slicebeam.metrics.kinds import Tail
from slicebeam.metrics.randomness import hash64
from slicebeam.metrics.significance.count_tests import corrected_root, deviance
from slicebeam.metrics.significance.outcome_codes import Method, Reason, Tested, select_tail

ValueOf: TypeAlias = Callable[[IntArray], FloatArray]

# Scores (relative to the largest), and values of a metric, that differ by less are equal except for rounding.
_EQUAL_SCORES, _TIE = 1e-12, 1e-9
_UNDEFINED_SHARE, _DRAWS_TO_COUNT, _LARGEST_OWN_SIZE, _GRID_RATIO = 0.05, 20, 200, 1.25
# Beyond this share of all examples the scaled moments are those of the last node.
_LAST_NODE_SHARE = 0.95
# numpy draws from populations below this.
_NUMPY_POPULATION = 1_000_000_000
# With more cells than this share of the draws the fitted linear part would follow the noise.
_CELLS_PER_DRAW = 0.02
# A value on the far side of the fitted law's support is very unlikely, but not impossible.
SMALLEST_P = 1e-300
# Below these |skewness| a normal law and an expansion of the gamma law are exact to many digits.
_NORMAL_SKEWNESS, _EXPANSION_SKEWNESS = 1e-9, 0.01
_SIDES: tuple[Tail, Tail] = ("upper", "lower")


class NullMoments(NamedTuple):
    """Mean, deviation and skewness of a statistic under the null; skewness 0 where the deviation is."""

    mean: float
    sd: float
    skewness: float


def linear_statistic_moments(scores: FloatArray, totals: IntArray, n: int) -> NullMoments:
    """Return the exact moments of a sum of scores [cells] over n examples drawn from totals [cells]."""
    # Cochran (1977), "Sampling techniques", sections 2.6 and 2.15.
    population = float(totals.sum(dtype=np.float64))
    shares = totals / max(population, 1.0)
    average = (scores * shares).sum()
    deviation = scores - average
    deviation[np.abs(deviation) <= _EQUAL_SCORES * np.abs(scores).max(initial=0.0)] = 0.0
    second = (shares * np.square(deviation)).sum()
    third = (shares * deviation**3).sum()
    rest = max(population - n, 0.0)
    variance = n * rest / max(population - 1.0, 1.0) * second
    if variance <= 0.0:
        return NullMoments(n * average, 0.0, 0.0)
    # third moment / variance^1.5, in an order that does not overflow
    spread = np.sqrt(variance)
    asymmetry = (rest - n) / max(population - 2.0, 1.0)
    return NullMoments(n * average, spread, asymmetry * (third / second / spread))


def permutation_p_value(
    value_of: ValueOf,
    counts: ArrayLike,
    totals: ArrayLike,
    observed: ArrayLike,
    tail: Tail,
    replicates: int,
) -> Tested:
    """Return the p-value [slices] of any metric of cell counts if the slice were a random subset."""
    # Draws of size n depend on n alone.
    of_all = np.asarray(totals, dtype=np.int64)
    limit = float(np.asarray(value_of(of_all[None, :]))[0])
    law = DrawnLaw(int(of_all.sum()), limit, partial(_drawn_values, value_of, of_all, replicates))
    size = np.asarray(counts, dtype=np.int64).sum(axis=1)
    return p_of_draws(law, size, np.asarray(observed, dtype=np.float64), tail)


class DrawnValues(NamedTuple):
    """Sorted defined values of draws of a size, their moments, and the share that is undefined."""

    values: FloatArray
    moments: NullMoments
    undefined: float


class DrawnLaw(NamedTuple):
    """The law of a metric of random subsets of N examples: its value on all of them, and draws by their size."""

    N: int
    limit: float
    of_size: Callable[[int], DrawnValues]


def p_of_draws(
    law: DrawnLaw, size: IntArray, value: FloatArray, tail: Tail, largest: float = np.inf
) -> Tested:
    """Return the p-values [slices] of values of slices; of sizes above the largest, as its moments grow."""
    # Untested where over 5 % of draws are undefined. Up to n = 200 a tail that at least 20 reach is counted.
    p, reasons = np.ones(size.shape), np.zeros(size.shape, dtype=np.int8)
    reasons[size >= law.N] = Reason.NO_VARIANCE
    reasons[np.isnan(value)] = Reason.UNDEFINED_REPLICATES
    valid, few = reasons == 0, size <= _LARGEST_OWN_SIZE
    # At most 200 sizes, however many slices.
    for n in np.unique(size[valid & few]).tolist():
        at = np.flatnonzero(valid & (size == n))
        p[at], reasons[at] = _of_own_size(law.of_size(n), value[at], tail)
    at = np.flatnonzero(valid & ~few)
    if at.size:
        p[at], reasons[at] = _on_grid(law, size[at], value[at], tail, largest)
    return Tested.by(Method.CELL_PERMUTATION, p, reasons)


def generator_of(n: int) -> np.random.Generator:
    """Return the random numbers of the draws of n examples."""
    key = int(hash64(0, 0, np.array([n], dtype=np.uint64))[0])
    return np.random.Generator(np.random.Philox(key=key))


def _drawn_values(value_of: ValueOf, totals: IntArray, replicates: int, n: int) -> DrawnValues:
    cells = drawn_cells(generator_of(n), totals, n, replicates)
    values = np.asarray(value_of(cells), dtype=np.float64)
    defined = ~np.isnan(values)
    undefined = 1.0 - float(defined.mean())
    if undefined > _UNDEFINED_SHARE:
        return DrawnValues(np.empty(0), NullMoments(np.nan, np.nan, np.nan), undefined)
    values = values[defined]
    if undefined == 0.0 and totals.size <= _CELLS_PER_DRAW * replicates:
        regressors = cells - n * (totals / totals.sum(dtype=np.float64))
        scores = np.linalg.lstsq(regressors, values - values.mean(), rcond=1e-10)[0]
        exact = linear_statistic_moments(scores, totals, n)
        moments = moments_with_linear_part(values, regressors @ scores, exact)
    else:
        moments = sample_moments(values)
    return DrawnValues(np.sort(values), moments, undefined)


def drawn_cells(
    generator: np.random.Generator, totals: IntArray, n: int, replicates: int
) -> IntArray:
    """Return the cells [replicates, cells] of random subsets of n examples."""
    if int(totals.sum()) < _NUMPY_POPULATION:
        drawn = generator.multivariate_hypergeometric(totals, n, replicates, "marginals")
        return drawn.astype(np.int64, copy=False)
    # Draws with replacement, nearer to their mean by what they vary more.
    population = totals.sum(dtype=np.float64)
    expected = n * (totals / population)
    drawn = generator.multinomial(n, expected / n, size=replicates)
    nearer = expected + (drawn - expected) * np.sqrt(1.0 - n / population)
    cells: IntArray = np.rint(nearer).astype(np.int64)
    cells[:, np.argmax(totals)] += n - cells.sum(axis=1)
    return cells


def sample_moments(values: FloatArray) -> NullMoments:
    """Return the moments of values."""
    mean = float(values.mean())
    deviation = values - mean
    sd = float(np.sqrt(np.square(deviation).mean()))
    if sd <= _EQUAL_SCORES * np.abs(values).max(initial=0.0):
        return NullMoments(mean, 0.0, 0.0)
    return NullMoments(mean, sd, float((deviation**3).mean()) / sd**3)


def moments_with_linear_part(
    values: FloatArray, linear: FloatArray, exact: NullMoments
) -> NullMoments:
    """Return the moments of values of which a part, of mean 0, has exact moments: a control variate."""
    plain = sample_moments(values)
    if plain.sd == 0.0:
        return plain
    rest = values - linear
    mean = rest.mean()
    rest -= mean
    variance = exact.sd**2 + (2.0 * linear * rest + rest * rest).mean()
    mixed = 3.0 * linear * rest * (linear + rest) + rest**3
    third = exact.skewness * exact.sd**3 + mixed.mean()
    if variance <= 0.0:
        return plain
    sd = np.sqrt(variance)
    return NullMoments(mean, sd, third / sd**3)


def _of_own_size(sample: DrawnValues, value: FloatArray, tail: Tail) -> tuple[FloatArray, Reason]:
    """Return the p-values of slices of one size, counted or fitted, and why there are none."""
    if sample.undefined > _UNDEFINED_SHARE:
        return np.ones(value.shape), Reason.UNDEFINED_REPLICATES
    if sample.moments.sd == 0.0:
        return np.ones(value.shape), Reason.NO_VARIANCE
    m = sample.values.size
    below = np.searchsorted(sample.values, value - _TIE, side="left")
    above = m - np.searchsorted(sample.values, value + _TIE, side="right")
    reached = above + 0.5 * (m - above - below)
    fitted = (pearson_iii_p_value(value, *sample.moments, side) for side in _SIDES)
    upper, lower = (
        np.where(reach >= _DRAWS_TO_COUNT, reach / m, p)
        for reach, p in zip((reached, m - reached), fitted, strict=True)
    )
    return select_tail(upper, lower, tail), Reason.TESTED


def _on_grid(
    law: DrawnLaw, n: IntArray, value: FloatArray, tail: Tail, largest: float
) -> tuple[FloatArray, NDArray[np.int8]]:
    """Return p-values and reasons of large slices, from moments interpolated between sizes of a grid."""
    N = float(law.N)
    # Sizes in equal ratios up to the first at or above the largest: the same for all slices.
    most = min(n.max(), largest) / _LARGEST_OWN_SIZE
    steps = int(np.ceil(np.log(max(most, 1.0)) / np.log(_GRID_RATIO))) + 1
    nodes = np.rint(_LARGEST_OWN_SIZE * _GRID_RATIO ** np.arange(steps + 1.0)).astype(np.int64)
    if nodes[-1] >= (last := max(int(_LAST_NODE_SHARE * N), 1)):
        nodes = np.append(nodes[nodes < last], last)
    samples = [law.of_size(int(node)) for node in nodes]
    undefined = np.array([sample.undefined for sample in samples])
    # What a linear statistic's deviation from its limit, sd and skewness are proportional to.
    unit = np.sqrt((N - nodes) / nodes)
    limit = law.limit
    mean, sd, skewness = np.array([sample.moments for sample in samples]).T
    # Bilinear in the size of slice and rest: the skewness of a small rest grows as that of a slice.
    scaled = ((mean - limit) / unit**2, sd / unit, skewness * np.sqrt(nodes * (N - nodes) / N))
    mean, sd, skewness = (np.interp(n, nodes, part) for part in scaled)
    own_unit = np.sqrt((N - n) / n)
    mean, sd = limit + mean * own_unit**2, sd * own_unit
    skewness = skewness / np.sqrt(n * ((N - n) / N))
    refused = ~(np.interp(n, nodes, undefined) <= _UNDEFINED_SHARE) | np.isnan(sd)
    # A law without a deviation has a p of 1.
    p = np.where(refused, 1.0, pearson_iii_p_value(value, mean, sd, skewness, tail))
    constant = np.where(sd == 0.0, Reason.NO_VARIANCE, 0)
    return p, np.where(refused, Reason.UNDEFINED_REPLICATES, constant).astype(np.int8)


def pearson_iii_p_value(
    statistic: ArrayLike, mean: ArrayLike, sd: ArrayLike, skewness: ArrayLike, tail: Tail
) -> FloatArray:
    """Return the tail of a shifted gamma law with three given moments; at least 1e-300, 1 where sd is 0."""
    columns = np.stack(floats(statistic, mean, sd, skewness))
    usable = np.isfinite(columns).all(axis=0) & (columns[2] > 0)
    value, centre, spread, skew = (
        np.where(usable, column, plain) for column, plain in zip(columns, (0, 0, 1, 0), strict=True)
    )
    z, mirrored = (value - centre) / spread, skew < 0
    towards, away = _gamma_tails(np.where(mirrored, -z, z), np.abs(skew))
    upper = np.maximum(np.where(mirrored, away, towards), SMALLEST_P)
    lower = np.maximum(np.where(mirrored, towards, away), SMALLEST_P)
    return np.where(usable, select_tail(upper, lower, tail), 1.0)


def _gamma_tails(z: FloatArray, skewness: FloatArray) -> Pair:
    """Return the upper and the lower tail at z of a standardised gamma law, skewness ≥ 0; below .01 by r*."""
    upper, lower = np.asarray(ndtr(-z)), np.asarray(ndtr(z))
    skewed = skewness > _NORMAL_SKEWNESS
    shape = 4.0 / np.square(np.where(skewed, skewness, 1.0))
    # Beyond the end of the support the lower tail is empty.
    x = np.maximum(shape + np.sqrt(shape) * z, 0.0)
    large = skewed & (skewness < _EXPANSION_SKEWNESS) & (x > 0)
    exact = skewed & ~large
    upper[exact] = gammaincc(shape[exact], x[exact])
    lower[exact] = gammainc(shape[exact], x[exact])
    shape, x, z = shape[large], x[large], z[large]
    root = np.copysign(np.sqrt(2.0 * deviance(shape, x, shape - x)), z)
    log_ratio = np.log(ratio(np.abs(z), np.abs(root), otherwise=1.0))
    w = corrected_root(root, log_ratio, z + skewness[large] / 6.0)
    upper[large], lower[large] = ndtr(-w), ndtr(w)
    return upper, lower
