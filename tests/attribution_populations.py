"""Populations whose every answer is known, labelled over and over again."""

from dataclasses import dataclass

import numpy as np

from slicebeam.metrics.attribution import estimates
from slicebeam.metrics.attribution.estimates import alignment

OUTSIDE = 8000
# What the words find: exponent, and how similar the examples are that satisfy them, in standard
# deviations above the others, by equal parts of these examples and by query.
PROPOSALS = {
    "uniform": (0.0, [[0.0]]),
    "informative": (8.0, [[2.0]]),
    "blind": (8.0, [[0.0]]),
    "misleading": (8.0, [[-1.5]]),
    "half hidden": (8.0, [[3.0, -1.5]]),
    "two queries": (8.0, [[2.5, 0.0], [0.0, 2.5]]),
    "two rounds": (8.0, [[2.0]]),
}


@dataclass(frozen=True)
class Population:
    inside: np.ndarray
    outside: np.ndarray
    rounds: list[estimates.Proposal]

    @property
    def precision(self):
        return self.inside.mean()

    @property
    def missed(self):
        return self.outside.mean()

    @property
    def recall(self):
        return self.inside.sum() / (self.inside.sum() + self.outside.sum())


def population(size, precision, missed, kind, *, seed, uniform_share=0.2, outside=OUTSIDE):
    rng = np.random.default_rng(seed)
    inside = np.arange(size) < round(size * precision)
    hits = np.arange(outside) < round(outside * missed)
    exponent, means = PROPOSALS[kind]
    part = rng.integers(0, len(means[0]), outside)
    similarity = np.array(
        [rng.standard_normal(outside) + np.where(hits, np.array(mean)[part], 0) for mean in means]
    )
    powers = [exponent, 2.0] if kind == "two rounds" else [exponent]
    rounds = [
        estimates.proposal(similarity, exponent=r, uniform_share=uniform_share) for r in powers
    ]
    return Population(inside, hits, rounds)


def label(truth):
    return np.where(truth, estimates.YES, estimates.NO).astype(np.int8)


def draws_of(population, count, seed):
    found = []
    for number, each in enumerate(population.rounds):
        item = each.draw(count // len(population.rounds), seed=seed, round_number=number)
        truth = label(population.outside[item])
        found.append(estimates.Draws(item, each.weight(item), truth, each.least_weight))
    return estimates.Draws.merged(found)


@dataclass
class Outcomes:
    """One value a run."""

    alignment: list[estimates.Alignment]
    missed: np.ndarray
    no_hit: np.ndarray
    labels: list[np.ndarray]
    draws: list[estimates.Draws]

    def covers(self, what, truth):
        bounds = [getattr(each, what) for each in self.alignment]
        slack = 1e-12
        return np.array([b.low - slack <= truth <= b.high + slack for b in bounds])


def simulate(population, labels, runs, seed):
    ids = np.arange(population.inside.size, dtype=np.uint64)
    size, outside = population.inside.size, population.outside.size
    outcomes = Outcomes([], np.empty(runs), np.empty(runs, bool), [], [])
    for run in range(runs):
        one = seed * 1_000_000 + run
        answers = label(population.inside[estimates.simple_random_sample(ids, labels, seed=one)])
        draws = draws_of(population, labels, one)
        outcomes.alignment.append(alignment(answers, size, draws, outside))
        outcomes.missed[run] = draws.share()
        outcomes.no_hit[run] = not (draws.label == estimates.YES).any()
        outcomes.labels.append(answers)
        outcomes.draws.append(draws)
    return outcomes
