"""Tests slices by any of the tests, whatever the metric: its own, a bootstrap, a permutation."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from slicebeam.metrics.errors import OptionError
from slicebeam.metrics.kinds import OF_CELLS, OF_ROWS, PAPER
from slicebeam.metrics.measures.cell_metric import CellMetric
from slicebeam.metrics.measures.mean import Mean
from slicebeam.metrics.registry import metric
from slicebeam.metrics.significance import outcome_codes, paper

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from slicebeam.metrics.arrays import FloatArray, IntArray
    from slicebeam.metrics.counting.statistic_space import StatisticSpace
    from slicebeam.metrics.kinds import Alternative, Comparison, Test
    from slicebeam.metrics.significance.outcome_codes import Tested

# A p-value that no float64 holds is told as the smallest one: nothing has probability zero.
SMALLEST_P = float(np.nextafter(0.0, 1.0))

# Slices that are tested at a time: the tests' temporary arrays take about 200 bytes a slice.
_SLICES_AT_A_TIME = 1 << 16
# Numbers of all replicates of the slices that are tested at a time.
_NUMBERS_AT_A_TIME = 1 << 22


def check_test(test: Test, name: str, comparison: Comparison, *, weighted: bool) -> None:
    """Refuse a test that a metric has not.

    Raises
    ------
    InputError
        The test does not fit the metric, the comparison, or weights.
    """
    own = metric(name)
    if test in OF_CELLS and not isinstance(own, CellMetric):
        raise OptionError(
            f"--test {test} draws counts, and {name} is not a metric of counts; use bootstrap-rows or auto"
        )
    if weighted and test in (*OF_CELLS, "permutation"):
        raise OptionError(
            f"--test {test} treats all examples as equal, but --weight is given; use auto or "
            "bootstrap-rows"
        )
    if test == "permutation":
        if comparison == "baseline":
            raise OptionError(
                "--test permutation compares a slice with random subsets of all examples; to "
                "compare two models, use auto or bootstrap-rows"
            )
        if not isinstance(own, (CellMetric, Mean)):
            raise OptionError(
                f"--test permutation: the default test of {name} already uses the law of the "
                "permutation; use auto"
            )
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
    return test in OF_ROWS or (test == "auto" and metric(name).needs_rows(space))


class Outcomes(NamedTuple):
    """Outcome of the tests of a block of slices; all arrays [slices].

    Attributes
    ----------
    tested : p-values, never 0, reasons and methods
    errors : float64 standard errors of the delta by a bootstrap; NaN where there was none
    """

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
        replicates of the examples; ``bootstrap-cells``, the same law drawn from the counts;
        ``permutation``, the law of random subsets; ``paper`` and ``paper-cells``, AutoSlicer's own
        uncalibrated use of the bootstrap, also on the smallest slices
    alternative : ``worse``, ``better`` or ``both``
    replicates, seed : of the bootstrap
    smallest : slices with fewer examples are not tested

    Examples
    --------
    Is accuracy lower on a slice than on all examples? Of 1,000 examples the model gets 150 wrong; of
    three slices it gets 40 of 100, 5 of 50 and 3 of 8 wrong. The third is too small to be tested.

    >>> from slicebeam.metrics.counting.statistic_space import StatisticSpace
    >>> space = StatisticSpace(("wrong",), "overall")
    >>> test = SliceTest("accuracy", space, "auto", "worse", replicates=0, seed=0, smallest=20)
    >>> outcomes = test.of_sums(np.array([[60, 40], [45, 5], [5, 3]]), np.array([850, 150]))
    >>> outcomes.tested.p.round(4)  # float64 [slices]
    array([0.    , 0.8407, 1.    ])
    >>> [outcome_codes.METHODS[code] for code in outcomes.tested.methods]
    ['hypergeometric mid-p', 'hypergeometric mid-p', '']
    >>> outcome_codes.REASONS[outcomes.tested.reasons[2]]
    'fewer examples than the metric needs'
    """

    metric: str
    space: StatisticSpace
    test: Test
    alternative: Alternative
    replicates: int
    seed: int
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
        """Test slices.

        Where examples must be resampled and there are no replicates, the metric's own quick test
        says which slices could become significant; replicates for other metrics are passed over.

        Parameters
        ----------
        sums : int64 [slices, 1 + replicates, raw columns]
        totals : int64 [1 + replicates, raw columns and total terms] of all examples
        reduced : int64 [slices, columns] the slices' own sums, reduced, where that is done already
        of_all : int64 [columns and total terms] the same of all examples
        """
        if of_all is None:
            of_all = self.space.reduce(totals[:1], totals[:1])[0]
        if reduced is None:
            reduced = self.space.reduce(sums[:, 0], totals[:1])
        layers = sums.shape[1]
        by_rows = layers > 1 and self.needs_rows()
        if by_rows:
            width = layers * self.space.raw_columns
        elif self.test in OF_CELLS:
            width = 2 * self.replicates * self.space.cells
        else:
            width = 1
        step = max(1, min(_SLICES_AT_A_TIME, _NUMBERS_AT_A_TIME // width))
        parts = []
        for begin in range(0, len(sums), step):
            some = slice(begin, begin + step)
            if by_rows:
                parts.append(self._run_rows(sums[some], totals, reduced[some], of_all))
            elif self.test in OF_CELLS:
                parts.append(self._run_cells(reduced[some], of_all))
            else:
                parts.append(self._run_own(reduced[some], of_all))
        if not parts:
            none = np.zeros(0)
            codes = np.zeros(0, np.int8)
            return Outcomes(outcome_codes.Tested(none, codes, codes), none)
        p, reasons, methods = (
            np.concatenate([getattr(part.tested, name) for part in parts])
            for name in outcome_codes.Tested._fields
        )
        errors = np.concatenate([part.errors for part in parts])
        return self._finished(Outcomes(outcome_codes.Tested(p, reasons, methods), errors), reduced)

    def of_sums(self, reduced: IntArray, of_all: IntArray) -> Outcomes:
        """Test slices by the metric's own test.

        Parameters
        ----------
        reduced : int64 [slices, columns]
        of_all : int64 [columns and total terms] of all examples
        """
        return self._finished(self._run_own(reduced, of_all), reduced)

    def of_replicates(self, reduced: IntArray, of_all: IntArray, deltas: FloatArray) -> Outcomes:
        """Test slices by replicates of the examples.

        Parameters
        ----------
        reduced, of_all : as in `of_sums`
        deltas : float64 [slices, 1 + replicates] the observed delta, and that of each replicate
        """
        tested = self._t(reduced, of_all, deltas[:, 0], deltas[:, 1:], outcome_codes.BOOTSTRAP_ROWS)
        return self._finished(tested, reduced)

    def _finished(self, outcomes: Outcomes, reduced: IntArray) -> Outcomes:
        """Return outcomes without those of slices that are too small, and without a p of 0."""
        (p, reasons, methods), errors = outcomes.tested, outcomes.errors
        small = self.space.sizes(reduced) < self.smallest
        p, methods = np.where(small, 1.0, p), np.where(small, 0, methods).astype(np.int8)
        reasons = np.where(small, outcome_codes.SMALL_SLICE, reasons).astype(np.int8)
        return Outcomes(outcome_codes.Tested(np.maximum(p, SMALLEST_P), reasons, methods), errors)

    def _run_own(self, sums: IntArray, totals: IntArray) -> Outcomes:
        own, space = metric(self.metric), self.space
        if self.test != "permutation":
            tested = own.test(sums, totals, space, self.alternative)
        elif isinstance(own, Mean):
            tested = own.permuted(sums, totals, space, self.alternative)
        elif isinstance(own, CellMetric):
            merged, cells = own.own_cells(sums, space)
            everything = own.own_cells(totals, space)[0]
            counts, whole = cells.counts(merged), cells.counts(everything)
            tested = own.permuted(counts, whole, cells, own.tail(self.alternative))
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
        return self._t(reduced, of_all, deltas[:, 0], deltas[:, 1:], outcome_codes.BOOTSTRAP_ROWS)

    def _run_cells(self, sums: IntArray, totals: IntArray) -> Outcomes:
        own, space = metric(self.metric), self.space
        if not isinstance(own, CellMetric):
            raise TypeError(f"{self.metric} is not a metric of counts")
        merged, cells = own.own_cells(sums, space)
        whole = cells.counts(own.own_cells(totals, space)[0])
        drawn, drawn_totals = self._drawn_cells(cells.counts(merged), whole)
        flat = drawn.reshape(-1, cells.cells).astype(np.float64)
        values = own.of_cells(flat, cells)
        if space.comparison == "baseline":
            references = own.of_cells(flat, cells, old=True)
        else:
            references = own.of_cells(drawn_totals.reshape(flat.shape).astype(np.float64), cells)
        deltas = (values - references).reshape(drawn.shape[:2])
        delta = own.delta(sums, totals, space)
        return self._t(sums, totals, delta, deltas, outcome_codes.BOOTSTRAP_CELLS)

    def _t(
        self, sums: IntArray, totals: IntArray, delta: FloatArray, deltas: FloatArray, method: int
    ) -> Outcomes:
        own = metric(self.metric)
        p, reasons, errors = paper.t_p_value(delta, deltas, own.tail(self.alternative))
        if self.test in PAPER:
            if self.space.comparison == "overall":
                whole = self.space.sizes(sums) == self.space.sizes(totals)
                reasons = np.where(whole, outcome_codes.WHOLE, reasons).astype(np.int8)
            return Outcomes(outcome_codes.Tested.by(outcome_codes.PAPER, p, reasons), errors)
        against = own.untestable(sums, totals, self.space)
        reasons = np.where(against != 0, against, reasons).astype(np.int8)
        methods = np.full(len(sums), method, np.int8)
        if self.space.comparison == "baseline":
            self._judge_constant_changes(sums, totals, delta, p, reasons, methods, errors)
        return Outcomes(outcome_codes.Tested.by(methods, p, reasons), errors)

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
        """Put the metric's own test of a change in the place of replicates that do not vary.

        Where the metric has none the slice is not tested, and the reason says that the models differ.
        """
        at = np.flatnonzero((reasons == outcome_codes.NO_VARIANCE) & (delta != 0))
        if not at.size:
            return
        own = metric(self.metric)
        judged = own.test(sums[at], totals, self.space, self.alternative)
        # That of two AUCs is only quick, and Hall's t has no variance either.
        holds = isinstance(own, CellMetric) | (judged.methods == outcome_codes.SIGN_FLIP)
        holds &= judged.reasons == 0
        p[at] = np.where(holds, judged.p, 1.0)
        methods[at] = np.where(holds, judged.methods, 0)
        reasons[at] = np.where(holds, 0, outcome_codes.UNVARYING)
        errors[at] = np.nan

    def _drawn_cells(self, observed: IntArray, totals: IntArray) -> tuple[IntArray, IntArray]:
        """Return replicate counts of the slices and of all examples, by independent atoms."""
        if self.space.comparison == "baseline":
            drawn = paper.poisson_cell_counts(observed, self.replicates, self.seed)
            return drawn, drawn
        atoms = np.concatenate([observed, totals[None, :] - observed], axis=1)
        drawn = paper.poisson_cell_counts(atoms, self.replicates, self.seed)
        cells = observed.shape[1]
        inside, outside = drawn[..., :cells], drawn[..., cells:]
        return inside, inside + outside
