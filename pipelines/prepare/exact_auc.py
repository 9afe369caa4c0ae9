"""Exact areas, AUC and average precision, for all examples, slices that may be significant, and reported slices.

Buckets bound the areas of every slice. The slices that could be significant within their bound are
counted again, from the scores of their examples; the others can't be, whatever their exact areas are.
"""

from __future__ import annotations

import hashlib
from dataclasses import asdict, dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from slicebeam.metrics.counting.counting_plan import BLOCK_SECONDS
from slicebeam.pipelines.run.engine import Cost
from slicebeam.pipelines.run.stage import run_stage
from slicebeam.transforms.count.slice_sums import WHOLE, WinsPlan, count_wins, read_wins
from slicebeam.transforms.count.tables import read_part, write_part

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from numpy.typing import NDArray

    from slicebeam.metrics.arrays import BoolArray, IntArray
    from slicebeam.metrics.counting.counting import Resampling
    from slicebeam.metrics.counting.lattice import Keys, Lattice
    from slicebeam.metrics.counting.statistic_space import StatisticSpace
    from slicebeam.metrics.testing.slice_test import Outcomes, SliceTest
    from slicebeam.pipelines.run.engine import Engine
    from slicebeam.pipelines.run.work_folder import WorkFolder
    from slicebeam.transforms.count.slice_sums import CountedWins
    from slicebeam.transforms.encode.shards import Scaling
    from slicebeam.transforms.storage.storage import StoragePath


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
    work: WorkFolder
    engine: Engine

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
        transform = count_wins(plan, keys, sizes, bounds, self.work.folder(stage))
        noted = run_stage(
            self.work,
            self.engine,
            stage,
            lambda pipeline: pipeline | "Count wins" >> transform,
            transform.is_written,
            seconds=seconds,
            # What another plan left is not taken for this one's.
            plan=_digest(keys, sizes, resampling),
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
        parts = max(1, min(self.engine.workers, int(total / BLOCK_SECONDS)))
        most = max(1, self.memory // _SHARE // (_SLICE_BYTES + _LAYER_BYTES * plan.layers))
        share = np.cumsum(seconds) - seconds
        place = np.floor(share * parts / max(float(seconds.sum()), 1e-12)).astype(np.int64)
        begins = [*np.searchsorted(place, np.arange(parts)).tolist(), keys.size]
        cut = [at for one, end in pairwise(begins) for at in range(one, end, most)]
        return sorted({*cut, keys.size}), total


def _digest(keys: Keys, sizes: IntArray, resampling: Resampling | None) -> str:
    content = hashlib.sha256(keys.tobytes() + sizes.tobytes())
    content.update(repr(resampling).encode())
    return content.hexdigest()


def has_error(sums: IntArray, space: StatisticSpace) -> BoolArray:
    """Return of which slices (sums [slices, columns]) buckets leave an AUC, or AP, open."""
    error = space.auc_error(sums) + space.complement_auc_error(sums)
    if space.comparison == "baseline":
        error = space.auc_error(sums) + space.auc_error(sums, old=True)
    if space.average_precision:
        error = error + space.precisions(sums).error
    rough: BoolArray = error > 0
    return rough


def move_auc(sums: IntArray, side: int, space: StatisticSpace) -> IntArray:
    """Return sums whose AUC, or change of AUC, is at the upper (side 1) or lower (−1) end of its bound."""
    moved = sums.copy()
    for old in (False, True)[: space.sides]:
        columns = space.ranking_columns(old=old)
        ranking = space.moved_auc(sums[:, columns], -side if old else side)
        moved[:, columns] = ranking
    return moved


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


@dataclass
class Exact:
    """The exact AUCs of some slices."""

    keys: Keys  # int64 [slices], sorted
    sums: IntArray  # int64 [slices, columns]
    columns: dict[tuple[str, int], NDArray[Any]]  # by name and number of the metric, [slices]

    @classmethod
    def tested(
        cls,
        counter: ExactAuc,
        stage: str,
        keys: Keys,
        sums: IntArray,
        of_all: IntArray,
        tests: Sequence[tuple[int, SliceTest]],
        resampling: Resampling | None = None,
    ) -> tuple[Exact, Cost]:
        """Count slices and test them."""
        space = counter.space
        of_whole = np.zeros(1)
        if resampling is not None and space.comparison == "overall":
            whole, _ = counter.count(f"{stage}-all", np.array([WHOLE]), of_all[None, :], resampling)
            of_whole = next(whole).replicates[0][0]
        if keys.size == 0:
            return cls(keys, sums, {}), Cost()
        results, cost = counter.count(stage, keys, sums, resampling)
        names = ("p", "reason", "method", "se")
        columns: dict[tuple[str, int], NDArray[Any]] = {}
        for counted in results:
            at = np.searchsorted(keys, counted.keys)
            put_ranking(sums, at, counted, space)
            for number, test in tests:
                if resampling is not None:
                    values = counted.replicates[0]
                    references = counted.replicates[1] if space.sides == 2 else of_whole
                    outcomes = test.of_replicates(sums[at], of_all, values - references)
                else:
                    outcomes = test.of_sums(sums[at], of_all)
                for name, column in zip(names, _columns(outcomes), strict=True):
                    empty = np.zeros(keys.size, column.dtype)
                    columns.setdefault((name, number), empty)[at] = column
        return cls(keys, sums, columns), cost

    def refuse(self, keys: Keys, reason: int) -> None:
        """Take the p-values of some slices (int64 [slices]) back, for a reason."""
        refused = np.isin(self.keys, keys)
        for (name, _), column in self.columns.items():
            if name != "se":
                column[refused] = {"p": 1.0, "reason": reason, "method": 0}[name]

    def rewrite(self, part: StoragePath, target: StoragePath, space: StatisticSpace) -> StoragePath:
        """Write a part with what exact AUCs say, and return its file."""
        batch = read_part(part)
        keys = batch.column("key").to_numpy()
        own = np.flatnonzero(np.isin(keys, self.keys))
        if own.size == 0:
            return part
        at = np.searchsorted(self.keys, keys[own])
        changed: dict[str, NDArray[Any]] = {}
        for side in range(space.sides):
            columns = space.ranking_columns(old=side == 1)
            for number in range(columns.start, columns.stop):
                changed[f"c{number}"] = self.sums[at, number]
        written = dict(zip(batch.schema.names, batch.columns, strict=True))
        for name, values in changed.items():
            written[name] = pa.array(_put(batch.column(name).to_numpy(), own, values))
        for (name, metric), values in self.columns.items():
            # A slice that is too small for a test has no p-value, now as before.
            tested = ~np.isnan(batch.column(f"p{metric}").to_numpy()[own])
            for column in (name, "best") if name == "p" else (name,):
                before = batch.column(f"{column}{metric}").to_numpy()
                put = _put(before, own[tested], values[at[tested]])
                written[f"{column}{metric}"] = pa.array(put)
        rewritten = pa.record_batch(list(written.values()), names=list(written))
        write_part(target, rewritten.replace_schema_metadata(batch.schema.metadata))
        return target


def _columns(outcomes: Outcomes) -> tuple[NDArray[Any], ...]:
    tested = outcomes.tested
    return tested.p, tested.reasons, tested.methods, outcomes.errors


def _put(before: NDArray[Any], at: IntArray, values: NDArray[Any]) -> NDArray[Any]:
    after = np.array(before)
    after[at] = values
    return after
