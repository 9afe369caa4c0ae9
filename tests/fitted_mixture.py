"""EM of a mixture with all points in memory, by the steps that a discovery does over files."""

from types import SimpleNamespace

from slicebeam.metrics.discovery import mixture as em


def fit(z, losses, start, *, tolerance=em.TOLERANCE, most_iterations=em.MOST_ITERATIONS):
    """The last mixture, the likelihoods of those before it, and whether they converged."""
    found = SimpleNamespace(mixture=start, mean_log_likelihoods=[], converged=False)
    while len(found.mean_log_likelihoods) < most_iterations and not found.converged:
        total = em.sums(found.mixture, z, losses)
        found.mean_log_likelihoods.append(total.mean_log_likelihood)
        found.mixture = em.updated(total)
        found.converged = em.is_converged(found.mean_log_likelihoods, tolerance)
    return found
