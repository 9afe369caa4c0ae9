"""The choice of findings: repeatedly the candidate that adds most to those before it.

Many slices that are significant against all examples repeat a few causes. A candidate becomes a
finding if its sum is harmful *given* its expectation from the findings so far, at a level that
counts all slices that could have been chosen. Then the model is fitted to its sum, and the others
are evaluated again.

Sources: De Bie (2011), Data Min. Knowl. Discov. 23:407 (patterns are shown one after another, each
updates what is expected); Proença, Grünwald, Bäck and van Leeuwen (2022), Data Min. Knowl. Discov.
36:1885 (subgroup lists: the gain of a description less the cost of naming it); G'Sell, Wager,
Chouldechova and Tibshirani (2016), J. R. Statist. Soc. B 78:423 (stopping of an ordered path).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from slicebeam.metrics.findings.choice import Choice
from slicebeam.metrics.findings.target_sums import MOST_FINDINGS, TargetSums

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import ArrayLike, NDArray

    from slicebeam.metrics.arrays import FloatArray, IntArray
    from slicebeam.metrics.findings.candidates import Candidates, Changes, ChosenSlices, CountGroups
    from slicebeam.metrics.findings.deviation_law import DeviationLaw
    from slicebeam.metrics.findings.part_tables import CandidateParts, InsideCounts


def find(
    candidates: Candidates,
    everything: ArrayLike,
    layout: TargetSums,
    count_inside: Callable[[int, IntArray], InsideCounts],
    *,
    hold: Callable[[IntArray], CandidateParts | None] | None = None,
    upward: bool,
    tests_per_level: Sequence[int],
    law: DeviationLaw | None = None,
    alpha: float = 0.05,
    most: int = MOST_FINDINGS,
    count_groups: CountGroups | None = None,
    moments: Callable[[NDArray[Any]], FloatArray] | None = None,
    changes: Changes | None = None,
    no_change: float = 0.0,
) -> ChosenSlices:
    """Choose the findings of one direction, one after another.

    The gain of a candidate with size n, mean x̄ and expected mean μ̄ is n·KL(x̄ ‖ μ̄) for a rate (n of
    weighted examples is Kish's (Σw)²/Σw²) and z²/2 with the variance within patterns for a mean,
    less log m of the m tests of its level; it is 0 less log m where the candidate is not worse than
    expected. Candidates are taken in the order of gain, those that are equal by lower level, larger
    size and smaller id, and the first whose conditional p (`rate_p_value` or `sum_p_value`, one
    tail) is at most α/(L·m) is added. Those whose gain is not above 0 say less than it takes to
    name them, however small their p, and end the list.

    The result depends on sums only, not on the order of examples or on how they were counted; to the
    last bit where matrix products take one thread.
    """
    _validate(candidates, tests_per_level, alpha, most)
    return Choice(
        candidates,
        np.asarray(everything),
        layout,
        moments=_as_floats if moments is None else moments,
        count_inside=count_inside,
        upward=upward,
        tests=np.asarray(tests_per_level, np.float64),
        alpha=alpha,
        law=law,
        changes=changes,
        no_change=no_change,
    ).run(hold, count_groups, most)


def _as_floats(sums: NDArray[Any]) -> FloatArray:
    return np.asarray(sums, np.float64)


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
            f"levels {level.min()}..{level.max()} were given, but test counts for {len(tests_per_level)}"
        )
    if min(tests_per_level, default=1) < 0:
        raise ValueError(f"tests_per_level = {list(tests_per_level)} holds a negative number")
