"""The slice that a logistic regression makes from labels and the previous members of the slice."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from slicebeam.metrics.attribution.estimates import UNSURE, YES, simple_random_sample
from slicebeam.metrics.errors import InputError
from slicebeam.pipelines.attribution.labels import MISSING
from slicebeam.pipelines.attribution.population import positions_of
from slicebeam.transforms.encode.definitions import ClassifierDefinition

if TYPE_CHECKING:
    from slicebeam.metrics.arrays import BoolArray, FloatArray, IntArray
    from slicebeam.pipelines.attribution.labels import Labels
    from slicebeam.pipelines.attribution.population import SlicePopulation
    from slicebeam.pipelines.attribution.state import State


# Examples of the slice, and others, whose membership is learned; more say the same again.
_MOST_OF_EACH = 10_000
_THRESHOLD = 0.5
# Weight of all labels together, in that of all memberships: equal parts, so that a hundred labels
# are heard among ten thousand memberships of which a share is wrong.
_WEIGHT_OF_LABELS = 1.0
_ITERATIONS = 1000


def train(
    population: SlicePopulation, state: State, store: Labels, encoder: str
) -> ClassifierDefinition:
    """Return the slice that the labels of the train rounds make of the old one.

    A logistic regression on the embeddings, with the labels as targets where there are any and the
    old membership elsewhere. Labels of estimates train nothing.
    """
    items = [item for round_ in state.rounds for item in round_.train]
    codes = store.codes(items)
    sure = (codes != MISSING) & (codes != UNSURE)
    labelled = [item for item, is_sure in zip(items, sure, strict=True) if is_sure]
    if not labelled:
        raise InputError(
            "there is no yes or no label to train on; label the sheet of the training round"
        )
    places = positions_of(population.data.ids, labelled)
    coefficients, intercept = _fit(population, state.sampling_seed, places, codes[sure] == YES)
    member = population.data.scores(coefficients, intercept) >= _THRESHOLD
    if member.all() or not member.any():
        raise InputError(
            f"{'all' if member.any() else 'none'} of the {member.size:,} examples would be in the "
            "slice of the trained classifier; label more with 'slicebeam attribute sample "
            "--train', or choose other words"
        )
    weights = tuple(coefficients.tolist())
    return ClassifierDefinition(
        intercept=intercept, coefficients=weights, threshold=_THRESHOLD, encoder=encoder
    )


def _fit(
    population: SlicePopulation, seed: int, places: IntArray, truth: BoolArray
) -> tuple[FloatArray, float]:
    """Return coefficients of the raw embeddings [D], and the intercept."""
    from sklearn.linear_model import LogisticRegression

    taken, targets, weights = [places], [truth], [np.zeros(places.size)]
    is_labelled = np.zeros(population.member.size, bool)
    is_labelled[places] = True
    for is_member in (True, False):
        rest = np.flatnonzero((population.member == is_member) & ~is_labelled)
        some = rest[simple_random_sample(population.data.hashes[rest], _MOST_OF_EACH, seed=seed)]
        taken.append(some)
        targets.append(np.full(some.size, is_member))
        weights.append(np.full(some.size, rest.size / max(some.size, 1)))
    positions, target, weight = (
        np.concatenate(taken),
        np.concatenate(targets),
        np.concatenate(weights),
    )
    # The rest of the data weighs as much as the examples that are taken of it.
    weight *= (positions.size - places.size) / max(weight.sum(), 1.0)
    weight[: places.size] = _WEIGHT_OF_LABELS * max(weight.sum(), 1.0) / places.size
    if target.all() or not target.any():
        raise InputError("all training examples have the same label; label more of them")
    features = population.data.embeddings(positions).astype(np.float64)
    mean, deviation = features.mean(axis=0), features.std(axis=0)
    deviation[deviation == 0] = 1.0
    model = LogisticRegression(max_iter=_ITERATIONS)
    model.fit((features - mean) / deviation, target, sample_weight=weight)
    coefficients: FloatArray = model.coef_[0] / deviation
    return coefficients, float(model.intercept_[0] - mean @ coefficients)
