"""What a metric is: a number of a slice's examples, computed from sums, with its direction and tests."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Literal, NamedTuple

import numpy as np

from slicebeam.metrics import kinds
from slicebeam.metrics.arrays import BoolArray, FloatArray, IntArray, NDArray, Pair, ratio
from slicebeam.metrics.counting.counting import RowBlock
from slicebeam.metrics.counting.statistic_space import StatisticSpace
from slicebeam.metrics.kinds import Alternative, Tail
from slicebeam.metrics.measures.target_sums import TargetSums
from slicebeam.metrics.significance import hall
from slicebeam.metrics.significance.average_precision import Precisions
from slicebeam.metrics.significance.outcome_codes import Method, Reason, Tested

# A variance below this part of the mean square is what rounding of the sums leaves of nothing.
ROUNDING = 1e-12


@dataclass(frozen=True)
class Slices:
    """The sums of some sets of examples, with those of all examples that they are part of.

    Two slices and all 1,000 examples: true negatives, false negatives, false alarms, true positives.

    >>> from slicebeam.metrics.counting.statistic_space import StatisticSpace
    >>> space = StatisticSpace(("positive", "predicted"), "overall")
    >>> slices = Slices(np.array([[50, 20, 16, 14], [60, 4, 6, 30]]), space, np.array([600, 60, 90, 250]))
    >>> len(slices), slices.sizes, slices.total.sizes
    (2, array([100, 100]), array([1000]))
    >>> slices.where("positive & ~predicted")  # of the cells
    array([False,  True, False, False])
    >>> slices.count("positive & ~predicted"), slices.rest.count("positive & ~predicted")
    (array([20,  4]), array([40, 56]))
    """

    sums: IntArray  # [slices, columns], as the space lays them out
    space: StatisticSpace  # which statistics are summed
    # [columns], then what is needed of all examples only; left out where slices are not compared with them
    totals: IntArray = field(default_factory=lambda: np.zeros(0, np.int64))
    is_old: bool = False  # whether `counts` and the metrics are those of the old model

    def __len__(self) -> int:
        return len(self.sums)

    def __sub__(self, part: Slices) -> Slices:
        return replace(self, sums=self.sums - part.sums)

    def rows(self, rows: NDArray[Any] | slice) -> Slices:
        """Return some of the slices."""
        return replace(self, sums=self.sums[rows])

    @property
    def old(self) -> Slices:
        """The same, of the old model."""
        return replace(self, is_old=True)

    @property
    def total(self) -> Slices:
        """All examples, as one slice."""
        return replace(self, sums=self.totals[None, : self.space.columns])

    @property
    def rest(self) -> Slices:
        """The examples outside each slice."""
        return self.total - self

    @property
    def is_paired(self) -> bool:
        """Whether two models, or two data sets, are compared on each slice, rather than it with all examples."""
        return self.space.comparison != "overall"

    @property
    def sizes(self) -> IntArray:
        """Examples [slices]."""
        return self.space.sizes(self.sums)

    @property
    def counts(self) -> IntArray:
        """Examples by cell [slices, cells]."""
        return self.space.counts(self.sums)

    @cached_property
    def weights(self) -> FloatArray:
        """Σw by cell [slices, cells]; without weights examples."""
        return self.space.weights(self.sums)

    @cached_property
    def squares(self) -> FloatArray:
        """Σw² by cell [slices, cells]."""
        return self.space.weights(self.sums, 2) if self.space.weighted else self.weights

    @cached_property
    def weight(self) -> FloatArray:
        """Σw [slices]."""
        return np.asarray(self.weights.sum(axis=-1))

    @cached_property
    def precisions(self) -> Precisions:
        """Average precision, its errors and variance [slices]."""
        return self.space.precisions(self.sums)

    @property
    def cubes(self) -> FloatArray:
        """Σw³ by cell, which is not summed: as that of a gamma law."""
        # The mean square of weights over their squared mean; squares may be rounded to 0.
        unequal = ratio(self.counts * self.squares, self.weights**2, otherwise=1.0)
        shape = 2.0 - 1.0 / np.maximum(unequal, 1.0)
        return np.asarray(ratio(self.squares**2, self.weights, otherwise=0.0) * shape)

    def code(self, axis: str) -> IntArray:
        """Return an axis' value in each cell [cells]."""
        return self.space.code(axis, old=self.is_old)

    def where(self, condition: str) -> BoolArray:
        """Return the cells [cells] in which a condition on the indicators holds, all for an empty one."""
        holds = np.zeros(self.space.cells, bool)
        for alternative in condition.split("|"):
            part = np.ones(self.space.cells, bool)
            for literal in filter(None, map(str.strip, alternative.split("&"))):
                indicator = self.space.holds(literal.lstrip("~"), old=self.is_old)
                part &= indicator ^ literal.startswith("~")
            holds |= part
        return holds

    def count(self, condition: str | BoolArray) -> IntArray:
        """Return the examples [slices] that meet a condition, or are in some cells."""
        cells = self.where(condition) if isinstance(condition, str) else condition
        return np.asarray(self.counts[:, cells].sum(axis=1))

    def kish(self, within: BoolArray) -> FloatArray:
        """Return Kish's (1965) effective number of examples [slices] in some cells, (Σw)²/Σw²."""
        first = self.weights[:, within].sum(axis=1)
        return ratio(first**2, self.squares[:, within].sum(axis=1), otherwise=0.0)


@dataclass(frozen=True)
class Needs:
    """What must be known of each example."""

    # bits of its cell: ``wrong``, ``positive`` (its label), ``predicted`` (positive), ``disagree`` (two models do)
    indicators: tuple[str, ...] = ()
    classes: bool = False  # whether its label and predicted class are counted in pairs
    ranked: bool = False  # whether its score is counted by buckets
    values: tuple[str, ...] = ()  # names of what is summed, such as ``log_loss`` or ``mean:price``
    average_precision: bool = False  # whether it is kept of the buckets, beside the AUC

    def _averages(self, values: frozenset[str]) -> bool:
        """Whether some of its values, without their parameters, is of these."""
        return not values.isdisjoint(value.partition(":")[0] for value in self.values)

    def _has_indicator(self, prefix: str) -> bool:
        return any(indicator.startswith(prefix) for indicator in self.indicators)

    @property
    def scores(self) -> bool:
        """Whether the scores themselves are measured, not only the classes they predict."""
        above = self._has_indicator(kinds.ABOVE)
        return self.ranked or above or self._averages(kinds.OF_PROBABILITIES)

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
        return self._averages(kinds.OF_NUMBERS)

    @property
    def class_scores(self) -> bool:
        """Whether the scores of all classes are measured."""
        return self._averages(kinds.OF_CLASS_SCORES) or self._has_indicator(kinds.TOP)

    @property
    def label_lists(self) -> bool:
        """Whether lists of labels and predictions are compared."""
        return self._averages(kinds.OF_LISTS)

    @property
    def rankings(self) -> bool:
        """Whether an example is a query, with lists of relevances and of scores."""
        return self._averages(kinds.OF_RANKINGS)

    @property
    def losses(self) -> bool:
        """Whether the losses are given, and no predictions."""
        return "loss" in self.values

    @property
    def predictions(self) -> bool:
        """Whether a model's output is needed at all."""
        binary = self.scores or self.predicted_classes or self.predicted_numbers
        return binary or self.class_scores or self.label_lists or self.rankings

    @property
    def labels(self) -> bool:
        """Whether the true class, or number, of an example is needed."""
        return self.predictions or bool(self.indicators)

    @property
    def one_class(self) -> bool:
        """Whether one class is set apart from the others."""
        return self.scores or bool({"positive", "predicted"} & set(self.indicators))


class Target(NamedTuple):
    """What a metric averages over examples."""

    layout: TargetSums  # of its sums
    counted: BoolArray  # the cells of its denominator
    upward: bool  # whether large targets are harmful
    is_share: bool  # whether a slice's sum is a part of all examples'


class Movement(NamedTuple):
    """How single examples change between two models, on slices; None where only sums of values are known."""

    # the standard deviation of a change (Eyuboglu et al. 2024, section 2), NaN without weight
    inconsistency: FloatArray
    improved: IntArray | None = None  # examples that changed for the better
    degraded: IntArray | None = None  # for the worse
    counted: IntArray | None = None  # examples that count

    @classmethod
    def of_sums(cls, weight: FloatArray, first: FloatArray, second: FloatArray) -> Movement:
        """Return the inconsistency from the sums [slices] of weights, changes and squared changes."""
        mean, square = ratio(first, weight), ratio(second, weight)
        variance = square - mean**2
        # What is smaller is what rounding leaves of nothing.
        return cls(np.sqrt(np.where(variance > ROUNDING * square, variance, variance * 0.0)))


class Metric(ABC):
    """A metric: a function of the sums of `Slices`.

    A new metric of counts derives from `CellMetric`, which needs only a formula; `Mean` averages a value of each
    example. Others, such as AUC, which is of ranks, define the abstract methods below.

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
    >>> space = StatisticSpace(("positive", "predicted"), "overall")
    >>> sums, totals = np.array([[50, 20, 16, 14], [60, 4, 6, 30]]), np.array([600, 60, 90, 250])
    >>> metric, slices = NetBenefit(), Slices(sums, space, totals)
    >>> metric.value(slices)
    array([0.1  , 0.285])
    >>> metric.test(slices, "worse").p.round(4)
    array([0.001, 0.907])
    >>> low, high = metric.delta_interval(slices, 0.95)
    >>> low.round(2), high.round(2)
    (array([-0.2 , -0.03]), array([-0.06,  0.15]))

    Add it to ``slicebeam.metrics.measures.registry.METRICS``: the command line and all pipelines then know its name.
    """

    name: str  # what ``--metric`` calls it
    title: str  # its name for readers
    higher_is_better: bool
    range: tuple[float, float]  # its smallest and largest value
    needs: Needs  # what must be known of each example
    # ``pointwise`` if each example has a value of its own, whose mean the metric is
    kind: Literal["pointwise", "aggregate"] = "pointwise"
    min_slice_size: int = 20  # smallest slice that is tested by default
    compares_models: bool = True  # whether it can be compared between two models
    incomparable: str = "is the same for every model"  # why not, where it cannot
    takes_weights: bool = True  # whether examples may have weights
    resampled: bool = True  # whether a bootstrap, as of groups, tests it
    # which examples are in its denominator, in plain words; None for all
    counted: str | None = None
    indivisible: str | None = None  # without a `target`: why it is not an average over examples
    undefined: str = "no example is in its denominator"  # why it has no value where it has none

    @abstractmethod
    def value(self, slices: Slices) -> FloatArray:
        """Return the metric [slices]; NaN without a denominator."""

    @abstractmethod
    def test_subset(self, slices: Slices, tail: Tail) -> Tested:
        """Test whether slices that are not `untestable` are more extreme than random subsets of all examples."""

    def test_change(self, slices: Slices, tail: Tail) -> Tested:
        """Test the new model against the old one on slices that are not `untestable`."""
        raise NotImplementedError

    def margin_p(self, slices: Slices, margin: float, tail: Tail) -> FloatArray:
        """Return the p-value [slices] of "the delta is this margin"."""
        raise NotImplementedError

    @abstractmethod
    def delta_interval(self, slices: Slices, confidence: float) -> Pair:
        """Return the confidence interval (low, high) [slices] of the delta."""

    @abstractmethod
    def value_interval(self, slices: Slices, confidence: float) -> Pair:
        """Return the confidence interval (low, high) [slices] of the value."""

    def ahead(self, slices: Slices, parents: Slices) -> Pair:
        """Return variance and degrees of freedom [slices] of the delta less that of the parent, for `p_refine`."""
        raise NotImplementedError

    def seen(self, slices: Slices) -> Slices:
        """Return the slices over what this metric distinguishes: its test does not depend on other metrics."""
        return slices

    def test(self, slices: Slices, alternative: Alternative) -> Tested:
        """Test each slice against all examples, or the new model against the old one on the slice."""
        slices = self.seen(slices)
        law = self.test_change if slices.is_paired else self.test_subset
        tested = Tested.by(Method.NONE, np.ones(len(slices)), self.untestable(slices))
        valid = np.flatnonzero(tested.reasons == 0)
        if valid.size:
            # Weights of slices are computed once where all can be tested.
            rows = slices if valid.size == len(slices) else slices.rows(valid)
            parts = law(rows, self.tail(alternative))
            tested.p[valid], tested.reasons[valid], tested.methods[valid] = parts
        return tested

    def p_refine(self, slices: Slices, parents: Slices, tail: Tail) -> FloatArray:
        """Return how likely a random subset of the parent is as extreme as the child [slices], by Wald's test."""
        ahead = self.delta(slices) - self.delta(parents)
        return hall.wald_p_value(ahead, *self.ahead(slices, parents), tail)

    def undefined_reason(self, slices: Slices) -> str | None:
        """Return why the metric, or its change between two models, has no value on all examples."""
        whole = slices.total
        models = [whole, whole.old] if whole.is_paired else [whole]
        undefined = [bool(np.isnan(self.value(model)[0])) for model in models]
        if not any(undefined):
            return None
        model = "" if all(undefined) else f" by the {'new' if undefined[0] else 'old'} model"
        weighted = ", of those with a weight above 0" if whole.space.weighted else ""
        return f"{self.undefined}{model}{weighted}"

    def value_of_raw(self, slices: Slices) -> FloatArray:
        """Return the metric of sums [slices, raw columns], of which score buckets are not reduced."""
        return self.value(slices)

    def value_error(self, slices: Slices) -> FloatArray:
        """Return how far the value [slices] may be from that of the examples; 0 where it is exact."""
        return np.zeros(len(slices))

    def complement_error(self, slices: Slices) -> FloatArray:
        """Return the same of the metric outside each slice [slices]."""
        return np.zeros(len(slices))

    def least_test_p(self, slices: Slices, alternative: Alternative, tested: Tested) -> FloatArray:
        """Return the smallest p-value [slices] of `test` (which returned ``tested``) that the error leaves."""
        return tested.p

    def inputs(self, slices: Slices) -> dict[str, float]:
        """Return the numbers that the test of a single slice is computed from."""
        return {
            "n": float(slices.sizes[0]),
            "N": float(slices.total.sizes[0]),
            "value": float(self.value(slices)[0]),
            "reference": float(self.reference(slices)[0]),
        }

    def untestable(self, slices: Slices) -> NDArray[np.int8]:
        """Return the reasons [slices] against any test; 0 for none."""
        undefined = np.isnan(self.value(slices))
        if slices.is_paired:
            undefined |= np.isnan(self.value(slices.old))
        reasons = np.where(undefined, Reason.UNDEFINED, 0)
        if not slices.is_paired:
            reasons[slices.sizes == slices.total.sizes] = Reason.WHOLE
        return reasons.astype(np.int8)

    def needs_rows(self, space: StatisticSpace) -> bool:
        """Return whether the sums are not enough for the default test, which then resamples."""
        return False

    def target(self, space: StatisticSpace) -> Target | None:
        """Return what the metric averages; None if it is not an average over examples."""
        return None

    def target_sums(self, slices: Slices) -> FloatArray:
        """Return the sums of the target [slices, columns of its layout]."""
        raise ValueError(f"no average over the examples gives {self.name}")

    def weighted_targets(self, block: RowBlock, space: StatisticSpace) -> FloatArray:
        """Return weight times target of each example of a block [rows]."""
        raise ValueError(f"no average over the examples gives {self.name}")

    def of_target(self, mean: FloatArray, space: StatisticSpace) -> FloatArray:
        """Return the metric, or its change between two models, of the mean target [sets]."""
        return mean

    def change_variance(self, slices: Slices) -> FloatArray | None:
        """Return the variance [slices] of an example's part in the delta; None if weighted, or not a mean over all."""
        target = self.target(slices.space)
        if target is None or slices.space.weighted or not target.counted.all():
            return None
        sums = self.target_sums(slices)
        n, first, second = (target.layout.moment(sums, 1, power) for power in range(3))
        n = np.maximum(n, 1.0)
        return np.maximum(second / n - (first / n) ** 2, 0.0)

    def movement(self, slices: Slices) -> Movement | None:
        """Return how examples change between two models; None where a change of single examples is not defined."""
        return None

    def tail(self, alternative: Alternative) -> Tail:
        """Return the tail of the metric's value that the alternative tests."""
        if alternative == "both":
            return "both"
        return "lower" if (alternative == "worse") == self.higher_is_better else "upper"

    def reference(self, slices: Slices) -> FloatArray:
        """Return the reference of each slice [slices]: all examples, or the old model on it."""
        if slices.is_paired:
            return self.value(slices.old)
        return np.broadcast_to(self.value(slices.total), (len(slices),)).copy()

    def complement(self, slices: Slices) -> FloatArray:
        """Return the metric on the examples outside each slice [slices]."""
        return self.value(slices.rest)

    def delta(self, slices: Slices) -> FloatArray:
        """Return metric minus reference [slices]."""
        return self.value(slices) - self.reference(slices)


class OfOneModel(Metric):
    """A metric of one model and one data set, without weights, that no average over examples gives."""

    kind: Literal["pointwise", "aggregate"] = "aggregate"
    compares_models = False
    incomparable = "has no test of two models"
    takes_weights = False
