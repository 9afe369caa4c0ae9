"""Discovery by its formulas, with all examples in memory: what a run has to publish.

Of the product it takes nothing but numbers that it published. EM starts from scikit-learn's k-means
and scipy's Ward, densities are those of the definition, p-values those of scipy.
"""

import json

import numpy as np
from scipy import special, stats
from scipy.cluster import hierarchy
from sklearn.cluster import KMeans

from tests.oracles import predicates
from tests.oracles.mixture_oracle import fit, m_step
from tests.oracles.significance import hypergeometric_mid_p, mcnemar_mid_p
from tests.random_subsets import student_root


def started(z, losses, K, seed, *, zero_one, loss_weight):
    """Return what EM starts from: an M-step from clusters of k-means that Ward's method merged."""
    x = z.astype(np.float32)
    clusters = KMeans(min(2 * K, len(z)), n_init=1, random_state=seed).fit(x).labels_
    means = np.stack([z[clusters == one].mean(axis=0) for one in clusters])
    merged = hierarchy.fcluster(hierarchy.linkage(means, "ward"), K, "maxclust")
    first = np.array([clusters[merged == one].min() for one in np.unique(merged)])
    component = np.argsort(np.argsort(first))[merged - 1]
    classes = [2 if zero_one else None] * len(losses)
    return m_step(np.eye(K)[component], z, losses, classes, loss_weight)


def fitted(z, losses, K, seed, *, zero_one=True, loss_weight=0.0):
    """Return the mixture, and the mean of ln before each of its iterations."""
    begin = started(z, losses, K, seed, zero_one=zero_one, loss_weight=loss_weight)
    return fit(begin, z, losses, iterations=100, tolerance=1e-3)


def coordinates(z, arrays):
    """Return what mixtures are fitted to, float32 as it is kept, by the published axes if any."""
    if "axes/axes" not in arrays:
        return z.astype(np.float32).astype(np.float64)
    found = (z.astype(np.float32) - arrays["axes/mean"]) @ arrays["axes/axes"].T
    return found.astype(np.float32).astype(np.float64)


def log_odds(joint):
    others = [special.logsumexp(np.delete(joint, j, axis=1), axis=1) for j in range(joint.shape[1])]
    return joint - np.stack(others, axis=1)


def z_of_changes(D, of=0.0):
    """Return z of a slice whose examples' losses fell by D [n]; their mean is compared with `of`."""
    return float(abs(np.mean(D) - of) / np.sqrt((np.var(D) + 0.05) / len(D)))


def p_accuracy(new_wrong, old_wrong, held):
    b = int((new_wrong & ~old_wrong & held).sum())
    return mcnemar_mid_p(b, int((old_wrong & ~new_wrong & held).sum()), "both")


def p_error(wrong, held):
    """Return the two-sided hypergeometric mid-p of one model's errors on a slice."""
    counts = int(held.sum()), int((wrong & held).sum()), len(wrong), int(wrong.sum())
    return hypergeometric_mid_p(*counts, "both")


def p_paired(D, held):
    """Return the two-sided p of Student's t by the law of all changes.

    On a lattice, such as changes of -1, 0 and 1, a tail begins .3 of a step nearer to the mean.
    """
    own, n, steps = D[held], int(held.sum()), np.diff(np.unique(D))
    span = steps.min() if np.allclose(steps / steps.min(), np.round(steps / steps.min())) else 0.0
    side = np.sign(own.sum())
    theta = (own.sum() - side * 0.3 * span) / np.sqrt(n * (own**2).sum())
    return float(min(1.0, 2 * stats.norm.sf(side * student_root(D, 1.0 / D.size, theta, n))))


def held_by(frame, predicate):
    told = json.loads(predicate) if isinstance(predicate, str) else predicate
    return predicates.mask(frame, told)
