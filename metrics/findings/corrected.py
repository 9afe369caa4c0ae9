"""The size of a finding, corrected for its having been selected.

A finding is listed only because its p-value passed a threshold, so that its observed difference is
too large on average, the more the closer it passed. With z the normal quantile of p, and c that of
the threshold, the true standardised difference θ has the conditional likelihood
φ(z − θ)/P(selected | θ): Zöllner and Pritchard (2007), Am. J. Hum. Genet. 80:605, for genome scans;
Zhong and Prentice (2008), Biostatistics 9:621, whose equal-tailed interval this is. A finding is
selected if Z > c; where it could have been listed for either direction, if abs(Z) > c.

Assumption: Z is normal with variance 1 about θ. The choice of the largest gain among the slices that
pass is not taken into account.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from scipy.special import log_ndtr, ndtri

from slicebeam.metrics.arrays import floats
from slicebeam.metrics.intervals.intervals import bisect, normal_quantile

if TYPE_CHECKING:
    from numpy.typing import ArrayLike

    from slicebeam.metrics.arrays import FloatArray

_LOG_ROOT = 0.5 * np.log(2.0 * np.pi)


class Corrected(NamedTuple):
    """The estimate of θ, or of a difference, with its interval."""

    estimate: FloatArray
    low: FloatArray
    high: FloatArray


def selected_above(p: float, bound: float, gain: float, cost: float) -> float:
    """Return the z that a finding had to exceed: p had a bound, and the gain had to be above 0.

    The log-likelihood ratio, gain + cost, grows with z²; without gain it is the cost.

    >>> round(selected_above(1e-9, 1e-5, 12.0, 7.0), 4)
    4.2649
    """
    ratio = gain + cost
    least = -float(ndtri(p)) * np.sqrt(max(cost, 0.0) / ratio) if ratio > 0 else 0.0
    return float(max(-ndtri(bound), least))


def standardised(
    z: ArrayLike, c: ArrayLike, *, two_sided: bool = False, confidence: float = 0.95
) -> Corrected:
    """Return the maximum of the conditional likelihood between 0 and z, and the interval of θ.

    The interval solves P(Z > z | θ, selected) = (1 ∓ confidence)/2. It ends at −c: a slice that is
    further on the other side is selected less often than Φ(−2c).

    A difference that just passed may be next to nothing; one that is far above is as it was seen:

    >>> [round(float(end), 2) for end in standardised(4.4, 4.2)]
    [0.0, -4.2, 5.86]
    >>> [round(float(end), 2) for end in standardised(9.0, 4.2)]
    [9.0, 7.04, 10.96]
    """
    seen, above = floats(z, c)
    above = np.minimum(above, seen)
    off = normal_quantile(confidence)
    tail = np.log(0.5 * (1.0 - confidence)), np.log(0.5 * (1.0 + confidence))
    estimate = bisect(
        lambda theta: theta + _bias(theta, above, two_sided) < seen, np.zeros(seen.shape), seen
    )

    def solved(log_tail: float) -> FloatArray:
        """Return the largest θ with which z is exceeded no more often."""
        return bisect(
            lambda theta: log_ndtr(theta - seen) - _log_selected(theta, above, two_sided) < log_tail,
            -above,
            seen + off + 1e-9,
        )

    low, high = map(solved, tail)
    return Corrected(estimate, np.minimum(low, estimate), np.maximum(high, estimate))


def difference(
    observed: float, ends: tuple[float, float], z: float, c: float, *, two_sided: bool
) -> tuple[float, float, float]:
    """Return a difference and its interval as they are without selection.

    θ is taken to a difference so that 0 is 0, z is the observed difference, and z ± 1.96 the
    ``ends`` of its interval: where z is far above c nothing changes.
    """
    sign = 1.0 if observed >= 0 else -1.0
    near, far = sorted(sign * end for end in ends)
    size = abs(observed)
    off = normal_quantile(0.95)
    theta, sizes = [0.0, z, z + off], [0.0, size, max(size, far)]
    # An end on the other side of 0 would fold the scale.
    if z > off and 0.0 < near <= size:
        theta.insert(1, z - off)
        sizes.insert(1, near)
    found = np.array([float(part) for part in standardised(z, c, two_sided=two_sided)])
    scale = size / z if z > 0 else 0.0
    moved = np.where(found < 0, found * scale, np.interp(found, theta, sizes))
    middle, low, high = (sign * moved).tolist()
    return middle, min(low, high), max(low, high)


def _log_selected(theta: FloatArray, c: FloatArray, two_sided: bool) -> FloatArray:
    above = log_ndtr(theta - c)
    return np.asarray(np.logaddexp(above, log_ndtr(-theta - c)) if two_sided else above)


def _bias(theta: FloatArray, c: FloatArray, two_sided: bool) -> FloatArray:
    """Return E(Z | θ, selected) − θ, the slope of the log-probability of being selected."""
    of_all = _log_selected(theta, c, two_sided) + _LOG_ROOT
    bias = np.exp(-0.5 * (theta - c) ** 2 - of_all)
    if two_sided:
        bias = bias - np.exp(-0.5 * (theta + c) ** 2 - of_all)
    return np.asarray(bias)
