"""Ward's merging of weighted centres: merges clusters that k-means split."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from slicebeam.metrics.arrays import FloatArray, IntArray


def ward(centres: FloatArray, sizes: FloatArray, clusters: int) -> IntArray:
    """Return the clusters after merging the two nearest until this number is left.

    Nearest are the two whose merging adds least to the sum of squares within clusters:
    n_a n_b/(n_a + n_b)·|c_a − c_b|².

    Source: J. H. Ward (1963), "Hierarchical grouping to optimize an objective function", JASA 58,
    with the weights of the groups. Each cluster knows its nearest, so memory is m·d doubles, and
    time is about m²·d: a merging computes the costs of the merged cluster and of the few whose
    nearest it was.
    """
    m = sizes.size
    if centres.ndim != 2 or sizes.shape != (centres.shape[0],):
        raise ValueError(f"centres of shape {centres.shape}, sizes of {sizes.shape}")
    if not (sizes > 0).all():
        raise ValueError("a group has no points")
    if clusters < 1:
        raise ValueError(f"clusters = {clusters} is below 1")
    centres, sizes = centres.astype(np.float64), sizes.astype(np.float64)
    of = np.arange(m)
    is_gone = np.zeros(m, bool)

    def costs(number: int) -> FloatArray:
        """Return what merging with each adds to the sum of squares: float64 [m]."""
        apart = np.square(centres - centres[number]).sum(axis=1)
        found: FloatArray = sizes * sizes[number] / (sizes + sizes[number]) * apart
        found[is_gone] = np.inf
        found[number] = np.inf
        return found

    nearest, least = np.empty(m, np.int64), np.empty(m)

    def look(number: int, found: FloatArray) -> None:
        nearest[number] = found.argmin()
        least[number] = found[nearest[number]]

    if clusters < m:
        for number in range(m):
            look(number, costs(number))
    for _ in range(m - clusters):
        kept = int(least.argmin())
        gone = int(nearest[kept])
        total = sizes[kept] + sizes[gone]
        centres[kept] += (centres[gone] - centres[kept]) * (sizes[gone] / total)
        sizes[kept] = total
        of[of == gone] = kept
        is_gone[gone] = True
        least[gone] = np.inf
        # Costs to a merged cluster are no less than those to the nearer of its parts were, so that
        # nobody else's nearest changes.
        stale = ((nearest == kept) | (nearest == gone)) & ~is_gone
        stale[kept] = True
        for number in np.flatnonzero(stale).tolist():
            look(number, costs(number))
    return np.unique(of, return_inverse=True)[1].astype(np.int64)
