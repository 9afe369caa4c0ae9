"""Slow laws of random subsets: of the sum all subsets, and a saddle point on all values; of Student's t the latter."""

from itertools import combinations

import numpy as np
from scipy import optimize, special, stats


def all_sums(values, n):
    """The sum of every subset of n values."""
    return np.array([sum(some) for some in combinations(values.tolist(), n)])


def mid_p(sums, total):
    """Upper and lower mid-p of a sum among all of them."""
    same = np.isclose(sums, total, rtol=1e-9, atol=1e-12)
    half = same.mean() / 2
    above, below = (~same & (sums > total)).mean(), (~same & (sums < total)).mean()
    return float(above + half), float(below + half)


def saddle_point(values, n, total):
    """Upper and lower tail of the sum of n of the values, solved on all of them.

    Robinson (1982), Booth and Butler (1990), as STATISTICS.md has it: no compression, no outliers
    apart, no lattice, no interpolation.
    """
    f, x = n / values.size, values - values.mean()
    S, spread = total - n * values.mean(), values.std()

    def tilted(b):
        def size(a):
            return float(special.expit(special.logit(f) + a + b * x).sum() - n)

        reach = abs(b) * float(np.abs(x).max()) + 1
        a = optimize.brentq(size, -reach, reach, xtol=1e-14, rtol=1e-14)
        return a, special.expit(special.logit(f) + a + b * x)

    scale = 1 / (spread * np.sqrt(n))
    width = scale
    while (tilted(-width)[1] @ x - S) * (tilted(width)[1] @ x - S) > 0:
        width *= 1.5
    b = optimize.brentq(lambda b: float(tilted(b)[1] @ x - S), -width, width, xtol=1e-13 * scale)
    a, p = tilted(b)
    K = np.sum(np.log1p(-f) + np.logaddexp(0, special.logit(f) + a + b * x))
    r = np.sign(b) * np.sqrt(2 * (a * n + b * S - K))
    v = p * (1 - p)
    q = b * np.sqrt((v.sum() * (v @ x**2) - (v @ x) ** 2) / (values.size * f * (1 - f)))
    w = r + np.log(q / r) / r
    return float(stats.norm.sf(w)), float(stats.norm.cdf(w))


def student_root(x, chance, theta, n, mean=0.0):
    """The normal quantile w of t of n values of x about a mean, to which their chances are tilted; θ = Σx/√(n·Σx²).

    The equations of Daniels and Young (1991), solved by MINPACK on all values: no compression, no table.
    """
    x = (x - mean) / np.std(x)
    tilt = optimize.brentq(
        lambda b: (chance * np.exp(b * x - np.abs(b * x).max()) * x).sum(), -3, 0.95
    )
    chance = chance * np.exp(tilt * x) / (chance * np.exp(tilt * x)).sum()
    x = x / np.sqrt((chance * x**2).sum())

    def law(s, u):
        tilted = chance * np.exp(s * x + u * x**2)
        return tilted / tilted.sum()

    def gaps(point):
        s, u, v = point
        own = law(s, u)
        return [(own * x).sum() - theta * v, (own * x**2).sum() - v**2, s * theta + 2 * u * v]

    s, u, v = optimize.fsolve(gaps, [theta, -(theta**2) / 2, 1.0], xtol=1e-12)
    K2, edge = np.cov([x, x**2], aweights=law(s, u), ddof=0), np.array([theta, 2 * v])
    D = np.linalg.det(K2) * (edge @ np.linalg.inv(K2) @ edge + 2 * u)
    K = np.log((chance * np.exp(s * x + u * x**2)).sum())
    r = np.sign(theta) * np.sqrt(2 * (s * theta * v + u * v**2 - K))
    return np.sqrt(n) * r + np.log(s * np.sqrt(D) / (2 * v) / r) / (r * np.sqrt(n))


def subset_tails(influence, w, cells, held, *, strata=None, delta=None):
    """Upper and lower tail of a weighted metric if `held` were random, by a law of three moments.

    `influence` is what each example moves the metric by, per relative change of its weight. A cell's third
    power of weights is a gamma law's, by its squared variation c.
    """
    score, variance, third = 0.0, 0.0, 0.0
    for within in strata or [held == held]:
        inside = held & within
        alike = sum(
            (w[cell & within] ** 2).mean() * (cell & inside).sum()
            for cell in cells
            if (cell & inside).any()
        )
        scale = w[within].sum() / w[inside].sum()
        times = scale**2 * inside.sum() / within.sum() * (w[inside] ** 2).sum() / alike
        score += scale * influence[inside].sum()
        variance += times * (influence[within] ** 2).sum()
        for cell in cells:
            own = w[cell & within]
            if own.size:
                c = own.var() / own.mean() ** 2
                cube = own.size * ((influence / w)[cell & within][0] * own.mean()) ** 3
                third += times**2 * cube * (1 + 3 * c + 2 * c**2)
    if delta is not None:
        score = min(score, delta, key=abs) if score * delta > 0 else 0.0
    part = w[held].sum() / w.sum()
    sd = np.sqrt(variance * (1 - part))
    law = stats.pearson3(third * (1 - part) * (1 - 2 * part) / sd**3)
    return law.sf(score / sd), law.cdf(score / sd)
