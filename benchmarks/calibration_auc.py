"""Designs that measure the intervals of AUC: how often they hold the truth on slices with few of a class."""

from __future__ import annotations

from functools import partial
from itertools import product

import numpy as np
from scipy.special import ndtr, ndtri

from benchmarks.calibration_designs import Each, N, Result, in_turn
from slicebeam.metrics.significance import auc

# How far the scores of two models differ (standard deviation) over all examples, and within the slice.
NOISES = ((0.5, 0.5), (0.1, 0.1), (0.1, 1.0), (0.3, 1.0), (1.0, 0.1))
# Prevalence, and examples of the slice.
SHAPES = ((0.05, 60), (0.05, 100), (0.15, 30), (0.15, 60), (0.15, 100), (0.5, 30), (0.15, 300))
# Of one model: the spread of positives' scores, where that of negatives is 1.
SPREADS = (1.0, 3.0)
AREAS = (0.55, 0.75, 0.9, 0.97)
COUNTS = ((3, 30), (5, 30), (10, 30), (30, 5), (10, 200), (5, 5))
LEAST = 0.93
# Of a difference from all examples: the slice's part of these, its AUC and that elsewhere, how much higher others score.
SHARES = (0.05, 0.2, 0.5, 0.8, 0.9)
PLACES = (
    *((0.98, 0.85, 0.0), (0.85, 0.98, 0.0), (0.9, 0.6, 0.0), (0.7, 0.7, 0.0), (0.6, 0.9, 0.0)),
    *((0.98, 0.85, 1.0), (0.8, 0.8, 1.0), (0.9, 0.6, -1.0)),
)
EXAMPLES, POSITIVE = 3000, 0.3
# With few others their variance is an estimate from few.
LEAST_OF_DIFFERENCES = 0.92


def _models(
    rng: np.random.Generator, noise: float, prevalence: float
) -> tuple[np.ndarray, list[np.ndarray]]:
    """Return labels and scores of a new and an old model."""
    positive = rng.random(N) < prevalence
    shared = rng.normal(size=N)
    return positive, [
        gap * positive + shared + width * noise * rng.normal(size=N)
        for gap, width in ((1.2, 1.0), (1.0, 1.2))
    ]


def _areas(positive: np.ndarray, scores: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return AUCs [slices], and labels in the order of their scores, for scores without ties."""
    ordered = np.take_along_axis(positive, np.argsort(scores, axis=1), axis=1)
    n1 = ordered.sum(axis=1)
    pairs = np.maximum(n1 * (ordered.shape[1] - n1), 1)
    return (ordered * np.cumsum(~ordered, axis=1)).sum(axis=1) / pairs, ordered


def _gains(
    everywhere: tuple[np.ndarray, list[np.ndarray]], some: tuple[np.ndarray, list[np.ndarray]]
) -> np.ndarray:
    """Return the gains of examples in placement among those of the other class everywhere."""
    placed = []
    for scores, own in zip(everywhere[1], some[1], strict=True):
        among = [np.sort(scores[everywhere[0] == label]) for label in (False, True)]
        below, above = (np.searchsorted(each, own) / each.size for each in among)
        placed.append(np.where(some[0], below, above - 1.0))
    gains: np.ndarray = placed[0] - placed[1]
    return gains


def _two_models(job: tuple[tuple[float, float], tuple[float, int]], slices: int) -> float:
    (everywhere_noise, slice_noise), (prevalence, n) = job
    rng = np.random.default_rng([118, round(100 * prevalence), n])
    everywhere, inside = (
        _models(rng, noise, prevalence) for noise in (everywhere_noise, slice_noise)
    )
    gain_everywhere, gain = _gains(everywhere, everywhere), _gains(everywhere, inside)
    positive, scores = inside
    new, old = (_areas(positive[None], score[None])[0][0] for score in scores)
    at = rng.integers(0, N, (slices, n))
    labels = positive[at]
    n1 = labels.sum(axis=1)
    # There is no interval with fewer of a class.
    enough = np.minimum(n1, n - n1) >= 3
    at, labels, n1 = at[enough], labels[enough], n1[enough]
    delta = np.subtract(*(_areas(labels, score[at])[0] for score in scores))
    own = tuple(
        np.ma.masked_array(gain[at], labels != label).var(axis=1).filled(0.0)
        for label in (True, False)
    )
    reference = tuple(
        np.array([gain_everywhere[everywhere[0] == label].var()]) for label in (True, False)
    )
    low, high = auc.gain_interval(delta, own, reference, n1, n - n1, 0.95)
    return float(((low <= new - old) & (new - old <= high)).mean())


def _one_model(job: tuple[float, float, tuple[int, int]], slices: int) -> float:
    spread, area, (n1, n0) = job
    rng = np.random.default_rng([119, round(100 * area), n1, n0])
    shift = np.sqrt(1.0 + spread**2) * ndtri(area)
    positives = shift + spread * rng.normal(size=(slices, n1))
    scores = np.concatenate([rng.normal(size=(slices, n0)), positives], axis=1)
    labels = np.broadcast_to(np.arange(n0 + n1) >= n0, scores.shape)
    ordered = _areas(labels, scores)[1]
    own = auc.placements(np.stack([~ordered, ordered], axis=1))
    low, high = auc.value_interval(auc.Sides(own, n1, n0), 0.95)
    return float(((low <= area) & (area <= high)).mean())


def _difference(job: tuple[tuple[float, float, float], float], slices: int) -> float:
    """Return the coverage for samples of one population, in which the slice's size varies too."""
    (area, elsewhere, higher), share = job
    rng = np.random.default_rng([120, round(100 * share), round(100 * area)])
    edges = np.append(np.linspace(-3.0, 5.0, 255), np.inf)
    means = np.array(
        [[0.0, ndtri(area)], [higher / np.sqrt(2), ndtri(elsewhere) + higher / np.sqrt(2)]]
    )
    of_score = np.diff(ndtr(edges - np.sqrt(2) * means[..., None]), prepend=0.0)
    of_place, of_label = [share, 1.0 - share], [1.0 - POSITIVE, POSITIVE]
    cells = np.einsum("m,l,mls->mls", of_place, of_label, of_score)

    def area_of(counts: np.ndarray) -> float:
        zeros, ones = counts / counts.sum(axis=1, keepdims=True)
        return float((ones * (np.cumsum(zeros) - 0.5 * zeros)).sum())

    truth = area_of(cells[0]) - area_of(cells.sum(axis=0))
    drawn = rng.multinomial(EXAMPLES, cells.ravel() / cells.sum(), slices).reshape(-1, *cells.shape)
    inside, whole = drawn[:, 0], drawn.sum(axis=1)
    (n0, n1), (N0, N1) = inside.sum(axis=2).T, whole.sum(axis=2).T
    own, reference = auc.placements(inside), auc.placements(whole)
    low, high = auc.delta_interval(auc.Sides(own, n1, n0), auc.Sides(reference, N1, N0), 0.95)
    return float(((low <= truth) & (truth <= high)).mean())


def intervals(
    each: Each = in_turn, slices: int = 4000, *, slack: float = 0.0, step: int = 1
) -> Result:
    """Coverage of the intervals of AUC at .95, of one model and its difference from all examples, and of two models."""
    pairs = list(product(NOISES, SHAPES))[::step]
    singles = list(product(SPREADS, AREAS, COUNTS))[::step]
    two = np.array(each(partial(_two_models, slices=slices), pairs))
    one = np.array(each(partial(_one_model, slices=slices), singles))
    parts = list(product(PLACES, SHARES))[::step]
    differences = np.array(each(partial(_difference, slices=slices), parts))
    words = [
        f"{name} {held.min():.3f} to {held.max():.3f}, mean {held.mean():.3f}"
        for name, held in (("two models", two), ("one model", one), ("from all", differences))
    ]
    is_held = min(two.min(), one.min()) >= LEAST - slack
    is_held &= differences.min() >= LEAST_OF_DIFFERENCES - slack
    return Result("; ".join(words), bool(is_held))
