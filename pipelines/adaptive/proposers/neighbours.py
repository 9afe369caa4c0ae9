"""Texts of a pool that are like the tests of a topic; what the model should say there is a guess."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np

from slicebeam.metrics.errors import InputError
from slicebeam.pipelines.adaptive.proposers.families import Context, Family
from slicebeam.pipelines.adaptive.proposers.known import known_of
from slicebeam.pipelines.adaptive.topics import below
from slicebeam.pipelines.adaptive.tree import IMPUTED, Test
from slicebeam.transforms.encoders.lsa import LsaEncoder

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from numpy.typing import NDArray

_MOST_FITTED = 5_000
_DIMENSIONS = 64
_MOST_TESTS = 200
_MOST_TOPICS = 20
_WORD = r"[^\W\d_]{3,}"


class Neighbours:
    """Proposes the texts of the pool that are nearest to the tests of the topic, failing ones first."""

    name = "neighbours"
    needs = "--pool and tests in the topic"

    def families(self, context: Context) -> list[Family]:
        """Return one family; none without a pool or without tests."""
        if not context.pool or not context.tests:
            return []
        return [Family(self.name, "texts", _Nearest(context), is_guess=True)]

    def topics(self, context: Context) -> list[str]:
        """Return the words that set the failing tests of the topic apart from the pool."""
        words = _telling([test.input for test in context.failing], context.pool)
        return [below(context.topic, word.capitalize()) for word in words]


@dataclass(frozen=True)
class _Nearest:
    """Yields the nearest texts, a test after another."""

    context: Context

    def __call__(self) -> Iterator[Test]:
        context = self.context
        tests = (context.failing or context.tests)[:_MOST_TESTS]
        try:
            encoder, vectors = _encoded(tuple(context.pool), context.seed)
        except InputError:
            return
        similar = encoder.encode([test.input for test in tests]) @ vectors.T
        # Of each test its nearest text, then of each the second nearest, and so on.
        order = np.argsort(-similar, axis=1, kind="stable")
        seen: set[int] = set()
        for place in range(order.shape[1]):
            for row, test in enumerate(tests):
                text = int(order[row, place])
                if text in seen or not similar[row, text] > 0:
                    continue
                seen.add(text)
                expectation, value = known_of(test)
                yield Test(
                    test.topic,
                    context.pool[text],
                    labeler=IMPUTED,
                    expectation=expectation if not test.second_input else "",
                    value=value,
                    other={"like": test.id},
                )


@lru_cache(2)
def _encoded(pool: tuple[str, ...], seed: int) -> tuple[LsaEncoder, NDArray[np.float32]]:
    rows = np.random.default_rng(seed).permutation(len(pool))[:_MOST_FITTED]
    sample = [pool[row] for row in np.sort(rows).tolist()]
    encoder = LsaEncoder.fit(sample, dimensions=_DIMENSIONS, seed=seed)
    return encoder, encoder.encode(pool)


def _telling(texts: Sequence[str], others: Sequence[str]) -> list[str]:
    """Return the words that are more frequent in texts than in others, by the log odds ratio."""
    from sklearn.feature_extraction.text import CountVectorizer

    if len(texts) < 2:
        return []
    vectorizer = CountVectorizer(binary=True, stop_words="english", token_pattern=_WORD)
    try:
        inside = np.asarray(vectorizer.fit_transform(texts).sum(axis=0)).ravel()
    except ValueError:
        return []
    outside = np.zeros_like(inside)
    if others:
        outside = np.asarray(vectorizer.transform(others).sum(axis=0)).ravel()
    odds = np.log((inside + 0.5) / (len(texts) - inside + 0.5))
    odds -= np.log((outside + 0.5) / (len(others) - outside + 0.5))
    # By the signal to noise of Monroe, Colaresi, Quinn, "Fightin' words", 2008, equation 22.
    spread = np.sqrt(1 / (inside + 0.5) + 1 / (outside + 0.5))
    order = np.argsort(-odds / spread, kind="stable")[:_MOST_TOPICS]
    names = vectorizer.get_feature_names_out()
    return [str(names[at]) for at in order if inside[at] > 1 and odds[at] > 0]
