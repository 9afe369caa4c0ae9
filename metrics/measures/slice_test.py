"""Tests slices by any of the tests, whatever the metric: its own, a bootstrap, the published one, a margin.

AutoSlicer's (Liu, Rosen and Paul Suganthan 2022, "AutoSlicer: Scalable automated data slicing for ML model analysis",
section 3) is t over Poisson-bootstrap replicates: for small slices many times too liberal.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from scipy.special import stdtr

from slicebeam.metrics.arrays import ArrayLike, FloatArray, IntArray, NDArray
from slicebeam.metrics.counting.statistic_space import StatisticSpace
from slicebeam.metrics.errors import OptionError
from slicebeam.metrics.kinds import Alternative, Comparison, Tail, Test
from slicebeam.metrics.measures.cell_metric import CellMetric
from slicebeam.metrics.measures.count_metrics import Share
from slicebeam.metrics.measures.mean import Mean, RootMean
from slicebeam.metrics.measures.metric import OfOneModel, Slices
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
    >>> [Method(code).text for code in outcomes.tested.methods]
    ['hypergeometric mid-p', 'hypergeometric mid-p', '']
    >>> Reason(outcomes.tested.reasons[2]).text
    'fewer examples than the metric needs'
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
        self,
        sums: IntArray,
        totals: IntArray,
        reduced: IntArray | None = None,
        of_all: IntArray | None = None,
    ) -> Outcomes:
        """Test slices of sums [slices, 1 + replicates, raw columns]; totals [1 + replicates, …] of all examples.

        Without replicates a test that resamples is the metric's quick one. `reduced` and `of_all` are the reduced sums.
        """
        if of_all is None:
            of_all = self.space.reduce(totals[:1], totals[:1])[0]
        if reduced is None:
            reduced = self.space.reduce(sums[:, 0], totals[:1])
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
    """Return p of t = delta / sd(replicate deltas [slices, B]) on B − 1 degrees of freedom; reasons; and the sd.

    Not tested are slices of which the delta or more than 5 % of the replicates are NaN, or all are equal but for rounding.
    """
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
