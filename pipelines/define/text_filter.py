"""Slices that are defined by a text: ``define --text-filter``."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from slicebeam.metrics.errors import InputError, OptionError, shortened
from slicebeam.transforms.encode.definitions import TextQueryDefinition

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from slicebeam.pipelines.define.document_data import DocumentData

# Standard deviations above the mean similarity from which on an example is matched.
DEVIATIONS = 2.0


def default_threshold(similarity: NDArray[np.floating]) -> float:
    """Return the mean similarity plus two standard deviations.

    What a similarity of 0.3 means differs between encoders, and even between texts: it is common
    in one and the maximum of another. So the threshold is counted from the bulk of the examples,
    which are taken not to be about the text. Of normally distributed similarities 2.3 % are
    above, and never more than a fifth of any: by Cantelli's inequality at most 1/(1 + 2²). A text
    that is true of more examples needs a threshold of its own.

    Measured on 19,503 sentences with MiniLM embeddings, 400 of them as texts: between 0.9 and 5.4 %
    of the sentences are matched, 2.8 % in the median, by thresholds of which 90 % are from 0.18 to
    0.43. With TF-IDF and 128 singular vectors it finds .55 to 1.00 of the sentences that have the
    word in them (15 words, .97 in the median), where a fixed 0.5 finds .05 to .84 (.47).

    ``similarity``: float [n] cosines.
    """
    values = similarity.astype(np.float64)
    return float(values.mean() + DEVIATIONS * values.std())


def text_filter(
    data: DocumentData, encoder: str, query: str, threshold: float | None
) -> tuple[TextQueryDefinition, tuple[str, ...]]:
    """Return the definition of the examples that are similar to a text, and notes for the user."""
    if not query.strip():
        raise OptionError(
            "--text-filter is empty; write a text like the examples that you look for"
        )
    if threshold is not None and not (math.isfinite(threshold) and -1 <= threshold <= 1):
        raise OptionError(f"--threshold {threshold}: a cosine is between -1 and 1")
    (similarity,) = data.similarity([query])
    if threshold is None and np.ptp(similarity) == 0:
        raise InputError(
            f"every example is as similar to {shortened(query)!r} as any other, perhaps because "
            "none of its words is known; use other words"
        )
    least = default_threshold(similarity) if threshold is None else threshold
    matched = int(np.count_nonzero(similarity >= least))
    if not matched:
        raise InputError(
            f"no example has a similarity to the text of {least:.4f} or more; give a lower "
            f"--threshold: the highest similarity is {float(similarity.max(initial=-1.0)):.4f}"
        )
    how = "--threshold" if threshold is not None else f"mean + {DEVIATIONS:g} sd"
    note = (
        f"{matched:,} of {similarity.size:,} examples ({matched / similarity.size:.1%}) have a "
        f"similarity of {least:.4f} ({how}) or more"
    )
    return TextQueryDefinition(query=query, threshold=least, encoder=encoder), (note,)
