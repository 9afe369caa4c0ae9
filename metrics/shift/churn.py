"""Simulated new predictions of an updated model, for planning."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from slicebeam.metrics.arrays import FloatArray, IntArray


def churned(
    old: NDArray[np.integer],
    label: IntArray,
    shares: FloatArray,
    churn: float | None,
    runs: int,
    seed: int,
) -> NDArray[np.int16]:
    """Return new predictions as an update would make them: int16 [R, items]; each run has its own changes.

    Of the items, of labels ``label``, the share ``churn`` changes its old prediction to another class, in
    proportion to the label's ``shares`` [L, P] of the old ones. None: a whole new API, whose predictions are
    those of other items of the label, whatever the item's own was.
    """
    generator = np.random.default_rng([seed, 0x5F1])
    new = np.empty((runs, old.size), np.int16)
    cumulative = np.cumsum(shares if churn is None else _spread(shares), axis=1)
    for own in new:
        own[:] = old
        if churn is None:
            changed = np.arange(old.size)
        else:
            changed = generator.choice(old.size, round(churn * old.size), replace=False)
        row, was = label[changed], old[changed].astype(np.int64)
        if churn is None:
            point = generator.random(changed.size) * cumulative[row, -1]
        else:
            # The class that was predicted is cut out of the line on which a point is thrown.
            begin = np.where(was > 0, cumulative[row, was - 1], 0.0)
            length = cumulative[row, was] - begin
            point = generator.random(changed.size) * (cumulative[row, -1] - length)
            point += np.where(point >= begin, length, 0.0)
        own[changed] = (cumulative[row] <= point[:, None]).sum(axis=1)
    return new


def _spread(shares: FloatArray) -> FloatArray:
    """Return shares of which no row has a single class: a change would have nowhere to go."""
    single = (shares > 0).sum(axis=1) < 2
    spread = shares / np.maximum(shares.sum(axis=1, keepdims=True), 1e-300)
    open_to_all: FloatArray = np.where(single[:, None], spread + 1 / shares.shape[1], spread)
    return open_to_all
