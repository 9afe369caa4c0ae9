"""Delta method: the variance of a smooth function of cell counts, from its gradient at the counts.

Counts of disjoint cells are taken as independent Poisson variables. For metrics that do not change
when all counts are multiplied by one factor this gives the same variance as a multinomial law.
Every function takes weighted data too: the counts are then sums of squared weights.

Source: Cox (2005), "Delta method", Encyclopedia of Biostatistics; for functions of counts Agresti
(2013), "Categorical Data Analysis", section 16.1.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from scipy.special import stdtr

from slicebeam.metrics.arrays import floats
from slicebeam.metrics.significance.tails import select_tail

if TYPE_CHECKING:
    from numpy.typing import ArrayLike

    from slicebeam.metrics.arrays import FloatArray
    from slicebeam.metrics.kinds import Tail


def variance(
    gradient_slice: ArrayLike, gradient_reference: ArrayLike, counts: ArrayLike, totals: ArrayLike
) -> FloatArray:
    """Return Var(ψ(slice) − ψ(all)) [slices] = Σ_k [c_k^S·(g_k^S − g_k^O)² + c_k^C·(g_k^O)²].

    The slice is a part of all examples: one of it moves both metrics, one of the complement C only that of
    all. Counts and totals may be sums of squared weights.
    """
    inside = np.asarray(counts, dtype=np.float64)
    outside = np.asarray(totals, dtype=np.float64) - inside
    own = np.asarray(gradient_slice, dtype=np.float64)
    whole = np.broadcast_to(np.asarray(gradient_reference, dtype=np.float64), own.shape)
    terms = inside * np.square(own - whole) + outside * np.square(whole)
    return np.asarray(terms.sum(axis=-1), dtype=np.float64)


def wald_p_value(
    delta: ArrayLike, variance: ArrayLike, freedom: ArrayLike, tail: Tail
) -> FloatArray:
    """Return the p-value of delta/√variance by Student's t; 1 where it is undefined or there is no variance."""
    difference, spread, degrees = floats(delta, variance, freedom)
    usable = np.isfinite(difference) & np.isfinite(spread) & (spread > 0) & (degrees > 0)
    t = np.where(usable, difference, 0.0) / np.sqrt(np.where(usable, spread, 1.0))
    freedoms = np.where(usable, degrees, 1.0)
    p = select_tail(np.asarray(stdtr(freedoms, -t)), np.asarray(stdtr(freedoms, t)), tail)
    return np.where(usable, p, 1.0)
