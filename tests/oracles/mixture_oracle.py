"""EM of the mixture by its definition: every point and component in turn, sums in full precision."""

import math
from dataclasses import dataclass

import numpy as np
from scipy import special, stats

EPS = 2.0**-52


@dataclass
class Head:
    """Of a loss: `table` [K, C] of shares, or means and variances [K]."""

    table: np.ndarray | None = None
    means: np.ndarray | None = None
    variances: np.ndarray | None = None

    def log_density(self, loss, j):
        if self.table is not None:
            return math.log(self.table[j, int(loss)] + EPS)
        return stats.norm.logpdf(loss, self.means[j], math.sqrt(self.variances[j]))


@dataclass
class State:
    weights: np.ndarray
    means: np.ndarray
    variances: np.ndarray
    heads: list[Head]
    loss_weight: float


def of(mixture):
    names = {"shares": "table", "means": "means", "variances": "variances"}
    heads = [
        Head(**{own: getattr(head, name) for name, own in names.items() if hasattr(head, name)})
        for head in mixture.heads
    ]
    return State(mixture.weights, mixture.means, mixture.variances, heads, mixture.loss_weight)


def e_step(state, z, losses):
    n, K = len(z), len(state.weights)
    joint = np.empty((n, K))
    for j in range(K):
        deviation = np.sqrt(state.variances[j])
        for i in range(n):
            density = stats.norm.logpdf(z[i].astype(float), state.means[j], deviation)
            joint[i, j] = math.fsum([math.log(state.weights[j]), *density.tolist()])
            for head, each in zip(state.heads, losses, strict=False):
                joint[i, j] += state.loss_weight * head.log_density(each[i], j)
    ln = special.logsumexp(joint, axis=1)
    return np.exp(joint - ln[:, None]), ln


def total(values):
    """Sums over the first axis, each rounded once."""
    values = np.asarray(values, dtype=float)
    flat = values.reshape(len(values), -1)
    return np.array([math.fsum(column) for column in flat.T]).reshape(values.shape[1:])


def m_step(state, z, losses, r, floor=0.05):
    n, K = r.shape
    z, N = z.astype(float), total(r) + 10 * EPS
    means = np.array([total(r[:, j, None] * z) / N[j] for j in range(K)])
    # About the new mean, where the package takes a difference of sums.
    variances = np.array(
        [total(r[:, j, None] * (z - means[j]) ** 2) / N[j] + 1e-6 for j in range(K)]
    )
    heads = []
    for head, each in zip(state.heads, map(np.asarray, losses), strict=True):
        if head.table is not None:
            C = range(head.table.shape[1])
            shares = [[math.fsum(r[each == c, j]) for c in C] for j in range(K)]
            heads.append(Head(table=np.array(shares) / N[:, None]))
            continue
        mean = total(r * each[:, None]) / N
        spread = total(r * (each[:, None] - mean) ** 2) / N + 1e-6
        heads.append(Head(means=mean, variances=np.maximum(spread, floor)))
    return State(N / n, means, variances, heads, state.loss_weight)


def fit(state, z, losses, iterations):
    history = []
    for _ in range(iterations):
        r, ln = e_step(state, z, losses)
        history.append(math.fsum(ln) / len(ln))
        state = m_step(state, z, losses, r)
    return state, history
