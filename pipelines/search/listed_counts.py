"""What is counted of the slices that a document lists: how much they explain together, and their confusions."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from slicebeam.metrics.discovery.change import Coverage, of_slices
from slicebeam.metrics.measures.metric import Slices
from slicebeam.metrics.measures.registry import metric
from slicebeam.pipelines.changelist.parts import Confusion, SliceCoverage, finite
from slicebeam.transforms.count.finding_passes import CountListed, of_classes, without_buckets

if TYPE_CHECKING:
    from slicebeam.metrics.arrays import FloatArray, IntArray
    from slicebeam.metrics.counting.lattice import Keys
    from slicebeam.metrics.measures.target_sums import TargetSums
    from slicebeam.pipelines.config.slices import RunConfig
    from slicebeam.pipelines.prepare.encoded_dataset import EncodedDataset
    from slicebeam.transforms.encode.shards import Scaling

# Numbers of examples, their targets, and the targets' squares.
_MOMENTS = ((1, 0), (1, 1), (2, 2))


def explained_variance(
    layout: TargetSums, both: FloatArray | IntArray, sums: FloatArray, of_all: FloatArray
) -> Coverage:
    """Return how much of the targets' variance slices explain together."""
    n, total, squares = (float(layout.moment(of_all, *powers)) for powers in _MOMENTS)
    totals = layout.moment(sums, 1, 1)
    return of_slices(both, totals, int(n), total, squares - total**2 / n)


# Slices, the first ones of the document: the cost of a pass grows with their square.
MOST_COVERING = 200
# CPU time of an example and a slice, measured with as many slices.
_SECONDS_PER_MEMBERSHIP = 4e-9


class ListedCounts(NamedTuple):
    """What is counted of the slices that a document lists, in one pass."""

    coverage: tuple[SliceCoverage, ...] = ()
    # of each slice; of none where there are no predicted classes
    confusions: tuple[Confusion, ...] = ()


def count_listed(
    config: RunConfig, prepared: EncodedDataset, keys: Keys, sums: IntArray | None = None
) -> ListedCounts:
    """Return how much the first slices explain, unless weighted, and confusions; without sums these are counted instead."""
    scaling = without_buckets(prepared.scaling)
    space = scaling.space
    targets = {
        measure.name: target
        for measure in map(metric, config.metric)
        if not space.weighted
        and prepared.space.comparison != "earlier"
        and measure.undefined_reason(prepared.slices()) is None
        and (target := measure.target(space)) is not None
    }
    with_classes = None if sums is None else of_classes(scaling)
    if not keys.size or not (targets or with_classes):
        return ListedCounts()
    first = min(keys.size, MOST_COVERING) if targets else 0
    counted, place = np.unique(
        np.array([one.counted for one in targets.values()]).reshape(-1, space.cells),
        axis=0,
        return_inverse=True,
    )
    # In the order of their keys, so that numbers are summed in the same order whatever the list is.
    order = np.append(np.argsort(keys[:first]), np.arange(first, keys.size))
    used = with_classes or scaling
    function = CountListed(
        keys[order if with_classes else order[:first]],
        prepared.lattice,
        used,
        np.tile(counted, (1, used.space.cells // space.cells)),
        first,
        sums_known=sums is not None and with_classes is None,
    )
    seconds = function.keys.size * _SECONDS_PER_MEMBERSHIP
    parts = prepared.scan("coverage", function, seconds)
    both, slice_sums, of_all = (
        np.sum([one[name] for one in parts], axis=0) for name in ("both", "sums", "of_all")
    )
    slice_sums = slice_sums.reshape(-1, used.space.raw_columns)
    both = both.reshape(len(counted), first, first)
    sums = slice_sums if sums is None else sums[order[:first]]
    everything = prepared.totals[None, : space.raw_columns]
    coverages = []
    for (name, target), at in zip(targets.items(), place.ravel().tolist(), strict=True):
        of_slices, (total,) = (
            metric(name).target_sums(Slices(one, space)) for one in (sums, everything)
        )
        one = explained_variance(target.layout, both[at], of_slices, total)
        coverages.append(
            SliceCoverage(metric=name, slices=first, r2=finite(one.r2), r2_expected=one.expected)
        )
    if with_classes is None:
        return ListedCounts(tuple(coverages))
    listed = slice_sums[np.argsort(order)]
    return ListedCounts(tuple(coverages), confusions_of(with_classes, listed, of_all))


def confusions_of(scaling: Scaling, sums: IntArray, of_all: IntArray) -> tuple[Confusion, ...]:
    """Return the tables of slices (sums [slices, columns] of a scaling `of_classes`) and of all other examples."""
    space, tables = scaling.space, {}
    if space.comparison == "earlier":
        # Of today's examples.
        sums, of_all = (space.of_set(both_sets, then=False) for both_sets in (sums, of_all))
        space = space.of_one_set
    for old, suffix in ((False, ""), (True, "_before"))[: space.sides]:
        cell = space.code("label_class") * space.classes + space.code("predicted_class", old=old)
        for name, counted in (("inside", sums), ("outside", of_all - sums)):
            counts = space.counts(counted)
            if space.weighted:
                counts = np.ldexp(space.weights(counted), space.weight_exponent)
            table = np.zeros((space.classes**2, len(sums)), counts.dtype)
            np.add.at(table, cell, counts.T)
            tables[name + suffix] = table.T.reshape(-1, space.classes, space.classes).tolist()
    return tuple(
        Confusion(classes=scaling.classes, **dict(zip(tables, one, strict=True)))
        for one in zip(*tables.values(), strict=True)
    )
