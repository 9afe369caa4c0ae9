"""Slices that are defined by labelled examples: ``define --classifier``."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from slicebeam.metrics.attribution.estimates import NO, UNSURE, YES
from slicebeam.metrics.errors import InputError, shortened
from slicebeam.pipelines.attribution.labels import CHOICES, WORDS, label_of
from slicebeam.pipelines.attribution.population import positions_of
from slicebeam.pipelines.prepare.id_lists import as_ids, check_known, read_csv, read_text
from slicebeam.transforms.encode.definitions import ClassifierDefinition

if TYPE_CHECKING:
    from collections.abc import Mapping

    import pyarrow as pa
    from numpy.typing import NDArray

    from slicebeam.metrics.arrays import BoolArray, FloatArray
    from slicebeam.pipelines.define.document_data import DocumentData
    from slicebeam.transforms.encode.definitions import Id

# Inverse strength of the penalty |w|²/2 against the sum of the log losses, scikit-learn's default:
# for embeddings of length 1 and a few dozen labels nearly the difference of the two means, which a
# few labels tell; with thousands of labels the penalty hardly counts.
_C = 1.0
_MOST_ITERATIONS = 1000


def classifier(
    uri: str, data: DocumentData, encoder: str
) -> tuple[ClassifierDefinition, tuple[str, ...]]:
    """Return a logistic regression on embeddings, fitted to labels of a file, and notes.

    The two labels count alike however often each was given (class-balanced weights), and embeddings
    are taken as they are, not standardised.

    ``uri``: CSV file of the columns ``id`` and ``label``, which is yes or no; one that is unsure,
    or has no label, is passed over. ``encoder``: fingerprint of what made the embeddings.
    """
    return classifier_of(read_labels(uri, data.ids), data, encoder)


def classifier_of(
    labels: Mapping[Id, bool], data: DocumentData, encoder: str
) -> tuple[ClassifierDefinition, tuple[str, ...]]:
    """Return the same of labels by ids, at least one of each."""
    positions = positions_of(data.ids, list(labels))
    order = np.argsort(positions)
    embeddings = data.embeddings(positions[order])
    wanted = np.array(list(labels.values()), bool)[order]
    intercept, weights = _fitted(embeddings, wanted)
    right = (embeddings.astype(np.float64) @ weights + intercept >= 0) == wanted
    note = (
        f"{int(wanted.sum()):,} examples with label yes, {int((~wanted).sum()):,} with no; the "
        f"classifier agrees on {right.mean():.1%} of them, its training examples"
    )
    definition = ClassifierDefinition(
        intercept=intercept, coefficients=tuple(weights.tolist()), encoder=encoder
    )
    return definition, (note,)


def _fitted(embeddings: NDArray[np.float32], wanted: BoolArray) -> tuple[float, FloatArray]:
    from sklearn.linear_model import LogisticRegression

    model = LogisticRegression(C=_C, class_weight="balanced", max_iter=_MOST_ITERATIONS)
    model.fit(embeddings.astype(np.float64), wanted)
    return float(model.intercept_[0]), np.asarray(model.coef_[0], np.float64)


def read_labels(uri: str, known: pa.Array) -> dict[Id, bool]:
    """Return the labels of examples by their ids; errors as of `classifier`."""
    where = f"--classifier {uri}"
    header, rows = read_csv(read_text(uri, "--classifier"), where)
    for name in ("id", "label"):
        if name not in header:
            raise InputError(
                f"{where}: there is no column {name!r}; the columns must be id and label"
            )
    at, of = header.index("id"), header.index("label")
    ids = as_ids((row[at] for row in rows), known.type, where)
    labels: dict[Id, bool] = {}
    for one, row in zip(ids, rows, strict=True):
        label = label_of(row[of] or WORDS[UNSURE])
        if label is None:
            raise InputError(
                f"{where}, id {one!r}: label {shortened(repr(row[of]))} is not valid; write {CHOICES}"
            )
        if label != UNSURE and labels.setdefault(one, label == YES) != (label == YES):
            raise InputError(f"{where}: id {one!r} has both labels; keep one of them")
    for label in (YES, NO):
        if (label == YES) not in labels.values():
            raise InputError(
                f"{where}: no example has the label {WORDS[label]}; give it to at least one"
            )
    check_known(list(labels), known, where)
    return labels
