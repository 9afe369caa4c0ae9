"""The exact AUC of some slices, from the scores of the examples in them."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pyarrow as pa

from slicebeam.metrics.counting.counting import ROWS_AT_A_TIME, Ragged, RowBlock
from slicebeam.metrics.counting.membership import Membership
from slicebeam.metrics.counting.statistic_space import fixed_point
from slicebeam.metrics.randomness import poisson_weights
from slicebeam.metrics.significance.auc import Areas, ScoredRows
from slicebeam.transforms.encode.shards import WEIGHT, Shard, score_column
from slicebeam.transforms.storage.parts import WriteParts
from slicebeam.transforms.storage.storage import storage_path

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from numpy.typing import NDArray

    from slicebeam.metrics.arrays import BoolArray, FloatArray, IntArray
    from slicebeam.metrics.counting.counting import Resampling
    from slicebeam.metrics.counting.lattice import Keys, Lattice
    from slicebeam.transforms.encode.shards import Scaling
    from slicebeam.transforms.storage.storage import StoragePath


# The key of all examples: no predicate.
WHOLE = 0


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
    keys, *classes = (np.array(one) for one in shared.slice(begin, end - begin).columns)
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


class _Group:
    """All examples with scores of a group, in the order of the score."""

    def __init__(self, plan: WinsPlan, features: Sequence[int], side: int, group: int) -> None:
        self.plan, self.features, self.side = plan, features, side
        edges, begins = plan.scaling.edges[side], plan.groups[side]
        # Bucket b holds the scores from edge b − 1 to before edge b.
        self.low = edges[begins[group] - 1] if group else None
        is_last = group + 1 == len(begins)
        self.high = None if is_last else edges[begins[group + 1] - 1]
        self.scores: list[FloatArray] = [np.zeros(0)]
        self.positive: list[BoolArray] = [np.zeros(0, bool)]
        self.weights: list[IntArray] = [np.zeros(0, np.int64)]
        self.ids: list[NDArray[np.uint64]] = [np.zeros(0, np.uint64)]
        self.codes: dict[int, list[NDArray[Any] | Ragged]] = {one: [] for one in features}
        for path in plan.shards:
            self._read(Shard(storage_path(path)))
        scores = np.concatenate(self.scores)
        order = np.argsort(scores)
        scores = scores[order]
        different = np.ones(scores.size, bool)
        different[1:] = scores[1:] != scores[:-1]
        self.rank = np.cumsum(different) - 1
        self.sorted_positive = np.concatenate(self.positive)[order]
        self.sorted_weights: IntArray | None = None
        if plan.scaling.space.weighted:
            self.sorted_weights = np.concatenate(self.weights)[order]
        self.sorted_ids: NDArray[np.uint64] | None = None
        if plan.resampling is not None:
            self.sorted_ids = np.concatenate(self.ids)[order]
        self.columns = {feature: _sorted(parts, order) for feature, parts in self.codes.items()}
        # Nothing is needed twice.
        self.scores, self.positive, self.weights, self.ids = [], [], [], []
        self.codes = {}

    def _read(self, shard: Shard) -> None:
        space = self.plan.scaling.space
        label = space.holds("positive")
        scores = shard.column(score_column(old=self.side == 1))
        weights = space.in_weight_units(shard.column(WEIGHT)) if space.weighted else None
        ids = None if self.plan.resampling is None else shard.ids(self.plan.scaling)
        begin = 0
        for block in shard.blocks():
            some = slice(begin, begin + block.rows)
            begin += block.rows
            own = scores[some]
            inside = np.ones(own.size, bool)
            if self.low is not None:
                inside &= own >= self.low
            if self.high is not None:
                inside &= own < self.high
            rows = np.flatnonzero(inside)
            self.scores.append(own[rows])
            # Only the label of the cell is needed: pairs of classes are not in it yet.
            self.positive.append(label[block.cells[rows]])
            if weights is not None:
                self.weights.append(fixed_point(weights[some][rows], space.weight_scales[0]))
            if ids is not None:
                self.ids.append(ids[some][rows])
            for feature, parts in self.codes.items():
                parts.append(self._narrow(block.column(feature), rows, feature))

    def _narrow(
        self, column: IntArray | Ragged, rows: IntArray, feature: int
    ) -> NDArray[Any] | Ragged:
        if isinstance(column, Ragged):
            return _rows_of(column, rows)
        return column[rows].astype(np.min_scalar_type(int(self.plan.lattice.radices[feature])))

    def chunks(self) -> Iterator[_Chunk]:
        """Yield the examples in chunks that stay in the cache, ascending, no score in two."""
        size = self.rank.size
        wanted = self.rank[np.arange(0, size, ROWS_AT_A_TIME)]
        begins = np.unique(np.searchsorted(self.rank, wanted))
        for begin, end in pairwise([*begins.tolist(), size]):
            yield self._chunk(slice(begin, end))

    def _chunk(self, some: slice) -> _Chunk:
        rank = self.rank[some]
        weights, resampling = self.sorted_weights, self.plan.resampling
        rows = ScoredRows(
            rank - rank[0], self.sorted_positive[some], None if weights is None else weights[some]
        )

        def column(feature: int) -> IntArray | Ragged:
            whole = self.columns[feature]
            if isinstance(whole, Ragged):
                return _rows_of(whole, np.arange(some.start, some.stop))
            return whole[some].astype(np.int64)

        drawn = None
        if resampling is not None and self.sorted_ids is not None:
            ids = self.sorted_ids[some]
            replicates = range(resampling.replicates)
            drawn = [poisson_weights(resampling.seed, b, ids) for b in replicates]
        size, none = rank.size, np.zeros((0, rank.size), np.int64)
        zeros, nobody = np.zeros(size, np.int64), np.zeros(size, np.uint64)
        block = RowBlock(size, column, zeros, nobody, nobody, none, none, none)
        return _Chunk(rows, block, drawn)


class _Chunk(NamedTuple):
    """Some rows, their slices and their replicates."""

    rows: ScoredRows
    block: RowBlock
    drawn: list[NDArray[np.uint8]] | None


def _sorted(parts: Sequence[NDArray[Any] | Ragged], order: IntArray) -> NDArray[Any] | Ragged:
    """Return a column of several blocks in an order of all of their rows."""
    if isinstance(parts[0], Ragged):
        return _rows_of(_joined([part for part in parts if isinstance(part, Ragged)]), order)
    plain = np.concatenate([part for part in parts if not isinstance(part, Ragged)])
    return plain[order]


def _rows_of(column: Ragged, rows: IntArray) -> Ragged:
    """Return some rows of a list column."""
    lengths = np.diff(column.offsets)[rows]
    offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
    at = np.repeat(column.offsets[rows] - offsets[:-1], lengths) + np.arange(offsets[-1])
    return Ragged(offsets, column.codes[at])


def _joined(columns: Sequence[Ragged]) -> Ragged:
    lengths = np.concatenate([np.diff(column.offsets) for column in columns])
    offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
    return Ragged(offsets, np.concatenate([column.codes for column in columns]))


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
        areas = Areas(sizes, plan.of_all, plan.layers, is_weighted=space.weighted)
        for group in range(len(plan.groups[side])):
            for rows, block, drawn in _Group(plan, features, side, group).chunks():
                areas.begin(rows)
                for _, slices, members in membership.of(block):
                    areas.add(sliced[slices], members, drawn)
                for place in whole.tolist():
                    areas.add(np.full(block.rows, place), np.arange(block.rows), drawn)
        own = areas.placements()
        complement = areas.complements()
        if space.comparison == "baseline":
            complement[:] = np.nan
        ranking.append(space.exact_ranking(own, complement))
        replicates.append(areas.values())
    return CountedWins(keys, tuple(ranking), tuple(replicates))
