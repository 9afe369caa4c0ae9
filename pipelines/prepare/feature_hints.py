"""Features that do not look like a property of an example: a model's output, the label, an id."""

from __future__ import annotations

import re
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Literal, NamedTuple

import numpy as np

from slicebeam.transforms.encode.learn_domains import FEW_VALUES

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Sequence

    from slicebeam.metrics.arrays import BoolArray, IntArray
    from slicebeam.transforms.encode.domains import FeatureDomain
    from slicebeam.transforms.encode.extract_predictions import LabelCounts

LooksLike = Literal["output", "label", "id"]

# The words of a name: runs of capitals, words in lower case or with one capital.
_WORDS = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|[^\W\d_a-zA-Z]+")
# `modelscore` and `predclass`, but neither `problem`, `probation` nor `predecessor`.
_OUTPUT = re.compile(
    r"\w*(score[sd]?|scoring|probs?|probas?|probabilit(y|ies)|preds?|predict(ed|ions?)?|logits?)"
    r"|(score|pred|prob)(old|new|class|label|pos|neg)|yhat"
)
# The words of `y_pred`, `score_old` and `predicted_class`, but not all of `credit_score`.
_ONLY_OUTPUT = re.compile(
    r"scores?|probs?|probas?|probabilit(y|ies)|preds?|predict(ed|ions?)|logits?|y|p|y?hat"
    r"|old|new|baseline|previous|current|candidate|model|class|label|pos|neg"
)
_ID = frozenset({"id", "uuid", "guid", "idx", "index"})
# Of a column that looks like an id at least this share of the values are distinct; of one that is
# called so, this share. Integers that are all distinct, and text above the second share, are left out.
_ALMOST_ALL = 0.99
_MANY = 0.5
# A column predicts the label almost perfectly where it leaves one in so many of the errors.
ERRORS_PER_LEFT = 20
# With fewer examples outside the most frequent class nothing is said.
FEWEST_OTHERS = 20


@dataclass(frozen=True)
class ColumnHint:
    """A feature that may be better left out, and why."""

    name: str
    looks_like: LooksLike
    reason: str


def feature_hints(
    domains: Sequence[FeatureDomain], labels: LabelCounts | None, rows: int, chosen: Collection[str]
) -> tuple[ColumnHint, ...]:
    """Return the features that look like no property of an example, in their order."""
    tables = labels.tables if labels is not None else (None,) * len(domains)
    return tuple(
        hint
        for domain, table in zip(domains, tables, strict=True)
        if domain.name not in chosen
        for hint in _hints(domain, table, rows)
    )


def _hints(domain: FeatureDomain, table: IntArray | None, rows: int) -> Iterator[ColumnHint]:
    """Yield at most one hint, the one with most behind it."""
    name = domain.name
    if table is not None:
        ranges = [term.op not in ("==", "not_in", "is_null") for term in domain.singletons]
        is_range = np.zeros(len(table), bool)
        is_range[: len(ranges)] = ranges
        predicted = predicts_label(table, is_range)
        if predicted is not None:
            share = _percent(predicted.most_frequent)
            yield ColumnHint(
                name,
                "label",
                f"predicts {_percent(predicted.right)} of the labels; {share} are the most frequent one",
            )
            return
    if looks_like_output(name):
        yield ColumnHint(name, "output", "its name")
        return
    seen = domain.seen
    if seen is None or seen.distinct is None or domain.data_type in ("string", "bool"):
        return
    present = rows - seen.missing
    needed = _ALMOST_ALL if "int" in domain.data_type else np.inf
    if _ID & set(words_of(name)):
        needed = _MANY
    if present > FEW_VALUES and seen.distinct >= needed * present:
        yield ColumnHint(name, "id", f"{seen.distinct:,} distinct values in {present:,}")


class LabelPrediction(NamedTuple):
    """How well the value of a column alone predicts the label."""

    right: float  # share of examples whose class is predicted from their value
    most_frequent: float  # share of the most frequent class


def predicts_label(table: IntArray, is_range: BoolArray) -> LabelPrediction | None:
    """Return how much of the label the table [values, classes] predicts if almost all; None elsewhere.

    Each example is predicted to be of the most frequent class among the *others* with its value. Almost all:
    of the errors of always predicting the most frequent class one in `ERRORS_PER_LEFT` is left at most (Goodman
    and Kruskal's lambda of 0.95, J. Am. Stat. Assoc. 49, 1954), also if the range of most errors, where two
    classes may meet within a bin, is left out and half of the other examples remain.

    >>> nothing = np.zeros(2, bool)
    >>> predicts_label(np.array([[700, 2], [3, 295]]), nothing)
    LabelPrediction(right=0.995, most_frequent=0.703)
    >>> predicts_label(np.array([[600, 150], [100, 150]]), nothing)
    """
    whole = _judged(table)
    if whole is not None or not is_range.any():
        return whole
    wrong = np.where(is_range, _errors(table), -1)
    rest = np.delete(table, int(np.argmax(wrong)), axis=0)
    if 2 * _others(rest) < _others(table):
        return None
    return _judged(rest)


def _errors(table: IntArray) -> IntArray:
    """Return the wrong predictions among the examples of each value [values]."""
    size = table.sum(axis=1)
    ordered = np.sort(np.pad(table, ((0, 0), (2, 0))), axis=1)
    first, second = ordered[:, -1], ordered[:, -2]
    # Without itself, an example of the first class may find the second one as frequent.
    return np.where(first - 1 > second, size - first, size)


def _others(table: IntArray) -> int:
    """Return the examples that are not of the most frequent class."""
    return int(table.sum() - table.sum(axis=0).max(initial=0))


def _judged(table: IntArray) -> LabelPrediction | None:
    size, others, wrong = int(table.sum()), _others(table), int(_errors(table).sum())
    if others < FEWEST_OTHERS or wrong * ERRORS_PER_LEFT > others:
        return None
    return LabelPrediction((size - wrong) / size, (size - others) / size)


def words_of(name: str) -> list[str]:
    """Return the words of a column's name in lower case.

    >>> words_of("BaselineScore-2_y_pred")
    ['baseline', 'score', 'y', 'pred']
    """
    return [word.lower() for word in _WORDS.findall(name)]


def looks_like_output(name: str) -> bool:
    """Return whether a column's name is that of a score, a probability or a prediction.

    >>> [looks_like_output(name) for name in ("score_old", "P-PROBA", "yPred1", "problem", "predator")]
    [True, True, True, False, False]
    """
    words = words_of(name)
    return any(map(_OUTPUT.fullmatch, words)) or ("y", "hat") in pairwise(words)


def is_named_output(name: str) -> bool:
    """Return whether a name says of a model's output, and nothing else.

    >>> [is_named_output(name) for name in ("score_old", "y_pred", "Predicted-Class", "credit_score", "y")]
    [True, True, True, False, False]
    """
    return looks_like_output(name) and all(map(_ONLY_OUTPUT.fullmatch, words_of(name)))


def _percent(share: float) -> str:
    """Return a share such that no less than all is 100 %."""
    text = f"{share:.1%}"
    return "over 99.9%" if text == "100.0%" and share < 1 else text
