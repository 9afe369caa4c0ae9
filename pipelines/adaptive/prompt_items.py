"""Which tests of a tree are put into a prompt, and in which order.

Ribeiro and Lundberg, "Adaptive testing and debugging of NLP models", ACL 2022, appendix A. The paper
names the factors and leaves their sizes open; the sizes are the constants here.
"""

from __future__ import annotations

import numpy as np
from scipy.special import ndtri

from slicebeam.metrics.arrays import FloatArray, IntArray
from slicebeam.metrics.randomness import UInt64Array, hash64, uniform

# Items of a prompt.
PROMPT_SIZE = 7
# Share of the items that a prompt passes over.
SKIP_PROBABILITY = 0.25
# Factors of topic membership: a direct child of the focus topic, a test of one of its subtopics, and
# a test outside it. They are so far apart that what is outside comes only where nothing else is left.
IN_TOPIC, IN_SUBTOPIC, OUTSIDE = 1.0, 1e-4, 1e-12
# Factor of a test outside for each topic between it and the focus topic.
ONE_FURTHER = 1e-6
_SKIPPED = 1e-2
# A score below makes a test no worse: with 0 it would rank below those outside the topic.
_LEAST_SCORE = 1e-3
# Where all scores are equal, noise still decides the order.
_LEAST_NOISE = 1e-6
# A diversity below is that of a duplicate, but for rounding.
_LEAST_DIVERSITY = 1e-9
_MOST_EXTRA_COST = 0.5
# Streams of random numbers of a prompt: for the noise and for the skips.
_STREAMS = 2


def repetitions(proposals: int, prompt_size: int = PROMPT_SIZE) -> int:
    """Return r, the number of prompts for K proposals, at most K.

    The largest r that costs no more than half above a single prompt: r·p + K ≤ 1.5·(p + K), where a
    prompt costs p = `prompt_size` and a completion, which is one item, 1.
    """
    whole = _MOST_EXTRA_COST * (prompt_size + proposals) / prompt_size
    return min(proposals, 1 + int(whole))


def select_items(
    scores: FloatArray,
    membership: FloatArray,
    similarities: FloatArray,
    ids: UInt64Array,
    *,
    seed: int,
    repetition: int = 0,
    prompt_size: int = PROMPT_SIZE,
) -> IntArray:
    """Return the rows of the items of a prompt, in the order in which they stand there.

    One after another the item of the highest product above 0 is chosen, of (failure score + noise) ×
    topic membership × skip × diversity; the first choice stands last. The noise is normal, with the
    deviation of the scores of those items that have the largest membership. Diversity is 1 − the
    largest cosine similarity to an item that is chosen already.
    """
    n = len(scores)
    if not n or not membership.max() > 0:
        return np.zeros(0, np.int64)
    nearest = scores[membership == membership.max()]
    spread = max(float(nearest.std()), _LEAST_NOISE)
    noise = ndtri(uniform(hash64(seed, _STREAMS * repetition, ids)))
    skipped = uniform(hash64(seed, _STREAMS * repetition + 1, ids)) < SKIP_PROBABILITY
    fixed = np.maximum(scores + spread * noise, _LEAST_SCORE) * membership
    fixed *= np.where(skipped, _SKIPPED, 1.0)
    diversity = np.ones(n)
    chosen: list[int] = []
    while len(chosen) < prompt_size:
        product = np.where(diversity > _LEAST_DIVERSITY, fixed * diversity, 0.0)
        product[chosen] = 0.0
        best = int(np.argmax(product))
        if not product[best] > 0:
            break
        chosen.append(best)
        diversity = 1 - similarities[chosen].max(axis=0)
    return np.array(chosen[::-1], np.int64)
