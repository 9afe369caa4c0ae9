"""Tells a space of statistics the deviations of all examples, as the preparation of a search does."""

from dataclasses import replace

import numpy as np

from slicebeam.metrics.counting.statistic_space import Deviations
from slicebeam.metrics.significance.random_subset import bin_edges, bin_sums, population


def compressed(deviations):
    """Return the population of values about 0."""
    low, high = min(deviations.min(), 0.0), max(deviations.max(), 0.0)
    edges = bin_edges(low, high, deviations.std())
    unit = 2.0 ** (int(deviations.size).bit_length() - 62)
    return population(bin_sums(deviations, edges, unit), edges, unit)


def with_deviations(space, name, values, weights=None, old=None):
    """Return the space with the deviations of all examples' values [examples] from their mean, or changes from old ones.

    Values that do not vary have no deviations.
    """
    shifted = values - (space.shift(name) if old is None else old)
    centre = float(np.average(shifted, weights=weights)) if old is None else 0.0
    deviations = (shifted - centre) * (1.0 if weights is None else weights)
    # About its mean, what is constant varies by rounding.
    if np.ptp(deviations) <= 1e-12 * np.abs(shifted).max():
        return space
    known = dict(space.deviations)
    known[name] = Deviations(centre, compressed(deviations))
    return replace(space, deviations=tuple(sorted(known.items())))
