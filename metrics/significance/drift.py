"""Drift of data: whether something is more frequent now than it was then."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from scipy.special import betainc

if TYPE_CHECKING:
    from numpy.typing import ArrayLike, NDArray

    from slicebeam.metrics.arrays import FloatArray


def p_more_frequent(
    now: ArrayLike, examples_now: int, then: ArrayLike, examples_then: int
) -> FloatArray:
    """Return the p-value [things], one-sided, that something is as frequent in two sets of examples.

    Given that it occurs ``now + then`` times in all, the number of those among ``examples_now`` is
    binomial with the share of these examples (the conditional test of two Poisson rates: Przyborowski
    and Wilenski, Biometrika 31, 1940, p. 313). For shares of the examples, whose variance is smaller
    than that of a Poisson count, it errs on the careful side.

    Parameters
    ----------
    now, then : integers [things] or one integer, how many examples hold it
    examples_now, examples_then : how many examples there are, at least one

    >>> float(p_more_frequent(10, 4000, 0, 4000))  # 2 ** -10
    0.0009765625
    """
    share = examples_now / (examples_now + examples_then)
    counts = np.asarray(now, np.float64)
    # The upper tail of the binomial from `now` on is an incomplete beta function.
    tail: NDArray[Any] = betainc(np.maximum(counts, 1.0), np.asarray(then) + 1.0, share)
    return np.where(counts > 0, tail, 1.0)
