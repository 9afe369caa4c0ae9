"""Tells a space of statistics the deviations of all examples, as the preparation of a search does."""

from dataclasses import replace

import numpy as np

from slicebeam.metrics.counting.statistic_space import Deviations
from slicebeam.metrics.significance.random_subset import bin_edges, bin_sums, population


def compressed(deviations):
    """Return the population of values about 0."""
    edges = bin_edges(deviations.min(), deviations.max(), deviations.std())
    unit = 2.0 ** (int(deviations.size).bit_length() - 62)
    return population(bin_sums(deviations, edges, unit), edges, unit)


def with_deviations(space, name, values, weights=None):
    """Return the space with the deviations of all examples' values [examples] from their mean.

    Values that do not vary have no deviations.
    """
    shifted = values - space.shift(name)
    centre = float(np.average(shifted, weights=weights))
    deviations = (shifted - centre) * (1.0 if weights is None else weights)
    # About its mean, what is constant varies by rounding.
    if np.ptp(deviations) <= 1e-12 * np.abs(shifted).max():
        return space
    known = dict(space.deviations)
    known[name] = Deviations(centre, compressed(deviations))
    return replace(space, deviations=tuple(sorted(known.items())))
