"""Passes over the examples for findings: functions of shards, run by workers or this process."""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import chain
from typing import TYPE_CHECKING, Any

import numpy as np

from slicebeam.metrics.counting.counting import Coded, RowBlock, SummedRows
from slicebeam.metrics.counting.membership import Membership
from slicebeam.metrics.discovery.change import OverlapSums
from slicebeam.metrics.findings.inside import InsideCounter, InsideCounts, merged, patterns_of
from slicebeam.metrics.measures.registry import metric
from slicebeam.metrics.significance.random_subset import BINS, bin_sums
from slicebeam.transforms.encode.passes import one_thread
from slicebeam.transforms.encode.shards import MOST_SHOWN

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from numpy.typing import NDArray

    from slicebeam.metrics.arrays import BoolArray, FloatArray, IntArray
    from slicebeam.metrics.counting.lattice import Keys, Lattice
    from slicebeam.transforms.encode.passes import Found
    from slicebeam.transforms.encode.shards import Scaling, Shard


# Indicators and classes may have more cells together.
_MOST_CELLS = 1 << 13


def without_buckets(scaling: Scaling) -> Scaling:
    """Return how shards become statistics, of which score buckets are not counted."""
    return replace(scaling, space=replace(scaling.space, ranked=False))


def of_classes(scaling: Scaling) -> Scaling | None:
    """Return how shards become counts of label and predicted class; None where these are unknown, or many."""
    classes = len(scaling.classes)
    space = replace(
        scaling.space, ranked=False, terms=(), total_terms=(), scales=(), classes=classes
    )
    is_small = 2 <= classes <= MOST_SHOWN and space.cells <= _MOST_CELLS
    return replace(scaling, space=space) if is_small else None


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
        shapes = {"sums": (-1, space.raw_columns), "sizes": (-1, 2 if space.weighted else 1)}
        return merged(
            [
                InsideCounts(**{name: part[name].reshape(shapes.get(name, -1)) for name in part})
                for part in parts
            ]
        )


@dataclass(frozen=True)
class DeviationEnds:
    """Finds the smallest and largest weighted deviation from the mean of all examples."""

    name: str
    scaling: Scaling
    mean: float

    def __call__(self, shards: Iterable[Shard]) -> Found:
        """Return ``low`` and ``high`` [0 or 1]."""
        ends = [(some.min(), some.max()) for some in self.deviations(shards) if some.size]
        low, high = np.array(ends, np.float64).reshape(-1, 2).T
        return {"low": low, "high": high}

    def deviations(self, shards: Iterable[Shard]) -> Iterator[FloatArray]:
        """Yield weight · (target − mean) of each block's examples in the metric's denominator."""
        own, space = metric(self.name), self.scaling.space
        target = own.target(space)
        if target is None:
            raise ValueError(f"the examples have no share of their own in {self.name}")
        for block in _blocks(shards, self.scaling):
            weight = block.weights[0] * space.weight_scales[0] if space.weighted else 1.0
            values = own.weighted_targets(block, space) - self.mean * weight
            yield values[target.counted[block.cells]]


@dataclass(frozen=True)
class DeviationBins:
    """Sums the weighted deviations from the mean of all examples by bin, as `bin_sums` does."""

    ends: DeviationEnds
    edges: FloatArray
    unit: float

    def __call__(self, shards: Iterable[Shard]) -> Found:
        """Return ``sums`` [3 * bins]."""
        sums = np.zeros((3, BINS), np.int64)
        for some in self.ends.deviations(shards):
            sums += bin_sums(some, self.edges, self.unit)
        return {"sums": sums.ravel()}


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
        of_none = dict.fromkeys(("mask", "candidate", "sums"), np.zeros(0, np.int64))
        parts: list[Found] = [{"id": np.zeros(0, np.uint64), **of_none}]
        for block in _blocks(shards, self.scaling):
            masks = patterns_of(block, self.findings, self.lattice)
            everything = -1, np.full(block.rows, -1), np.arange(block.rows)
            known, pattern = np.unique(masks, return_inverse=True)
            for _, slices, rows in chain([everything], candidates.of(block)):
                if self.is_grouped:
                    order, first, keys = _grouped([block.ids[rows], masks[rows], slices])
                    number = np.empty(order.size, np.int64)
                    number[order] = np.cumsum(first) - 1
                else:
                    number = (slices + 1) * known.size + pattern[rows]
                    held = np.bincount(number) > 0
                    (codes,) = held.nonzero()
                    number = (np.cumsum(held) - 1)[number]
                    candidate, at = divmod(codes, known.size)
                    keys = {"mask": known[at], "candidate": candidate - 1}
                    keys["id"] = np.zeros(codes.size, np.uint64)
                summed = SummedRows(block, self.scaling.space, [])
                sums = summed.by(Coded(number, rows), keys["id"].size)
                parts.append({**keys, "sums": sums.ravel()})
        return added_groups(parts)


_KEYS = ("id", "mask", "candidate")


def _grouped(keys: Sequence[NDArray[Any]]) -> tuple[IntArray, BoolArray, Found]:
    """Return an order, where it comes to new keys, and these."""
    order = np.lexsort(keys)
    ordered = [key[order] for key in keys]
    first = np.append(True, np.any([np.diff(key) != 0 for key in ordered], axis=0))[: order.size]
    return order, first, {name: key[first] for name, key in zip(_KEYS, ordered, strict=True)}


def added_groups(parts: Sequence[Found]) -> Found:
    """Return sums by group, pattern and candidate together, in their order."""
    order, first, keys = _grouped(
        [np.concatenate([part[name] for part in parts]) for name in _KEYS]
    )
    if order.size == 0:
        return parts[0]
    sums = np.concatenate([part["sums"] for part in parts]).reshape(order.size, -1)
    added = np.add.reduceat(sums[order], np.flatnonzero(first), axis=0)
    return {**keys, "sums": added.ravel()}


@dataclass(frozen=True)
class CountListed:
    """Counts the examples that are in both of two of the first slices, and sums statistics of all slices.

    `counted`: bool [denominators, cells] the examples that are counted, for each denominator. The scaling
    has no score buckets. Where `sums_known`, sums are not counted again.
    """

    keys: Keys
    lattice: Lattice
    scaling: Scaling
    counted: BoolArray
    first: int
    sums_known: bool = False

    def __call__(self, shards: Iterable[Shard]) -> Found:
        """Return ``both`` [denominators * first * first], ``sums`` [slices * raw columns], and ``of_all``."""
        membership = Membership(self.keys, self.lattice)
        slices, space = self.keys.size, self.scaling.space
        sums = np.zeros((1, space.raw_columns * slices), np.int64)
        of_all = np.zeros((1, space.raw_columns), np.int64)
        both = [OverlapSums.zero(self.first) for _ in self.counted]
        with one_thread():
            for block in _blocks(shards, self.scaling):
                inside = np.zeros((self.first if both else 0, block.rows), np.bool_)
                summed = SummedRows(block, space, [])
                if not self.sums_known:
                    summed.add(of_all, Coded(np.zeros(block.rows, np.int64), None))
                for _, members, rows in membership.of(block):
                    if not self.sums_known:
                        summed.add(sums, Coded(members.astype(np.int64), rows))
                    (early,) = (members < len(inside)).nonzero()
                    inside[members[early], rows[early]] = True
                for at, counted in enumerate(self.counted[:, block.cells]):
                    own = inside if counted.all() else inside[:, counted]
                    both[at] += OverlapSums.of(own)
        return {
            "sums": sums.reshape(space.raw_columns, slices).T.ravel(),
            "of_all": of_all.ravel(),
            "both": np.concatenate([np.zeros(0, np.int64), *(one.both.ravel() for one in both)]),
        }
