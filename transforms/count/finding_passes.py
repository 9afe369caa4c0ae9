"""Passes over the examples for findings: functions of shards, run by workers or this process."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from slicebeam.metrics.counting.counting import Coded, RowBlock, SummedRows
from slicebeam.metrics.counting.membership import Membership
from slicebeam.metrics.findings.inside import InsideCounter, InsideCounts, merged, patterns_of
from slicebeam.metrics.registry import metric
from slicebeam.metrics.significance.random_subset import BINS, bin_sums

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from numpy.typing import NDArray

    from slicebeam.metrics.counting.lattice import Keys, Lattice
    from slicebeam.metrics.counting.statistic_space import StatisticSpace
    from slicebeam.metrics.metric import Metric
    from slicebeam.transforms.encode.passes import Found
    from slicebeam.transforms.encode.shards import Scaling, Shard


def without_buckets(scaling: Scaling) -> Scaling:
    """Return how shards become statistics, of which score buckets are not counted."""
    return replace(scaling, space=replace(scaling.space, ranked=False))


def _blocks(shards: Iterable[Shard], scaling: Scaling) -> Iterator[RowBlock]:
    for shard in shards:
        yield from shard.blocks(scaling)


@dataclass(frozen=True)
class CountInside:
    """Counts a finding's examples by pattern and candidate, after the keys of those before it."""

    counter: InsideCounter
    scaling: Scaling
    finding: int
    earlier: Keys

    def __call__(self, shards: Iterable[Shard]) -> Found:
        """Return `InsideCounts` as arrays of one dimension."""
        parts = self.counter.count(_blocks(shards, self.scaling), self.finding, self.earlier)
        return {name: np.ravel(values) for name, values in parts._asdict().items()}

    def read(self, parts: Sequence[Found]) -> InsideCounts:
        """Return the sum over all shards."""
        space = self.counter.space
        widths = {"sums": space.raw_columns, "sizes": 2 if space.weighted else 1}

        def column(part: Found, name: str) -> NDArray[np.int64]:
            return part[name].reshape(-1, widths[name]) if name in widths else part[name]

        names = InsideCounts._fields
        return merged([InsideCounts(*(column(part, name) for name in names)) for part in parts])


@dataclass(frozen=True)
class DeviationEnds:
    """Finds the smallest and largest weighted deviation from the mean of all examples."""

    name: str
    scaling: Scaling
    mean: float

    def __call__(self, shards: Iterable[Shard]) -> Found:
        """Return ``low`` and ``high`` [0 or 1]."""
        ends = [
            (some.min(), some.max())
            for block in _blocks(shards, self.scaling)
            if (some := deviations(metric(self.name), self.scaling.space, block, self.mean)).size
        ]
        low, high = np.array(ends, np.float64).reshape(-1, 2).T
        return {"low": low, "high": high}


@dataclass(frozen=True)
class DeviationBins:
    """Sums the weighted deviations from the mean of all examples by bin, as `bin_sums` does."""

    ends: DeviationEnds
    edges: NDArray[np.float64]
    unit: float

    def __call__(self, shards: Iterable[Shard]) -> Found:
        """Return ``sums`` [3 * bins]."""
        sums = np.zeros((3, BINS), np.int64)
        scaling = self.ends.scaling
        for block in _blocks(shards, scaling):
            some = deviations(metric(self.ends.name), scaling.space, block, self.ends.mean)
            sums += bin_sums(some, self.edges, self.unit)
        return {"sums": sums.ravel()}


def deviations(
    own: Metric, space: StatisticSpace, block: RowBlock, mean: float
) -> NDArray[np.float64]:
    """Return weight · (target − mean) of a block's examples in the metric's denominator."""
    target = own.target(space)
    if target is None:
        raise ValueError(f"the examples have no share of their own in {own.name}")
    weight = block.weights[0] * space.weight_scales[0] if space.weighted else 1.0
    values = own.weighted_targets(block, space) - mean * weight
    return np.asarray(values[target.counted[block.cells]])


@dataclass(frozen=True)
class SumByGroup:
    """Sums statistics by group and pattern: of all examples, and of those of a few candidates.

    Where examples are not grouped, all are in group 0.
    """

    lattice: Lattice
    scaling: Scaling
    findings: Keys
    candidates: Keys
    is_grouped: bool = True

    def __call__(self, shards: Iterable[Shard]) -> Found:
        """Return ``id``, ``mask`` and ``candidate`` (−1 for all examples) [sums], and ``sums``."""
        candidates = Membership(self.candidates, self.lattice)
        parts = [self._nothing()]
        for block in _blocks(shards, self.scaling):
            masks = patterns_of(block, self.findings, self.lattice)
            every = np.arange(block.rows)
            members = [(every, np.full(block.rows, -1))]
            members += [(rows, slices) for _, slices, rows in candidates.of(block)]
            for rows, candidate in members:
                parts.append(self._summed(block, rows, masks, candidate))
        return added_groups(parts)

    def _nothing(self) -> Found:
        none = np.zeros(0, np.int64)
        return {"id": none.astype(np.uint64), "mask": none, "candidate": none, "sums": none}

    def _summed(
        self,
        block: RowBlock,
        rows: NDArray[np.int64],
        masks: NDArray[np.int64],
        candidate: NDArray[np.int64],
    ) -> Found:
        groups = block.ids[rows] if self.is_grouped else np.zeros(rows.size, np.uint64)
        keys = [groups, masks[rows], candidate]
        order = np.lexsort(keys)
        some = [key[order] for key in keys]
        new = np.any([np.diff(key) != 0 for key in some], axis=0)
        first = np.append(True, new)[: order.size]
        number = np.empty(order.size, np.int64)
        number[order] = np.cumsum(first) - 1
        sums = np.zeros((1, self.scaling.space.raw_columns * int(first.sum())), np.int64)
        if order.size:
            SummedRows(block, self.scaling.space, []).add(sums, Coded(number, rows))
        columns = sums.reshape(self.scaling.space.raw_columns, -1).T
        return {
            "id": some[0][first],
            "mask": some[1][first],
            "candidate": some[2][first],
            "sums": columns.ravel(),
        }


def added_groups(parts: Sequence[Found]) -> Found:
    """Return sums by group, pattern and candidate together, in their order."""
    keys = [np.concatenate([one[name] for one in parts]) for name in ("id", "mask", "candidate")]
    rows = keys[0].size
    if rows == 0:
        return parts[0]
    sums = np.concatenate([one["sums"] for one in parts]).reshape(rows, -1)
    order = np.lexsort(keys)
    keys = [key[order] for key in keys]
    first = np.append(True, np.any([np.diff(key) != 0 for key in keys], axis=0))
    added = np.add.reduceat(sums[order], np.flatnonzero(first), axis=0)
    return {
        "id": keys[0][first],
        "mask": keys[1][first],
        "candidate": keys[2][first],
        "sums": added.ravel(),
    }
