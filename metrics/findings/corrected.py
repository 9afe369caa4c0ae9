"""The size of a finding, corrected for its having been selected.

A finding is listed only because its p-value passed a threshold, so that its observed difference is
too large on average, the more the closer it passed. With z the normal quantile of p, and c that of
the threshold, the true standardised difference θ has the conditional likelihood
φ(z − θ)/P(abs(Z) > c | θ): Zöllner and Pritchard (2007), Am. J. Hum. Genet. 80:605; Zhong and
Prentice (2008), Biostatistics 9:621. The estimate is the mean of that likelihood, the second of those
of Ghosh, Zou and Wright (2008), Am. J. Hum. Genet. 82:1064; its maximum shrinks more than other
examples show (`benchmarks/selected_sizes.py`). The interval is the equal-tailed one.

Assumption: Z is normal with variance 1 about θ. A search for one direction selects Z > c, which is
the same but for θ near 0 and below, where slices pass less often than the test's level says. That
the largest gain was chosen among the slices that pass is not taken into account.
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

# The likelihood is summed at so many points, from so far below 0 to as far above z.
_POINTS, _BEYOND = 512, 8.0
_CONFIDENCE = 0.95


class Corrected(NamedTuple):
    """An estimate with its interval."""

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


def standardised(z: ArrayLike, c: ArrayLike, confidence: float = _CONFIDENCE) -> Corrected:
    """Return the estimate of θ and its interval, of z that were selected above c.

    The interval solves P(Z > z | θ, abs(Z) > c) = (1 ∓ confidence)/2.

    A difference that just passed may be next to nothing; one that is far above is as it was seen:

    >>> [round(float(end), 2) for end in standardised(4.4, 4.2)]
    [2.19, -0.3, 5.86]
    >>> [round(float(end), 2) for end in standardised(9.0, 4.2)]
    [9.0, 7.04, 10.96]
    """
    seen, above = floats(z, c)
    above = np.minimum(above, seen)
    theta = np.linspace(np.full(seen.shape, -_BEYOND), seen + _BEYOND, _POINTS)
    likelihood = -0.5 * (seen - theta) ** 2 - _log_selected(theta, above)
    likelihood = np.exp(likelihood - likelihood.max(axis=0))
    estimate = (likelihood * theta).sum(axis=0) / likelihood.sum(axis=0)
    off = normal_quantile(confidence)

    def solved(chance: float) -> FloatArray:
        """Return the largest θ with which z is exceeded no more often."""
        return bisect(
            lambda theta: log_ndtr(theta - seen) - _log_selected(theta, above) < np.log(chance),
            -above - off,
            seen + off + 1e-9,
        )

    low, high = solved(0.5 * (1.0 - confidence)), solved(0.5 * (1.0 + confidence))
    # At the threshold itself the interval is beside what is likely.
    return Corrected(estimate, np.minimum(low, estimate), np.maximum(high, estimate))


def difference(
    observed: float, ends: tuple[float, float], z: float, c: float
) -> tuple[float, float, float]:
    """Return a difference and its 95 % interval as they are without selection.

    θ is taken to a difference so that 0 is 0, z is the observed difference, and z ± 1.96 are the
    ``ends`` of its interval: where z is far above c nothing changes.
    """
    if not z > 0:
        return observed, *ends
    sign = 1.0 if observed >= 0 else -1.0
    near, far = sorted(sign * end for end in ends)
    size, off = abs(observed), normal_quantile(_CONFIDENCE)
    theta, sizes = [0.0, z, z + off], [0.0, size, max(size, far)]
    # An end on the other side of 0 would fold the scale.
    if z > off and 0.0 < near <= size:
        theta.insert(1, z - off)
        sizes.insert(1, near)
    found = np.array(standardised(z, c))
    moved = np.where(found < 0, found * size / z, np.interp(found, theta, sizes))
    middle, *interval = (sign * moved).tolist()
    low, high = sorted(interval)
    return middle, low, high


def _log_selected(theta: FloatArray, c: FloatArray) -> FloatArray:
    return np.asarray(np.logaddexp(log_ndtr(theta - c), log_ndtr(-theta - c)))
