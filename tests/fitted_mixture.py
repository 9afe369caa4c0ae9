"""EM of a mixture with all points in memory, by the steps that a discovery does over files."""

from types import SimpleNamespace

from slicebeam.metrics.discovery.mixture import (
    MOST_ITERATIONS,
    TOLERANCE,
    is_converged,
    sums,
    updated,
)


def fit(z, losses, mixture, *, tolerance=TOLERANCE, most_iterations=MOST_ITERATIONS):
    """The last mixture, the likelihoods of those before it, and whether they converged."""
    history = []
    while len(history) < most_iterations and not is_converged(history, tolerance):
        total = sums(mixture, z, losses)
        history.append(total.mean_log_likelihood)
        mixture = updated(total)
    converged = is_converged(history, tolerance)
    return SimpleNamespace(mixture=mixture, mean_log_likelihoods=history, converged=converged)
