"""The candidates of findings, and the chosen ones."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeAlias

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from slicebeam.metrics.arrays import BoolArray, FloatArray, IntArray
    from slicebeam.metrics.findings.covariance import Covariance
    from slicebeam.metrics.findings.groups import GroupSums
    from slicebeam.metrics.findings.model import ExpectationModel

StopReason = Literal["no candidates", "nothing left", "small differences", "most findings"]


class Candidates(NamedTuple):
    """The slices that findings are chosen from.

    Attributes
    ----------
    level : int64 [candidates] number of predicates, 1-based
    id : int64 [candidates] distinct; decides between candidates that are equal otherwise
    sizes : int64 or float64 [candidates, size columns] examples (in the denominator), or their
        weights and squared weights, in the units of ``TargetSums.size_scales``
    total : float64 [candidates] Σ weight·target
    significant : bool [candidates] against all examples, as the search corrects
    harm : float64 [candidates] the slice's own delta, positive where it is for the worse; of two
        models the change itself, so that a slice that improved less than others is no finding
    """

    level: IntArray
    id: IntArray
    sizes: NDArray[Any]
    total: FloatArray
    significant: BoolArray
    harm: FloatArray


class Changes(NamedTuple):
    """The changes of candidates between two models, to test whether they changed at all.

    Attributes
    ----------
    net : float64 [candidates] Σ weight·change
    squares : float64 [candidates] Σ (weight·change)²
    counts : whether changes are −1, 0 and 1, without weights
    """

    net: FloatArray
    squares: FloatArray
    counts: bool


# Sums of a few candidates by group and pattern, given the positions of the findings so far and of the
# candidates, and the patterns' masks.
CountGroups: TypeAlias = "Callable[[IntArray, IntArray, IntArray], GroupSums]"


class ChosenSlice(NamedTuple):
    """A candidate that is worse than expected from the findings before it.

    Attributes
    ----------
    candidate : position among the candidates
    size : examples (in the denominator), or summed weights
    value : observed mean target
    expected : mean target expected from the findings before it
    gain : log-likelihood ratio less the log of the level's number of tests
    p_value : conditional
    covariance : of value and expected
    held_size, held_total : examples, or weights, and sum of targets that this and the findings
        before hold
    held : share of the sum of all targets that they hold; NaN if it is 0
    outside : mean target of the examples outside all of them; NaN if there are none
    """

    candidate: int
    size: float
    value: float
    expected: float
    gain: float
    p_value: float
    covariance: Covariance
    held_size: float
    held_total: float
    held: float
    outside: float


class ChosenSlices(NamedTuple):
    """The findings, the model that they make, and why there are no more.

    Attributes
    ----------
    findings : in the order of their choice
    masks : int64 [patterns] which findings the examples of a pattern are in
    sums : float64 [patterns, columns] of all examples of each pattern, as `TargetSums` lays them out
    model : of all findings
    stop : ``nothing left``: no other candidate passes; ``small differences``: some do, but each says
        less than it takes to name it; ``most findings``: the limit was reached; ``no candidates``:
        none is significant and for the worse
    candidates : how many were looked at
    left_out : significant candidates for the worse that were not, because there are too many
    """

    findings: list[ChosenSlice]
    masks: IntArray
    sums: FloatArray
    model: ExpectationModel
    stop: StopReason
    candidates: int
    left_out: int
