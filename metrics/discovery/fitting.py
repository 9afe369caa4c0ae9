"""EM in memory: where it starts, when it stops, and the loop between."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from slicebeam.metrics.discovery.embeddings import check_finite
from slicebeam.metrics.discovery.loss_heads import no_sums
from slicebeam.metrics.discovery.mixture import Mixture, MixtureSums, sums, sums_of_labels, updated
from slicebeam.metrics.discovery.ward import ward
from slicebeam.metrics.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import ArrayLike, NDArray

    from slicebeam.metrics.arrays import IntArray
    from slicebeam.metrics.discovery.embeddings import Embeddings

TOLERANCE = 1e-3
MOST_ITERATIONS = 100
# Of distances between numbers of single precision below 2 to this, sums of squares are finite.
_LARGEST_EXPONENT = 40
# Clusters of k-means for each component, before they are merged.
_CENTRES_PER_COMPONENT = 2


@dataclass(frozen=True)
class Fit:
    """A mixture as `fit` leaves it."""

    mixture: Mixture  # after the last M-step
    mean_log_likelihoods: tuple[float, ...]  # in nats, of the mixture before each M-step
    converged: bool  # whether the last two were less than the tolerance apart


def is_converged(mean_log_likelihoods: Sequence[float], tolerance: float = TOLERANCE) -> bool:
    """Return whether the last two iterations differ in the mean of ln by less than the tolerance."""
    if len(mean_log_likelihoods) < 2:
        return False
    return abs(mean_log_likelihoods[-1] - mean_log_likelihoods[-2]) < tolerance


def initial(
    z: Embeddings,
    losses: Sequence[ArrayLike] = (),
    *,
    components: int,
    seed: int,
    classes: Sequence[int | None] = (),
    loss_weight: float = 0.0,
) -> Mixture:
    """Return the mixture that EM starts from: one M-step from clusters of k-means, merged by Ward.

    One start of k-means with K centres often merges two true clusters and cuts another. So it is
    given twice as many centres, of which those are merged, weighted by their points, that raise the
    sum of squares within clusters least.
    """
    # Loading it takes longer than most chunks.
    from sklearn.cluster import KMeans
    from sklearn.exceptions import ConvergenceWarning

    if components < 1:
        raise InputError(f"{components} components; give at least 1")
    if z.ndim != 2 or z.shape[0] < components:
        raise InputError(
            f"{components} components cannot be initialised from {z.shape[0]} points; give fewer "
            "components or more data"
        )
    check_finite(z)
    heads = no_sums(components, losses, classes)
    centre = z.mean(axis=0, dtype=np.float64)
    # Squares of single precision would overflow, and a power of two changes no digit.
    exponent = int(np.frexp(np.abs(z).max(initial=0.0))[1])
    scaled = np.ldexp(z, -exponent) if exponent > _LARGEST_EXPONENT else z
    with warnings.catch_warnings():
        # It warns where fewer points are distinct.
        warnings.simplefilter("ignore", ConvergenceWarning)
        number = min(_CENTRES_PER_COMPONENT * components, z.shape[0])
        kmeans = KMeans(n_clusters=number, n_init=1, random_state=seed % (1 << 32)).fit(scaled)
    labels = _merged(scaled, kmeans.labels_, components)
    zero = MixtureSums.empty(components, centre, heads, loss_weight)
    return updated(sums_of_labels(labels, z, losses, zero))


def _merged(z: Embeddings, labels: NDArray[np.integer], clusters: int) -> IntArray:
    """Return the cluster of each point when no more are left than are wanted."""
    present, groups = np.unique(labels, return_inverse=True)
    centre = z.mean(axis=0, dtype=np.float64)
    # The means of the points, of which k-means only has those of the iteration before.
    found = sums_of_labels(groups, z, (), MixtureSums.empty(present.size, centre, (), 0.0))
    of_group = ward(found.first / found.sizes[:, None], found.sizes, clusters)
    return of_group[groups]


def fit(
    z: Embeddings,
    losses: Sequence[ArrayLike],
    start: Mixture,
    *,
    tolerance: float = TOLERANCE,
    most_iterations: int = MOST_ITERATIONS,
) -> Fit:
    """Return the mixture that EM leads to from a start, with all points in memory.

    Each iteration is `updated` of the `sums`: the E-step of the mixture so far, then the M-step; it
    is after the M-step that EM stops. The points are taken to be independent.
    """
    mixture, history = start, list[float]()
    while len(history) < most_iterations and not is_converged(history, tolerance):
        found = sums(mixture, z, losses)
        history.append(found.mean_log_likelihood)
        mixture = updated(found)
    return Fit(mixture, tuple(history), is_converged(history, tolerance))
