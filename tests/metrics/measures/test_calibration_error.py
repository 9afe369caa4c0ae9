"""The calibration error of random and of other slices: values, error rates of the test, what a search finds."""

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from sklearn.calibration import calibration_curve

from slicebeam.metrics.counting.statistic_space import Deviations, Range, fixed_point
from slicebeam.metrics.errors import InputError
from slicebeam.metrics.measures.calibration_error import bin_of, number_of_bins, part_edges
from slicebeam.metrics.metric import Slices
from slicebeam.metrics.registry import metric, statistic_space
from slicebeam.metrics.significance.outcome_codes import Reason
from slicebeam.metrics.significance.random_subset import bin_sums, population
from slicebeam.metrics.testing.slice_test import check_comparison
from tests.conftest import slow
from tests.refusals import refuses
from tests.running import rows_of, search

N, NAME = 40_000, "calibration_error:10"
ECE = metric(NAME)


def examples(law, rows=N, seed=0):
    """Scores and labels, of a model that is calibrated or not."""
    rng = np.random.default_rng(seed)
    score = rng.beta(1.2, 3, rows) if law != "rare" else rng.beta(0.5, 12, rows)
    rate = np.clip(score * 1.4, 0, 1) if law == "low" else score
    return score, rng.random(rows) < rate


def by_sklearn(score, label, bins=10):
    """A bin is empty or in scikit-learn's curve."""
    curve = calibration_curve(label, score, n_bins=bins)
    at = np.searchsorted(np.linspace(0, 1, bins + 1)[1:-1], score)
    held = np.bincount(at, minlength=bins)
    return np.abs(np.subtract(*curve)) @ held[held > 0] / len(score)


def slices_of(score, label, rows, name=NAME):
    """Slices of some rows each, with all examples, as a search prepares them."""
    residuals = score - label
    space = statistic_space([name], "overall")
    bins, unit = bin_of(residuals, number_of_bins(name)), 2.0**-40
    span = Range(float(residuals.min()), float(residuals.max()))
    space = space.scaled({(name, False): span}, 1.0, len(score))
    columns = [np.ones(len(score), np.int64)]
    for term, scale in zip(space.all_terms, space.scales, strict=True):
        own = term.bin is None or bins == term.bin
        columns.append(fixed_point(np.where(own, residuals**term.power, 0.0), scale))
    if np.ptp(residuals) > 0:
        edges = part_edges(name, residuals.mean())
        sums = bin_sums(residuals - residuals.mean(), edges, unit)
        sums[2] = 0
        held = Deviations(residuals.mean(), population(sums, edges, unit))
        space = replace(space, deviations=((name, held),))
    matrix = np.stack(columns, axis=1)
    inside = np.stack([matrix[some].sum(axis=0)[: space.columns] for some in rows])
    return Slices(inside, space, matrix.sum(axis=0))
