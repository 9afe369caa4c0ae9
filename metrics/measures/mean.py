"""Metrics that are the mean of a value of each example: losses, errors, any column."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from scipy.special import gammaln

from slicebeam.metrics.counting.statistic_space import Term
from slicebeam.metrics.findings.target_sums import TargetSums
from slicebeam.metrics.measures import base
from slicebeam.metrics.significance import count_tests, hall, random_subset, student_law
from slicebeam.metrics.significance.hall import Moments
from slicebeam.metrics.significance.outcome_codes import Method, Reason, Tested
from slicebeam.metrics.significance.tails import select_tail

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from slicebeam.metrics.arrays import BoolArray, FloatArray, IntArray
    from slicebeam.metrics.counting.counting import RowBlock
    from slicebeam.metrics.counting.statistic_space import Deviations, Source, StatisticSpace
    from slicebeam.metrics.kinds import Alternative, Comparison, Tail
    from slicebeam.metrics.significance.random_subset import Population

    Sums = IntArray

# On a lattice a tail begins this part of its span, from a value's middle, nearer to the mean.
_OF_SPAN = 0.3
# The mid-p has half of the chance of the value itself, the tail .8 of it: it is at most 1.6 times as large.
_OF_MID_P = 1.6


class Mean(base.Metric):
    """The mean of a value over the slice's examples, a Hájek mean where they are weighted.

    Hájek (1971): Σwx/Σw. Its linearised variance is Σw²(x − mean)²/(Σw)², and it counts as the mean
    of Kish's (1965) effective number of examples, (Σw)²/Σw². The name is also that of the value.
    """

    def __init__(
        self,
        name: str,
        title: str,
        limits: tuple[float, float],
        *,
        compares_models: bool = True,
        higher_is_better: bool = False,
    ) -> None:
        self.name, self.title, self.range = name, title, limits
        self.higher_is_better = higher_is_better
        self.needs = base.Needs(values=(name,))
        self.compares_models = compares_models

    @staticmethod
    def terms(value: str, comparison: Comparison, *, weighted: bool) -> tuple[Term, ...]:
        """Return the sums that tests and intervals of a value's mean need of each slice."""
        sources: list[tuple[Source, int]] = [("new", 1), ("new", 2)]
        if comparison == "baseline":
            sources += [("old", 1), ("old", 2), ("change", 2)]
        if not weighted:
            return tuple(Term(value, source, power) for source, power in sources)
        # Of weighted squares only the linearised variance needs a sum.
        terms = [Term(value, source, power, 1) for source, power in sources]
        terms += [Term(value, source, power, 2) for source, power in sources]
        return tuple(terms)

    @staticmethod
    def total_terms(value: str, comparison: Comparison, *, weighted: bool) -> tuple[Term, ...]:
        """Return the sums that are needed of all examples only."""
        sources: tuple[Source, ...] = ("new", "old", "change")
        used = sources if comparison == "baseline" else sources[:1]
        if not weighted:
            return tuple(Term(value, source, 3) for source in used)
        return tuple(Term(value, source, power, 3) for source in used for power in range(4))

    def _total(
        self, sums: Sums, space: StatisticSpace, source: Source, power: int, weight_power: int = 1
    ) -> FloatArray:
        if source == "change" and power == 1:
            new, old = (
                self._total(sums, space, "new", 1, weight_power),
                self._total(sums, space, "old", 1, weight_power),
            )
            return np.asarray(new - old)
        term = Term(self.name, source, power, weight_power if space.weighted else 0)
        return space.term(sums, term)

    def _shift(self, space: StatisticSpace, source: Source) -> float:
        return 0.0 if source == "change" else space.shift(self.name)

    def _mean(self, sums: Sums, space: StatisticSpace, source: Source) -> FloatArray:
        """Return the mean [slices] about the shift; NaN without weight."""
        weight = space.weights(sums).sum(axis=-1)
        total = self._total(sums, space, source, 1)
        mean = np.divide(total, weight, out=np.full(weight.shape, np.nan), where=weight > 0)
        return np.asarray(mean)

    def value(self, sums: Sums, space: StatisticSpace, *, old: bool = False) -> FloatArray:
        """See `Metric.value`."""
        source: Source = "old" if old else "new"
        return self._mean(sums, space, source) + self._shift(space, source)

    def delta(self, sums: Sums, totals: Sums, space: StatisticSpace) -> FloatArray:
        """See `Metric.delta`; without the shift, beside which a difference may have no digits."""
        if space.comparison == "baseline":
            return self._mean(sums, space, "change")
        whole = self._mean(totals[None, : space.columns], space, "new")
        return self._mean(sums, space, "new") - whole

    def moments(
        self, sums: Sums, space: StatisticSpace, source: Source = "new", skewness: float = 0.0
    ) -> Moments:
        """Return number, mean, variance and skewness [slices]; a constant has variance 0.

        The mean is that about the shift: with it, the digits of a difference would be lost.
        """
        weight = space.weights(sums).sum(axis=-1)
        some = weight > 0
        safe = np.where(some, weight, 1.0)
        centre = self._total(sums, space, source, 1) / safe
        if space.weighted:
            squares = space.weights(sums, 2).sum(axis=-1)
            n = np.where(some, weight**2 / np.where(some, squares, 1.0), 0.0)
            first = self._total(sums, space, source, 1, 2)
            second = self._total(sums, space, source, 2, 2)
            # Of single values: n times the linearised variance of the mean.
            raw = (second - 2 * centre * first + centre**2 * squares) / safe**2 * n
            size = second / safe**2 * n
        else:
            n = weight
            size = self._total(sums, space, source, 2) / safe
            raw = size - centre**2
        varies = some & (n > 1) & (raw > base.ROUNDING * size)
        variance = np.where(varies, raw * n / np.where(n > 1, n - 1, 1.0), 0.0)
        return Moments(n, np.where(some, centre, 0.0), variance, np.asarray(skewness, np.float64))

    def of_all(self, totals: Sums, space: StatisticSpace, source: Source = "new") -> Moments:
        """Return the moments of all examples, the skewness among them; 0 for a constant.

        With weights it is the skewness of w·(x − mean), scaled to the effective number of examples.
        """
        own = totals[: space.columns]
        moments = self.moments(own, space, source)
        centre = float(moments.mean)
        if not moments.variance > 0:
            return moments
        weight_power = 3 if space.weighted else 0
        powers = range(4) if space.weighted else (3,)
        m3 = {
            power: space.total_term(totals, Term(self.name, source, power, weight_power))
            for power in powers
        }
        n = float(moments.n)
        if not space.weighted:
            m1, m2 = (float(self._total(own, space, source, power)) / n for power in (1, 2))
            third = m3[3] / n - 3 * m1 * m2 + 2 * m1**3
            return moments._replace(skewness=np.asarray(third / (m2 - m1**2) ** 1.5))
        # Of the weighted deviations, of which the mean is a sum: its own skewness is 1/√n of this.
        third = m3[3] - 3 * centre * m3[2] + 3 * centre**2 * m3[1] - centre**3 * m3[0]
        spread = float(moments.variance) * (n - 1) / n**2 * float(space.weights(own).sum()) ** 2
        return moments._replace(skewness=np.asarray(third / spread**1.5 * np.sqrt(n)))

    def against_rest(
        self, sums: Sums, totals: Sums, space: StatisticSpace
    ) -> tuple[Moments, Moments, FloatArray]:
        """Return slice, complement, and the slice's share of all weight."""
        skewness = float(self.of_all(totals, space).skewness)
        whole = totals[None, : space.columns]
        share = space.weights(sums).sum(axis=1) / space.weights(whole).sum()
        own = self.moments(sums, space, skewness=skewness)
        return own, self.moments(whole - sums, space, skewness=skewness), share

    def test(
        self, sums: Sums, totals: Sums, space: StatisticSpace, alternative: Alternative
    ) -> Tested:
        """Test by the law of random subsets; by Hall's paired t, or sign flips, for two models.

        Power at .01 is above that of Hall's Welch t on either side (n = 20 to 1,000). A slice of the same mean but
        1.3 times the deviation is called in .02 to .06.
        """
        tail = self.tail(alternative)
        reasons = self.untestable(sums, totals, space)
        ready = reasons == 0
        if space.comparison == "baseline":
            return self._of_two_models(sums, totals, space, tail, reasons)
        p = np.ones(len(sums))
        if ready.any():
            deviations = self._deviations(space)
            excess = self._deviation(sums[ready], space, deviations.centre)
            p[ready] = subset_p(space.sizes(sums[ready]), excess, deviations.population, tail)
        return Tested.by(Method.RANDOM_SUBSET, p, reasons)

    def _of_two_models(
        self, sums: Sums, totals: Sums, space: StatisticSpace, tail: Tail, reasons: NDArray[np.int8]
    ) -> Tested:
        """Test by Student's t as it varies for all changes, and by sign flips where all of a slice are the same.

        Where large changes the other way are rare, the slice may lack them by chance: there p is at least that of
        Hall's t, whose variance is raised by that of all examples, and its refusal stands.
        """
        ready = reasons == 0
        changes = self.moments(sums, space, "change")
        everything = self.of_all(totals, space, "change")
        constant = ready & ~(changes.variance > 0)
        t = hall.against_zero(changes, everything)
        p, too_skewed = t.p_value(tail)
        refused = ready & too_skewed & constant
        method = np.full(len(sums), Method.STUDENT, np.int8)
        if (varies := ready & ~constant).any():
            p[varies] = self.change_p(sums[varies], totals, space, 0.0, tail)
        if constant.any():
            one_way = changes.mean * everything.skewness >= 0
            flipped = count_tests.constant_change_p(changes.n, changes.mean, tail)
            least = np.where(one_way | ~(t.error > 0), 0.0, p)
            p = np.where(constant, np.maximum(flipped, least), p)
            refused &= ~(constant & one_way)
            method[constant] = Method.SIGN_FLIP
        reasons[refused] = Reason.TOO_SKEWED
        return Tested.by(method, p, reasons)

    def change_p(
        self, sums: Sums, totals: Sums, space: StatisticSpace, mean: float, tail: Tail
    ) -> FloatArray:
        """Return the p-value [slices] of Student's t of "the mean change is this", by the law of all changes."""
        weight, squared = (space.weights(sums, power).sum(axis=-1) for power in (1, 2))
        first, crossed = (self._total(sums, space, "change", 1, power) for power in (1, 2))
        squares = (
            self._total(sums, space, "change", 2, 2) - 2.0 * mean * crossed + mean**2 * squared
        )
        of, whole = self._deviations(space).population, totals[: space.columns]
        average = float(space.weights(whole).sum() / space.sizes(whole))
        return student_law.p_value(
            space.sizes(sums), first - mean * weight, squares, of, mean * average, tail
        )

    def _deviations(self, space: StatisticSpace) -> Deviations:
        found = space.deviations_of(self.name)
        if found is None:
            raise ValueError(f"all examples' deviations of {self.name} are not in the space")
        return found

    def _deviation(self, sums: Sums, space: StatisticSpace, centre: float) -> FloatArray:
        """Return the summed weighted deviation [slices] from the mean of all examples."""
        weight = space.weights(sums).sum(axis=-1)
        return np.asarray(self._total(sums, space, "new", 1) - centre * weight)

    def untestable(self, sums: Sums, totals: Sums, space: StatisticSpace) -> NDArray[np.int8]:
        """See `Metric.untestable`."""
        if space.comparison == "baseline":
            changes = self.moments(sums, space, "change")
            coarse = ~self._is_surely_constant(changes, sums, space)
            constant = np.where(coarse, Reason.UNVARYING, 0)
            constant[changes.mean == 0] = Reason.UNCHANGED
            return np.where(changes.variance > 0, 0, constant).astype(np.int8)
        whole = totals[None, : space.columns]
        varies = bool(self.moments(whole, space).variance[0] > 0)
        reasons = np.full(len(sums), 0 if varies else Reason.CONSTANT)
        reasons[space.weights(sums).sum(axis=-1) == 0] = Reason.UNDEFINED
        reasons[space.sizes(sums) == space.sizes(whole)] = Reason.WHOLE
        return reasons.astype(np.int8)

    def _is_surely_constant(self, changes: Moments, sums: Sums, space: StatisticSpace) -> BoolArray:
        """Return whether fixed point is fine enough to show changes [slices] of the other sign.

        One of them adds at least mean²/n to the variance; rounding of neither sum must hide that.
        """
        powers = (1, 2) if space.weighted else (0, 0)
        sizes, mean = space.sizes(sums), np.abs(changes.mean)
        weight, squares = (space.weights(sums, max(power, 1)).sum(axis=-1) for power in powers)
        of_first = space.scale(Term(self.name, "new", 1, powers[0])) * sizes
        of_second = space.scale(Term(self.name, "change", 2, powers[1])) * sizes
        return np.asarray(
            (mean * weight > 4 * changes.n * of_first)
            & (mean**2 * squares > 4 * changes.n * of_second)
        )

    def delta_interval(
        self, sums: Sums, totals: Sums, space: StatisticSpace, confidence: float
    ) -> tuple[FloatArray, FloatArray]:
        """Hall-corrected intervals of the difference from all examples, or of the mean change."""
        if space.comparison == "baseline":
            changes = self.moments(sums, space, "change")
            everything = self.of_all(totals, space, "change")
            return hall.against_zero(changes, everything).interval(confidence)
        own, rest, share = self.against_rest(sums, totals, space)
        low, high = hall.difference_from_overall(own, rest, share, confidence)
        # Two constants, of which nothing says how far they would vary.
        apart = (self.untestable(sums, totals, space) == 0) & (own.variance + rest.variance == 0)
        return np.where(apart, -np.inf, low), np.where(apart, np.inf, high)

    def value_interval(
        self,
        sums: Sums,
        totals: Sums,
        space: StatisticSpace,
        confidence: float,
        *,
        old: bool = False,
    ) -> tuple[FloatArray, FloatArray]:
        """Hall-corrected interval of the mean, with the skewness of all examples."""
        source: Source = "old" if old else "new"
        own = self.moments(sums, space, source)
        everything = self.of_all(totals, space, source)
        low, high = hall.against_zero(own, everything).interval(confidence)
        shift = self._shift(space, source)
        return np.maximum(low + shift, self.range[0]), np.minimum(high + shift, self.range[1])

    def p_refine(
        self, sums: Sums, parents: Sums, totals: Sums, space: StatisticSpace, *, worse: bool
    ) -> FloatArray:
        """Hall-Welch test of the child against the rest of its parent.

        Two different constants have no t: of all subsets of the parent the child is the most extreme.
        """
        tail = self.tail("worse" if worse else "better")
        source: Source = "change" if space.comparison == "baseline" else "new"
        skewness = float(self.of_all(totals, space, source).skewness)
        own = self.moments(sums, space, source, skewness)
        rest = self.moments(parents - sums, space, source, skewness)
        p, _ = hall.against_rest(own, rest).p_value(tail)
        apart = (own.n > 0) & (rest.n > 0) & (own.variance + rest.variance == 0)
        # The parent varies only where its two constants differ by more than rounding.
        apart &= self.moments(parents, space, source).variance > 0
        extreme = own.mean > rest.mean if tail == "upper" else own.mean < rest.mean
        subsets = gammaln(own.n + rest.n + 1) - gammaln(own.n + 1) - gammaln(rest.n + 1)
        return np.where(apart & extreme, np.exp(-subsets), p)

    def target(self, space: StatisticSpace) -> base.Target:
        """Return the value itself about its shift, or its change between two models."""
        scales = space.weight_scales if space.weighted else (1.0, 1.0)
        return base.Target(
            TargetSums("mean", space.weighted, scales),
            np.ones(space.cells, bool),
            upward=not self.higher_is_better,
            is_share=space.comparison == "overall"
            and (self.range[0] >= 0.0 or self.name in space.nonnegative),
        )

    def target_sums(self, sums: Sums, space: StatisticSpace) -> FloatArray:
        """See `Metric.target_sums`."""
        source: Source = "change" if space.comparison == "baseline" else "new"
        columns = [
            self._total(sums, space, source, power, max(weight, 1))
            if power
            else space.weights(sums, max(weight, 1)).sum(axis=1)
            for weight, power in self.target(space).layout.powers
        ]
        return np.stack(columns, axis=1)

    def weighted_targets(self, block: RowBlock, space: StatisticSpace) -> FloatArray:
        """See `Metric.weighted_targets`."""
        weight_power = 1 if space.weighted else 0
        units = block.terms[space.terms.index(Term(self.name, "new", 1, weight_power))]
        if space.comparison == "baseline":
            units = units - block.terms[space.terms.index(Term(self.name, "old", 1, weight_power))]
        return np.asarray(units * space.scale(Term(self.name, "new", 1, weight_power)))

    def of_target(self, mean: FloatArray, space: StatisticSpace) -> FloatArray:
        """See `Metric.of_target`."""
        source: Source = "change" if space.comparison == "baseline" else "new"
        return mean + self._shift(space, source)

    def movement(self, sums: Sums, space: StatisticSpace) -> base.Movement | None:
        """See `Metric.movement`."""
        if space.comparison != "baseline" or not self.compares_models:
            return None
        first, second = (self._total(sums, space, "change", power) for power in (1, 2))
        return base.Movement.of_sums(space.weights(sums).sum(axis=-1), first, second)

    def change_variance(self, sums: Sums, space: StatisticSpace) -> FloatArray | None:
        """See `Metric.change_variance`."""
        if space.weighted:
            return None
        of_each = self.moments(sums, space, "change" if space.comparison == "baseline" else "new")
        # Moments are those of a sample.
        return np.asarray(
            of_each.variance * np.maximum(of_each.n - 1, 0) / np.maximum(of_each.n, 1)
        )

    def inputs(self, sums: Sums, totals: Sums, space: StatisticSpace) -> dict[str, float]:
        """Return the moments that the test and the interval take, and the slice's sum of deviations S."""
        own = sums[None, :]
        named: dict[str, float] = {}
        if space.comparison == "baseline":
            parts = {
                "change on the slice": self.moments(own, space, "change"),
                "change on all": self.of_all(totals, space, "change"),
            }
        else:
            slice_, rest, _ = self.against_rest(own, totals, space)
            parts = {"slice": slice_, "complement": rest}
            named["n"] = float(space.sizes(own)[0])
            named["N"] = float(space.sizes(totals[: space.columns]))
            named["mean of all"] = float(Mean.value(self, totals[None, : space.columns], space)[0])
            if (deviations := space.deviations_of(self.name)) is not None:
                excess = float(self._deviation(own, space, deviations.centre)[0])
                named["S"] = float(np.ldexp(excess, space.weight_exponent))
        for name, about_shift in parts.items():
            shift = 0.0 if space.comparison == "baseline" else space.shift(self.name)
            moments = about_shift._replace(mean=about_shift.mean + shift)
            for field, column in zip(Moments._fields, moments, strict=True):
                named[f"{name} {field}"] = float(np.broadcast_to(column, (1,))[0])
        return named


def subset_p(n: IntArray, total: FloatArray, of: Population, tail: Tail) -> FloatArray:
    """Return the tail of the sum of a random subset; on a lattice P(beyond) + .8·P(here), where mid-p has .5.

    The mid-p of a mean of few values exceeds the level at single sizes by half.
    """
    if not of.span:
        return random_subset.sum_p_value(n, total, of, tail)

    def one_sided(side: Tail, sign: float) -> FloatArray:
        nearer = random_subset.sum_p_value(n, total + sign * _OF_SPAN * of.span, of, side)
        most = _OF_MID_P * random_subset.sum_p_value(n, total, of, side)
        return np.minimum(np.minimum(nearer, most), 1.0)

    if tail != "both":
        return one_sided(tail, -1.0 if tail == "upper" else 1.0)
    return select_tail(one_sided("upper", -1.0), one_sided("lower", 1.0), tail)
