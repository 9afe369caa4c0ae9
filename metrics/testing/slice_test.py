"""Tests slices by any of the tests, whatever the metric: its own, a bootstrap, the published one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from slicebeam.metrics.errors import OptionError
from slicebeam.metrics.measures.cell_metric import CellMetric
from slicebeam.metrics.registry import metric
from slicebeam.metrics.significance.outcome_codes import Method, Reason, Tested

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from slicebeam.metrics.arrays import FloatArray, IntArray
    from slicebeam.metrics.counting.statistic_space import StatisticSpace
    from slicebeam.metrics.kinds import Alternative, Comparison, Test

# A p-value that no float64 holds is told as the smallest one: nothing has probability zero.
SMALLEST_P = float(np.nextafter(0.0, 1.0))

# Slices that are tested at a time: the tests' temporary arrays take about 200 bytes a slice.
_SLICES_AT_A_TIME = 1 << 16
# Numbers of all replicates of the slices that are tested at a time.
_NUMBERS_AT_A_TIME = 1 << 22


def check_comparison(name: str, comparison: Comparison) -> None:
    """Refuse to compare two models by a metric that cannot: OptionError."""
    own = metric(name)
    if comparison == "baseline" and own.needs.two_models:
        raise OptionError(
            f"--metric {name} is of both models at once: its slices are compared with all examples; use "
            "--compare overall, or leave the other metrics out"
        )
    if comparison == "baseline" and not own.compares_models:
        raise OptionError(
            f"--metric {name} is the same for every model; use --compare overall, or leave it out"
        )


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

    Attributes
    ----------
    metric : name of the metric
    space : the statistics, with their scales
    test : ``auto``, the calibrated test of the metric; ``bootstrap-rows``, t over Poisson-bootstrap
        replicates of the examples; ``paper``, AutoSlicer's own uncalibrated use of it
    alternative : ``worse``, ``better`` or ``both``
    smallest : slices with fewer examples are not tested

    Examples
    --------
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

    metric: str
    space: StatisticSpace
    test: Test
    alternative: Alternative
    smallest: int = 1

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

        Without replicates a test that resamples is the metric's quick one; replicates for other metrics are
        passed over. `reduced` and `of_all` are the reduced sums, where that is done already.
        """
        if of_all is None:
            of_all = self.space.reduce(totals[:1], totals[:1])[0]
        if reduced is None:
            reduced = self.space.reduce(sums[:, 0], totals[:1])
        layers = sums.shape[1]
        by_rows = layers > 1 and self.needs_rows()
        width = layers * self.space.raw_columns if by_rows else 1
        step = max(1, min(_SLICES_AT_A_TIME, _NUMBERS_AT_A_TIME // width))
        parts = []
        for begin in range(0, len(sums), step):
            some = slice(begin, begin + step)
            if by_rows:
                parts.append(self._run_rows(sums[some], totals, reduced[some], of_all))
            else:
                parts.append(self._run_own(reduced[some], of_all))
        if not parts:
            none = np.zeros(0)
            codes = np.zeros(0, np.int8)
            return Outcomes(Tested(none, codes, codes), none)
        p, reasons, methods = (
            np.concatenate([getattr(part.tested, name) for part in parts])
            for name in Tested._fields
        )
        errors = np.concatenate([part.errors for part in parts])
        return self._finished(Outcomes(Tested(p, reasons, methods), errors), reduced)

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
        tested = metric(self.metric).test(sums, totals, self.space, self.alternative)
        return Outcomes(tested, np.full(len(sums), np.nan))

    def _run_rows(
        self, sums: IntArray, totals: IntArray, reduced: IntArray, of_all: IntArray
    ) -> Outcomes:
        own, space = metric(self.metric), self.space
        raw = sums.reshape(-1, sums.shape[2])
        values = own.value_of_raw(raw, space).reshape(sums.shape[:2])
        if space.comparison == "baseline":
            references = own.value_of_raw(raw, space, old=True).reshape(values.shape)
        else:
            references = own.value_of_raw(totals[:, : space.raw_columns], space)[None, :]
        deltas = values - references
        return self._t(reduced, of_all, deltas[:, 0], deltas[:, 1:])

    def _t(
        self, sums: IntArray, totals: IntArray, delta: FloatArray, deltas: FloatArray
    ) -> Outcomes:
        own = metric(self.metric)
        from slicebeam.metrics.significance import paper

        p, reasons, errors = paper.t_p_value(delta, deltas, own.tail(self.alternative))
        if self.test == "paper":
            if self.space.comparison == "overall":
                whole = self.space.sizes(sums) == self.space.sizes(totals)
                reasons = np.where(whole, Reason.WHOLE, reasons).astype(np.int8)
            return Outcomes(Tested.by(Method.PAPER, p, reasons), errors)
        against = own.untestable(sums, totals, self.space)
        reasons = np.where(against != 0, against, reasons).astype(np.int8)
        methods = np.full(len(sums), Method.BOOTSTRAP_ROWS, np.int8)
        if self.space.comparison == "baseline":
            self._judge_constant_changes(sums, totals, delta, p, reasons, methods, errors)
        return Outcomes(Tested.by(methods, p, reasons), errors)

    def _judge_constant_changes(
        self,
        sums: IntArray,
        totals: IntArray,
        delta: FloatArray,
        p: FloatArray,
        reasons: NDArray[np.int8],
        methods: NDArray[np.int8],
        errors: FloatArray,
    ) -> None:
        """Put the metric's own test of a change in the place of replicates that do not vary."""
        at = np.flatnonzero((reasons == Reason.NO_VARIANCE) & (delta != 0))
        if not at.size:
            return
        own = metric(self.metric)
        judged = own.test(sums[at], totals, self.space, self.alternative)
        # That of two AUCs is only quick, and Hall's t has no variance either.
        holds = isinstance(own, CellMetric) | (judged.methods == Method.SIGN_FLIP)
        holds &= judged.reasons == 0
        p[at] = np.where(holds, judged.p, 1.0)
        methods[at] = np.where(holds, judged.methods, 0)
        reasons[at] = np.where(holds, 0, Reason.UNVARYING)
        errors[at] = np.nan
