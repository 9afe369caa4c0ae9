"""Discovery by its formulas, with all examples in memory: what a run has to publish.

Of the product it takes nothing but numbers that it published. EM starts from scikit-learn's k-means
and scipy's Ward, densities are those of the definition, p-values those of scipy.
"""

import json
from dataclasses import dataclass

import numpy as np
from scipy import special, stats
from scipy.cluster import hierarchy
from sklearn.cluster import KMeans

from tests.oracles import predicates
from tests.oracles.significance import hypergeometric_mid_p, mcnemar_mid_p
from tests.random_subsets import student_root

EPS = 2.0**-52
FLOOR = 0.05
TOLERANCE, MOST_ITERATIONS = 1e-3, 100


@dataclass
class Mixture:
    """Parameters of K components; of a head either `shares` [K, C] or (means, variances) [K]."""

    weights: np.ndarray
    means: np.ndarray
    variances: np.ndarray
    heads: list[np.ndarray | tuple[np.ndarray, np.ndarray]]

    def arrays(self, loss_weight):
        """Return the parameters as mixture.npz names them."""
        found = {"weights": self.weights, "means": self.means, "variances": self.variances}
        found["loss_weight"] = np.array(loss_weight)
        for number, head in enumerate(self.heads):
            if isinstance(head, tuple):
                found[f"loss_means{number}"], found[f"loss_variances{number}"] = head
                found[f"loss_floor{number}"] = np.array(FLOOR)
            else:
                found[f"shares{number}"] = head
        return found


def log_joint(mixture, z, losses=(), loss_weight=0.0):
    """Return log π_j + Σ_d log N(z_d; μ, v) + γ Σ log f(ℓ|j): [n, K]."""
    deviation = np.sqrt(mixture.variances)
    densities = stats.norm.logpdf(z[:, None, :], mixture.means, deviation).sum(axis=2)
    joint = np.log(mixture.weights) + densities
    for head, loss in zip(mixture.heads, losses, strict=False):
        if isinstance(head, tuple):
            density = stats.norm.logpdf(loss[:, None], head[0], np.sqrt(head[1]))
        else:
            density = np.log(head[:, loss.astype(int)].T + EPS)
        joint += loss_weight * density
    return joint


def m_step(r, z, losses, *, zero_one):
    N = r.sum(axis=0) + 10 * EPS
    means = r.T @ z / N[:, None]
    variances = np.stack([r[:, j] @ (z - means[j]) ** 2 for j in range(len(N))]) / N[:, None]
    heads = []
    for loss in losses:
        if zero_one:
            heads.append(r.T @ np.stack([loss == 0, loss == 1], axis=1) / N[:, None])
            continue
        mean = r.T @ loss / N
        spread = (r * (loss[:, None] - mean) ** 2).sum(axis=0) / N + 1e-6
        heads.append((mean, np.maximum(spread, FLOOR)))
    return Mixture(N / len(z), means, variances + 1e-6, heads)


def started(z, losses, K, seed, *, zero_one):
    """Return what EM starts from: an M-step from clusters of k-means that Ward's method merged."""
    x = z.astype(np.float32)
    clusters = KMeans(min(2 * K, len(z)), n_init=1, random_state=seed).fit(x).labels_
    means = np.stack([z[clusters == one].mean(axis=0) for one in clusters])
    merged = hierarchy.fcluster(hierarchy.linkage(means, "ward"), K, "maxclust")
    first = np.array([clusters[merged == one].min() for one in np.unique(merged)])
    component = np.argsort(np.argsort(first))[merged - 1]
    return m_step(np.eye(K)[component], z, losses, zero_one=zero_one)


def fitted(z, losses, K, seed, *, zero_one=True, loss_weight=0.0):
    """Return the mixture, and the mean of ln before each of its iterations."""
    mixture, history = started(z, losses, K, seed, zero_one=zero_one), []
    while len(history) < MOST_ITERATIONS:
        joint = log_joint(mixture, z, losses, loss_weight)
        ln = special.logsumexp(joint, axis=1)
        history.append(float(ln.mean()))
        mixture = m_step(np.exp(joint - ln[:, None]), z, losses, zero_one=zero_one)
        if len(history) > 1 and abs(history[-1] - history[-2]) < TOLERANCE:
            break
    return mixture, history


def coordinates(z, arrays):
    """Return what mixtures are fitted to, float32 as it is kept, by the published axes if any."""
    if "axes/axes" not in arrays:
        return z.astype(np.float32).astype(np.float64)
    found = (z.astype(np.float32) - arrays["axes/mean"]) @ arrays["axes/axes"].T
    return found.astype(np.float32).astype(np.float64)


def log_odds(joint):
    others = [special.logsumexp(np.delete(joint, j, axis=1), axis=1) for j in range(joint.shape[1])]
    return joint - np.stack(others, axis=1)


@dataclass
class Changes:
    """What became of D = loss before − loss after on a slice."""

    n: int
    mean: float
    z: float
    improved: int
    degraded: int
    tied: int


def changes(D, of=0.0):
    """Return what became of a slice by its examples' changes D [n]; their mean is compared with `of`."""
    mean = float(np.mean(D)) - of
    score = abs(mean) / np.sqrt((np.var(D) + 0.05) / len(D))
    improved, degraded = int((D > 0).sum()), int((D < 0).sum())
    return Changes(len(D), mean, float(score), improved, degraded, len(D) - improved - degraded)


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


def benjamini_hochberg(p, tests, factor=1.0):
    """Return min over ranks of at least i of p·tests·factor/rank, at most 1."""
    q = [min(1.0, *(x * tests * factor / (p <= x).sum() for x in p[p >= one])) for one in p]
    return np.array(q)


def held_by(frame, predicate):
    told = json.loads(predicate) if isinstance(predicate, str) else predicate
    return predicates.mask(frame, told)
