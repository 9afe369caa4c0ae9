"""Precision and recall of the words that describe a slice, from a few labels: Eyuboglu et al. (2024), appendix B.2."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import numpy as np
from scipy.special import betainccinv, betaincinv, gammainccinv, gammaincinv

from slicebeam.metrics.arrays import ArrayLike, FloatArray, IntArray, NDArray, floats
from slicebeam.metrics.errors import InputError
from slicebeam.metrics.randomness import UInt64Array, hash64, uniform

LabelArray = NDArray[np.int8]

YES, NO, UNSURE = 1, 0, -1

Decision = Literal["accept", "update", "label more"]

# Products of a share and a number of examples are whole except for rounding.
_ROUNDING = 1e-9
# Draws outside the slice of which one is taken to be a hit: Q̂ then has the relative variance 4/m.
_DRAWS_FOR_A_HIT = 4.0
# Thresholds at the ends would leave nothing to find.
_LEAST, _MOST = 0.5, 0.95
# Divisions that are tried, and the least share of a budget that either side gets.
_TRIED, _LEAST_SHARE = 100, 0.25
# Streams of random words: rounds of draws count from 0.
_SAMPLE_STREAM = -1


@dataclass(frozen=True)
class Interval:
    """An estimated share with its bounds, all within 0..1; nan where nothing was labelled."""

    estimate: float
    low: float
    high: float


@dataclass(frozen=True)
class Answers:
    """How often each answer was given; unsure is no in estimates, and moves either bound out."""

    yes: int
    no: int
    unsure: int

    @property
    def labelled(self) -> int:
        """All answers, the unsure ones among them."""
        return self.yes + self.no + self.unsure

    @classmethod
    def of(cls, labels: LabelArray) -> Answers:
        """Count labels: int8, any shape, each `YES`, `NO` or `UNSURE`."""
        return cls(*(int((labels == answer).sum()) for answer in (YES, NO, UNSURE)))


@dataclass(frozen=True)
class Draws:
    """Labelled draws with replacement from the N_C examples outside a slice."""

    # [m] positions, 0..N_C − 1; the same one may be drawn again, with the same label
    item: IntArray
    weight: FloatArray  # [m] w = q(x)·N_C of the proposal by which it was drawn
    label: LabelArray  # [m] `YES`, `NO` or `UNSURE`
    least_weight: float  # the smallest w of any example that could be drawn, in any round

    @classmethod
    def merged(cls, rounds: Sequence[Draws]) -> Draws:
        """Return the draws of all rounds, each by its own proposal: Q̂ is Σ_t (m_t/m)·Q̂_t, unbiased for fixed m_t."""
        item, weight, label = (
            np.concatenate([getattr(draws, name) for draws in rounds])
            for name in ("item", "weight", "label")
        )
        return cls(item, weight, label, min(draws.least_weight for draws in rounds))

    def share(self) -> float:
        """Return Q̂ = mean(1[yes]/w), nan without a draw; unbiased for independent draws of a number fixed beforehand."""
        if not self.item.size:
            return math.nan
        return float((1 / self.weight[self.label == YES]).sum()) / self.item.size


def jeffreys(
    yes: ArrayLike, labelled: ArrayLike, size: ArrayLike, confidence: float = 0.95
) -> tuple[FloatArray, FloatArray]:
    """Return Jeffreys' interval of a share of N examples, of a simple random sample of n; 0..1 of none."""
    # Brown, Cai and DasGupta (2001), Stat. Sci. 16:101, with the ends of section 4.1.2, times √((N − n)/(N − 1)), moved
    # out to whole numbers, but not past what the labels say. Of 50 to 300 of 60 to 10,000 it covers at .917 at the least.
    tail, (x, n, N) = 0.5 * (1 - confidence), floats(yes, labelled, size)
    trials = np.maximum(n, 1.0)
    no = trials - np.minimum(x, trials)
    few, nearly_all = x <= 1, no <= 1
    # Beta(x + ½, ·) and Clopper and Pearson's Beta(x, ·) or Beta(x + 1, ·) differ by a half.
    least = np.where(nearly_all, np.maximum(x, 0.5), x + 0.5), no + np.where(nearly_all, 1.0, 0.5)
    most = x + np.where(few, 1.0, 0.5), np.where(few, np.maximum(no, 0.5), no + 0.5)
    low = np.where(few, 0.0, betaincinv(*least, tail))
    high = np.where(nearly_all, 1.0, betainccinv(*most, tail))
    share = x / trials
    left = np.sqrt(np.maximum(N - n, 0.0) / np.maximum(N - 1.0, 1.0))
    low = np.floor((share - left * (share - low)) * N + _ROUNDING)
    high = np.ceil((share + left * (high - share)) * N - _ROUNDING)
    population = np.maximum(N, 1.0)
    low = np.maximum(low, x) / population
    high = np.minimum(high, N - (n - x)) / population
    return np.where(n > 0, low, 0.0), np.where(n > 0, high, 1.0)


def fay_feuer(
    total: ArrayLike, squares: ArrayLike, largest: ArrayLike, confidence: float = 0.95
) -> tuple[FloatArray, FloatArray]:
    """Return the gamma interval of Σ u_i x_i of Poisson counts, of v = Σ u_i² x_i and the largest u_i."""
    # Fay and Feuer (1997), Stat. Med. 16:791: exact where all u_i are equal, else conservative.
    tail, (y, v, w) = 0.5 * (1 - confidence), floats(total, squares, largest)
    counted = y > 0
    mean, variance = np.where(counted, y, 1.0), np.where(counted, v, 1.0)
    low = np.where(counted, gammaincinv(mean * mean / variance, tail) * variance / mean, 0.0)
    mean, variance = y + w, v + w * w
    high: FloatArray = gammainccinv(mean * mean / variance, tail) * variance / mean
    return low, high


def precision(labels: LabelArray, size: int, confidence: float = 0.95) -> Interval:
    """Return P, the share of a slice that satisfies the words, of a simple random sample of it."""
    answers = Answers.of(labels)
    low, _ = jeffreys(answers.yes, answers.labelled, size, confidence)
    _, high = jeffreys(answers.yes + answers.unsure, answers.labelled, size, confidence)
    estimate = answers.yes / answers.labelled if answers.labelled else math.nan
    return Interval(estimate, float(low), float(high))


def missed_share(draws: Draws, size: int, confidence: float = 0.95) -> Interval:
    """Return Q, the share of the examples outside that satisfies the words, of independent draws."""
    # Without a hit among m it may be up to 3.69/(m·w) at 95 %, w the least weight of any example.
    labelled = draws.label.size
    if not labelled:
        return Interval(math.nan, 0.0, 1.0) if size else Interval(0.0, 0.0, 0.0)
    part, largest = 1 / (draws.weight * labelled), 1 / (draws.least_weight * labelled)
    sure, possible = part[draws.label == YES], part[draws.label != NO]
    low, _ = fay_feuer(sure.sum(), np.square(sure).sum(), largest, confidence)
    _, high = fay_feuer(possible.sum(), np.square(possible).sum(), largest, confidence)
    least = np.unique(draws.item[draws.label == YES]).size / size
    most = 1 - np.unique(draws.item[draws.label == NO]).size / size
    return Interval(*(min(max(float(end), least), most) for end in (draws.share(), low, high)))


@dataclass(frozen=True)
class Alignment:
    """How well words fit a slice."""

    precision: Interval  # P, share of the slice's examples that satisfy the words
    missed: Interval  # Q, share of the other examples that do
    recall: Interval  # R, share of all examples that satisfy the words which are in the slice
    inside: Answers  # labels of the slice
    outside: Answers  # labels of draws outside it


def alignment(
    labels: LabelArray,
    size: int,
    draws: Draws,
    size_outside: int,
    *,
    confidence: float = 0.95,
    looks: int = 1,
) -> Alignment:
    """Return precision and recall of the words that are said of a slice: R̂ = n_S·P̂/(n_S·P̂ + N_C·Q̂)."""
    # Each look has the confidence 1 − (1 − confidence)/looks. R's lower bound is that of P's lower and Q's upper one: both
    # fail with 2(1 − confidence) at most. Eyuboglu et al. (2024), appendix B.2, print other weights.
    level = 1 - (1 - confidence) / looks
    inside = precision(labels, size, level)
    missed = missed_share(draws, size_outside, level)
    # Where there is nothing to find there is no estimate, and bounds are 1.
    shares = []
    for P, Q, of_none in (
        (inside.estimate, missed.estimate, math.nan),
        (inside.low, missed.high, 1.0),
        (inside.high, missed.low, 1.0),
    ):
        held, everything = size * P, size * P + size_outside * Q
        shares.append(held / everything if everything != 0 else of_none)
    answers = Answers.of(labels), Answers.of(draws.label)
    return Alignment(inside, missed, Interval(*shares), *answers)


def decision(estimated: Alignment, *, precision: float, recall: float) -> Decision:
    """Return "accept" if both lower bounds reach the least wanted, "update" if an upper one does not."""
    if estimated.precision.low >= precision and estimated.recall.low >= recall:
        return "accept"
    if estimated.precision.high < precision or estimated.recall.high < recall:
        return "update"
    return "label more"


def split_labels(
    budget: int,
    *,
    size: int,
    size_outside: int,
    labelled: int = 0,
    drawn: int = 0,
    precision: float = 0.8,
    recall: float = 0.8,
    least_weight: float = 0.2,
    confidence: float = 0.95,
) -> tuple[int, int]:
    """Return how many examples of the slice to label, and how many draws outside it."""
    # The width of the interval of P plus that of R is least, as if these were the thresholds, where a decision is hardest.
    # It depends on no answer, so that Q̂ of several rounds is unbiased.
    left = size - labelled
    if budget >= left + size_outside:
        return left, size_outside
    least = min(int(_LEAST_SHARE * budget), left, size_outside)
    begin, end = max(least, budget - size_outside), min(budget - least, left)
    inside = np.unique(np.linspace(begin, end, min(end - begin + 1, _TRIED)).round())
    P, R = (min(max(share, _LEAST), _MOST) for share in (precision, recall))
    of_slice = labelled + inside
    low, high = jeffreys(P * of_slice, of_slice, size, confidence)
    width = high - low
    if size_outside:
        # Less than one draw would divide by nothing.
        outside = np.maximum(drawn + budget - inside, math.ulp(1.0))
        missed = size * P * (1 - R) / R / size_outside
        variance = missed**2 * _DRAWS_FOR_A_HIT / outside
        fewest, most = fay_feuer(missed, variance, 1 / (least_weight * outside), confidence)
        width += size * high / (size * high + size_outside * fewest)
        width -= size * low / (size * low + size_outside * np.minimum(most, 1.0))
    best = int(inside[np.argmin(width)])
    return best, min(budget - best, size_outside)


@dataclass(frozen=True)
class Proposal:
    """The chances with which the N_C examples outside a slice are drawn, with replacement."""

    # [N_C] q(x) > 0, in the order of the examples, which must be the same in every run of a seed.
    probability: FloatArray

    @property
    def size(self) -> int:
        """N_C."""
        return int(self.probability.size)

    @cached_property
    def least_weight(self) -> float:
        """The smallest w of any example: at least the uniform share of the mixture."""
        return float(self.probability.min()) * self.size

    def weight(self, items: ArrayLike) -> FloatArray:
        """Return w = q(x)·N_C, 1 for an example that is drawn as a uniform choice would."""
        return np.asarray(self.probability[np.asarray(items, dtype=np.int64)] * self.size)

    def draw(self, count: int, *, seed: int, round_number: int = 0) -> IntArray:
        """Return the first draws of a round, functions of (seed, round, number) alone."""
        numbers, cumulative = np.arange(count, dtype=np.uint64), np.cumsum(self.probability)
        levels = uniform(hash64(seed, round_number, numbers)) * cumulative[-1]
        drawn = np.searchsorted(cumulative, levels, side="right")
        # A level may be rounded up to the total.
        return np.asarray(np.minimum(drawn, self.size - 1).astype(np.int64))


def proposal(similarity: ArrayLike, *, exponent: float, uniform_share: float = 0.2) -> Proposal:
    """Return the mixture by which others are drawn, by their similarities [queries, N_C]."""
    # q(x) = u/N_C + (1 − u)·mean_i q_i(x), q_i(x) ∝ s_i(x)^r with s_i the similarity to query i scaled to 0..1 by its
    # minimum and maximum; uniform where these are equal.
    queries = np.atleast_2d(np.asarray(similarity))
    size = queries.shape[1]
    probability = np.full(size, uniform_share / size)
    for number, query in enumerate(queries):
        scaled = query.astype(np.float64)
        if not np.isfinite(scaled).all():
            place = int(np.argmin(np.isfinite(scaled)))
            raise InputError(
                f"similarity of example {place} to query {number} is {scaled[place]}; embeddings "
                "must be finite"
            )
        least, most = scaled.min(), scaled.max()
        if least == most:
            chances = np.ones(size)
        else:
            chances = np.power((scaled - least) / (most - least), exponent)
        probability += chances * ((1 - uniform_share) / len(queries) / chances.sum())
    return Proposal(probability)


def simple_random_sample(ids: UInt64Array, count: int, *, seed: int, start: int = 0) -> IntArray:
    """Return places of a random order of the slice's examples, by a hash of (seed, id): it can be added to."""
    words = hash64(seed, _SAMPLE_STREAM, ids)
    stop = min(start + count, words.size)
    if stop <= start:
        return np.zeros(0, np.int64)
    # Sorting all of a large slice takes ten times as long as finding its smallest.
    smallest = np.argpartition(words, stop - 1)[:stop]
    return np.asarray(smallest[np.argsort(words[smallest])][start:].astype(np.int64))
