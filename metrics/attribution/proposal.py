"""Which examples are labelled: at random in the slice, by similarity to the words outside it.

Source: Eyuboglu et al. (2024), "Model ChangeLists", appendix B.2.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from slicebeam.metrics.errors import InputError
from slicebeam.metrics.randomness import UInt64Array, hash64, uniform

if TYPE_CHECKING:
    from numpy.typing import ArrayLike

    from slicebeam.metrics.arrays import FloatArray, IntArray


# Streams of random words: rounds of draws count from 0.
_SAMPLE_STREAM = -1


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
    def _cumulative(self) -> FloatArray:
        return np.asarray(np.cumsum(self.probability))

    @cached_property
    def least_weight(self) -> float:
        """The smallest w of any example: at least the uniform share of the mixture."""
        return float(self.probability.min()) * self.size

    def weight(self, items: ArrayLike) -> FloatArray:
        """Return w = q(x)·N_C, 1 for an example that is drawn as a uniform choice would."""
        return np.asarray(self.probability[np.asarray(items, dtype=np.int64)] * self.size)

    def draw(self, count: int, *, seed: int, round_number: int = 0, start: int = 0) -> IntArray:
        """Return draws start..start + count − 1 of a round.

        Draw k of a round is a function of (seed, round, k) alone, so that a round can be gone on
        with, and its first draws are themselves a sample.
        """
        numbers = np.arange(start, start + count, dtype=np.uint64)
        levels = uniform(hash64(seed, round_number, numbers)) * self._cumulative[-1]
        drawn = np.searchsorted(self._cumulative, levels, side="right")
        # A level may be rounded up to the total.
        return np.asarray(np.minimum(drawn, self.size - 1).astype(np.int64))


def proposal(similarity: ArrayLike, *, exponent: float, uniform_share: float = 0.2) -> Proposal:
    """Return the mixture by which examples outside a slice are drawn.

    q(x) = u/N_C + (1 − u)·mean_i q_i(x), where q_i(x) ∝ s_i(x)^r with s_i the similarity to query i
    scaled to 0..1 by its minimum and maximum.

    A query that is as similar to all examples as to any is uniform. Takes two float64 arrays of N_C
    beyond the result.
    """
    if not (math.isfinite(exponent) and exponent >= 0):
        raise InputError(f"exponent = {exponent} of the proposal; give a number that is at least 0")
    if not 0 < uniform_share <= 1:
        raise InputError(
            f"uniform share = {uniform_share} of the proposal; give a number above 0, so that every "
            "example can be drawn, and at most 1"
        )
    queries = np.atleast_2d(np.asarray(similarity))
    if queries.ndim != 2 or queries.shape[0] == 0:
        raise InputError(
            f"similarities of shape {queries.shape}; give one row for each query, at least one"
        )
    if queries.shape[1] == 0:
        raise InputError(
            "no example is outside the slice, so there is none to draw: its recall is 1"
        )
    size = queries.shape[1]
    probability = np.full(size, uniform_share / size)
    for number, query in enumerate(queries):
        scaled = query.astype(np.float64)
        finite = np.isfinite(scaled)
        if not finite.all():
            place = int(np.argmin(finite))
            raise InputError(
                f"similarity of example {place} to query {number} is {scaled[place]}; embeddings "
                "must be finite"
            )
        least, most = scaled.min(), scaled.max()
        if least == most:
            scaled[:] = 1.0
        else:
            scaled -= least
            scaled /= most - least
            np.power(scaled, exponent, out=scaled)
        scaled *= (1 - uniform_share) / len(queries) / scaled.sum()
        probability += scaled
    return Proposal(probability)


def simple_random_sample(ids: UInt64Array, count: int, *, seed: int, start: int = 0) -> IntArray:
    """Return places start..start + count − 1 of a random order of the slice's examples.

    The order is that of a hash of (seed, id), in any order of `ids`, so that a sample can be
    added to, and the first of a sample are themselves a simple random sample.
    """
    words = hash64(seed, _SAMPLE_STREAM, ids)
    stop = min(start + count, words.size)
    if stop <= start:
        return np.zeros(0, np.int64)
    # Sorting all of a large slice takes ten times as long as finding its smallest.
    smallest = np.argpartition(words, stop - 1)[:stop]
    return np.asarray(smallest[np.argsort(words[smallest])][start:].astype(np.int64))
