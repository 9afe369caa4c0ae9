"""The size of a finding, corrected for its having been selected.

The true difference δ has the conditional likelihood φ((d − δ)/σ)/σ / P(abs(D) > c | δ), whose mean is the
estimate: "The corrected difference" of docs/explanation/statistics.md.
"""

from __future__ import annotations

import numpy as np
from scipy.special import log_ndtr, ndtri

from slicebeam.metrics.arrays import ArrayLike, BoolArray, FloatArray, floats
from slicebeam.metrics.significance.intervals import bisect, normal_quantile

# The likelihood is summed at so many points, from so many errors below 0 to as many above z.
_POINTS, _BEYOND = 512, 8.0
_OFF = float(normal_quantile(0.95))
_MISSED = 0.025  # on each side


def selected_above(p: float, bound: float, gain: float, cost: float) -> float:
    """Return the z that a finding had to exceed: that of its bound, or of no gain, for gain + cost grows with z²."""
    ratio = gain + cost
    least = -float(ndtri(p)) * np.sqrt(max(cost, 0.0) / ratio) if ratio > 0 else 0.0
    return float(max(-ndtri(bound), least))


def standardised(
    z: ArrayLike, c: ArrayLike, null: ArrayLike = 1.0, far: ArrayLike = 1.0
) -> tuple[FloatArray, FloatArray]:
    """Return the estimate of θ and its interval's end towards 0, of z that were selected above c.

    ``null`` is the error where θ is 0, ``far`` at the upper end, z + 1.96·far, in units of that at z.
    """
    seen, above, at_null, at_far = floats(z, c, null, far)
    above = np.minimum(above, seen)
    near = np.maximum(seen - _OFF, 0.5 * seen)

    def error(theta: FloatArray) -> FloatArray:
        below, beyond = theta / near, (theta - seen) / (_OFF * at_far)
        variance = at_null**2 + (1.0 - at_null**2) * np.clip(below, 0.0, 1.0)
        return np.asarray(np.sqrt(variance + (at_far**2 - 1.0) * np.clip(beyond, 0.0, 1.0)))

    def log_selected(theta: FloatArray, errors: FloatArray) -> FloatArray:
        sides = (log_ndtr((side * theta - above) / errors) for side in (1.0, -1.0))
        return np.asarray(np.logaddexp(*sides))

    theta = np.linspace(-_BEYOND * at_null, seen + _BEYOND * at_far, _POINTS)
    errors = error(theta)
    likelihood = -0.5 * ((seen - theta) / errors) ** 2 - log_selected(theta, errors)
    likelihood = np.exp(likelihood - likelihood.max(axis=0)) / errors
    mean = (likelihood * theta).sum(axis=0) / likelihood.sum(axis=0)
    estimate = np.minimum(mean, seen)

    def exceeds_less(theta: FloatArray) -> BoolArray:
        errors = error(theta)
        exceeded = log_ndtr((theta - seen) / errors) - log_selected(theta, errors)
        return np.asarray(exceeded < np.log(_MISSED))

    return estimate, bisect(exceeds_less, -above - _OFF * at_null, seen)


def difference(
    observed: float, ends: tuple[float, float], z: float, c: float, null_error: float
) -> tuple[float, float, float]:
    """Return a difference and its 95 % interval as they are without selection; the far one of its ``ends`` stays."""
    sign = 1.0 if observed >= 0 else -1.0
    size = abs(observed)
    near, far = sorted(sign * end for end in ends)
    unit, beyond = (size - near) / _OFF, (far - size) / _OFF
    if not (z > 0 and size > 0 and 0 < unit < np.inf and 0 < null_error < np.inf):
        return observed, *ends
    stretch = beyond / unit if 0 < beyond < np.inf else 1.0
    in_units = standardised(size / unit, size / unit * c / z, null_error / unit, stretch)
    middle, towards = (sign * unit * np.array(in_units)).tolist()
    low, high = sorted((towards, sign * far))
    return middle, low, high
