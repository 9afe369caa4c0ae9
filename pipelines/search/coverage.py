"""How much of the variance between examples slices explain together."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from slicebeam.metrics.discovery.change import Coverage, of_slices
from slicebeam.metrics.measures.metric import Slices
from slicebeam.metrics.measures.registry import metric
from slicebeam.pipelines.changelist.parts import SliceCoverage, finite
from slicebeam.pipelines.prepare.encoded_dataset import pass_over_shards
from slicebeam.transforms.count.finding_passes import CountOverlaps, without_buckets
from slicebeam.transforms.storage.storage import storage_path

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from slicebeam.metrics.arrays import IntArray
    from slicebeam.metrics.counting.lattice import Keys
    from slicebeam.metrics.measures.target_sums import TargetSums
    from slicebeam.pipelines.config.slices import RunConfig
    from slicebeam.pipelines.prepare.encoded_dataset import EncodedDataset
    from slicebeam.pipelines.run.engine import Engine
    from slicebeam.pipelines.run.work_folder import WorkFolder

# Numbers of examples, their targets, and the targets' squares.
_MOMENTS = ((1, 0), (1, 1), (2, 2))


def explained_variance(
    layout: TargetSums,
    both: NDArray[np.float64] | NDArray[np.int64],
    sums: NDArray[np.float64],
    of_all: NDArray[np.float64],
) -> Coverage:
    """Return how much of the targets' variance slices explain together."""
    n, total, squares = (float(layout.moment(of_all, *powers)) for powers in _MOMENTS)
    totals = layout.moment(sums, 1, 1)
    return of_slices(both, totals, int(n), total, squares - total**2 / n)


# Slices, the first ones of the document: the cost of a pass grows with their square.
MOST_COVERING = 200
# CPU time of an example and a slice, measured with as many slices.
_SECONDS_PER_MEMBERSHIP = 4e-9


def list_coverage(
    config: RunConfig,
    prepared: EncodedDataset,
    keys: Keys,
    work: WorkFolder,
    engine: Engine,
    sums: IntArray | None = None,
) -> tuple[SliceCoverage, ...]:
    """Return how much the slices explain, for each metric that averages over examples; nothing with weights."""
    scaling = without_buckets(prepared.scaling)
    space = scaling.space
    targets = {
        own.name: target
        for own in map(metric, config.metric)
        if own.undefined_reason(prepared.slices()) is None
        and (target := own.target(space)) is not None
    }
    if space.weighted or not targets or not keys.size:
        return ()
    counted, place = np.unique(
        [one.counted for one in targets.values()], axis=0, return_inverse=True
    )
    order = np.argsort(keys)
    function = CountOverlaps(
        keys[order], prepared.lattice, scaling, counted, sums_known=sums is not None
    )
    found = pass_over_shards(
        [storage_path(path) for path in prepared.shards],
        "coverage",
        function,
        work,
        engine,
        prepared.rows * keys.size * _SECONDS_PER_MEMBERSHIP,
        keeps=True,
    )
    if sums is None:
        # In the order of the keys, as all that is counted.
        sums = np.sum([one["sums"] for one in found], axis=0).reshape(keys.size, space.raw_columns)
    else:
        sums = sums[order]
    both = np.sum([one["both"] for one in found], axis=0).reshape(-1, keys.size, keys.size)
    everything = prepared.totals[None, : space.raw_columns]
    coverages = []
    for (name, target), at in zip(targets.items(), place.ravel().tolist(), strict=True):
        of_slices, (of_all,) = (
            metric(name).target_sums(Slices(one, space)) for one in (sums, everything)
        )
        one = explained_variance(target.layout, both[at], of_slices, of_all)
        coverages.append(
            SliceCoverage(
                metric=name, slices=keys.size, r2=finite(one.r2), r2_expected=one.expected
            )
        )
    return tuple(coverages)
