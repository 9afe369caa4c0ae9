"""The candidates of findings, the chosen ones, and which examples are in several of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeAlias

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from slicebeam.metrics.arrays import BoolArray, FloatArray, IntArray
    from slicebeam.metrics.findings.groups import Covariance, GroupSums
    from slicebeam.metrics.findings.model import ExpectationModel

# Findings, the first ones, and sets of examples that a reader takes in.
MOST_FINDINGS, MOST_SETS = 10, 20
StopReason = Literal["no candidates", "nothing left", "small differences", "most findings"]


class Candidates(NamedTuple):
    """The slices that findings are chosen from."""

    level: IntArray  # [candidates] number of predicates, 1-based
    id: IntArray  # [candidates] distinct; decides between candidates that are equal otherwise
    # [candidates, size columns] examples in the denominator, or their weights and squared weights, in
    # the units of ``TargetSums.size_scales``
    sizes: NDArray[Any]
    total: FloatArray  # [candidates] Σ weight·target
    significant: BoolArray  # [candidates] against all examples, as the search corrects
    # [candidates] the slice's own delta, positive where it is for the worse; of two models the
    # change itself, so that a slice that improved less than others is no finding
    harm: FloatArray


class Changes(NamedTuple):
    """The changes of candidates between two models, to test whether they changed at all."""

    net: FloatArray  # [candidates] Σ weight·change
    squares: FloatArray  # [candidates] Σ (weight·change)²
    counts: bool  # whether changes are −1, 0 and 1, without weights


# Sums of a few candidates by group and pattern, given the positions of the findings so far and of the
# candidates, and the patterns' masks.
CountGroups: TypeAlias = "Callable[[IntArray, IntArray, IntArray], GroupSums]"


class ChosenSlice(NamedTuple):
    """A candidate that is worse than expected from the findings before it."""

    candidate: int  # position among the candidates
    size: float  # examples (in the denominator), or summed weights
    value: float  # observed mean target
    expected: float  # mean target expected from the findings before it
    gain: float  # log-likelihood ratio less the log of the level's number of tests
    p_value: float  # conditional
    selected_above: float  # the normal quantile that its p had to exceed
    null_error: float  # of its mean target, if the findings before it explained everything
    covariance: Covariance  # of value and expected
    cumulative_size: float  # examples, or weights, of all findings so far
    cumulative_total: float  # the sum of their targets
    held: float  # its share of the sum of all targets; NaN if that is 0
    outside: float  # mean target of the examples outside all of them; NaN if there are none


class ChosenSlices(NamedTuple):
    """The findings, the model that they make, and why there are no more."""

    findings: list[ChosenSlice]  # in the order of their choice
    masks: IntArray  # [patterns] which findings the examples of a pattern are in
    # [patterns, columns] of all examples of each pattern, as `TargetSums` lays them out
    sums: FloatArray
    model: ExpectationModel  # of all findings
    # ``nothing left``: no other candidate passes; ``small differences``: the gains of those that do
    # do not pay their description length; ``most findings``: the limit was reached; ``no
    # candidates``: none is significant and for the worse
    stop: StopReason
    candidates: int  # how many were looked at
    left_out: int  # significant candidates for the worse that were not, because there are too many


class Intersections(NamedTuple):
    """Sets of examples that are in the same of the first ten findings, the largest first."""

    masks: IntArray  # [sets] bit k is set where the examples are in finding k; 0 of those in none
    size: FloatArray  # [sets] number of the examples, or their weight
    total: FloatArray  # [sets] their summed targets


def largest_intersections(masks: IntArray, size: FloatArray, total: FloatArray) -> Intersections:
    """Add up patterns that are in the same of the first findings.

    >>> import numpy as np
    >>> sums = np.array([50.0, 30.0, 20.0])
    >>> largest_intersections(np.array([0, 1, 1 + (1 << 10)]), sums, sums / 2)
    Intersections(masks=array([0, 1]), size=array([50., 50.]), total=array([25., 25.]))
    """
    first, at = np.unique(masks & ((1 << MOST_FINDINGS) - 1), return_inverse=True)
    sums = [np.bincount(at, column, first.size) for column in (size, total)]
    sizes, totals = np.array(sums, np.float64)
    order = np.lexsort((first, -sizes))[:MOST_SETS]
    return Intersections(first[order], sizes[order], totals[order])
