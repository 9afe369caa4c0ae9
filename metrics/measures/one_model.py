"""Metrics of values that are no averages, against random subsets of all examples: calibration error, and R².

With equal bins of the score, ECE = Σ_b (n_b/n)·|mean score − share positive| = (1/n)·Σ_b |S_b|, S_b the sum of the
residuals score − label in bin b (Naeini, Cooper and Hauskrecht 2015). By chance it is larger in smaller slices.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from scipy.special import ndtr

from slicebeam.metrics.arrays import FloatArray, IntArray, NDArray, Pair, ratio
from slicebeam.metrics.counting.statistic_space import StatisticSpace, Term
from slicebeam.metrics.kinds import Tail
from slicebeam.metrics.measures.mean import LABEL, subset_p
from slicebeam.metrics.measures.metric import ROUNDING, Needs, OfOneModel, Slices
from slicebeam.metrics.significance import intervals, permutation
from slicebeam.metrics.significance.outcome_codes import Method, Reason, Tested, select_tail
from slicebeam.metrics.significance.random_subset import BINS

PREFIX = "calibration_error:"
# The law of all examples has a point for each of at most `BINS` parts of the bins of either label.
MOST_BINS = 50
# Of so many the .99 quantile's level is known to a tenth.
_DRAWS = 10_000
# A score minus 1 loses some digits: a score that is nearer to the edge of two bins is on it.
_ON_EDGE = 1e-10


def bin_of(residuals: FloatArray, bins: int) -> IntArray:
    """Return the bin [rows] of examples, from their score minus label; a bin includes its upper edge."""
    scores = residuals + (residuals <= 0)
    at = np.ceil((scores - _ON_EDGE) * bins).astype(np.int64) - 1
    return np.clip(at, 0, bins - 1)


def part_edges(value: str, centre: float) -> FloatArray:
    """Return the edges [BINS + 1] of parts of the bins of either label, of residuals about a centre."""
    cells = 2 * number_of_bins(value)
    parts = np.linspace(-1.0, 1.0, BINS // cells * cells + 1) + _ON_EDGE
    return np.pad(parts, (0, BINS + 1 - parts.size), mode="edge") - centre


def number_of_bins(value: str) -> int:
    """Return the bins of ``calibration_error:10``."""
    return int(value.removeprefix(PREFIX))


class _Law(NamedTuple):
    """All examples by bin and label [2 * bins]: their number, mean residual and its variance."""

    counts: IntArray
    mean: FloatArray
    variance: FloatArray

    @classmethod
    def of(cls, residuals: FloatArray, counts: FloatArray, bins: int) -> _Law:
        cell = 2 * bin_of(residuals, bins) + (residuals <= 0)
        examples = np.bincount(cell, counts, 2 * bins)

        def mean(values: FloatArray) -> FloatArray:
            return ratio(np.bincount(cell, counts * values, 2 * bins), examples, otherwise=0.0)

        centre = mean(residuals)
        of_cells = np.rint(examples).astype(np.int64)
        return cls(of_cells, centre, mean((residuals - centre[cell]) ** 2))

    def error(self, cells: IntArray) -> FloatArray:
        """Return the ECE [draws] of so many examples of each cell [draws, cells], scores in a cell normal."""
        n = cells.sum(axis=1)
        left = 1.0 - ratio(cells, self.counts, otherwise=1.0)
        total, variance = (
            (cells * of).reshape(len(cells), -1, 2).sum(axis=2)
            for of in (self.mean, left * self.variance)
        )
        normal = np.random.Generator(np.random.Philox(key=int(n[0]))).normal(size=total.shape)
        return np.asarray(np.abs(total + np.sqrt(variance) * normal).sum(axis=1) / n)


class CalibrationError(OfOneModel):
    """ECE = Σ_b |Σ(score − label)|/n, over equal bins b of the score."""

    higher_is_better = False
    range = (0.0, 1.0)
    resampled = False
    indivisible = "it adds absolute values of bins, so no example has a share of its own in it"

    def __init__(self, bins: float) -> None:
        self.bins = int(bins)
        self.name, self.title = f"{PREFIX}{self.bins}", f"Calibration error ({self.bins} bins)"
        self.needs = Needs(values=(self.name,))

    @staticmethod
    def terms(value: str) -> tuple[Term, ...]:
        """Return the sums of residuals, and of their squares, by bin."""
        bins = range(number_of_bins(value))
        return tuple(Term(value, "new", power, 0, at) for power in (1, 2) for at in bins)

    @staticmethod
    def total_terms(value: str) -> tuple[Term, ...]:
        """Return the sums over all bins."""
        return Term(value, "new", 1), Term(value, "new", 2)

    def _sums(self, slices: Slices, power: int = 1) -> FloatArray:
        """Return the summed residuals [slices, bins]."""
        terms = (Term(self.name, "new", power, 0, at) for at in range(self.bins))
        return np.stack([slices.space.term(slices.sums, term) for term in terms], axis=-1)

    def value(self, slices: Slices) -> FloatArray:
        return ratio(np.abs(self._sums(slices)).sum(axis=-1), slices.sizes)

    def _law(self, space: StatisticSpace) -> _Law:
        deviations = space.deviations_by_value[self.name]
        points, counts = np.array(deviations.population[:2])
        return _Law.of(points + deviations.centre, counts, self.bins)

    def untestable(self, slices: Slices) -> NDArray[np.int8]:
        reasons = super().untestable(slices)
        if self.name not in slices.space.deviations_by_value:
            reasons[reasons == 0] = Reason.CONSTANT
        return reasons

    def test_subset(self, slices: Slices, tail: Tail) -> Tested:
        """Test by draws of as many of all examples, by bin and label."""
        law = self._law(slices.space)
        return permutation.permutation_p_value(
            law.error, slices.sizes[:, None], law.counts, self.value(slices), tail, _DRAWS
        )

    def value_interval(self, slices: Slices, confidence: float) -> Pair:
        """Return no interval: that of a biased value does not cover."""
        return np.full(len(slices), np.nan), np.full(len(slices), np.nan)

    delta_interval = value_interval

    def p_refine(self, slices: Slices, parents: Slices, tail: Tail) -> FloatArray:
        """Return the normal tail of Σ|S_b|, S_b normal with the mean and variance of random parts of the parent."""
        N, share = parents.sizes[:, None], ratio(slices.sizes, parents.sizes)[:, None]
        total, squares = self._sums(parents), self._sums(parents, 2)
        mean = np.abs(share * total)
        variance = share * (1.0 - share) * np.maximum(squares - total**2 / N, 0.0)
        sd = np.sqrt(variance)
        z = ratio(mean, sd, otherwise=np.inf)
        # Moments of a folded normal law (Leone, Nelson and Nottingham 1961).
        folded = sd * np.sqrt(2.0 / np.pi) * np.exp(-(z**2) / 2.0) + mean * (1.0 - 2.0 * ndtr(-z))
        spread = np.sqrt((mean**2 + variance - folded**2).sum(axis=1))
        ahead = np.abs(self._sums(slices)).sum(axis=1) - folded.sum(axis=1)
        score = ratio(ahead, spread, otherwise=0.0)
        p = select_tail(ndtr(-score), ndtr(score), tail)
        return np.where(spread > 0, p, 1.0)

    def inputs(self, slices: Slices) -> dict[str, float]:
        """Return the summed residuals by bin, too."""
        named = super().inputs(slices)
        for prefix, some in (("slice", slices), ("all", slices.total)):
            sums = self._sums(some)[0].tolist()
            named |= {f"{prefix} residuals of bin {at}": total for at, total in enumerate(sums, 1)}
        return named


# Where errors are but a multiple of (y − ȳ)², nothing of u varies but by rounding.
_PROPORTIONAL = 1e-9


class _Moments(NamedTuple):
    """Mean and variance [slices] of the squared error, and the label's variance."""

    error: FloatArray
    of_error: FloatArray
    label: FloatArray

    @property
    def unexplained(self) -> FloatArray:
        """A/V; NaN where the label is constant."""
        return ratio(self.error, self.label)


class RSquared(OfOneModel):
    """R² = 1 − Σ(y − p)²/Σ(y − ȳ)² = 1 − A/V, A the mean squared error and V the variance of the label.

    It is lower than that of all where A > s·V, s = A/V of all: where the sum of u = e² − A − s·((y − ȳ)² − V) is above 0,
    but for V·n/(n − 1) for the slice's mean label.
    """

    name, title = "r2", "R²"
    higher_is_better = True
    range = (-np.inf, 1.0)
    needs = Needs(values=(LABEL, "r2"))
    indivisible = (
        "it divides by the variance of the label, so no example has a share of its own in it"
    )
    undefined = "all labels are equal"

    def _moments(self, slices: Slices) -> _Moments:
        def mean(value: str, power: int) -> FloatArray:
            total = slices.space.term(slices.sums, Term(value, "new", power))
            return ratio(total, slices.weight)

        def variance(value: str) -> FloatArray:
            second = mean(value, 2)
            spread = second - mean(value, 1) ** 2
            return np.where(spread > ROUNDING * second, spread, 0.0)

        error = mean("r2", 1) + slices.space.shift("r2")
        return _Moments(error, variance("r2"), variance(LABEL))

    def value(self, slices: Slices) -> FloatArray:
        return 1.0 - self._moments(slices).unexplained

    def _variance_of_u(self, slices: Slices) -> float:
        """Return the variance of u over all examples; 0 where u does not vary."""
        deviations = slices.space.deviations_by_value.get(self.name)
        if deviations is None:
            return 0.0
        points, counts = np.array(deviations.population[:2])
        variance = float(counts @ points**2 / counts.sum())
        of_rounding = _PROPORTIONAL**2 * float(self._moments(slices.total).of_error[0])
        return variance if variance > of_rounding else 0.0

    def untestable(self, slices: Slices) -> NDArray[np.int8]:
        reasons = super().untestable(slices)
        if not self._variance_of_u(slices) > 0:
            reasons[reasons == 0] = Reason.CONSTANT
        return reasons

    def _excess(self, slices: Slices) -> FloatArray:
        """Return n·(A − s·V·n/(n − 1)) [slices], of about mean 0 for random subsets."""
        n, (error, _, label) = slices.weight, self._moments(slices)
        slope = self._moments(slices.total).unexplained
        return n * (error - slope * label * n / np.maximum(n - 1.0, 1.0))

    def test_subset(self, slices: Slices, tail: Tail) -> Tested:
        """Test by the law of the sum of u over random subsets; more of it is a lower R²."""
        turned: dict[Tail, Tail] = {"upper": "lower", "lower": "upper", "both": "both"}
        population = slices.space.deviations_by_value[self.name].population
        p = subset_p(slices.sizes, self._excess(slices), population, turned[tail])
        return Tested.by(Method.RANDOM_SUBSET, p)

    def _value_variance(self, slices: Slices) -> FloatArray:
        """Return the variance [slices] of the value, at least that of as many of all examples."""
        # The kurtosis of the label, and its correlation with the squared error, are those of all examples.
        own, whole = self._moments(slices), self._moments(slices.total)
        space, of_u = slices.space, self._variance_of_u(slices)
        totals, n = slices.totals, float(slices.total.weight[0])
        m1, m2 = (float(space.term(totals, Term(LABEL, "new", power))) / n for power in (1, 2))
        m3, m4 = (space.total_term(totals, Term(LABEL, "new", power)) / n for power in (3, 4))
        fourth = m4 - 4 * m1 * m3 + 6 * m1**2 * m2 - 3 * m1**4
        excess = ratio(np.array([fourth]), whole.label**2, otherwise=1.0) - 1.0
        of_square = np.maximum(excess, 0.0) * whole.label**2
        slope = np.nan_to_num(whole.unexplained)
        together = (whole.of_error + slope**2 * of_square - of_u) / 2.0
        deviations = slope * np.sqrt(whole.of_error * of_square)
        correlation = np.clip(ratio(together, deviations, otherwise=0.0), -1.0, 1.0)
        scaled = own.unexplained * own.label * np.sqrt(np.maximum(excess, 0.0))
        variance = own.of_error + scaled**2 - 2.0 * correlation * np.sqrt(own.of_error) * scaled
        freedom = np.maximum(slices.weight - 1.0, 1.0)
        return ratio(np.maximum(variance, of_u), own.label**2 * freedom)

    def value_interval(self, slices: Slices, confidence: float) -> Pair:
        """Return the value and Student's t of n − 1 degrees of freedom to either side."""
        parts = self.value(slices), self._value_variance(slices), self.range
        return intervals.by_delta_method(*parts, slices.weight, confidence)

    def delta_interval(self, slices: Slices, confidence: float) -> Pair:
        """Return the arms of the value's interval, shrunk by the examples that are in both."""
        variance, freedom = self.ahead(slices, slices.total)
        parts = self.delta(slices), variance, (-np.inf, np.inf)
        return intervals.by_delta_method(*parts, freedom + 1.0, confidence)

    def ahead(self, slices: Slices, parents: Slices) -> Pair:
        """See `Metric.ahead`: the child is part of its parent."""
        part = np.clip(slices.weight / np.maximum(parents.weight, 1.0), 0.0, 1.0)
        return self._value_variance(slices) * (1.0 - part), np.maximum(slices.weight - 1.0, 1.0)

    def inputs(self, slices: Slices) -> dict[str, float]:
        """Return number, mean squared error and variance of the label of slice and all, and the excess S."""
        named: dict[str, float] = {}
        for prefix, some in (("slice", slices), ("all", slices.total)):
            error, _, label = self._moments(some)
            named |= {f"{prefix} examples": float(some.sizes[0])}
            named |= {f"{prefix} mean squared error": float(error[0])}
            named |= {f"{prefix} variance of the label": float(label[0])}
        return named | {"S": float(self._excess(slices)[0])}


def of_error(
    errors: FloatArray, labels: FloatArray, slope: float, centre: float, variance: float
) -> FloatArray:
    """Return squared errors less s·((y − ȳ)² − V) of each example: u but for the mean."""
    return errors - slope * ((labels - centre) ** 2 - variance)
