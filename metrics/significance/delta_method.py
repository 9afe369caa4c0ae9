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

# Added to every cell's count in the variance of the paired test.
PSEUDO_COUNT = 0.5


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


def paired_variance(
    gradient_new: ArrayLike, gradient_old: ArrayLike, counts: ArrayLike
) -> FloatArray:
    """Return Var(ψ(new) − ψ(old)) [slices] = Σ_k c_k·(g_k^new − g_k^old)² over the joint cells."""
    difference = np.asarray(gradient_new, np.float64) - np.asarray(gradient_old, np.float64)
    terms = np.asarray(counts, dtype=np.float64) * np.square(difference)
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


def paired_p_value(
    delta: ArrayLike,
    gradient_new: ArrayLike,
    gradient_old: ArrayLike,
    counts: ArrayLike,
    tail: Tail,
) -> FloatArray:
    """Return the p-value [slices] of two models' difference; 1 where no example tells them apart.

    t = δ/√V with V = Σ_k (c_k + ½)·d_k², d = g^new − g^old, on Satterthwaite's (1946, Biometrics Bull.
    2:110) degrees of freedom 2V²/Σ_k (c_k + ½)·d_k⁴. Without the half example (Haldane 1956, Ann. Hum.
    Genet. 20:309) δ moves away from 0 and V shrinks together where a slice by chance has none of the few
    examples that weigh much. It costs power below about 20 examples that tell the models apart.
    """
    new = np.asarray(gradient_new, dtype=np.float64)
    old = np.asarray(gradient_old, dtype=np.float64)
    joint = np.asarray(counts, dtype=np.float64)
    # A gradient that overflows is no more defined than one that is NaN.
    finite = np.asarray(np.isfinite(new) & np.isfinite(old))
    defined = np.asarray(finite.all(axis=-1))
    square = np.square(np.where(finite, new, 0.0) - np.where(finite, old, 0.0))
    # Relative to its largest, so that fourth powers of gradients near 1/n do not underflow.
    largest = np.asarray(square.max(axis=-1, initial=0.0))
    unit = np.where(largest > 0, largest, 1.0)
    square /= np.expand_dims(unit, -1)
    told_apart = defined & ((joint * square).sum(axis=-1) > 0)
    smoothed = joint + PSEUDO_COUNT
    spread = (smoothed * square).sum(axis=-1)
    fourth = (smoothed * np.square(square)).sum(axis=-1)
    freedom = 2.0 * spread * spread / np.where(fourth > 0, fourth, 1.0)
    return wald_p_value(delta, np.where(told_apart, spread * unit, 0.0), freedom, tail)
