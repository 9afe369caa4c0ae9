"""Tells a space of statistics the deviations of all examples, as the preparation of a search does."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from slicebeam.metrics.counting.statistic_space import Deviations
from slicebeam.metrics.significance.random_subset import Population, bin_edges, bin_sums, population

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from slicebeam.metrics.counting.statistic_space import StatisticSpace


def compressed(deviations: NDArray[np.float64]) -> Population:
    """Return the population of values about 0."""
    edges = bin_edges(deviations.min(), deviations.max(), deviations.std())
    unit = 2.0 ** (int(deviations.size).bit_length() - 62)
    return population(bin_sums(deviations, edges, unit), edges, unit)


def with_deviations(
    space: StatisticSpace,
    name: str,
    values: NDArray[np.float64],
    weights: NDArray[np.float64] | None = None,
) -> StatisticSpace:
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
