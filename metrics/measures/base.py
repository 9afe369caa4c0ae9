"""What a metric is: a function of summed statistics, with its direction, range and tests."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, NamedTuple

import numpy as np

from slicebeam.metrics.kinds import (
    ABOVE,
    OF_CLASS_SCORES,
    OF_LISTS,
    OF_NUMBERS,
    OF_PROBABILITIES,
    OF_RANKINGS,
    TOP,
)
from slicebeam.metrics.significance.outcome_codes import Reason

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from slicebeam.metrics.arrays import BoolArray, FloatArray, IntArray
    from slicebeam.metrics.counting.counting import RowBlock
    from slicebeam.metrics.counting.statistic_space import StatisticSpace
    from slicebeam.metrics.findings.target_sums import TargetSums
    from slicebeam.metrics.kinds import Alternative, Tail
    from slicebeam.metrics.significance.outcome_codes import Tested


# A variance below this part of the mean square is what rounding of the sums leaves of nothing.
ROUNDING = 1e-12


@dataclass(frozen=True)
class Needs:
    """What must be known of each example.

    Attributes
    ----------
    indicators : bits of its cell: ``wrong``, ``positive`` (its label), ``predicted`` (positive), ``disagree``
        (two models predict different classes)
    classes : whether its label and predicted class are counted in pairs
    ranked : whether its score is counted by buckets
    values : names of what is summed, such as ``log_loss`` or ``mean:price``
    """

    indicators: tuple[str, ...] = ()
    classes: bool = False
    ranked: bool = False
    values: tuple[str, ...] = ()

    @property
    def _kinds(self) -> set[str]:
        """The values without their parameters."""
        return {value.partition(":")[0] for value in self.values}

    @property
    def scores(self) -> bool:
        """Whether the scores themselves are measured, not only the classes they predict."""
        has_cut = any(one.startswith(ABOVE) for one in self.indicators)
        return self.ranked or has_cut or bool(OF_PROBABILITIES & set(self.values))

    @property
    def predicted_classes(self) -> bool:
        """Whether predictions are needed as classes."""
        return bool({"wrong", "predicted", "disagree"} & set(self.indicators)) or self.classes

    @property
    def two_models(self) -> bool:
        """Whether each example's value is one of two models together."""
        return "disagree" in self.indicators

    @property
    def predicted_numbers(self) -> bool:
        """Whether labels and predictions are compared as numbers."""
        return bool(OF_NUMBERS & self._kinds)

    @property
    def class_scores(self) -> bool:
        """Whether the scores of all classes are measured."""
        return bool(OF_CLASS_SCORES & set(self.values)) or any(
            one.startswith(TOP) for one in self.indicators
        )

    @property
    def label_lists(self) -> bool:
        """Whether lists of labels and predictions are compared."""
        return bool(OF_LISTS & set(self.values))

    @property
    def rankings(self) -> bool:
        """Whether an example is a query, with lists of relevances and of scores."""
        return bool(OF_RANKINGS & self._kinds)

    @property
    def losses(self) -> bool:
        """Whether the losses are given, and no predictions."""
        return "loss" in self.values

    @property
    def predictions(self) -> bool:
        """Whether a model's output is needed at all."""
        needed = self.scores, self.predicted_classes, self.predicted_numbers
        return any(needed) or self.class_scores or self.label_lists or self.rankings

    @property
    def labels(self) -> bool:
        """Whether the true class, or number, of an example is needed."""
        return self.predictions or bool(self.indicators)

    @property
    def one_class(self) -> bool:
        """Whether one class is set apart from the others."""
        return self.scores or bool({"positive", "predicted"} & set(self.indicators))


class Target(NamedTuple):
    """What a metric averages over examples: the layout of its sums, and the cells of its denominator.

    ``upward`` says that large targets are harmful, ``is_share`` that a slice's sum is a part of all examples'.
    """

    layout: TargetSums
    counted: BoolArray
    upward: bool
    is_share: bool


class Movement(NamedTuple):
    """How single examples change between two models, on slices.

    The standard deviation of an example's change (Eyuboglu et al. 2024, section 2), NaN without weight; how many
    changed for the better and for the worse, and how many count, None where only sums of values are known.
    """

    inconsistency: FloatArray
    improved: IntArray | None = None
    degraded: IntArray | None = None
    counted: IntArray | None = None

    @classmethod
    def of_sums(cls, weight: FloatArray, first: FloatArray, second: FloatArray) -> Movement:
        """Return the inconsistency from the sums [slices] of weights, changes and squared changes."""
        some = np.where(weight > 0, weight, np.nan)
        mean, square = first / some, second / some
        variance = square - mean**2
        # What is smaller is what rounding leaves of nothing.
        return cls(np.sqrt(np.where(variance > ROUNDING * square, variance, variance * 0.0)))


class Metric(ABC):
    """A metric: a function of a slice's sums.

    A new metric of counts derives from `CellMetric`, which needs only a formula.
    `Mean` averages a value of each example. Others define the abstract methods below.

    Arrays of sums are int64 [slices, columns] as `StatisticSpace` lays them out; ``totals`` are
    those of all examples [columns], followed by the sums that are needed for all examples only.

    Attributes
    ----------
    name : what ``--metric`` calls it
    title : its name for readers
    higher_is_better : its direction
    range : its smallest and largest value
    needs : what must be known of each example
    kind : ``pointwise`` if each example has a value of its own, whose mean the metric is
    min_slice_size : smallest slice that is tested by default
    compares_models : whether it can be compared between two models
    counted : which examples are in its denominator, in plain words; None for all
    indivisible : for a metric without a `target`: why it is not an average over examples
    undefined : why it has no value where it has none

    Examples
    --------
    Net benefit (Vickers and Elkin 2006): each true positive gains 1, each false alarm costs ¼.
    It is a formula of how many examples are hits, how many false alarms, and how many there are:

    >>> from slicebeam.metrics.measures.cell_metric import CellMetric, ratio
    >>> class NetBenefit(CellMetric):
    ...     name, title = "net_benefit", "Net benefit"
    ...     higher_is_better, range = True, (-0.25, 1.0)
    ...     counts = ("positive & predicted", "~positive & predicted", "")
    ...
    ...     def formula(self, hits, alarms, examples):
    ...         return ratio(hits - 0.25 * alarms, examples)

    Two slices and all 1,000 examples: true negatives, false negatives, false alarms and true
    positives. On which slice is the model worse than on all examples?

    >>> from slicebeam.metrics.counting.statistic_space import StatisticSpace
    >>> metric, space = NetBenefit(), StatisticSpace(("positive", "predicted"), "overall")
    >>> slices = np.array([[50, 20, 16, 14], [60, 4, 6, 30]])
    >>> everything = np.array([600, 60, 90, 250])
    >>> metric.value(slices, space)
    array([0.1  , 0.285])
    >>> metric.test(slices, everything, space, "worse").p.round(4)
    array([0.001, 0.907])
    >>> low, high = metric.delta_interval(slices, everything, space, 0.95)
    >>> low.round(2), high.round(2)
    (array([-0.2 , -0.03]), array([-0.06,  0.15]))

    Add it to ``slicebeam.metrics.registered.METRICS``: the command line and all pipelines then know it
    by name.
    """

    name: str
    title: str
    higher_is_better: bool
    range: tuple[float, float]
    needs: Needs
    kind: Literal["pointwise", "aggregate"] = "pointwise"
    min_slice_size: int = 20
    compares_models: bool = True
    counted: str | None = None
    indivisible: str | None = None
    undefined: str = "no example is in its denominator"

    @abstractmethod
    def value(self, sums: IntArray, space: StatisticSpace, *, old: bool = False) -> FloatArray:
        """Return the metric [slices], of the old model for ``old``; NaN without a denominator."""

    def undefined_reason(self, totals: IntArray, space: StatisticSpace) -> str | None:
        """Return why the metric, or its change between two models, has no value on all examples."""
        sums = totals[None, : space.columns]
        is_baseline = space.comparison == "baseline"
        values = [self.value(sums, space)[0]]
        values += [self.value(sums, space, old=True)[0]] if is_baseline else []
        undefined = [np.isnan(value) for value in values]
        if not any(undefined):
            return None
        model = "" if all(undefined) else f" by the {'new' if undefined[0] else 'old'} model"
        weighted = ", of those with a weight above 0" if space.weighted else ""
        return f"{self.undefined}{model}{weighted}"

    def value_of_raw(
        self, sums: IntArray, space: StatisticSpace, *, old: bool = False
    ) -> FloatArray:
        """Return the metric of sums [slices, raw columns], of which score buckets are not reduced."""
        return self.value(sums, space, old=old)

    def value_error(
        self, sums: IntArray, space: StatisticSpace, *, old: bool = False
    ) -> FloatArray:
        """Return how far the value [slices] may be from that of the examples; 0 where it is exact."""
        return np.zeros(len(sums))

    def complement_error(self, sums: IntArray, space: StatisticSpace) -> FloatArray:
        """Return the same of the metric outside each slice [slices]."""
        return np.zeros(len(sums))

    def least_test_p(
        self,
        sums: IntArray,
        totals: IntArray,
        space: StatisticSpace,
        alternative: Alternative,
        tested: Tested,
    ) -> FloatArray:
        """Return the smallest p-value [slices] of `test` (which returned ``tested``) that the error leaves."""
        return tested.p

    @abstractmethod
    def test(
        self, sums: IntArray, totals: IntArray, space: StatisticSpace, alternative: Alternative
    ) -> Tested:
        """Test each slice against the whole, or the new model against the old one on the slice."""

    @abstractmethod
    def delta_interval(
        self, sums: IntArray, totals: IntArray, space: StatisticSpace, confidence: float
    ) -> tuple[FloatArray, FloatArray]:
        """Return the confidence interval (low, high) [slices] of the delta."""

    @abstractmethod
    def value_interval(
        self,
        sums: IntArray,
        totals: IntArray,
        space: StatisticSpace,
        confidence: float,
        *,
        old: bool = False,
    ) -> tuple[FloatArray, FloatArray]:
        """Return the confidence interval (low, high) [slices] of the value."""

    @abstractmethod
    def p_refine(
        self,
        sums: IntArray,
        parents: IntArray,
        totals: IntArray,
        space: StatisticSpace,
        *,
        worse: bool,
    ) -> FloatArray:
        """Return how likely a random subset of the parent is as extreme as the child [pairs]."""

    def inputs(self, sums: IntArray, totals: IntArray, space: StatisticSpace) -> dict[str, float]:
        """Return the numbers that the test of one slice (sums [columns]) is computed from."""
        own = sums[None, :]
        return {
            "n": float(space.sizes(own)[0]),
            "N": float(space.sizes(totals)),
            "value": float(self.value(own, space)[0]),
            "reference": float(self.reference(own, totals, space)[0]),
        }

    def untestable(
        self, sums: IntArray, totals: IntArray, space: StatisticSpace
    ) -> NDArray[np.int8]:
        """Return the reasons [slices] against any test; 0 for none."""
        undefined = np.isnan(self.value(sums, space))
        if space.comparison == "baseline":
            undefined |= np.isnan(self.value(sums, space, old=True))
        reasons = np.where(undefined, Reason.UNDEFINED, 0)
        if space.comparison == "overall":
            reasons[space.sizes(sums) == space.sizes(totals)] = Reason.WHOLE
        return reasons.astype(np.int8)

    def needs_rows(self, space: StatisticSpace) -> bool:
        """Return whether the sums are not enough for the default test, which then resamples."""
        return False

    def target(self, space: StatisticSpace) -> Target | None:
        """Return what the metric averages; None if it is not an average over examples."""
        return None

    def target_sums(self, sums: IntArray, space: StatisticSpace) -> FloatArray:
        """Return the sums of the target of sets of examples [sets, columns of its layout]."""
        raise ValueError(f"no average over the examples gives {self.name}")

    def weighted_targets(self, block: RowBlock, space: StatisticSpace) -> FloatArray:
        """Return weight times target of each example of a block [rows]."""
        raise ValueError(f"no average over the examples gives {self.name}")

    def of_target(self, mean: FloatArray, space: StatisticSpace) -> FloatArray:
        """Return the metric, or its change between two models, of the mean target [sets]."""
        return mean

    def change_variance(self, sums: IntArray, space: StatisticSpace) -> FloatArray | None:
        """Return the variance [slices] of what each example adds to the delta, for two models of its change.

        None for a metric that is not a mean over all examples of the slice, or where they are weighted.
        """
        return None

    def movement(self, sums: IntArray, space: StatisticSpace) -> Movement | None:
        """Return how examples change between two models; None where a change of single examples is not defined."""
        return None

    def tail(self, alternative: Alternative) -> Tail:
        """Return the tail of the metric's value that the alternative tests."""
        if alternative == "both":
            return "both"
        return "lower" if (alternative == "worse") == self.higher_is_better else "upper"

    def reference(self, sums: IntArray, totals: IntArray, space: StatisticSpace) -> FloatArray:
        """Return the reference of each slice [slices]: all examples, or the old model on it."""
        if space.comparison == "baseline":
            return self.value(sums, space, old=True)
        whole = self.value(totals[None, : space.columns], space)
        return np.broadcast_to(whole, (len(sums),)).copy()

    def complement(self, sums: IntArray, totals: IntArray, space: StatisticSpace) -> FloatArray:
        """Return the metric on the examples outside each slice [slices]."""
        return self.value(totals[None, : space.columns] - sums, space)

    def delta(self, sums: IntArray, totals: IntArray, space: StatisticSpace) -> FloatArray:
        """Return metric minus reference [slices]."""
        return self.value(sums, space) - self.reference(sums, totals, space)
