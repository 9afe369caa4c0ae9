"""Which phrases describe a slice: those that its embeddings are more like than all embeddings are.

Source: Eyuboglu et al. (2022), "Domino: discovering systematic errors with cross-modal embeddings",
section 5.3 (inner product with the slice mean less the overall mean).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from slicebeam.metrics.discovery.candidate_phrases import content_words
from slicebeam.metrics.discovery.embeddings import Embeddings, blocks

if TYPE_CHECKING:
    from collections.abc import Sequence

    from slicebeam.metrics.arrays import BoolArray, FloatArray, IntArray
    from slicebeam.metrics.discovery.pca import PcaSums


_BLOCK = 4096


@dataclass(frozen=True)
class EmbeddingSums:
    """Sums of the embeddings in each of S slices; those of chunks add up."""

    n: IntArray  # [S] Examples.
    total: FloatArray  # [S, D] Σz.

    @classmethod
    def zero(cls, slices: int, dimensions: int) -> EmbeddingSums:
        """Return the sums over no examples."""
        return cls(np.zeros(slices, np.int64), np.zeros((slices, dimensions)))

    @classmethod
    def of(cls, members: BoolArray, z: Embeddings) -> EmbeddingSums:
        """Return what one chunk adds to the sums."""
        if members.ndim != 2 or z.ndim != 2 or members.shape[1] != z.shape[0]:
            raise ValueError(f"members of shape {members.shape}, embeddings of {z.shape}")
        total = np.zeros((members.shape[0], z.shape[1]))
        for rows in blocks(z.shape[0], _BLOCK):
            total += members[:, rows].astype(np.float64) @ z[rows].astype(np.float64)
        return cls(np.count_nonzero(members, axis=1).astype(np.int64), total)

    def __add__(self, other: EmbeddingSums) -> EmbeddingSums:
        """Return the sums over both chunks."""
        if self.total.shape != other.total.shape:
            raise ValueError(
                f"sums of shapes {self.total.shape} and {other.total.shape} cannot be added"
            )
        return EmbeddingSums(self.n + other.n, self.total + other.total)


class PhraseScores(NamedTuple):
    """How well each of P phrases describes each of S slices."""

    # [S, P] Inner product of the phrase's embedding with (mean of the slice − mean of all).
    score: FloatArray
    # [S, P], in [−1, 1] Pearson's, over all examples, of membership with the inner product of an
    # example's embedding and the phrase's.
    correlation: FloatArray


def scored(overall: PcaSums, slices: EmbeddingSums, phrases: Embeddings) -> PhraseScores:
    """Return how well phrases describe slices.

    Similarity is linear in the embedding, so its mean on a slice, and its mean and variance on all
    examples, follow from those of the embeddings: no similarity of an example is computed, and
    phrases can be thought of after the last pass over the data.
    """
    D = overall.mean.size
    if phrases.ndim != 2 or phrases.shape[1] != D or slices.total.shape[1] != D:
        raise ValueError(
            f"phrases of shape {phrases.shape} and slices of {slices.total.shape}, but embeddings "
            f"of {D} dimensions"
        )
    p, n = phrases.astype(np.float64), max(overall.n, 1)
    some = (slices.n > 0)[:, None]
    mean = slices.total / np.maximum(slices.n, 1)[:, None]
    score: FloatArray = np.where(some, mean - overall.mean, 0.0) @ p.T
    scatter = np.einsum("pd,pd->p", p @ overall.scatter, p)
    # A direction in which nothing varies is left with what the others are rounded by.
    rounding = float(np.finfo(np.float64).eps) * D * np.trace(overall.scatter)
    varies = scatter > rounding * np.square(p).sum(axis=1)
    deviation = np.sqrt(np.where(varies, scatter, 1.0) / n)
    share = slices.n / n
    odds = np.sqrt(share / np.where(share < 1, 1 - share, 1.0))
    correlation = np.where(varies, score / deviation, 0.0) * np.where(share < 1, odds, 0.0)[:, None]
    return PhraseScores(score, np.clip(correlation, -1.0, 1.0))


class BestPhrase(NamedTuple):
    """A phrase that describes a slice, with its scores."""

    text: str
    score: float
    correlation: float


def best_phrases(
    found: PhraseScores, phrases: Sequence[str], few: int = 5
) -> list[list[BestPhrase]]:
    """Return of each slice the phrases that describe it best.

    On a slice of share s of the examples, the correlation is the score over the deviation of the
    similarity, times √(s/(1 − s)): both have the same sign, and they differ in that the score
    prefers phrases to which examples differ in similarity, whatever the slice. So the correlation,
    which does not depend on the scale, ranks; the score and then the place in `phrases` decide
    between equals.
    """
    if found.score.shape[1] != len(phrases):
        raise ValueError(f"{len(phrases)} phrases, but scores of {found.score.shape[1]}")
    best = []
    for score, correlation in zip(found.score, found.correlation, strict=True):
        order = np.lexsort((-score, -correlation))
        order = order[score[order] > 0]
        chosen = distinct_best([phrases[number] for number in order], few)
        best.append(
            [
                BestPhrase(
                    phrases[order[place]],
                    float(score[order[place]]),
                    float(correlation[order[place]]),
                )
                for place in chosen
            ]
        )
    return best


def distinct_best(ranked: Sequence[str], few: int) -> list[int]:
    """Return the places of the first few phrases that do not repeat a better one."""
    kept: list[int] = []
    words: list[tuple[str, ...]] = []
    for place, phrase in enumerate(ranked):
        if len(kept) == few:
            break
        own = content_words(phrase)
        if not any(_within(own, other) or _within(other, own) for other in words):
            kept.append(place)
            words.append(own)
    return kept


def _within(some: tuple[str, ...], others: tuple[str, ...]) -> bool:
    return all(any(_same_word(word, other) for other in others) for word in some)


def _same_word(one: str, other: str) -> bool:
    """Whether two words are the same except for an English plural.

    >>> _same_word("story", "stories"), _same_word("actress", "actresses"), _same_word("car", "care")
    (True, True, False)
    """
    short, long = sorted((one, other), key=len)
    return long in {short, f"{short}s", f"{short}es"} or (
        short.endswith("y") and long == f"{short[:-1]}ies"
    )
