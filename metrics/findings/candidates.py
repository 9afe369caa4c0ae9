"""What findings are chosen from, and what is known of those that were chosen."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Protocol

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from slicebeam.metrics.findings.model import ExpectationModel
    from slicebeam.metrics.significance.tails import BoolArray, FloatArray, IntArray

StopReason = Literal["no candidates", "nothing left", "most findings"]


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


class GroupScores(NamedTuple):
    """What `group_p_value` needs of one candidate.

    Attributes
    ----------
    excess, sizes : float64 [groups]
    of_model : float64 [groups, rank]
    """

    excess: FloatArray
    of_model: FloatArray
    sizes: FloatArray


class CountGroups(Protocol):
    """Sums the deviations from a model by group, for a few candidates."""

    def __call__(
        self, candidates: IntArray, masks: IntArray, model: ExpectationModel
    ) -> Sequence[GroupScores]:
        """Return the scores of each candidate."""


class Finding(NamedTuple):
    """A candidate that is worse than the findings before it let one expect.

    Attributes
    ----------
    candidate : position among the candidates
    size : examples (in the denominator), or summed weights
    value : observed mean target
    expected : mean target that the findings before it let one expect
    gain : log-likelihood ratio less the log of the level's number of tests
    p_value : conditional
    spread : deviation of value minus expected, of that of the value: the model was fitted to the
        same examples; NaN where nothing varies
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
    spread: float
    held_size: float
    held_total: float
    held: float
    outside: float


class Findings(NamedTuple):
    """The findings, the model that they make, and why there are no more.

    Attributes
    ----------
    findings : in the order of their choice
    masks : int64 [patterns] which findings the examples of a pattern are in
    model : of all findings
    stop : ``nothing left``: no other candidate passes; ``most findings``: the limit was reached;
        ``no candidates``: none is significant and for the worse
    candidates : how many were looked at
    left_out : significant candidates for the worse that were not, because there are too many
    """

    findings: list[Finding]
    masks: IntArray
    model: ExpectationModel
    stop: StopReason
    candidates: int
    left_out: int
