"""Whether a slice changed between two models at all, regardless of other slices.

Where an update helps nearly everywhere, a slice that it leaves alone is worse than expected, and is no
finding: nothing happened there. Chance makes the change of such a slice positive half the time.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from scipy.special import ndtr

from slicebeam.metrics.significance.count_tests import mcnemar_mid_p
from slicebeam.metrics.significance.pearson_iii import SMALLEST_P
from slicebeam.metrics.significance.tails import select_tail

if TYPE_CHECKING:
    from slicebeam.metrics.kinds import Tail


def change_p_value(net: float, squares: float, tail: Tail, *, counts: bool) -> float:
    """Return the p-value of a slice's summed change against 0.

    Parameters
    ----------
    net : float
        Σ weight·change of its examples.
    squares : float
        Σ (weight·change)².
    tail : {"upper", "lower", "both"}
    counts : bool
        Whether changes are −1, 0 and 1, without weights.

    Returns
    -------
    float
        At least 1e-300; 1.0 where no example changed.

    Notes
    -----
    Counts: McNemar's mid-p. Otherwise the normal tail of net/√squares, which changes that are as
    likely positive as negative exceed no more often, to a small factor, whatever their sizes (Efron
    1969, J. Am. Stat. Assoc. 64:1278). Assumption: examples are independent.

    Examples
    --------
    Of 30 examples 12 became wrong and 2 right:

    >>> round(change_p_value(10.0, 14.0, "upper", counts=True), 4)
    0.0037
    >>> round(change_p_value(10.0, 14.0, "upper", counts=False), 4)
    0.0038
    """
    if not squares > 0:
        return 1.0
    if counts:
        worse, better = np.rint([(squares + net) / 2, (squares - net) / 2])
        return float(mcnemar_mid_p(worse, better, tail))
    z = net / np.sqrt(squares)
    p = select_tail(np.array([ndtr(-z)]), np.array([ndtr(z)]), tail)
    return max(float(p[0]), SMALLEST_P)
