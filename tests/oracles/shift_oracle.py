"""How a confusion matrix shifted, computed item by item in plain loops."""

import itertools
import math
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq

from slicebeam.metrics.shift.estimates import Sample, Strata
from slicebeam.metrics.shift.simulation import Items


@dataclass
class Pool:
    """Items in lists, ordered by stratum; `rows` says the label of each stratum."""

    stratum: list[int]
    old: list[int]
    new: list[int]
    rows: list[int]
    shape: tuple[int, int]
    right: list[int]

    @property
    def items(self):
        return range(len(self.stratum))

    @property
    def sizes(self):
        return [self.stratum.count(s) for s in range(len(self.rows))]

    def label(self, item):
        return self.rows[self.stratum[item]]

    def is_right(self, item, prediction):
        return prediction == self.right[self.label(item)] != -1

    def starts(self):
        return np.concatenate([[0], np.cumsum(self.sizes)]).astype(np.int64)

    def strata(self, *, old=True):
        counts = np.zeros((len(self.rows), self.shape[1]), np.int64)
        for item in self.items:
            counts[self.stratum[item], self.old[item]] += 1
        return Strata(
            row=np.array(self.rows, np.int64),
            sizes=np.array(self.sizes, np.int64),
            shape=self.shape,
            right=np.array(self.right, np.int64),
            old=counts if old else None,
        )

    def random_items(self):
        identity = np.random.default_rng(0).integers(0, 2**64, len(self.items), dtype=np.uint64)
        return Items(identity, np.array(self.new), np.array(self.old))

    def matrix(self, predictions):
        found = np.zeros(self.shape)
        for item in self.items:
            found[self.label(item), predictions[item]] += 1 / len(self.stratum)
        return found

    def accuracy(self, predictions):
        return sum(self.is_right(item, predictions[item]) for item in self.items) / len(self.items)


def random_pool(rng, *, labels=3, predictions=4, strata=6, largest=9, agreement=0.7):
    """A pool with a label that is never predicted, where there are enough, and strata of one item."""
    rows = sorted([*range(labels), *rng.integers(0, labels, max(0, strata - labels)).tolist()])
    sizes = rng.integers(1, largest + 1, len(rows))
    sizes[rng.integers(len(rows))] = 1
    stratum = np.repeat(np.arange(len(rows)), sizes).tolist()
    known = [j for j in range(predictions) if j != 1 or predictions <= 2]
    old = rng.choice(known, len(stratum)).tolist()
    new = [o if rng.random() < agreement else int(rng.choice(known)) for o in old]
    right = [i if i < predictions else -1 for i in range(labels)]
    return Pool(stratum, old, new, rows, (labels, predictions), right)


def random_asked(rng, pool, *, least=2):
    """Items that are asked: of each stratum at least `least`, or all that there are."""
    asked = []
    for s, size in enumerate(pool.sizes):
        members = [item for item in pool.items if pool.stratum[item] == s]
        n = int(rng.integers(min(least, size), size + 1))
        asked += rng.choice(members, n, replace=False).tolist()
    return asked


def all_samples(pool, sizes):
    of_each = [
        itertools.combinations([i for i in pool.items if pool.stratum[i] == s], n)
        for s, n in enumerate(sizes)
    ]
    return [list(itertools.chain(*parts)) for parts in itertools.product(*of_each)]


def sample_of(pool, runs, *, old=True):
    """What runs counted, each given as a list of the items that it asked."""
    sample = Sample.empty(len(runs), len(pool.rows), pool.shape[1])
    longest = max(len(run) for run in runs)
    stratum = np.full((len(runs), longest), -1, np.int64)
    new, before = np.zeros_like(stratum), np.zeros_like(stratum)
    for r, run in enumerate(runs):
        for call, item in enumerate(run):
            stratum[r, call] = pool.stratum[item]
            new[r, call], before[r, call] = pool.new[item], pool.old[item]
    if longest:
        sample.add(stratum, new, before if old else None)
    return sample


def indicator(predictions, j):
    return [1.0 if prediction == j else 0.0 for prediction in predictions]


def variance(values):
    return float(np.var(values, ddof=1)) if len(values) > 1 else 0.0


def covariance(a, b):
    if len(a) < 2:
        return 0.0
    products = [(x - np.mean(a)) * (y - np.mean(b)) for x, y in zip(a, b, strict=True)]
    return sum(products) / (len(a) - 1)


def by_stratum(pool, asked):
    return [[item for item in asked if pool.stratum[item] == s] for s in range(len(pool.rows))]


def weighted_indicators(pool, asked):
    """Yield p²/N of a stratum, and which of its new and old predictions are of a class."""
    for items in by_stratum(pool, asked):
        p = pool.sizes[pool.stratum[items[0]]] / len(pool.items)
        for j in range(pool.shape[1]):
            new = indicator([pool.new[item] for item in items], j)
            yield p**2 / len(items), new, indicator([pool.old[item] for item in items], j)


def estimated_loss(pool, asked, reliance):
    """Σ p²/N times the sample variances, without a finite population correction."""
    total = 0.0
    for w, new, old in weighted_indicators(pool, asked):
        total += w * variance([x - reliance * y for x, y in zip(new, old, strict=True)])
    return total


def reliance(pool, asked):
    above = below = 0.0
    for w, new, old in weighted_indicators(pool, asked):
        above += w * covariance(new, old)
        below += w * variance(old)
    return min(1.0, max(0.0, above / below)) if below > 0 else 0.0


@dataclass
class DirectSlice:
    matrix: np.ndarray
    variance: np.ndarray
    unseen: np.ndarray
    accuracy: float
    accuracy_variance: float


@dataclass
class Direct(DirectSlice):
    loss: float
    loss_error: float
    loss_unseen: float


def estimate(pool, asked, lam):
    """The estimate and what belongs to it, from the indicator variables of the items asked."""
    L, P = pool.shape
    M = len(pool.items)
    matrix, V, unseen = np.zeros((L, P)), np.zeros((L, P)), np.zeros(L)
    accuracy = accuracy_variance = loss = squared_error = loss_unseen = 0.0
    shares = [sum(pool.label(item) == i for item in pool.items) / M for i in range(L)]
    for s, items in enumerate(by_stratum(pool, asked)):
        i, size, n = pool.rows[s], pool.sizes[s], len(items)
        p = size / M
        w = p**2 / n * (1 - n / size)
        members = [item for item in pool.items if pool.stratum[item] == s]
        tau = 0.0
        for j in range(P):
            new = indicator([pool.new[item] for item in items], j)
            old = indicator([pool.old[item] for item in items], j)
            everywhere = np.mean(indicator([pool.old[item] for item in members], j))
            matrix[i, j] += p * (np.mean(new) - lam * (np.mean(old) - everywhere))
            found = variance([x - lam * y for x, y in zip(new, old, strict=True)])
            V[i, j] += w * found
            tau += found
        right_new = [1.0 if pool.is_right(item, pool.new[item]) else 0.0 for item in items]
        right_old = [1.0 if pool.is_right(item, pool.old[item]) else 0.0 for item in items]
        all_old = np.mean([1.0 if pool.is_right(item, pool.old[item]) else 0.0 for item in members])
        accuracy += p * (np.mean(right_new) - lam * (np.mean(right_old) - all_old))
        both = zip(right_new, right_old, strict=True)
        accuracy_variance += w * variance([x - lam * y for x, y in both])
        unseen[i] += w / shares[i]
        loss += w * tau
        squared_error += 2 * w**2 * tau / n
        loss_unseen += 2 * p * w / n
    losses = (loss, math.sqrt(squared_error), loss_unseen)
    return Direct(matrix, V, unseen, accuracy, accuracy_variance, *losses)


def starved_variance(pool, asked):
    """The squared error of MASA's accuracy: floors, the widening of the cells, and a bias."""
    M, groups = len(pool.items), by_stratum(pool, asked)
    hits = [sum(pool.is_right(i, pool.new[i]) for i in items) for items in groups]
    spread = bias = 0.0
    unseen = [0.0] * pool.shape[0]
    for s, items in enumerate(groups):
        i, n, p = pool.rows[s], len(items), pool.sizes[s] / M
        left = 1 - n / pool.sizes[s]
        unseen[i] += p**2 / n * left / (sum(pool.label(item) == i for item in pool.items) / M)
        if pool.right[i] < 0:
            continue
        middle = (hits[s] + 1) / (n + 2)
        right = [float(pool.is_right(item, pool.new[item])) for item in items]
        spread += p**2 / n * left * max(variance(right), middle * (1 - middle))
        same = [t for t, row in enumerate(pool.rows) if row == i]
        of_label = (sum(hits[t] for t in same) + 0.5) / (sum(len(groups[t]) for t in same) + 1)
        bias += p * left * ((hits[s] + 4 * of_label) / (n + 4) - hits[s] / n)
    return spread + 3 * sum(c**2 for c in unseen) + bias**2


class AlgorithmOne:
    """MASA as it was published, with its incremental rules, one stratum at a time."""

    def __init__(self, pool):
        self.sizes, self.total = pool.sizes, len(pool.items)
        strata, P = len(pool.rows), pool.shape[1]
        self.N = [0] * strata
        self.uncertainty = [0.0] * strata
        self.H = [[0] * P for _ in range(strata)]
        self.mean = [[0.0] * P for _ in range(strata)]

    def best(self, ahead):
        """The strata that may be asked next, when so many calls of each are under way."""
        N = [n + more for n, more in zip(self.N, ahead, strict=True)]
        first = [s for s, n in enumerate(N) if n < min(2, self.sizes[s])]
        if first:
            return first
        left = [s for s, n in enumerate(N) if n < self.sizes[s]]
        score = {
            s: self.sizes[s] / self.total / N[s] * (math.sqrt(self.uncertainty[s]) + N[s] ** -0.25)
            for s in left
        }
        highest = max(score.values(), default=0.0)
        return [s for s in left if score[s] >= highest * (1 - 1e-12)]

    def update(self, s, answer):
        self.N[s] += 1
        n = self.N[s]
        for j in range(len(self.mean[s])):
            self.mean[s][j] += ((1.0 if j == answer else 0.0) - self.mean[s][j]) / n
        if n >= 2:
            change = 1 - self.H[s][answer] / (n - 1) - self.uncertainty[s]
            self.uncertainty[s] = max(0.0, self.uncertainty[s] + 2 / n * change)
        self.H[s][answer] += 1


def slice_estimate(pool, asked, group, lam):
    """The estimate of a slice, by a ratio within each label; `group` has its items."""
    M, q = len(pool.items), len(group) / len(pool.items)
    matrix, V, unseen = np.zeros(pool.shape), np.zeros(pool.shape), np.zeros(pool.shape[0])
    accuracy = accuracy_variance = 0.0
    strata = by_stratum(pool, asked)
    p = [size / M for size in pool.sizes]
    for i, j in np.ndindex(*pool.shape):
        mine = [s for s, row in enumerate(pool.rows) if row == i]
        above = below = 0.0
        for s in mine:
            for item in strata[s]:
                if item in group:
                    above += p[s] / len(strata[s]) * difference(pool, item, j, lam)
                    below += p[s] / len(strata[s])
        ratio = above / below if below else 0.0
        old = sum(pool.label(k) == i and pool.old[k] == j for k in group) / len(group)
        share = sum(pool.label(k) == i for k in group) / len(group)
        matrix[i, j] = share * ratio + (lam if below else 1.0) * old
        for s in mine:
            n = len(strata[s])
            w = p[s] ** 2 * (1 - n / pool.sizes[s]) / n
            residual = [(k in group) * (difference(pool, k, j, lam) - ratio) for k in strata[s]]
            V[i, j] += w * variance(residual) / q**2
            if j == 0 and share > 0:
                unseen[i] += w / sum(p[t] for t in mine) / q
        if j == pool.right[i]:
            accuracy += matrix[i, j]
            accuracy_variance += V[i, j]
    return DirectSlice(matrix, V, unseen, accuracy, accuracy_variance)


def difference(pool, item, j, lam):
    return (pool.new[item] == j) - lam * (pool.old[item] == j)


DATA = Path(__file__).parents[2] / "examples" / "prediction_apis"


def recorded(name, new, old=None, *, signed=False, rows=None):
    """Recorded answers in strata of label and confidence, as they are cut for ``plus`` or MASA."""
    table = pq.read_table(DATA / f"{name}.parquet")
    if rows is not None:
        table = table.take(np.random.default_rng(3).choice(table.num_rows, rows, replace=False))
    label, after = (table.column(c).to_numpy().astype(int) for c in ("label", f"prediction_{new}"))
    value = table.column("confidence_open_source").to_numpy().astype(np.float64)
    before = None if old is None else table.column(f"prediction_{old}").to_numpy().astype(int)
    if signed:
        value = np.where(before == label, value, -value)
    edges = np.unique(np.quantile(value, (1 / 3, 2 / 3)))
    labels, row = np.unique(label, return_inverse=True)
    code = 4 * row + np.searchsorted(edges, value, side="right")
    codes, stratum = np.unique(code, return_inverse=True)
    order = np.argsort(stratum, kind="stable")
    classes = int(max(label.max(), after.max(), 0 if before is None else before.max())) + 1
    counts = None
    if before is not None:
        counts = np.zeros((codes.size, classes), np.int64)
        np.add.at(counts, (stratum, before), 1)
        before = before[order]
    strata = Strata(codes // 4, np.bincount(stratum), (labels.size, classes), labels, counts)
    return strata, Items(order.astype(np.uint64), after[order], before)
