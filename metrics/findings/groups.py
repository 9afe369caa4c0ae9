"""How surprising a candidate's sum is where whole groups of examples depend on each other."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from scipy.special import stdtr

from slicebeam.metrics.significance.tails import select_tail

if TYPE_CHECKING:
    from numpy.typing import ArrayLike

    from slicebeam.metrics.kinds import Tail

# Fewer groups say nothing of their variance.
LEAST_GROUPS = 30


def group_p_value(
    excess: ArrayLike, of_model: ArrayLike, slopes: ArrayLike, sizes: ArrayLike, tail: Tail
) -> float:
    """Return the p-value of a candidate's excess where whole groups of examples are independent.

    Parameters
    ----------
    excess : float array [groups]
        Σ weight·(target − expected) of the candidate's examples in each group.
    of_model : float array [groups, rank]
        The same summed over all examples of the group, for each of the model's `columns`.
    slopes : float array [rank]
        See `Influence`.
    sizes : float array [groups]
        The candidate's examples in each group, 0 where it has none.
    tail : {"upper", "lower", "both"}

    Returns
    -------
    float
        1.0 for fewer than 30 groups, and never below 2^−groups.

    Notes
    -----
    The group's scores e = excess − of_model·slopes add up to the whole excess; their squares
    estimate its variance whatever the dependence within groups (Liang and Zeger 1986, Biometrika
    73:13). About the mean score of the candidate's groups and with G − 1 degrees of freedom, as
    Student's t of G means: G is Kish's number Σ(n)²/Σn² where groups are of unequal size. No more
    than the chance that all groups' signs agree can be known of few groups.
    """
    own, whole = np.asarray(excess, np.float64), np.asarray(of_model, np.float64)
    n = np.asarray(sizes, np.float64)
    held = n > 0
    groups = int(np.count_nonzero(held))
    if groups < LEAST_GROUPS:
        return 1.0
    scores = own - whole @ np.asarray(slopes, np.float64)
    total = float(scores.sum())
    effective = float(n.sum() ** 2 / (n**2).sum())
    centred = float((scores**2).sum() - scores[held].sum() ** 2 / groups)
    variance = max(centred, 0.0) * groups / (groups - 1.0)
    if not variance > 0:
        towards = 0.0 if total else 1.0
    else:
        towards = float(stdtr(max(effective - 1.0, 1.0), -abs(total) / np.sqrt(variance)))
    towards = min(1.0, max(towards, 2.0 ** -min(groups, 900)))
    upper, lower = (towards, 1.0 - towards) if total >= 0 else (1.0 - towards, towards)
    return float(select_tail(np.array([upper]), np.array([lower]), tail)[0])
