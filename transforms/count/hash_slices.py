"""Sums over the examples of slices that tables do not have: hashes of rows, and groups."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from slicebeam.metrics.counting.membership import DistinctGroups, RowHashSums
from slicebeam.transforms.count.plans import work_items
from slicebeam.transforms.encode.shards import Shard
from slicebeam.transforms.storage.parts import WriteParts
from slicebeam.transforms.storage.storage import storage_path

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray

    from slicebeam.metrics.arrays import IntArray
    from slicebeam.metrics.counting.counting import Unit
    from slicebeam.metrics.counting.lattice import Keys, Lattice
    from slicebeam.metrics.counting.membership import HashBlock
    from slicebeam.transforms.storage.storage import StoragePath

# Feature tuples whose groups a work item counts.
_TUPLES_AT_A_TIME = 512


@dataclass(frozen=True)
class _Item:
    """Slices, by their place among the keys, over some shards."""

    begin: int
    end: int
    shards: tuple[str, ...]
    tables: tuple[Unit, ...] = ()


def _summed(counter: Callable[[Keys, _Item], Any], item: _Item, shared: pa.Table) -> pa.RecordBatch:
    """Return the key and the sum of each slice of an item."""
    keys = shared.column("key").slice(item.begin, item.end - item.begin).to_numpy()
    sums = counter(keys, item)
    for path in item.shards:
        for rows in Shard(storage_path(path)).blocks():
            sums.add(rows)
    return pa.record_batch([pa.array(keys), pa.array(sums.sums)], names=["key", "sum"])


def _hashes(lattice: Lattice, singleton_sizes: IntArray, keys: Keys, item: _Item) -> RowHashSums:
    return RowHashSums(keys, lattice, singleton_sizes, item.tables)


def _groups(lattice: Lattice, keys: Keys, _: _Item) -> DistinctGroups:
    return DistinctGroups(keys, lattice)


def hash_slices(
    blocks: Sequence[HashBlock],
    lattice: Lattice,
    shards: tuple[str, ...],
    workers: int,
    folder: StoragePath,
    singleton_sizes: IntArray,
) -> WriteParts:
    """Return the transform that writes the row-hash sums of slices: equal for equal examples.

    `singleton_sizes`: int64 [singletons + 1] examples by digit.
    """
    ends = np.cumsum([block.keys.size for block in blocks]).tolist()
    # Sums of hashes are small: each block is dealt out over the workers by shards.
    items = [
        _Item(end - block.keys.size, end, work.shards, block.tables)
        for block, end in zip(blocks, ends, strict=True)
        for work in work_items([0], shards, block.seconds, workers)
    ]
    keys = pa.table({"key": np.concatenate([block.keys for block in blocks])})
    return WriteParts(
        partial(_summed, partial(_hashes, lattice, singleton_sizes)), items, folder, keys
    )


def count_groups(
    keys: Keys, lattice: Lattice, shards: tuple[str, ...], folder: StoragePath
) -> WriteParts:
    """Return the transform that writes in how many groups (ids of the shards) slices have examples."""
    number, sets = lattice.feature_sets(keys)
    order = np.argsort(number, kind="stable")
    tuples = np.arange(0, len(sets) + _TUPLES_AT_A_TIME, _TUPLES_AT_A_TIME)
    bounds = np.unique(np.searchsorted(number[order], tuples)).tolist()
    # Groups of different shards may be the same: only one pass over all of them can tell.
    items = [_Item(*ends, shards) for ends in pairwise(bounds)]
    counted = partial(_summed, partial(_groups, lattice))
    return WriteParts(counted, items, folder, pa.table({"key": keys[order]}))


def slice_sums(parts: Sequence[pa.Table]) -> tuple[Keys, NDArray[np.uint64]]:
    """Return the slices (sorted) and their sums over all parts, modulo 2^64."""
    none = pa.table({"key": np.zeros(0, np.int64), "sum": np.zeros(0, np.uint64)})
    every = pa.concat_tables([none, *(part.cast(none.schema) for part in parts)])
    known, position = np.unique(every.column("key").to_numpy(), return_inverse=True)
    summed = np.zeros(known.size, np.uint64)
    np.add.at(summed, position.reshape(-1), every.column("sum").to_numpy())
    return known, summed
