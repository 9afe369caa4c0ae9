"""Exact areas, AUC and average precision, counted from the scores of the examples.

Buckets bound the areas of every slice; only the slices that could be significant within their bound need it.
"""

from __future__ import annotations

import hashlib
from dataclasses import asdict, dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np

from slicebeam.metrics.counting.counting_plan import BLOCK_SECONDS
from slicebeam.pipelines.run.engine import Cost
from slicebeam.transforms.count.slice_sums import WHOLE, WinsPlan, count_wins, read_wins

if TYPE_CHECKING:
    from collections.abc import Iterator

    from slicebeam.metrics.arrays import BoolArray, IntArray
    from slicebeam.metrics.counting.counting import Resampling
    from slicebeam.metrics.counting.lattice import Keys, Lattice
    from slicebeam.metrics.counting.statistic_space import StatisticSpace
    from slicebeam.pipelines.run.stage import Workspace
    from slicebeam.transforms.count.slice_sums import CountedWins
    from slicebeam.transforms.encode.shards import Scaling


# The rows of a group, and what is kept of slices, take at most this share of the worker's memory.
_SHARE = 4
# Bytes of a row while it is counted, without its replicates.
_ROW_BYTES = 300
# Bytes of a slice: its histogram, and each of its replicates.
_SLICE_BYTES = 1 << 14
_LAYER_BYTES = 48
# Seconds, measured on one core: of reading and sorting a row, of asking of which slices of a feature
# tuple it is, and of a layer of a member.
_ROW_SECONDS = 3e-7
_TUPLE_SECONDS = 1e-8
_MEMBER_SECONDS = 8e-8


@dataclass(frozen=True)
class ExactAuc:
    """Counts AUC and average precision from the scores."""

    lattice: Lattice
    scaling: Scaling
    shards: tuple[str, ...]
    totals: IntArray
    memory: int
    run: Workspace

    @property
    def space(self) -> StatisticSpace:
        """The statistics."""
        return self.scaling.space

    def of_all(self, stage: str) -> IntArray:
        """Return the reduced sums of all examples [columns and total terms], with their exact areas."""
        reduced = self.space.reduce(self.totals[None, :], self.totals[None, :])
        if self.space.ranked and has_error(reduced, self.space).any():
            counted, _ = self.count(stage, np.array([WHOLE]), reduced)
            for some in counted:
                put_ranking(reduced, np.zeros(1, np.int64), some, self.space)
        exact: IntArray = reduced[0]
        return exact

    def count(
        self, stage: str, keys: Keys, sums: IntArray, resampling: Resampling | None = None
    ) -> tuple[Iterator[CountedWins], Cost]:
        """Count the areas of slices by their sums, perhaps with replicates; return some at a time, and the cost."""
        order = np.argsort(self.lattice.feature_sets(keys)[0], kind="stable")
        keys, sums = keys[order], sums[order]
        sizes = self.space.by_class(sums)
        plan = WinsPlan(
            self.lattice,
            self.scaling,
            self.shards,
            self.space.by_class(self.totals),
            self._groups(1 + (resampling.replicates if resampling else 0)),
            resampling,
        )
        bounds, seconds = self._bounds(keys, self.space.sizes(sums), plan)
        digest = hashlib.sha256(keys.tobytes() + sizes.tobytes() + repr(resampling).encode())
        transform = count_wins(plan, keys, sizes, bounds, self.run.work.folder(stage))
        noted = self.run.stage(
            stage,
            lambda pipeline: pipeline | "Count wins" >> transform,
            transform.is_written,
            seconds=seconds,
            # What another plan left is not taken for this one's.
            plan=digest.hexdigest(),
            before=transform.write_shared,
            facts=lambda cost: {"parts": len(transform.items), "cost": asdict(cost)},
        )
        # A part is mapped only while it is looked at.
        counted = (read_wins(transform.part(number)) for number in range(noted["parts"]))
        return counted, Cost(**noted["cost"])

    def _groups(self, layers: int) -> tuple[tuple[int, ...], ...]:
        """Return for each model the first bucket of each group of scores."""
        most = max(1, self.memory // _SHARE // (_ROW_BYTES + layers))
        groups: list[tuple[int, ...]] = []
        for rows, edges in zip(self.scaling.rows, self.scaling.edges, strict=True):
            begins, held = [0], 0
            # There is an edge before each bucket but the first.
            for bucket, own in enumerate(rows[: len(edges) + 1].tolist()):
                if held and held + own > most:
                    begins.append(bucket)
                    held = 0
                held += own
            groups.append(tuple(begins))
        return tuple(groups)

    def _bounds(self, keys: Keys, sizes: IntArray, plan: WinsPlan) -> tuple[list[int], float]:
        """Return the bounds of parts that take about as long as each other, and the seconds of all."""
        rows = int(self.scaling.rows[0].sum())
        number, sets = self.lattice.feature_sets(keys)
        members = np.bincount(number, minlength=len(sets))[number]
        seconds = rows * _TUPLE_SECONDS / members + sizes * (_MEMBER_SECONDS * plan.layers)
        total = self.space.sides * (float(seconds.sum()) + rows * _ROW_SECONDS)
        parts = max(1, min(self.run.engine.workers, int(total / BLOCK_SECONDS)))
        most = max(1, self.memory // _SHARE // (_SLICE_BYTES + _LAYER_BYTES * plan.layers))
        share = np.cumsum(seconds) - seconds
        place = np.floor(share * parts / max(float(seconds.sum()), 1e-12)).astype(np.int64)
        begins = [*np.searchsorted(place, np.arange(parts)).tolist(), keys.size]
        cut = [at for one, end in pairwise(begins) for at in range(one, end, most)]
        return sorted({*cut, keys.size}), total


def has_error(sums: IntArray, space: StatisticSpace) -> BoolArray:
    """Return of which slices (sums [slices, columns]) buckets leave an AUC, or AP, open."""
    if space.comparison == "earlier":
        # The areas of two data sets are taken by buckets, and said to be so.
        return np.zeros(len(sums), np.bool_)
    own = space.area(sums)
    paired = space.comparison == "baseline"
    error = own.error + (space.area(sums, old=True).error if paired else own.complement_error)
    if space.average_precision:
        error = error + space.precisions(sums).error
    rough: BoolArray = error > 0
    return rough


def put_whole(sums: IntArray, of_all: IntArray, space: StatisticSpace) -> None:
    """Put the exact areas of all examples where a slice (sums [slices, columns]) holds them all."""
    if not space.ranked:
        return
    whole = np.flatnonzero(space.sizes(sums) == space.sizes(of_all[: space.columns]))
    for old in (False, True)[: space.sides]:
        columns = space.ranking_columns(old=old)
        sums[whole, columns] = of_all[columns]


def put_ranking(sums: IntArray, at: IntArray, counted: CountedWins, space: StatisticSpace) -> None:
    """Put exact areas in the place of those of buckets."""
    for side, ranking in enumerate(counted.ranking):
        begin = space.ranking_columns(old=side == 1).start
        # What follows is known by buckets only.
        sums[at, begin : begin + ranking.shape[1]] = ranking
