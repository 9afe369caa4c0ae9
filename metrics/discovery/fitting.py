"""EM in memory: where it starts (k-means, merged by Ward), when it stops, and the loop between."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from slicebeam.metrics.discovery.chunks import check_finite
from slicebeam.metrics.discovery.mixture import (
    Mixture,
    MixtureSums,
    no_sums,
    sums,
    sums_of_labels,
    updated,
)
from slicebeam.metrics.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import ArrayLike, NDArray

    from slicebeam.metrics.arrays import FloatArray, IntArray
    from slicebeam.metrics.discovery.chunks import Embeddings

TOLERANCE = 1e-3
MOST_ITERATIONS = 100
# Of distances between numbers of single precision below 2 to this, sums of squares are finite.
_LARGEST_EXPONENT = 40
# Clusters of k-means for each component, before they are merged.
_CENTRES_PER_COMPONENT = 2


@dataclass(frozen=True)
class Fit:
    """A mixture as `fit` leaves it, after the last M-step."""

    mixture: Mixture
    mean_log_likelihoods: tuple[float, ...]  # in nats, of the mixture before each M-step
    converged: bool


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
    """Return the mixture that EM starts from: one M-step from clusters of a sample of the points.

    k-means with K centres often merges two true clusters and cuts another, so it gets twice as many,
    which `ward` merges. Where fewer than K points are distinct, the last components are empty.
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
    """Return the cluster of each point when at most this number is left."""
    present, groups = np.unique(labels, return_inverse=True)
    centre = z.mean(axis=0, dtype=np.float64)
    # The means of the points, of which k-means only has those of the iteration before.
    total = sums_of_labels(groups, z, (), MixtureSums.empty(present.size, centre, (), 0.0))
    of_group = ward(total.first / total.sizes[:, None], total.sizes, clusters)
    return of_group[groups]


def ward(centres: FloatArray, sizes: FloatArray, clusters: int) -> IntArray:
    """Return the clusters of groups after merging the two nearest until this number is left.

    Nearest are the two whose merging adds least to the sum of squares, n_a n_b/(n_a + n_b)·|c_a − c_b|²
    (Ward 1963, JASA 58). The order of first groups numbers clusters, and decides between equals.
    """
    m = sizes.size
    centres, sizes = centres.astype(np.float64), sizes.astype(np.float64)
    of = np.arange(m)
    is_gone = np.zeros(m, bool)
    nearest, least = np.empty(m, np.int64), np.empty(m)

    def look(number: int) -> None:
        """Note what merging costs at least, and with which cluster."""
        apart = np.square(centres - centres[number]).sum(axis=1)
        costs = sizes * sizes[number] / (sizes + sizes[number]) * apart
        costs[is_gone] = np.inf
        costs[number] = np.inf
        nearest[number] = costs.argmin()
        least[number] = costs[nearest[number]]

    if clusters < m:
        for number in range(m):
            look(number)
    for _ in range(m - clusters):
        kept = int(least.argmin())
        gone = int(nearest[kept])
        total = sizes[kept] + sizes[gone]
        centres[kept] += (centres[gone] - centres[kept]) * (sizes[gone] / total)
        sizes[kept] = total
        of[of == gone] = kept
        is_gone[gone] = True
        least[gone] = np.inf
        # Costs to a merged cluster are no less than those to the nearer of its parts were, so that
        # nobody else's nearest changes.
        stale = ((nearest == kept) | (nearest == gone)) & ~is_gone
        stale[kept] = True
        for number in np.flatnonzero(stale).tolist():
            look(number)
    return np.unique(of, return_inverse=True)[1].astype(np.int64)


def fit(
    z: Embeddings,
    losses: Sequence[ArrayLike],
    start: Mixture,
    *,
    tolerance: float = TOLERANCE,
    most_iterations: int = MOST_ITERATIONS,
) -> Fit:
    """Return the mixture that EM leads to from a start, with all points in memory."""
    mixture, history = start, list[float]()
    while len(history) < most_iterations and not is_converged(history, tolerance):
        total = sums(mixture, z, losses)
        history.append(total.mean_log_likelihood)
        mixture = updated(total)
    return Fit(mixture, tuple(history), is_converged(history, tolerance))
