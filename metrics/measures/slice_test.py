"""Tests slices by any of the tests, whatever the metric: its own, a bootstrap, the published one, a margin.

AutoSlicer's (Liu, Rosen and Paul Suganthan 2022, "AutoSlicer: Scalable automated data slicing for ML model analysis",
section 3) is t over Poisson-bootstrap replicates: for small slices many times too liberal. How small a change a test
notices is what a run that found nothing can say it would have seen.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple

import numpy as np
from scipy.special import ndtri, stdtr

from slicebeam.metrics.arrays import ArrayLike, FloatArray, IntArray, NDArray
from slicebeam.metrics.counting.statistic_space import Source, StatisticSpace
from slicebeam.metrics.errors import OptionError
from slicebeam.metrics.kinds import Alternative, Comparison, Tail, Test
from slicebeam.metrics.measures.cell_metric import CellMetric
from slicebeam.metrics.measures.count_metrics import Share
from slicebeam.metrics.measures.mean import Mean, RootMean
from slicebeam.metrics.measures.metric import Metric, OfOneModel, Slices
from slicebeam.metrics.measures.registry import metric, metric_on
from slicebeam.metrics.significance.outcome_codes import Method, Reason, Tested, select_tail

# P-values that underflow are reported as the smallest positive float64: nothing has probability zero.
SMALLEST_P = float(np.nextafter(0.0, 1.0))
# Slices that are tested at a time: the tests' temporary arrays take about 200 bytes a slice.
_SLICES_AT_A_TIME = 1 << 16
# Numbers of all replicates of the slices that are tested at a time.
_NUMBERS_AT_A_TIME = 1 << 22
# Of more undefined replicates nothing is concluded.
UNDEFINED_SHARE = 0.05
# Replicates that differ by less, relative to the observed delta, are equal except for rounding.
_EQUAL = 1e-9


def check_comparison(
    name: str, comparison: Comparison, *, weighted: bool = False, resampled: bool = False
) -> None:
    """Refuse to compare two models, weigh or resample examples by a metric that cannot: OptionError."""
    own, two_models = metric(name), comparison == "baseline"
    if comparison == "earlier" and isinstance(own, OfOneModel):
        why = "is not compared between two data sets; leave it, or --baseline-data, out"
    elif two_models and own.needs.two_models:
        why = (
            "is of both models at once: its slices are compared with all examples; use --compare overall, or leave "
            "the other metrics out"
        )
    elif two_models and not own.compares_models:
        why = f"{own.incomparable}; use --compare overall, or leave it out"
    elif weighted and not own.takes_weights:
        why = "takes no weights; leave out --weight, or the metric"
    elif resampled and not own.resampled:
        why = (
            "is larger by chance in small slices, and a bootstrap (--group, --test) does not allow for that; use "
            "--test auto without --group, or leave it out"
        )
    else:
        return
    raise OptionError(f"--metric {name} {why}")


def needs_rows(test: Test, name: str, space: StatisticSpace) -> bool:
    """Return whether a test of a metric must resample examples."""
    return test != "auto" or metric(name).needs_rows(space)


class Outcomes(NamedTuple):
    """Tested slices, p never 0, and standard errors of their deltas by a bootstrap, NaN without one."""

    tested: Tested
    errors: FloatArray


@dataclass(frozen=True)
class SliceTest:
    """The settings of a test.

    Is accuracy lower on a slice than on all examples? Of 1,000 examples the model gets 150 wrong; of
    three slices it gets 40 of 100, 5 of 50 and 3 of 8 wrong. The third is too small to be tested.

    >>> from slicebeam.metrics.counting.statistic_space import StatisticSpace
    >>> space = StatisticSpace(("wrong",), "overall")
    >>> test = SliceTest("accuracy", space, "auto", "worse", smallest=20)
    >>> outcomes = test.of_sums(np.array([[60, 40], [45, 5], [5, 3]]), np.array([850, 150]))
    >>> outcomes.tested.p.round(4)  # float64 [slices]
    array([0.    , 0.8407, 1.    ])
    """

    metric: str  # its name
    space: StatisticSpace  # the statistics, with their scales
    test: Test  # the metric's, t over Poisson-bootstrap replicates of the examples, or AutoSlicer's uncalibrated use of it
    alternative: Alternative
    smallest: int = 1  # slices with fewer examples are not tested

    def needs_rows(self) -> bool:
        """Return whether the test must resample examples."""
        return needs_rows(self.test, self.metric, self.space)

    def run(
        self, sums: IntArray, totals: IntArray, of_space: tuple[IntArray, IntArray] | None = None
    ) -> Outcomes:
        """Test slices of sums [slices, 1 + replicates, raw columns]; totals [1 + replicates, …] of all examples."""
        # Without replicates a test that resamples is the metric's quick one.
        reduce = self.space.reduce
        reduced, of_all = of_space or (
            reduce(sums[:, 0], totals[:1]),
            reduce(totals[:1], totals[:1])[0],
        )
        layers = sums.shape[1]
        by_rows = layers > 1 and self.needs_rows()
        width = layers * self.space.raw_columns if by_rows else 1
        step = max(1, min(_SLICES_AT_A_TIME, _NUMBERS_AT_A_TIME // width))
        blocks = (slice(begin, begin + step) for begin in range(0, max(1, len(sums)), step))
        parts = [
            self._run_rows(sums[block], totals, reduced[block], of_all)
            if by_rows
            else self._run_own(reduced[block], of_all)
            for block in blocks
        ]
        columns = zip(*((*part.tested, part.errors) for part in parts), strict=True)
        *tested, errors = (np.concatenate(column) for column in columns)
        return self._finished(Outcomes(Tested(*tested), errors), reduced)

    def of_sums(self, reduced: IntArray, of_all: IntArray) -> Outcomes:
        """Test slices by the metric's own test, of reduced sums [slices, columns] and those of all examples."""
        return self._finished(self._run_own(reduced, of_all), reduced)

    def of_replicates(self, reduced: IntArray, of_all: IntArray, deltas: FloatArray) -> Outcomes:
        """Test slices by deltas [slices, 1 + replicates]: the observed one, then that of each replicate."""
        tested = self._t(reduced, of_all, deltas[:, 0], deltas[:, 1:])
        return self._finished(tested, reduced)

    def _finished(self, outcomes: Outcomes, reduced: IntArray) -> Outcomes:
        """Return outcomes without those of slices that are too small, and without a p of 0."""
        (p, reasons, methods), errors = outcomes.tested, outcomes.errors
        small = self.space.sizes(reduced) < self.smallest
        p, methods = np.where(small, 1.0, p), np.where(small, 0, methods).astype(np.int8)
        reasons = np.where(small, Reason.SMALL_SLICE, reasons).astype(np.int8)
        return Outcomes(Tested(np.maximum(p, SMALLEST_P), reasons, methods), errors)

    def _run_own(self, sums: IntArray, totals: IntArray) -> Outcomes:
        slices = Slices(sums, self.space, totals)
        tested = metric_on(self.metric, self.space).test(slices, self.alternative)
        return Outcomes(tested, np.full(len(sums), np.nan))

    def _run_rows(
        self, sums: IntArray, totals: IntArray, reduced: IntArray, of_all: IntArray
    ) -> Outcomes:
        own, space = metric_on(self.metric, self.space), self.space
        raw = Slices(sums.reshape(-1, sums.shape[2]), space)
        values = own.value_of_raw(raw).reshape(sums.shape[:2])
        # Of the old model on each slice, or of all examples.
        others = raw.old if raw.is_paired else Slices(totals[:, : space.raw_columns], space)
        deltas = values - own.value_of_raw(others).reshape(-1, sums.shape[1])
        return self._t(reduced, of_all, deltas[:, 0], deltas[:, 1:])

    def _t(
        self, sums: IntArray, totals: IntArray, delta: FloatArray, deltas: FloatArray
    ) -> Outcomes:
        own, slices = metric_on(self.metric, self.space), Slices(sums, self.space, totals)
        p, reasons, errors = t_p_value(delta, deltas, own.tail(self.alternative))
        if self.test == "paper":
            if not slices.is_paired:
                whole = slices.sizes == slices.total.sizes
                reasons = np.where(whole, Reason.WHOLE, reasons).astype(np.int8)
            return Outcomes(Tested.by(Method.PAPER, p, reasons), errors)
        against = own.untestable(slices)
        reasons = np.where(against != 0, against, reasons).astype(np.int8)
        methods = np.full(len(slices), Method.BOOTSTRAP_ROWS, np.int8)
        at = np.flatnonzero((reasons == Reason.NO_VARIANCE) & (delta != 0))
        if slices.is_paired and at.size:
            # The metric's own test of a change is in the place of replicates that do not vary.
            judged = own.test(slices.rows(at), self.alternative)
            # That of two AUCs is only quick, and Hall's t has no variance either.
            holds = isinstance(own, CellMetric) | (judged.methods == Method.SIGN_FLIP)
            holds &= judged.reasons == 0
            p[at] = np.where(holds, judged.p, 1.0)
            methods[at] = np.where(holds, judged.methods, 0)
            reasons[at] = np.where(holds, 0, Reason.UNVARYING)
            errors[at] = np.nan
        return Outcomes(Tested.by(methods, p, reasons), errors)


def t_p_value(
    delta: ArrayLike, replicate_deltas: ArrayLike, tail: Tail
) -> tuple[FloatArray, NDArray[np.int8], FloatArray]:
    """Return p of t = delta / sd(replicate deltas [slices, B]) on B − 1 degrees of freedom; reasons; and the sd."""
    observed = np.asarray(delta, dtype=np.float64)
    replicates = np.asarray(replicate_deltas, dtype=np.float64)
    defined = ~np.isnan(replicates)
    count = defined.sum(axis=1)
    too_few = (replicates.shape[1] - count > UNDEFINED_SHARE * replicates.shape[1]) | (count < 2)
    divisor = np.maximum(count, 1)
    mean = np.where(defined, replicates, 0.0).sum(axis=1) / divisor
    deviations = np.where(defined, replicates - mean[:, None], 0.0)
    sd = np.sqrt(np.square(deviations).sum(axis=1) / np.maximum(count - 1, 1))
    # Rounding can leave equal replicates a tiny deviation: they are compared instead.
    highest = np.where(defined, replicates, -np.inf).max(axis=1, initial=-np.inf)
    lowest = np.where(defined, replicates, np.inf).min(axis=1, initial=np.inf)
    undefined = too_few | np.isnan(observed)
    constant = (highest - lowest <= _EQUAL * np.abs(observed)) | (sd == 0.0)
    reasons = np.where(constant, Reason.NO_VARIANCE, 0).astype(np.int8)
    reasons[undefined] = Reason.UNDEFINED_REPLICATES
    tested = reasons == 0
    t = np.where(tested, observed, 0.0) / np.where(tested, sd, 1.0)
    freedom = np.maximum(count - 1, 1).astype(np.float64)
    p = select_tail(stdtr(freedom, -t), stdtr(freedom, t), tail)
    error = np.where(undefined, np.nan, np.where(constant, 0.0, sd))
    return np.where(tested, p, 1.0), reasons, error


def has_margin_test(name: str, comparison: Comparison, *, weighted: bool) -> bool:
    """Return whether a metric can be tested against a margin."""
    own = metric(name)
    # A root's t is that of its mean, in other units.
    if isinstance(own, RootMean):
        return False
    if comparison == "baseline":
        return isinstance(own, Mean | CellMetric)
    if comparison == "earlier":
        return not weighted and type(own) in (Share, Mean)
    # F1 is another function of its share.
    return isinstance(own, Mean) or (type(own) is Share and not weighted)


def worse_by_more_p(
    name: str, slices: Slices, tolerance: float, alternative: Alternative
) -> FloatArray:
    """Return the p-value [slices] of "not worse by more than the tolerance", in the metric's unit."""
    own = metric_on(name, slices.space)
    margin = -tolerance if own.higher_is_better else tolerance
    p = own.margin_p(own.seen(slices), margin, own.tail("worse"))
    return np.minimum(2.0 * p, 1.0) if alternative == "both" else p


POWER = 0.8
# Counts that stand for shares, and the largest sum that fits.
_MANY, _LARGEST_SUM = 1 << 40, 2.0**62
# Odds are changed by factors of up to e to this, means by so many deviations.
_FARTHEST = 14.0
# Each round looks at so many falls between two of the last: simulated laws take as long for one as for all.
_ROUNDS, _STEPS = 2, 257
_ON_GRID = 2001


def smallest_fall(
    metric: Metric, everything: Slices, n: int | None, alpha: float, alternative: Alternative
) -> float | None:
    """Return by how much a metric, in its unit, has to be worse on a slice of n examples to be called with `POWER`."""
    # n is of its denominator, None for all: "Smallest falls" of docs/explanation/statistics.md. None where the method does
    # not hold (weights, AUC and what is not of counts or a mean), or no slice of this size could be that much worse.
    path = _path(metric, everything, n)
    if path is None:
        return None
    low, high = path.unchanged, _FARTHEST
    for _ in range(_ROUNDS):
        strengths = np.linspace(low, high, _STEPS)
        called = np.flatnonzero(path.p_values(strengths, alternative) <= alpha)
        if not called.size:
            return None
        low, high = strengths[max(called[0] - 1, 0)], strengths[called[0]]
    fall = float(path.worse_by(np.array([high]))[0])
    return fall if fall > 0 else None


def _path(metric: Metric, everything: Slices, n: int | None) -> _CellPath | _MeanPath | None:
    if everything.space.weighted:
        return None
    population = metric.seen(everything).total
    all_examples = within = int(population.sizes[0])
    if isinstance(metric, CellMetric):
        within = int(metric.denominator(population)[0]) if metric.counted else all_examples
    size = within if n is None else n
    if size > within:
        return None
    if isinstance(metric, CellMetric):
        return _CellPath(metric, population, size / within * all_examples)
    path = _MeanPath(metric, population, size) if type(metric) is Mean else None
    return path if path and path.deviation > 0 else None


class _CellPath:
    """Slices that are ever worse, by the strength of the tilt."""

    def __init__(self, metric: CellMetric, population: Slices, examples: float) -> None:
        self.metric, self.population, self.examples = metric, population, examples
        self.shares = population.counts[0] / population.sizes[0]
        self.sign = -1.0 if metric.higher_is_better else 1.0
        contributions = self.metric.contributions(population)[0] * self.sign
        contributions[self.shares == 0] = 0.0
        width = np.ptp(contributions[self.shares > 0])
        self.slopes = contributions / width if width > 0 else contributions * 0.0
        self.grid = np.linspace(-_FARTHEST, _FARTHEST, _ON_GRID)
        self.on_grid = np.maximum.accumulate(self.worse_by(self.grid))

    @cached_property
    def unchanged(self) -> float:
        """The strength at which the metric is not worse."""
        return float(np.interp(0.0, self.on_grid, self.grid))

    def _tilted(self, strengths: FloatArray) -> FloatArray:
        """Return the shares of the cells [strengths, cells]."""
        weights = self.shares * np.exp(strengths[:, None] * self.slopes)
        return np.asarray(weights / weights.sum(axis=1, keepdims=True))

    def _at(self, counts: IntArray) -> Slices:
        return replace(self.population, sums=counts)

    def worse_by(self, strengths: FloatArray) -> FloatArray:
        """Return by how much the metric is worse [strengths]."""
        slices = self._at(np.rint(self._tilted(strengths) * _MANY).astype(np.int64))
        return np.asarray(self.metric.delta(slices) * self.sign)

    def p_values(self, strengths: FloatArray, alternative: Alternative) -> FloatArray:
        """Return the p-values [strengths] of slices that `POWER` of the draws are worse than."""
        shares = self._tilted(strengths)
        slices = self._at(np.rint(shares * _MANY).astype(np.int64))
        spread = (shares * (self.metric.contributions(slices) * _MANY) ** 2).sum(axis=1)
        nearer = self.worse_by(strengths) - ndtri(POWER) * np.sqrt(spread / self.examples)
        counts = _whole(self._tilted(np.interp(nearer, self.on_grid, self.grid)) * self.examples)
        p = np.ones(strengths.shape)
        # Of what all examples have too little of, no slice has so much; a change may be any.
        possible = (counts <= self.population.counts[0]).all(axis=1) | self.population.is_paired
        if possible.any():
            p[possible] = self.metric.test(self._at(counts[possible]), alternative).p
        return p


class _MeanPath:
    """Slices whose values are all worse by a number of deviations, the strength."""

    def __init__(self, metric: Mean, population: Slices, n: int) -> None:
        self.metric, self.population, self.n = metric, population, n
        self.sign = -1.0 if metric.higher_is_better else 1.0
        source: Source = "change" if population.is_paired else "new"
        self.deviation = float(np.sqrt(metric.moments(population, source).variance[0]))
        before = float(metric.delta(population)[0]) * self.sign
        self.unchanged = -before / self.deviation if self.deviation > 0 else 0.0

    def worse_by(self, strengths: FloatArray) -> FloatArray:
        """Return by how much the metric is worse [strengths]."""
        return np.asarray((strengths - self.unchanged) * self.deviation)

    def p_values(self, strengths: FloatArray, alternative: Alternative) -> FloatArray:
        """Return the p-values [strengths] of slices that `POWER` of the draws are worse than."""
        space, totals = self.population.space, self.population.sums[0]
        part = self.n / self.population.sizes[0]
        possible = np.ones(strengths.shape, bool)
        of_each = np.zeros((strengths.size, space.columns), np.int64)
        of_each[:, : space.cells] = _whole(totals[None, : space.cells] * part)
        moved = (strengths - ndtri(POWER) / np.sqrt(self.n)) * self.deviation * self.sign
        for at, term in enumerate(space.terms):
            if term.value != self.metric.name:
                continue
            added = moved * 0.0
            if term.source != "old":
                mean = self.metric.moments(self.population, term.source).mean[0]
                added = moved if term.power == 1 else moved * (2.0 * mean + moved)
            column = totals[space.cell_columns + at] * part + self.n * added / space.scales[at]
            # Beyond what a sum has room for.
            possible &= np.abs(column) < _LARGEST_SUM
            of_each[:, space.cell_columns + at] = np.rint(np.where(possible, column, 0.0))
        p = np.ones(strengths.shape)
        if possible.any():
            slices = replace(self.population, sums=of_each[possible])
            p[possible] = self.metric.test(slices, alternative).p
        return p


def _whole(expected: FloatArray) -> IntArray:
    """Return whole numbers [slices, cells] of nearly the same sum: the largest parts are rounded up."""
    low = np.floor(expected)
    parts = expected - low
    missing = np.rint(parts.sum(axis=1)).astype(np.int64)
    place = np.argsort(np.argsort(-parts, axis=1, kind="stable"), axis=1)
    return np.asarray(low + (place < missing[:, None])).astype(np.int64)
