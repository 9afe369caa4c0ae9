"""What tables do not have of listed slices: row hashes, numbers of groups, and the exact AUC."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from slicebeam.metrics.arrays import ratio
from slicebeam.metrics.counting.counting import ROWS_AT_A_TIME, RowBlock
from slicebeam.metrics.counting.membership import Membership
from slicebeam.metrics.significance.auc import Areas, ScoredRows
from slicebeam.transforms.count.tables import work_items
from slicebeam.transforms.encode.shards import Shard, score_column
from slicebeam.transforms.storage.parts import WriteParts
from slicebeam.transforms.storage.storage import storage_path

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from numpy.typing import NDArray

    from slicebeam.metrics.arrays import FloatArray, IntArray
    from slicebeam.metrics.counting.counting import Resampling
    from slicebeam.metrics.counting.lattice import Keys, Lattice
    from slicebeam.transforms.encode.shards import Scaling
    from slicebeam.transforms.storage.storage import StoragePath

    # Such as `hash_sums` and `distinct_groups`.
    SumOfRows = Callable[[Keys, Lattice, Iterable[RowBlock]], NDArray[np.uint64]]
    # Some rows, their slices and their replicates.
    _Chunk = tuple[ScoredRows, RowBlock, list[NDArray[np.uint8]] | None]

# The key of all examples: no predicate.
WHOLE = 0
# Feature tuples whose slices a work item sums.
_TUPLES_AT_A_TIME = 512


def _summed(
    of: SumOfRows, lattice: Lattice, item: tuple[int, int, tuple[str, ...]], shared: pa.Table
) -> pa.RecordBatch:
    """Return the key and the sum of each slice between two places, over some shards."""
    begin, end, shards = item
    keys = shared.column("key").slice(begin, end - begin).to_numpy()
    blocks = (block for path in shards for block in Shard(storage_path(path)).blocks())
    sums = of(keys, lattice, blocks)
    return pa.record_batch([pa.array(keys), pa.array(sums)], names=["key", "sum"])


def sum_slices(
    of: SumOfRows,
    keys: Keys,
    lattice: Lattice,
    shards: tuple[str, ...],
    folder: StoragePath,
    seconds: float = 0.0,
    workers: int = 1,
) -> WriteParts:
    """Return the transform that writes sums of slices, over all shards at once where these take no seconds."""
    number, sets = lattice.feature_sets(keys)
    order = np.argsort(number, kind="stable")
    tuples = np.arange(0, len(sets) + _TUPLES_AT_A_TIME, _TUPLES_AT_A_TIME)
    bounds = np.unique(np.searchsorted(number[order], tuples)).tolist()
    items = [
        (bounds[work.block], bounds[work.block + 1], work.shards)
        for work in work_items(range(len(bounds) - 1), shards, seconds, workers)
    ]
    return WriteParts(partial(_summed, of, lattice), items, folder, pa.table({"key": keys[order]}))


def slice_sums(parts: Sequence[pa.Table]) -> tuple[Keys, NDArray[np.uint64]]:
    """Return the slices (sorted) and their sums over all parts, modulo 2^64."""
    none = pa.table({"key": np.zeros(0, np.int64), "sum": np.zeros(0, np.uint64)})
    every = pa.concat_tables([none, *(part.cast(none.schema) for part in parts)])
    known, position = np.unique(every.column("key").to_numpy(), return_inverse=True)
    summed = np.zeros(known.size, np.uint64)
    np.add.at(summed, position.reshape(-1), every.column("sum").to_numpy())
    return known, summed


@dataclass(frozen=True)
class WinsPlan:
    """The plan of a pass over the scores.

    `of_all` are the negatives and positives of all examples, or their weights, and `groups`, for each model,
    the first score buckets of the groups of scores that fit the memory.
    """

    lattice: Lattice
    scaling: Scaling
    shards: tuple[str, ...]
    of_all: IntArray
    groups: tuple[tuple[int, ...], ...]
    resampling: Resampling | None = None

    @property
    def layers(self) -> int:
        """One, and one for each replicate."""
        return 1 + (self.resampling.replicates if self.resampling else 0)


@dataclass(frozen=True)
class CountedWins:
    """Exact AUCs of slices: for each model as `StatisticSpace.exact_ranking`, and [slices, 1 + replicates]."""

    keys: Keys
    ranking: tuple[IntArray, ...]
    replicates: tuple[FloatArray, ...]


def count_wins(
    plan: WinsPlan, keys: Keys, sizes: IntArray, bounds: Sequence[int], folder: StoragePath
) -> WriteParts:
    """Return the transform that writes the exact AUCs of slices, a part for those between two bounds.

    `sizes`: negatives and positives [slices, 2].
    """
    columns = {"key": keys, "negatives": sizes[:, 0], "positives": sizes[:, 1]}
    return WriteParts(partial(_counted, plan), [*pairwise(bounds)], folder, pa.table(columns))


def _counted(plan: WinsPlan, item: tuple[int, int], shared: pa.Table) -> pa.RecordBatch:
    begin, end = item
    keys, *classes = map(np.array, shared.slice(begin, end - begin).columns)
    counted = exact_areas(plan, keys, np.stack(classes, axis=1))
    columns = {"key": pa.array(counted.keys)}
    for name, tables in (("ranking", counted.ranking), ("replicates", counted.replicates)):
        for side, table in enumerate(tables):
            flat = pa.array(np.ascontiguousarray(table).reshape(-1))
            columns[f"{name}{side}"] = pa.FixedSizeListArray.from_arrays(flat, table.shape[1])
    return pa.record_batch(columns)


def read_wins(part: pa.Table) -> CountedWins:
    """Return what a part holds."""
    found: dict[str, list[NDArray[Any]]] = {"ranking": [], "replicates": []}
    for name in part.column_names[1:]:
        column = part.column(name).combine_chunks()
        values = column.flatten().to_numpy().reshape(part.num_rows, column.type.list_size)
        found[name.rstrip("01")].append(values)
    return CountedWins(part.column("key").to_numpy(), *map(tuple, found.values()))


def _group(plan: WinsPlan, features: Sequence[int], side: int, group: int) -> Iterator[_Chunk]:
    """Yield all examples of a group in chunks that stay in the cache, by score, no score in two."""
    edges, begins = plan.scaling.edges[side], plan.groups[side]
    # Bucket b holds the scores from edge b − 1 to before edge b. No score is below or above NaN.
    low, high = (
        edges[begins[at] - 1] if 0 < at < len(begins) else np.nan for at in (group, group + 1)
    )
    space = replace(plan.scaling.space, ranked=False, terms=(), total_terms=(), scales=())
    scaling, label = replace(plan.scaling, space=space), space.holds("positive")
    is_resampled = plan.resampling is not None
    parts, blocks = [], []
    for shard in map(Shard, map(storage_path, plan.shards)):
        scores, begin = shard.column(score_column(old=side == 1)), 0
        for block in shard.blocks(scaling):
            within = scores[begin : begin + block.rows]
            begin += block.rows
            rows = np.flatnonzero(~((within < low) | (within >= high)))
            parts.append(within[rows])
            blocks.append(block.take(rows, features, resampled=is_resampled))
    scores = np.concatenate(parts)
    order = np.argsort(scores)
    scores = scores[order]
    whole = RowBlock.joined(blocks, features).take(order, features, resampled=is_resampled)
    del parts, blocks
    rank = np.cumsum(np.append(False, scores[1:] != scores[:-1])[: scores.size])
    wanted = rank[np.arange(0, rank.size, ROWS_AT_A_TIME)]
    bounds = np.unique(np.searchsorted(rank, wanted)).tolist()
    for begin, end in pairwise([*bounds, rank.size]):
        chunk = whole.take(np.arange(begin, end), features, resampled=is_resampled)
        weights = chunk.weights[0] if space.weighted else None
        scored = ScoredRows(rank[begin:end] - rank[begin], label[chunk.cells], weights)
        yield scored, chunk, plan.resampling.drawn(chunk.ids) if plan.resampling else None


def exact_areas(plan: WinsPlan, keys: Keys, sizes: IntArray) -> CountedWins:
    """Return the exact AUCs of slices."""
    whole = np.flatnonzero(keys == WHOLE)
    sliced = np.flatnonzero(keys != WHOLE)
    membership = Membership(keys[sliced], plan.lattice)
    owners = np.unique(plan.lattice.features(keys[sliced]))
    features = owners[owners >= 0].tolist()
    space = plan.scaling.space
    ranking, replicates = [], []
    for side in range(space.sides):
        areas = Areas(sizes, plan.of_all, plan.layers, with_precisions=space.average_precision)
        for group in range(len(plan.groups[side])):
            for rows, block, drawn in _group(plan, features, side, group):
                areas.begin(rows)
                for _, slices, members in membership.of(block):
                    areas.add(sliced[slices], members, drawn)
                for place in whole.tolist():
                    areas.add(np.full(block.rows, place), np.arange(block.rows), drawn)
        own = areas.placements()
        complement = areas.complements()
        if space.comparison == "baseline":
            complement[:] = np.nan
        precision = None if areas.precisions is None else ratio(areas.precisions, sizes[:, 1])
        ranking.append(space.exact_ranking(own, complement, precision))
        replicates.append(areas.values())
    return CountedWins(keys, tuple(ranking), tuple(replicates))
