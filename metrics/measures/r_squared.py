"""R², the share of the label's variance that predicted numbers explain, against all examples.

R² = 1 − A/V, A the slice's mean squared error and V the variance of its label, is lower than that of all where A > s·V, s
= A/V of all: where the sum of u = e² − A − s·((y − ȳ)² − V) is above 0, but for V·n/(n − 1) for the slice's mean label.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

import numpy as np

from slicebeam.metrics.arrays import FloatArray, NDArray, Pair, ratio
from slicebeam.metrics.counting.statistic_space import Term
from slicebeam.metrics.kinds import Tail
from slicebeam.metrics.measures.mean import LABEL, subset_p
from slicebeam.metrics.measures.metric import ROUNDING, Metric, Needs, Slices
from slicebeam.metrics.significance import intervals
from slicebeam.metrics.significance.outcome_codes import Method, Reason, Tested

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


class RSquared(Metric):
    """R² = 1 − Σ(y − p)²/Σ(y − ȳ)²."""

    name, title = "r2", "R²"
    higher_is_better = True
    range = (-np.inf, 1.0)
    kind: Literal["pointwise", "aggregate"] = "aggregate"
    needs = Needs(values=(LABEL, "r2"))
    compares_models = False
    incomparable = "has no test of two models"
    takes_weights = False
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
        """Return the variance [slices] of the value, at least that of as many of all examples.

        The kurtosis of the label, and its correlation with the squared error, are those of all examples.
        """
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
