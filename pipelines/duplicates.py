"""Duplicates: different predicates that hold of the very same examples."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components

from slicebeam.metrics.lattice import contains
from slicebeam.transforms.hash_slices import HashSlices, read_sums

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from slicebeam.metrics.lattice import Keys, Lattice
    from slicebeam.pipelines.preparation import Prepared
    from slicebeam.pipelines.runner import Engine
    from slicebeam.pipelines.work_folder import WorkFolder

    Array = NDArray[Any]

# Data of so many shards is hashed in its first one before it is hashed in all.
_SHARDS_WORTH_A_SAMPLE = 3


def same_examples(
    keys: Keys,
    sums: NDArray[np.int64],
    significant: NDArray[np.bool_],
    levels: NDArray[np.int64],
    prepared: Prepared,
    work: WorkFolder,
    engine: Engine,
) -> Keys:
    """Return for each slice the key of the shortest significant one with the same examples.

    Only slices with equal sums can be the same. Of two nested predicates the longer one holds of
    as many examples only if they are the same; the row hashes of the others are compared.

    Parameters
    ----------
    keys : int64 [slices] that are known
    sums : int64 [slices, columns]
    significant : bool [slices] which are asked about
    levels : int64 [slices]
    """
    same = keys.copy()
    mine = np.flatnonzero(significant)
    if mine.size < 2:
        return same
    _, group, members = np.unique(sums[mine], axis=0, return_inverse=True, return_counts=True)
    group = group.reshape(-1)
    repeated = members[group] > 1
    alike, group = mine[repeated], group[repeated]
    if alike.size == 0:
        return same
    sizes = prepared.space.sizes(sums)
    nested = nested_classes(keys, sizes, alike, prepared.lattice)
    # One slice of each class is hashed, where its group has several.
    _, first = np.unique(nested, return_index=True)
    classes = np.bincount(group[first], minlength=members.size)
    hashed = first[classes[group[first]] > 1]
    found = _hashes(keys[alike[hashed]], prepared, work, engine)
    merged = np.arange(nested.max() + 1)
    _, representative, found_class = np.unique(found, return_index=True, return_inverse=True)
    merged[nested[hashed]] = nested[hashed][representative][found_class.reshape(-1)]
    number = merged[nested]
    order = np.lexsort((keys[alike], levels[alike], number))
    begins = np.concatenate([[True], np.diff(number[order]) != 0])
    shortest = keys[alike][order][np.flatnonzero(begins)][np.cumsum(begins) - 1]
    same[alike[order]] = shortest
    return same


def nested_classes(
    keys: Keys, sizes: NDArray[np.int64], asked: NDArray[np.int64], lattice: Lattice
) -> NDArray[np.int64]:
    """Return numbers [asked] that are equal where nesting shows the examples to be the same.

    Parameters
    ----------
    keys, sizes : int64 [slices] of known slices
    asked : int64 positions of those that are asked about
    """
    by_key = np.argsort(keys)
    ordered = keys[by_key]
    levels = lattice.cross_sizes(keys[asked])
    longer, shorter = [asked], [asked]
    for level in range(2, lattice.max_cross_size + 1):
        some = asked[levels == level]
        for subset in lattice.subsets(keys[some], range(1, level)):
            known = np.flatnonzero(contains(ordered, subset))
            at = by_key[np.searchsorted(ordered, subset[known])]
            equal = sizes[at] == sizes[some[known]]
            longer.append(some[known][equal])
            shorter.append(at[equal])
    rows, columns = np.concatenate(longer), np.concatenate(shorter)
    links = coo_array((np.ones(rows.size, bool), (rows, columns)), shape=(keys.size, keys.size))
    _, number = connected_components(links, directed=False)
    _, classes = np.unique(number[asked], return_inverse=True)
    return classes.reshape(-1).astype(np.int64)


def _hash(transform: HashSlices, pipeline: Any) -> Any:
    return pipeline | "Hash slices" >> transform


def _hashes(keys: Keys, prepared: Prepared, work: WorkFolder, engine: Engine) -> NDArray[np.uint64]:
    """Return numbers [slices] that are equal where the slices hold the same examples."""
    found = np.arange(keys.size, dtype=np.uint64)
    asked = np.arange(keys.size)
    stages = [("hashes", prepared.shards)]
    if len(prepared.shards) >= _SHARDS_WORTH_A_SAMPLE:
        # Most slices that are alike by chance differ in any part of the data.
        stages.insert(0, ("first-hashes", prepared.shards[:1]))
    for stage, shards in stages:
        if asked.size == 0:
            break
        folder = work.folder(stage)
        if work.done(f"{stage}/hashed") is None:
            wired = HashSlices(np.sort(keys[asked]), prepared.lattice, shards, folder)
            engine.run(partial(_hash, wired))
            work.finish(f"{stage}/hashed", {})
        known, sums = read_sums(folder)
        sums = sums[np.searchsorted(known, keys[asked])]
        found[asked] = sums
        _, inverse, members = np.unique(sums, return_inverse=True, return_counts=True)
        lone = members[inverse.reshape(-1)] == 1
        # A slice that is like no other keeps a number that no other has.
        found[asked[lone]] = asked[lone]
        asked = asked[~lone]
    return found
