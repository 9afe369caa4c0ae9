"""How encoded examples become integers: what is only known when all of them are written."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from slicebeam.metrics.errors import InputError
from slicebeam.metrics.significance.auc import bucket_edges
from slicebeam.metrics.statistic_space import BUCKETS, Range
from slicebeam.transforms.shards import Scaling, score_column

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from slicebeam.transforms.extract_slice_keys import Encoding
    from slicebeam.transforms.shards import Shard

# Cells of which macro averages may be made.
_MOST_CELLS = 4096
# Scores whose quantiles are taken; of more, every k-th.
_SCORES_AT_MOST = 10_000_000
# A unit of a sum that is a larger part of a typical value makes sums of small slices rough.
_ROUGH = 0.01


def scale(
    encoding: Encoding, shards: Sequence[Shard], facts: Sequence[dict[str, Any]], rows: int
) -> Scaling:
    """Return how the shards' columns become statistics, from what is in all of them.

    Raises
    ------
    InputError
        There are too many classes to be counted in pairs.
    """
    space = encoding.space
    classes: tuple[Any, ...] = ()
    other: Any = None
    if space.classes:
        pairs = [one for fact in facts for listed in fact["pairs"].values() for one in listed]
        known = set(pairs) - {None}
        rest = sorted(known - {encoding.outcome.positive_class})
        other = rest[0] if None in pairs and rest else None
        # Where no example has the other class it has no name, but it may be predicted.
        unnamed = (None,) if None in pairs and not rest else ()
        classes = (*sorted(known), *unnamed)
        space = replace(space, classes=len(classes))
        if space.cells > _MOST_CELLS:
            raise InputError(
                f"label {encoding.outcome.label!r} and the predictions have {len(classes)} classes: "
                f"macro averages would count {space.cells:,} cells a slice, more than {_MOST_CELLS:,}; "
                "use a metric of one class, with --positive-class"
            )
    ranges: dict[tuple[str, bool], Range] = {}
    for fact in facts:
        for name, old, low, high in fact["ranges"]:
            earlier = ranges.get((name, old), Range(low, high))
            ranges[name, old] = Range(min(low, earlier.low), max(high, earlier.high))
    heaviest = max(fact["heaviest"] for fact in facts)
    scaling = Scaling(space.scaled(ranges, heaviest, rows), classes, other)
    if space.ranked:
        scaling = _ranked(scaling, shards, rows)
    return _refined(scaling, shards, ranges, heaviest)


def _refined(
    scaling: Scaling,
    shards: Sequence[Shard],
    ranges: dict[tuple[str, bool], Range],
    heaviest: float,
) -> Scaling:
    """Return the scaling with the bits that the data leaves, which its range alone does not tell.

    The sizes are sums of integers, so that they too are the same in any order of the examples.
    """
    space = scaling.space
    if not (space.terms or space.weighted):
        return scaling
    sizes, weight_sizes, rows = [0] * len(space.all_terms), [0, 0], 0
    for shard in shards:
        for block in shard.blocks(scaling):
            rows += block.rows
            for at, term in enumerate(block.terms):
                sizes[at] += int(np.abs(term).sum())
            for power, weight in enumerate(block.weights):
                weight_sizes[power] += int(weight.sum())
    # Each example may have lost half a unit.
    own = [(size + rows) * scale for size, scale in zip(sizes, space.scales, strict=True)]
    first, second = (
        (size + rows) * scale for size, scale in zip(weight_sizes, space.weight_scales, strict=True)
    )
    refined = space.refined(ranges, heaviest, own, (first, second))
    rough = set()
    for term, scale, size in zip(refined.all_terms, refined.scales, own, strict=True):
        most = refined.largest(term, ranges, heaviest)
        if scale > _ROUGH * max(size - most, 0.0) / rows:
            rough.add(term.value)
    return replace(scaling, space=refined, rough=tuple(sorted(rough)))


def _ranked(scaling: Scaling, shards: Sequence[Shard], rows: int) -> Scaling:
    """Return the scaling with the buckets of scores."""
    space = scaling.space
    step = -(-rows // _SCORES_AT_MOST)
    edges, coarse = [], []
    for side in range(space.sides):
        parts = [shard.column(score_column(old=side == 1))[::step] for shard in shards]
        scores = np.unique(np.concatenate(parts))
        edges.append(bucket_edges(np.concatenate(parts), BUCKETS))
        held = np.bincount(np.searchsorted(edges[side], scores, side="right"), minlength=BUCKETS)
        coarse.append(held > 1)
    return replace(
        scaling,
        edges=tuple(edges),
        coarse=tuple(coarse),
        places=_places(scaling, edges, shards),
    )


def _places(
    scaling: Scaling, edges: Sequence[NDArray[np.float64]], shards: Sequence[Shard]
) -> tuple[NDArray[np.float64], ...]:
    """Return where a score of each bucket stands among all examples of the other class."""
    positive = scaling.space.holds("positive")
    places = []
    for side, own in enumerate(edges):
        histogram = np.zeros((2, BUCKETS), np.int64)
        for shard in shards:
            bucket = np.searchsorted(own, shard.column(score_column(old=side == 1)), side="right")
            # Only the label is asked of the cell: pairs of classes are not in it yet.
            label = positive[shard.column("cell")].astype(np.int64)
            counted = np.bincount(label * BUCKETS + bucket, minlength=2 * BUCKETS)
            histogram += counted.reshape(2, BUCKETS)
        share = histogram / np.maximum(histogram.sum(axis=1, keepdims=True), 1)
        below = np.cumsum(share, axis=1) - share / 2
        places.append(np.stack([1.0 - below[1], below[0]]))
    return tuple(places)
