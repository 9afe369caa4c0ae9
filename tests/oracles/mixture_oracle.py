"""EM of the mixture by its definition, with all points at once and scipy's densities."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy import special, stats

EPS = 2.0**-52
FLOOR = 0.05


@dataclass
class Head:
    """Of a loss: `shares` [K, C] of its classes, or means and variances [K]."""

    shares: np.ndarray | None = None
    means: np.ndarray | None = None
    variances: np.ndarray | None = None

    def log_densities(self, loss):
        if self.shares is not None:
            return np.log(self.shares[:, loss.astype(int)].T + EPS)
        return stats.norm.logpdf(loss[:, None], self.means, np.sqrt(self.variances))


@dataclass
class Mixture:
    weights: np.ndarray
    means: np.ndarray
    variances: np.ndarray
    heads: list[Head]
    loss_weight: float

    def arrays(self):
        """Return the parameters as mixture.npz names them."""
        found = {"weights": self.weights, "means": self.means, "variances": self.variances}
        found["loss_weight"] = np.array(self.loss_weight)
        for number, head in enumerate(self.heads):
            if head.shares is not None:
                found[f"shares{number}"] = head.shares
                continue
            found[f"loss_means{number}"] = head.means
            found[f"loss_variances{number}"] = head.variances
            found[f"loss_floor{number}"] = np.array(FLOOR)
        return found


def of(mixture):
    names = ("shares", "means", "variances")
    heads = [
        Head(**{name: getattr(head, name) for name in names if hasattr(head, name)})
        for head in mixture.heads
    ]
    return Mixture(mixture.weights, mixture.means, mixture.variances, heads, mixture.loss_weight)


def log_joint(mixture, z, losses=()):
    """Return log π_j + Σ_d log N(z_d; μ, v) + γ Σ log f(ℓ|j): [n, K]."""
    deviation = np.sqrt(mixture.variances)
    densities = stats.norm.logpdf(z.astype(float)[:, None, :], mixture.means, deviation)
    joint = np.log(mixture.weights) + densities.sum(axis=2)
    for head, loss in zip(mixture.heads, losses, strict=False):
        joint += mixture.loss_weight * head.log_densities(loss)
    return joint


def e_step(mixture, z, losses):
    joint = log_joint(mixture, z, losses)
    ln = special.logsumexp(joint, axis=1)
    return np.exp(joint - ln[:, None]), ln


def m_step(r, z, losses, classes, loss_weight):
    """Return the mixture of responsibilities [n, K]; a loss has so many classes, or None if real."""
    z, N = z.astype(float), r.sum(axis=0) + 10 * EPS
    means = r.T @ z / N[:, None]
    # About the new mean, where the package takes a difference of sums.
    variances = np.stack([r[:, j] @ (z - means[j]) ** 2 for j in range(len(N))]) / N[:, None]
    heads = []
    for loss, C in zip(losses, classes, strict=True):
        if C is not None:
            heads.append(Head(shares=r.T @ np.equal.outer(loss, np.arange(C)) / N[:, None]))
            continue
        mean = r.T @ loss / N
        spread = (r * (loss[:, None] - mean) ** 2).sum(axis=0) / N + 1e-6
        heads.append(Head(means=mean, variances=np.maximum(spread, FLOOR)))
    return Mixture(N / len(z), means, variances + 1e-6, heads, loss_weight)


def fit(mixture, z, losses, iterations, tolerance=0.0):
    """Return the mixture, and the mean of ln before each of its iterations."""
    classes = [None if head.shares is None else head.shares.shape[1] for head in mixture.heads]
    history = []
    while len(history) < iterations:
        r, ln = e_step(mixture, z, losses)
        history.append(float(ln.mean()))
        mixture = m_step(r, z, losses, classes, mixture.loss_weight)
        if len(history) > 1 and abs(history[-1] - history[-2]) < tolerance:
            break
    return mixture, history
