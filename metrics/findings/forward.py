"""The choice of findings: again and again the candidate that says the most beyond those before it.

Many slices that are significant against all examples repeat a few causes. A candidate becomes a
finding if its sum is harmful *given* what the findings so far let one expect of it, at a level that
counts all slices that could have been chosen. Then the model learns its sum, and the others are
looked at again.

Sources: De Bie (2011), Data Min. Knowl. Discov. 23:407 (patterns are shown one after another, each
updates what is expected); Proença, Grünwald, Bäck and van Leeuwen (2022), Data Min. Knowl. Discov.
36:1885 (subgroup lists: the gain of a description less the cost of naming it); G'Sell, Wager,
Chouldechova and Tibshirani (2016), J. R. Statist. Soc. B 78:423 (stopping of an ordered path).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, NamedTuple, Protocol

import numpy as np
from scipy.special import ndtri, xlogy

from slicebeam.metrics.findings.conditional import (
    PatternMoments,
    cumulants,
    group_p_value,
    influence,
    mean_p_value,
    pattern_moments,
    rate_p_value,
)
from slicebeam.metrics.findings.model import ExpectationModel, fit
from slicebeam.metrics.findings.overlap import InsideCounts, Overlap
from slicebeam.metrics.findings.target_sums import MOST_FINDINGS, TargetSums

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import ArrayLike

    from slicebeam.metrics.kinds import Tail
    from slicebeam.metrics.significance.tails import BoolArray, FloatArray, IntArray

StopReason = Literal["no candidates", "nothing left", "most findings"]

# More candidates than these cost more than they say: those of the largest marginal gain are kept.
MOST_CANDIDATES = 200_000
# Gains that differ by less are the same: they are sums of floats.
_TIE = 2.0**-20
# A candidate is tested if the largest log-likelihood ratio that it can have is this part of what a
# normal law needs; a skewed law may need a little less.
_SCREEN = 0.8
_FIRST, _NEXT = 64, 512


class Candidates(NamedTuple):
    """The slices that findings are chosen from.

    Attributes
    ----------
    level : int64 [candidates] number of predicates, 1-based
    id : int64 [candidates] distinct; decides between candidates that are equal otherwise
    sizes : float64 [candidates, size columns] examples (in the denominator), or their weights and
        squared weights: see `TargetSums`
    total : float64 [candidates] Σ weight·target
    significant : bool [candidates] against all examples, as the search corrects
    harm : float64 [candidates] the slice's own delta, positive where it is for the worse; of two
        models the change itself, so that a slice that improved less than others is no finding
    """

    level: IntArray
    id: IntArray
    sizes: FloatArray
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
    held : share of the sum of all targets that this and the findings before hold; NaN if it is 0
    outside : mean target of the examples outside all of them; NaN if there are none
    """

    candidate: int
    size: float
    value: float
    expected: float
    gain: float
    p_value: float
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


def find(
    candidates: Candidates,
    everything: ArrayLike,
    layout: TargetSums,
    count_inside: Callable[[int, IntArray], InsideCounts],
    *,
    upward: bool,
    tests_per_level: Sequence[int],
    alpha: float = 0.05,
    most: int = MOST_FINDINGS,
    count_groups: CountGroups | None = None,
) -> Findings:
    """Choose the findings of one direction, one after another.

    Parameters
    ----------
    candidates : Candidates
    everything : float array [columns]
        Sums of all examples, as `layout` says.
    layout : TargetSums
        What is summed: a rate or a mean, with weights or without.
    count_inside : callable
        Given the position of the candidate that becomes a finding and the positions of the
        candidates to count, int64 [counted], it returns the sums of the finding's examples by the
        pattern they had before, `InsideCounts`, in which candidates are numbered as in the second
        argument. A pattern's bit k is the k-th finding chosen.
    upward : bool
        Whether large targets are for the worse, as errors and losses are.
    tests_per_level : sequence of int
        Slices of each level that could have been tested; its length is L.
    alpha : float
        Every step tests at α/L within a level, Bonferroni: under the hypothesis that the findings
        so far explain everything, one is added with probability at most α.
    most : int
        The most findings, at most 50.
    count_groups : callable, optional
        Where examples come in groups that depend on each other: sums of deviations by group, for
        the few candidates that pass the test of independent examples. A finding must pass both.

    Returns
    -------
    Findings

    Raises
    ------
    ValueError
        If shapes do not match, an option is out of its range, or counts contradict the candidates.

    Notes
    -----
    The gain of a candidate with size n, mean x̄ and expected mean μ̄ is n·KL(x̄ ‖ μ̄) for a rate (n of
    weighted examples is Kish's (Σw)²/Σw²) and z²/2 with the variance within patterns for a mean,
    less log m of the m tests of its level; it is 0 less log m where the candidate is not worse than
    expected. Candidates are taken in the order of gain, those that are equal by lower level, larger
    size and smaller id, and the first whose conditional p (`rate_p_value` or `mean_p_value`, one
    tail) is at most α/(L·m) is added.

    The result depends on sums only, not on the order of examples or on how they were counted.
    """
    _validate(candidates, tests_per_level, alpha, most)
    return _Choice(
        candidates,
        np.asarray(everything, np.float64),
        layout,
        upward=upward,
        tests=np.asarray(tests_per_level, np.float64),
        alpha=alpha,
    ).run(count_inside, count_groups, most)


def _validate(
    candidates: Candidates, tests_per_level: Sequence[int], alpha: float, most: int
) -> None:
    sizes = {len(column) for column in candidates}
    if len(sizes) != 1:
        raise ValueError(f"columns of candidates differ in length: {sorted(sizes)}")
    if not 0.0 < alpha < 1.0:
        raise ValueError(f"alpha = {alpha} is not within 0..1")
    if not 0 <= most <= MOST_FINDINGS:
        raise ValueError(f"most = {most} findings: 0 to {MOST_FINDINGS} are possible")
    level = np.asarray(candidates.level)
    if level.size and (level.min() < 1 or level.max() > len(tests_per_level)):
        raise ValueError(
            f"levels {level.min()}..{level.max()} were given, but tests of {len(tests_per_level)}"
        )
    if min(tests_per_level, default=1) < 0:
        raise ValueError(f"tests_per_level = {list(tests_per_level)} holds a negative number")


class _Choice:
    """The state of the choice: which candidates are looked at, and the sums by pattern."""

    def __init__(
        self,
        candidates: Candidates,
        everything: FloatArray,
        layout: TargetSums,
        *,
        upward: bool,
        tests: FloatArray,
        alpha: float,
    ) -> None:
        self.layout, self.sign = layout, 1.0 if upward else -1.0
        self.tail: Tail = "upper" if upward else "lower"
        eligible = np.flatnonzero(candidates.significant & (candidates.harm > 0))
        self.positions = eligible
        self._select(candidates, tests, alpha)
        self.overlap = Overlap(everything, self.sizes, layout)
        self.left_out = max(0, eligible.size - MOST_CANDIDATES)
        if self.left_out:
            gain = self._gain(self._model())[0]
            kept = np.sort(np.lexsort((candidates.id[eligible], -gain))[:MOST_CANDIDATES])
            self.positions = eligible[kept]
            self._select(candidates, tests, alpha)
            self.overlap = Overlap(everything, self.sizes, layout)

    def _select(self, candidates: Candidates, tests: FloatArray, alpha: float) -> None:
        some = self.positions
        self.level, self.id = candidates.level[some], candidates.id[some]
        self.sizes = np.asarray(candidates.sizes[some], np.float64)
        self.total = np.asarray(candidates.total[some], np.float64)
        of_level = np.maximum(tests, 1.0)[self.level - 1]
        self.cost = np.log(of_level)
        self.bound = alpha / (tests.size * of_level)
        self.free = self.sizes[:, 0] > 0

    def run(
        self,
        count_inside: Callable[[int, IntArray], InsideCounts],
        count_groups: CountGroups | None,
        most: int,
    ) -> Findings:
        found: list[Finding] = []
        model = self._model()
        stop: StopReason = "nothing left" if self.positions.size else "no candidates"
        while self.positions.size:
            if len(found) == most:
                stop = "most findings"
                break
            step = self._best(model, count_groups)
            if step is None:
                break
            chosen, gain, p, expected = step
            inside = count_inside(int(self.positions[chosen]), self.positions)
            self._check(chosen, inside)
            self.overlap.add(inside)
            self.free[chosen] = False
            size = float(self.sizes[chosen, 0])
            value = float(self.total[chosen]) / size
            held, outside = self._outside()
            found.append(
                Finding(
                    int(self.positions[chosen]),
                    size,
                    value,
                    expected / size,
                    gain,
                    p,
                    held,
                    outside,
                )
            )
            model = self._model()
        masks = self.overlap.masks
        return Findings(found, masks, model, stop, self.positions.size, self.left_out)

    def _model(self) -> ExpectationModel:
        sums = self.overlap.sums
        weight, total = self.layout.moment(sums, 1, 0), self.layout.moment(sums, 1, 1)
        return fit(self.layout.kind, self.overlap.masks, self.overlap.findings, weight, total)

    def _moments(self, model: ExpectationModel) -> PatternMoments:
        if self.layout.kind == "rate" and not self.layout.weighted:
            variance = np.where(model.varies, model.variance, 0.0)
            return PatternMoments(variance, variance * (1.0 - 2.0 * model.expected))
        return pattern_moments(model, self.overlap.sums, self.layout)

    def _outside(self) -> tuple[float, float]:
        """Return the share of all targets inside the findings, and the mean outside of them."""
        sums = self.overlap.sums
        weight, total = self.layout.moment(sums, 1, 0), self.layout.moment(sums, 1, 1)
        held = self.overlap.masks > 0
        rest = float(weight[~held].sum())
        everything = float(total.sum())
        return (
            float(total[held].sum()) / everything if everything else float("nan"),
            float(total[~held].sum()) / rest if rest > 0 else float("nan"),
        )

    def _check(self, chosen: int, inside: InsideCounts) -> None:
        size = float(self.layout.moment(inside.sums, 1, 0).sum())
        total = float(self.layout.moment(inside.sums, 1, 1).sum())
        wanted = float(self.sizes[chosen, 0]), float(self.total[chosen])
        scale = max(1.0, abs(wanted[0]), abs(wanted[1]))
        if max(abs(size - wanted[0]), abs(total - wanted[1])) > 1e-9 * scale:
            raise ValueError(
                f"candidate {int(self.positions[chosen])} has a size of {wanted[0]:g} and a total of "
                f"{wanted[1]:g}, but counting inside it found {size:g} and {total:g}"
            )

    def _gain(self, model: ExpectationModel) -> tuple[FloatArray, FloatArray, FloatArray]:
        """Return gain, expected sum and variance with a known model [candidates]."""
        layout = self.layout
        expected = self.overlap.weigh(model.expected)
        self.moments = self._moments(model)
        variance = self.overlap.weigh(self.moments.second, 2)
        if layout.kind == "rate":
            effective = layout.size(self.sizes, 1) ** 2 / np.maximum(
                layout.size(self.sizes, 2), 1e-300
            )
            size = np.maximum(self.sizes[:, 0], 1e-300)
            ratio = effective * _divergence(self.total / size, expected / size)
        else:
            excess = self.total - expected
            ratio = np.divide(
                0.5 * excess**2, variance, out=np.zeros(excess.shape), where=variance > 0
            )
        worse = self.sign * (self.total - expected) > 0
        return np.where(worse, ratio, 0.0) - self.cost, expected, variance

    def _best(
        self, model: ExpectationModel, count_groups: CountGroups | None
    ) -> tuple[int, float, float, float] | None:
        """Return the next finding, its gain, its p-value and its expected sum; None if none is left."""
        gain, expected, variance = self._gain(model)
        worse = self.free & (self.sign * (self.total - expected) > 0)
        some = np.flatnonzero(worse)
        ties = np.round(gain[some] / _TIE)
        keys = (self.id[some], -self.sizes[some, 0], self.level[some], -ties)
        order = some[np.lexsort(keys)]
        begin, batch = 0, _FIRST
        while begin < order.size:
            if begin == _FIRST:
                # The first ones have failed: most of the others can't pass.
                rest = order[begin:]
                rest = rest[self._may_pass(rest, gain, expected, variance)]
                order, begin, batch = rest, 0, _NEXT
                if not rest.size:
                    break
            tested = order[begin : begin + batch]
            found = self._first_passing(tested, model, count_groups)
            if found is not None:
                at, p = found
                return at, float(gain[at]), p, float(expected[at])
            begin += batch
        return None

    def _may_pass(
        self,
        some: IntArray,
        gain: FloatArray,
        expected: FloatArray,
        variance: FloatArray,
    ) -> BoolArray:
        """Say which candidates' p may be small enough.

        The variance within patterns whose own sums are known is at most that given the model's sums.
        """
        least = np.maximum(self.overlap.within(self.moments.second)[some], 0.0)
        excess = (self.total - expected)[some]
        with np.errstate(divide="ignore", invalid="ignore"):
            ratio = np.where(least > 0, variance[some] / least, np.inf)
            normal = np.where(least > 0, 0.5 * excess**2 / least, np.inf)
            likely = np.maximum(normal, (gain + self.cost)[some] * ratio)
        needed = 0.5 * ndtri(self.bound[some]) ** 2
        return np.asarray(~(likely < _SCREEN * needed))

    def _first_passing(
        self, some: IntArray, model: ExpectationModel, count_groups: CountGroups | None
    ) -> tuple[int, float] | None:
        parts = self.overlap.parts(some)
        passing: list[tuple[int, float, FloatArray]] = []
        for number, at in enumerate(some.tolist()):
            p = self._p_value(at, parts[number], model)
            if p > self.bound[at]:
                continue
            if count_groups is None:
                return at, p
            passing.append((at, p, parts[number]))
        if not passing or count_groups is None:
            return None
        positions = self.positions[[at for at, _, _ in passing]]
        scores = count_groups(positions, self.overlap.masks, model)
        weight = self.layout.moment(self.overlap.sums, 1, 0)
        for (at, p, part), score in zip(passing, scores, strict=True):
            slopes = influence(model, weight, self.layout.size(part, 1)).slopes
            by_groups = group_p_value(score.excess, score.of_model, slopes, score.sizes, self.tail)
            if by_groups <= self.bound[at]:
                return at, max(p, by_groups)
        return None

    def _p_value(self, at: int, part: FloatArray, model: ExpectationModel) -> float:
        layout, sums = self.layout, self.overlap.sums
        if layout.kind == "rate" and not layout.weighted:
            weight = layout.moment(sums, 1, 0)
            return rate_p_value(model, weight, part[:, 0], float(self.total[at]), self.tail)
        found = cumulants(model, self.moments, sums, part, float(self.total[at]), layout)
        known = float(layout.size(part, 2) @ self.moments.second)
        return mean_p_value(found, known, self.tail)


def _divergence(observed: FloatArray, expected: FloatArray) -> FloatArray:
    """Return the Kullback-Leibler divergence of two rates [candidates]; 0 where none is possible."""
    inside = np.clip(expected, 1e-300, 1.0)
    outside = np.clip(1.0 - expected, 1e-300, 1.0)
    value = xlogy(observed, observed / inside) + xlogy(1 - observed, (1 - observed) / outside)
    return np.asarray(np.maximum(value, 0.0))
