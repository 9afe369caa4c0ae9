"""What a metric is: a function of summed statistics, with its direction, range and tests."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from slicebeam.metrics.kinds import Alternative, Tail
    from slicebeam.metrics.statistic_space import StatisticSpace

# Fewer examples in a denominator say nothing that holds.
LEAST_DENOMINATOR = 10

# Reason codes of `Tested.reasons`: why a slice has no p-value of its own (p is then 1).
REASONS: tuple[str, ...] = (
    "",
    "the slice is all examples",
    "all examples have the same outcome",
    "the two models never differ on the slice",
    "too many undefined replicates",
    "nothing varies, so that there is no standard error",
    "the denominator is empty",
    f"fewer than {LEAST_DENOMINATOR} examples in the denominator",
    "too skewed, or weighted too unequally, for so few examples",
    "fewer than 30 groups",
    "far from significant by the first, quick test, so it was not resampled",
    "fewer examples than the metric needs",
    "no examples satisfy it",
    "the models differ, without variation that this test could go by",
)
(
    WHOLE,
    CONSTANT,
    UNCHANGED,
    UNDEFINED_REPLICATES,
    NO_VARIANCE,
    UNDEFINED,
    SMALL_DENOMINATOR,
    TOO_SKEWED,
    FEW_GROUPS,
    NOT_RESAMPLED,
    SMALL_SLICE,
    NO_EXAMPLES,
    UNVARYING,
) = range(1, len(REASONS))

# What `Tested.methods` counts: the test that gave a slice its p-value.
METHODS: tuple[str, ...] = (
    "",
    "hypergeometric mid-p",
    "signed-root likelihood ratio",
    "McNemar mid-p",
    "permutation of cells, Pearson III tail",
    "delta method, two models",
    "law of random subsets, saddle point",
    "Hall's paired t",
    "AUC z, null variance",
    "linearised t, weighted",
    "bootstrap of cells, t",
    "bootstrap of examples, t",
    "permutation of examples, Pearson III tail",
    "AutoSlicer's t",
    "bootstrap of groups, t",
    "exchange of the two models",
    "exact sign flips, constant change",
    "exact sign flips of whole groups, constant change",
)
(
    HYPERGEOMETRIC,
    LIKELIHOOD_RATIO,
    MCNEMAR,
    CELL_PERMUTATION,
    DELTA_METHOD,
    RANDOM_SUBSET,
    HALL_PAIRED,
    AUC_Z,
    LINEARISED,
    BOOTSTRAP_CELLS,
    BOOTSTRAP_ROWS,
    PERMUTATION,
    PAPER,
    BOOTSTRAP_GROUPS,
    EXCHANGE,
    SIGN_FLIP,
    SIGN_FLIP_GROUPS,
) = range(1, len(METHODS))


class Tested(NamedTuple):
    """The outcome of a test of many slices.

    Attributes
    ----------
    p : float64 [slices]; 1.0 where the test is degenerate, never NaN
    reasons : int8 [slices] position in ``REASONS``, 0 where the test was done
    methods : int8 [slices] position in ``METHODS``, 0 where no test was done
    """

    p: NDArray[np.float64]
    reasons: NDArray[np.int8]
    methods: NDArray[np.int8]

    @classmethod
    def by(
        cls,
        method: int | NDArray[np.int8],
        p: NDArray[np.float64],
        reasons: NDArray[np.int8],
    ) -> Tested:
        """Return p-values by one method, 1 where there is a reason against a test."""
        untested = reasons != 0
        methods = np.where(untested, 0, method).astype(np.int8)
        return cls(np.where(untested, 1.0, p), reasons.astype(np.int8), methods)


@dataclass(frozen=True)
class Needs:
    """What must be known of each example.

    Attributes
    ----------
    indicators : bits of its cell: ``wrong``, ``positive`` (its label), ``predicted`` (positive)
    classes : whether its label and predicted class are counted in pairs
    ranked : whether its score is counted by buckets
    values : names of what is summed, such as ``log_loss`` or ``mean:price``
    """

    indicators: tuple[str, ...] = ()
    classes: bool = False
    ranked: bool = False
    values: tuple[str, ...] = ()

    @property
    def scores(self) -> bool:
        """Whether the scores themselves are measured, not only the classes they predict."""
        return self.ranked or bool({"log_loss", "brier"} & set(self.values))

    @property
    def predicted_classes(self) -> bool:
        """Whether predictions are needed as classes."""
        return bool({"wrong", "predicted"} & set(self.indicators)) or self.classes

    @property
    def predicted_numbers(self) -> bool:
        """Whether labels and predictions are compared as numbers."""
        return bool({"mse", "mae", "bias"} & set(self.values))

    @property
    def losses(self) -> bool:
        """Whether the losses are given, and no predictions."""
        return "loss" in self.values

    @property
    def predictions(self) -> bool:
        """Whether a model is asked at all, and not only what the examples are."""
        return self.scores or self.predicted_classes or self.predicted_numbers

    @property
    def labels(self) -> bool:
        """Whether the true class, or number, of an example is asked for."""
        return self.predictions or bool(self.indicators)

    @property
    def one_class(self) -> bool:
        """Whether one class is set apart from the others."""
        return self.scores or bool({"positive", "predicted"} & set(self.indicators))


class Metric(ABC):
    """A metric: a function of a slice's sums.

    Arrays of sums are int64 [slices, columns] as `StatisticSpace` lays them out; ``totals`` are
    those of all examples [columns], followed by the sums that are wanted of all examples only.

    Attributes
    ----------
    name : what ``--metric`` calls it
    title : what a reader is told
    higher_is_better : its direction
    range : its smallest and largest value
    needs : what must be known of each example
    kind : ``pointwise`` if each example has a value of its own, whose mean the metric is
    min_slice_size : smallest slice that is tested by default
    compares_models : whether it can be compared between two models
    """

    name: str
    title: str
    higher_is_better: bool
    range: tuple[float, float]
    needs: Needs
    kind: Literal["pointwise", "aggregate"] = "pointwise"
    min_slice_size: int = 20
    compares_models: bool = True

    @abstractmethod
    def value(
        self, sums: NDArray[np.int64], space: StatisticSpace, *, old: bool = False
    ) -> NDArray[np.float64]:
        """Return the metric [slices], of the old model for ``old``; NaN without a denominator."""

    def value_of_raw(
        self, sums: NDArray[np.int64], space: StatisticSpace, *, old: bool = False
    ) -> NDArray[np.float64]:
        """Return the metric of sums [slices, raw columns], of which score buckets are not reduced."""
        return self.value(sums, space, old=old)

    def value_error(
        self, sums: NDArray[np.int64], space: StatisticSpace, *, old: bool = False
    ) -> NDArray[np.float64]:
        """Return how far the value [slices] may be from that of the examples; 0 where it is exact."""
        return np.zeros(len(sums))

    def complement_error(
        self, sums: NDArray[np.int64], space: StatisticSpace
    ) -> NDArray[np.float64]:
        """Return the same of the metric outside each slice [slices]."""
        return np.zeros(len(sums))

    def least_test_p(
        self,
        sums: NDArray[np.int64],
        totals: NDArray[np.int64],
        space: StatisticSpace,
        alternative: Alternative,
        tested: Tested,
    ) -> NDArray[np.float64]:
        """Return the smallest p-value [slices] of `test` that the error of the value leaves.

        Parameters
        ----------
        tested : what `test` returned for the same slices
        """
        return tested.p

    @abstractmethod
    def test(
        self,
        sums: NDArray[np.int64],
        totals: NDArray[np.int64],
        space: StatisticSpace,
        alternative: Alternative,
    ) -> Tested:
        """Test each slice against the whole, or the new model against the old one on the slice."""

    @abstractmethod
    def delta_interval(
        self,
        sums: NDArray[np.int64],
        totals: NDArray[np.int64],
        space: StatisticSpace,
        confidence: float,
    ) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Return the confidence interval (low, high) [slices] of the delta."""

    @abstractmethod
    def value_interval(
        self,
        sums: NDArray[np.int64],
        totals: NDArray[np.int64],
        space: StatisticSpace,
        confidence: float,
        *,
        old: bool = False,
    ) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Return the confidence interval (low, high) [slices] of the value."""

    @abstractmethod
    def p_refine(
        self,
        sums: NDArray[np.int64],
        parents: NDArray[np.int64],
        totals: NDArray[np.int64],
        space: StatisticSpace,
        *,
        worse: bool,
    ) -> NDArray[np.float64]:
        """Return how likely a random subset of the parent is as extreme as the child [pairs]."""

    @abstractmethod
    def inputs(
        self, sums: NDArray[np.int64], totals: NDArray[np.int64], space: StatisticSpace
    ) -> dict[str, float]:
        """Return the numbers that the test of one slice (sums [columns]) is computed from."""

    @abstractmethod
    def untestable(
        self, sums: NDArray[np.int64], totals: NDArray[np.int64], space: StatisticSpace
    ) -> NDArray[np.int8]:
        """Return the reasons [slices] against any test; 0 for none."""

    def needs_rows(self, space: StatisticSpace) -> bool:
        """Return whether the default test must resample examples: the sums do not tell enough."""
        return False

    def smallest_p(
        self,
        sums: NDArray[np.int64],
        totals: NDArray[np.int64],
        space: StatisticSpace,
        alternative: Alternative,
    ) -> NDArray[np.float64]:
        """Return the smallest p-value [slices] that the margins allow; 0 where that is not known."""
        return np.zeros(len(sums))

    def excess(
        self, sums: NDArray[np.int64], totals: NDArray[np.int64], space: StatisticSpace
    ) -> NDArray[np.float64] | None:
        """Return by how much disjoint sets of examples [sets] are worse, in a unit that adds up.

        None for a metric whose examples have no share of their own in it.
        """
        return None

    def change_variance(
        self, sums: NDArray[np.int64], space: StatisticSpace
    ) -> NDArray[np.float64] | None:
        """Return the variance [slices] of what each example adds to the delta.

        Of two models that of the change, of one that of the value. None for a metric that is no mean
        over all examples of the slice, or where they are weighted.
        """
        return None

    def tail(self, alternative: Alternative) -> Tail:
        """Return the tail of the metric's value that the alternative looks at."""
        if alternative == "both":
            return "both"
        return "lower" if (alternative == "worse") == self.higher_is_better else "upper"

    def reference(
        self, sums: NDArray[np.int64], totals: NDArray[np.int64], space: StatisticSpace
    ) -> NDArray[np.float64]:
        """Return what a slice [slices] is compared with: all examples, or the old model on it."""
        if space.comparison == "baseline":
            return self.value(sums, space, old=True)
        whole = self.value(totals[None, : space.columns], space)
        return np.broadcast_to(whole, (len(sums),)).copy()

    def complement(
        self, sums: NDArray[np.int64], totals: NDArray[np.int64], space: StatisticSpace
    ) -> NDArray[np.float64]:
        """Return the metric on the examples outside each slice [slices]."""
        return self.value(totals[None, : space.columns] - sums, space)

    def delta(
        self, sums: NDArray[np.int64], totals: NDArray[np.int64], space: StatisticSpace
    ) -> NDArray[np.float64]:
        """Return metric minus reference [slices]."""
        return self.value(sums, space) - self.reference(sums, totals, space)
