"""A metric on two data sets: its value on a slice today against that on the slice of earlier data.

The two are independent samples: are the examples of today an ordinary random part of all examples of the slice, today's
and earlier ones? Fisher's (1935, J. R. Stat. Soc. 98:39) test asks so of a share, `Metric.p_refine` of other metrics.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from slicebeam.metrics.arrays import FloatArray, IntArray, NDArray, Pair, ratio
from slicebeam.metrics.kinds import Tail
from slicebeam.metrics.measures.count_metrics import Share
from slicebeam.metrics.measures.mean import Mean
from slicebeam.metrics.measures.metric import Metric, Slices
from slicebeam.metrics.measures.ranking import AreaUnderCurve
from slicebeam.metrics.significance import count_tests, few_cells, hall, intervals
from slicebeam.metrics.significance.outcome_codes import Method, Reason, Tested, select_tail

# Of the intervals that say how much a change varies.
_CONFIDENCE = 0.95
# What is the same of a metric and of its change.
_SHARED = (
    *("name", "title", "range", "higher_is_better", "needs", "kind", "min_slice_size", "counted"),
    *("undefined", "takes_weights", "compares_models", "resampled"),
)


def of_set(slices: Slices, *, then: bool) -> Slices:
    """Return what slices hold of one of the data sets, with all examples of both."""
    space = slices.space
    part = Slices(space.of_set(slices.sums, then=then), space.of_one_set)
    if not slices.totals.size:
        return part
    now, before = (space.of_set(slices.totals, then=was) for was in (False, True))
    return replace(part, totals=now + before)


def sides(slices: Slices) -> tuple[Slices, Slices]:
    """Return slices today, and then."""
    return of_set(slices, then=False), of_set(slices, then=True)


def _welch(own: Mean, now: Slices, then: Slices) -> hall.TStatistic:
    skewness = float(own.of_all(now).skewness)
    return hall.against_rest(*(own.moments(side, "new", skewness) for side in (now, then)))


class Earlier(Metric):
    """A metric today; its *old* value is that on the earlier data."""

    indivisible = "it is compared between two data sets"

    def __init__(self, own: Metric) -> None:
        self.own = own
        for name in _SHARED:
            setattr(self, name, getattr(own, name))

    def value(self, slices: Slices) -> FloatArray:
        return self.own.value(of_set(slices, then=slices.is_old))

    def value_interval(self, slices: Slices, confidence: float) -> Pair:
        return self.own.value_interval(of_set(slices, then=slices.is_old), confidence)

    def value_error(self, slices: Slices) -> FloatArray:
        return self.own.value_error(of_set(slices, then=slices.is_old))

    def untestable(self, slices: Slices) -> NDArray[np.int8]:
        now, then = sides(slices)
        undefined = np.isnan(self.own.value(now)) | np.isnan(self.own.value(then))
        reasons = np.where(undefined, Reason.UNDEFINED, 0)
        if isinstance(self.own, AreaUnderCurve):
            against = (self.own.untestable(side) for side in (now, then))
            reasons = np.maximum(*(np.where(of == Reason.WHOLE, 0, of) for of in against))
        reasons[then.sizes < self.min_slice_size] = Reason.FEW_EARLIER
        return reasons.astype(np.int8)

    def test_subset(self, slices: Slices, tail: Tail) -> Tested:
        raise NotImplementedError

    def test_change(self, slices: Slices, tail: Tail) -> Tested:
        """Test whether the examples of today are an ordinary random part of those of both data sets."""
        now, then = sides(slices)
        if isinstance(self.own, AreaUnderCurve):
            (variance, df), (variance_then, df_then) = map(self.own.variance, (now, then))
            freedom = np.minimum(df, df_then)
            p = hall.wald_p_value(self.delta(slices), variance + variance_then, freedom, tail)
            return Tested.by(Method.TWO_SETS, p)
        both = Slices(now.sums + then.sums, now.space, now.totals)
        own, both = self.own.seen(now), self.own.seen(both)
        if tail == "both":
            upper, lower = (self.own.p_refine(own, both, side) for side in ("upper", "lower"))
            p = select_tail(upper, lower, tail)
        else:
            p = self.own.p_refine(own, both, tail)
        if not isinstance(self.own, Mean):
            return Tested.by(Method.TWO_SETS, p)
        _, refused = _welch(self.own, now, then).p_value(tail)
        return Tested.by(Method.TWO_SETS, p, np.where(refused, Reason.TOO_SKEWED, 0))

    def pooled(self, slices: Slices) -> tuple[FloatArray, FloatArray, FloatArray]:
        """Return of a mean that of both data sets [slices], the deviation from it, and today's sum in deviations."""
        if not isinstance(self.own, Mean):
            raise NotImplementedError
        now, then = sides(slices)
        return self.own.pooled(now, Slices(now.sums + then.sums, now.space, now.totals))

    def own_values_p(
        self, slices: Slices, total: FloatArray, bins: IntArray, tail: Tail
    ) -> FloatArray:
        """Return p [slices] by the law of each slice's own values: sums of deviations, and `add_bin_sums` of both sets."""
        return few_cells.own_values_p(bins, sides(slices)[0].sizes, total, tail)

    def delta_interval(self, slices: Slices, confidence: float) -> Pair:
        """Newcombe's (1998, Stat. Med. 17:873, method 10) way with the intervals of both; of means Hall's t of Welch."""
        now, then = sides(slices)
        if isinstance(self.own, Mean):
            return _welch(self.own, now, then).interval(confidence)
        ends = [self._ends(side, confidence) for side in (now, then)]
        below, above = intervals.mover(*ends)
        delta = ends[0][0] - ends[1][0]
        return delta - below, delta + above

    def margin_p(self, slices: Slices, margin: float, tail: Tail) -> FloatArray:
        """Return p of Farrington and Manning's test of two shares, or of Hall's t of two means less the margin."""
        now, then = sides(slices)
        if isinstance(self.own, Mean):
            t = _welch(self.own, now, then)
            return t._replace(difference=t.difference - margin).p_value(tail)[0]
        if not isinstance(self.own, Share):
            raise NotImplementedError
        (x, n), (rest_x, rest_n) = (self.own.numbers(side) for side in (now, then))
        return count_tests.unpaired_margin_p(x, n, rest_x, rest_n, margin, tail)

    def _ends(self, side: Slices, confidence: float) -> intervals.Estimate:
        """Return value and interval [slices] in one of the data sets: of shares Wilson's, as Newcombe has it."""
        value = self.own.value(side)
        if type(self.own) is Share and not side.space.weighted:
            x, n = self.own.numbers(side)
            return value, *intervals.wilson(x, n, confidence)
        return value, *self.own.value_interval(side, confidence)

    def ahead(self, slices: Slices, parents: Slices) -> Pair:
        """See `Metric.ahead`: the slice is a share f of its parent, so its change is ahead (1 − f) times that of the rest."""
        rest = parents - slices
        variance = self._variance(slices) + self._variance(rest)
        held = ratio(rest.sizes.astype(np.float64), parents.sizes.astype(np.float64), otherwise=0.0)
        # An interval may be infinite, and the slice may hold all of its parent: then nothing puts it ahead.
        error = np.full(held.shape, np.inf)
        np.multiply(held**2, variance, out=error, where=held > 0)
        return error, np.maximum(np.minimum(slices.sizes, rest.sizes) - 1.0, 1.0)

    def _variance(self, slices: Slices) -> FloatArray:
        """Return the variance [slices] of a change, from how wide the intervals of both values are."""
        z = 2.0 * intervals.normal_quantile(_CONFIDENCE)
        ends = (self.own.value_interval(side, _CONFIDENCE) for side in sides(slices))
        return np.asarray(sum(((high - low) / z) ** 2 for low, high in ends))

    def inputs(self, slices: Slices) -> dict[str, float]:
        now, then = sides(slices)
        numbers = {"n": now.sizes, "value": self.own.value(now)}
        numbers |= {"n then": then.sizes, "value then": self.own.value(then)}
        return {name: float(number[0]) for name, number in numbers.items()}
