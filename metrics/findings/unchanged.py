"""Whether a slice changed between two models at all, whatever others did.

Where an update helps nearly everywhere, a slice that it leaves alone is worse than expected, and is no
finding: nothing happened there. Chance makes the change of such a slice positive half the time.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from slicebeam.metrics.significance.mcnemar import mid_p

if TYPE_CHECKING:
    from slicebeam.metrics.findings.deviation_law import DeviationLaw
    from slicebeam.metrics.kinds import Tail


def change_p_value(
    net: float, squares: float, size: float, law: DeviationLaw, tail: Tail, *, counts: bool
) -> float:
    """Return the p-value of a slice's summed change against 0.

    Parameters
    ----------
    net : float
        Σ weight·change of its examples.
    squares : float
        Σ (weight·change)².
    size : float
        Its examples; with weights Σ weight² over the mean squared weight of all.
    law : DeviationLaw
        Of the deviations of all examples' weighted changes.
    tail : {"upper", "lower", "both"}
    counts : bool
        Whether changes are −1, 0 and 1, without weights.

    Returns
    -------
    float
        1.0 where no example changed.

    Notes
    -----
    Counts: McNemar's mid-p. Otherwise the score test, whose variance is that of changes about 0, with
    deviations of the shape of all examples' (`DeviationLaw`). Assumption: examples are independent.

    Examples
    --------
    Of 30 examples 12 became wrong and 2 right:

    >>> from slicebeam.metrics.findings.deviation_law import DeviationLaw
    >>> from slicebeam.metrics.significance.subset_law import Population
    >>> law = DeviationLaw(Population((-1.0, 0.0, 1.0), (50.0, 900.0, 50.0), 1.0))
    >>> round(change_p_value(10.0, 14.0, 30.0, law, "upper", counts=True), 4)
    0.0037
    >>> round(change_p_value(10.0, 14.0, 30.0, law, "upper", counts=False), 4)
    0.0038
    """
    if not squares > 0:
        return 1.0
    if counts:
        worse, better = np.rint([(squares + net) / 2, (squares - net) / 2])
        return float(mid_p(worse, better, tail))
    one = np.ones(1)
    return law.p_value(net, size * one, one, squares / size * one, 0.0, tail)
