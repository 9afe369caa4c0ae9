"""AutoSlicer's own test: t over Poisson-bootstrap replicates. Faithful, but not calibrated.

It is a Wald test in the limit: for small slices its false-positive rate is many times the nominal
one. Source: Liu, Rosen and Paul Suganthan (2022), "AutoSlicer: Scalable automated data slicing for
ML model analysis", section 3. Assumption: delta / sd(replicate deltas) is t-distributed on B − 1
degrees of freedom when there is no difference.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from scipy.special import stdtr

from slicebeam.metrics.significance.outcome_codes import Reason
from slicebeam.metrics.significance.tails import select_tail

if TYPE_CHECKING:
    from numpy.typing import ArrayLike, NDArray

    from slicebeam.metrics.arrays import FloatArray
    from slicebeam.metrics.kinds import Tail

UNDEFINED_SHARE = 0.05
# Replicates that differ by less, relative to the observed delta, are equal except for rounding.
_EQUAL = 1e-9


class PaperTest(NamedTuple):
    """P-values [slices], 1 where untested; reasons, and the deviation of the replicates, NaN if undefined."""

    p: FloatArray
    reasons: NDArray[np.int8]
    standard_error: FloatArray


def t_p_value(delta: ArrayLike, replicate_deltas: ArrayLike, tail: Tail) -> PaperTest:
    """Return t = delta / sd(replicate deltas [slices, B]) on B − 1 degrees of freedom.

    The deviation over replicates already is the standard error: it is not divided by √B. Not tested are
    slices of which the delta or more than 5 % of the replicates are NaN, or all are equal but for rounding.
    """
    observed = np.asarray(delta, dtype=np.float64)
    replicates = np.asarray(replicate_deltas, dtype=np.float64)
    defined = ~np.isnan(replicates)
    count = defined.sum(axis=1)
    too_few = (replicates.shape[1] - count > UNDEFINED_SHARE * replicates.shape[1]) | (count < 2)
    divisor = np.maximum(count, 1)
    mean = np.where(defined, replicates, 0.0).sum(axis=1) / divisor
    deviations = np.where(defined, replicates - mean[:, None], 0.0)
    sd = np.sqrt(np.square(deviations).sum(axis=1) / np.maximum(count - 1, 1))
    # Rounding can leave equal replicates a tiny deviation: they are compared instead.
    highest = np.where(defined, replicates, -np.inf).max(axis=1, initial=-np.inf)
    lowest = np.where(defined, replicates, np.inf).min(axis=1, initial=np.inf)
    undefined = too_few | np.isnan(observed)
    constant = (highest - lowest <= _EQUAL * np.abs(observed)) | (sd == 0.0)
    reasons = np.where(
        undefined, Reason.UNDEFINED_REPLICATES, np.where(constant, Reason.NO_VARIANCE, 0)
    ).astype(np.int8)
    tested = reasons == 0
    t = np.where(tested, observed, 0.0) / np.where(tested, sd, 1.0)
    freedom = np.maximum(count - 1, 1).astype(np.float64)
    p = select_tail(stdtr(freedom, -t), stdtr(freedom, t), tail)
    error = np.where(undefined, np.nan, np.where(constant, 0.0, sd))
    return PaperTest(np.where(tested, p, 1.0), reasons, error)
