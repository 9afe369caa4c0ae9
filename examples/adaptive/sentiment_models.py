"""Two lexicons as models of sentiment: VADER, and AFINN. Both packages bring their words.

``pip install vaderSentiment afinn``, and in this folder
``slicebeam adapt run tree.csv --model sentiment_models:afinn --baseline-model sentiment_models:vader``.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

CLASSES = ["negative", "neutral", "positive"]


@lru_cache
def _vader():
    from vaderSentiment.vaderSentiment import SentimentIntensityAnalyzer

    return SentimentIntensityAnalyzer()


@lru_cache
def _afinn():
    from afinn import Afinn

    return Afinn()


def _probabilities(scores: NDArray[np.float64], threshold: float) -> NDArray[np.float64]:
    """Return probabilities whose largest is that of the class beyond the threshold."""
    weights = np.exp(
        4.0 * np.stack([-scores - threshold, 0.0 * scores, scores - threshold], axis=1)
    )
    return weights / weights.sum(axis=1, keepdims=True)


def vader(texts: list[str]) -> NDArray[np.float64]:
    """Return the probabilities of texts by VADER's compound score, neutral within ±0.05."""
    scores = [_vader().polarity_scores(text)["compound"] for text in texts]
    return _probabilities(np.array(scores, dtype=np.float64), 0.05)


def afinn(texts: list[str]) -> NDArray[np.float64]:
    """Return the probabilities of texts by the mean of AFINN's scores of their known words."""
    scores = []
    for text in texts:
        known = [one for one in _afinn().scores(text) if one]
        scores.append(sum(known) / len(known) / 5.0 if known else 0.0)
    return _probabilities(np.array(scores, dtype=np.float64), 0.05)


vader.output_names = afinn.output_names = CLASSES
