"""Passes over the examples of two data sets: how values are distributed, and what goes together."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from slicebeam.metrics.arrays import Ragged
from slicebeam.metrics.counting.membership import Membership, rows_in
from slicebeam.metrics.counting.statistic_space import THEN, Term
from slicebeam.metrics.measures.count_metrics import Share
from slicebeam.metrics.measures.mean import Mean
from slicebeam.metrics.measures.metric import Metric
from slicebeam.metrics.significance.few_cells import EDGES, UNIT
from slicebeam.metrics.significance.random_subset import BINS, add_bin_sums
from slicebeam.transforms.encode.shards import Shard
from slicebeam.transforms.storage.parts import WriteParts
from slicebeam.transforms.storage.storage import storage_path

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from slicebeam.metrics.arrays import BoolArray, FloatArray, IntArray
    from slicebeam.metrics.counting.counting import RowBlock
    from slicebeam.metrics.counting.lattice import Keys, Lattice
    from slicebeam.transforms.encode.passes import Found
    from slicebeam.transforms.encode.shards import Scaling
    from slicebeam.transforms.storage.storage import StoragePath


@dataclass(frozen=True)
class CountValues:
    """Counts the examples of each value of each feature, today and then."""

    lattice: Lattice
    scaling: Scaling

    def __call__(self, shards: Iterable[Shard]) -> Found:
        """Return ``counts`` [2 * values of all features]."""
        begins = starts(self.lattice)
        counts = np.zeros((2, begins[-1]), np.int64)
        of_then = self.scaling.space.holds(THEN)
        for shard in shards:
            for block in shard.blocks(self.scaling):
                then = of_then[block.cells].astype(np.int64)
                for feature, begin in enumerate(begins[:-1].tolist()):
                    column, radix = block.column(feature), int(self.lattice.radices[feature])
                    side = then
                    if isinstance(column, Ragged):
                        side = np.repeat(then, np.diff(column.offsets))
                        column = column.codes.astype(np.int64)
                    counted = np.bincount(side * radix + column, minlength=2 * radix)
                    counts[:, begin : begin + radix] += counted.reshape(2, radix)
        return {"counts": counts.ravel()}


def starts(lattice: Lattice) -> IntArray:
    """Return where the values of each feature begin among those of all [features + 1]."""
    return np.concatenate([[0], np.cumsum(lattice.radices)]).astype(np.int64)


class _Values:
    """What a metric averages of the examples of a block."""

    def __init__(self, own: Metric, scaling: Scaling) -> None:
        space, plain = scaling.space, scaling.space.of_one_set
        self.own, self.space = own, space
        self.terms: tuple[int, ...] = ()
        self.counted = np.zeros(space.cells, bool)
        self.by_cell = np.zeros(space.cells)
        target = own.target(plain)
        if target is None:
            raise ValueError(f"no average over the examples gives {own.name}")
        for then in (False, True):
            cells = np.flatnonzero(space.holds(THEN) == then)
            self.counted[cells] = target.counted
            if isinstance(own, Share):
                self.by_cell[cells] = own.cell_targets(plain)
        if isinstance(own, Mean):
            self.terms = tuple(
                space.terms.index(Term(own.name, source, 1)) for source in ("new", "old")
            )

    def of(self, block: RowBlock) -> FloatArray:
        """Return the target of each row."""
        if self.terms:
            return np.asarray(sum(block.terms[at] * self.space.scales[at] for at in self.terms))
        return np.asarray(self.by_cell[block.cells])


@dataclass(frozen=True)
class TwoSetRows:
    """The examples in the denominator of a metric that have no value that is new, with what they meet.

    ``is_new``: values of all features that hardly any example had then. ``findings``: slices besides. Columns are the
    values of features with one value an example, then the findings.
    """

    own: Metric
    lattice: Lattice
    scaling: Scaling
    is_new: BoolArray
    findings: Keys

    @property
    def features(self) -> list[int]:
        """The features with one value an example."""
        return [at for at in range(len(self.lattice.sizes)) if not self.lattice.is_multi(at)]

    def blocks(
        self, shards: Iterable[Shard]
    ) -> Iterator[tuple[BoolArray, FloatArray, list[IntArray], BoolArray]]:
        """Yield of each block: which rows are earlier, values, the columns of features, and findings [findings, rows]."""
        values, begins = _Values(self.own, self.scaling), starts(self.lattice)
        of_then = self.scaling.space.holds(THEN)
        for shard in shards:
            for block in shard.blocks(self.scaling):
                kept = values.counted[block.cells]
                columns = [begins[feature] + block.column(feature) for feature in self.features]
                for column in columns:
                    kept &= ~self.is_new[column]
                inside = np.zeros((self.findings.size, block.rows), bool)
                for at, key in enumerate(self.findings.tolist()):
                    inside[at, rows_in(block, self.lattice, key)] = True
                yield (
                    of_then[block.cells][kept],
                    values.of(block)[kept],
                    [column[kept] for column in columns],
                    inside[:, kept],
                )


@dataclass(frozen=True)
class CountPairs:
    """Counts how many examples meet each two predicates, today and then, and sums their values."""

    rows: TwoSetRows

    def __call__(self, shards: Iterable[Shard]) -> Found:
        """Return ``both`` [2 * columns * columns], ``crossed`` [2 * columns] and ``sums`` [2 * 3]."""
        begins, radices = starts(self.rows.lattice), self.rows.lattice.radices
        spans = [(int(begins[at]), int(radices[at])) for at in self.rows.features]
        values = int(begins[-1])
        size = values + self.rows.findings.size
        both, crossed, sums = np.zeros((2, size, size)), np.zeros((2, size)), np.zeros((2, 3))
        for then, y, columns, inside in self.rows.blocks(shards):
            side = then.astype(np.int64)
            for number in (0, 1):
                mine = y[side == number]
                sums[number] += mine.size, mine.sum(), (mine**2).sum()
            for at, (first, (begin, own)) in enumerate(zip(columns, spans, strict=True), 1):
                crossed += np.bincount(side * size + first, y, 2 * size).reshape(2, size)
                coded, here = side * own + first - begin, np.arange(begin, begin + own)
                both[:, here, here] += np.bincount(coded, minlength=2 * own).reshape(2, own)
                for second, (start, wide) in zip(columns[at:], spans[at:], strict=True):
                    code = coded * wide + second - start
                    table = np.bincount(code, minlength=2 * own * wide).reshape(2, own, wide)
                    both[:, begin : begin + own, start : start + wide] += table
                for number, members in enumerate(inside, values):
                    table = np.bincount(coded[members], minlength=2 * own)
                    both[:, begin : begin + own, number] += table.reshape(2, own)
            for number, members in enumerate(inside, values):
                crossed[:, number] += np.bincount(side[members], y[members], 2)
                for further, others in enumerate(inside[number - values :], number):
                    both[:, number, further] += np.bincount(side[members & others], minlength=2)
        return {"both": both.ravel(), "crossed": crossed.ravel(), "sums": sums.ravel()}


@dataclass(frozen=True)
class SumResiduals:
    """Sums today's deviations from a linear model of the columns, by the first finding that an example is in."""

    rows: TwoSetRows
    constant: float
    coefficients: FloatArray  # [columns]

    def __call__(self, shards: Iterable[Shard]) -> Found:
        """Return ``sums`` [(findings + 1) * 3] of numbers, deviations and squares."""
        findings = self.rows.findings.size
        sums = np.zeros((findings + 1, 3))
        values = int(starts(self.rows.lattice)[-1])
        for then, y, columns, inside in self.rows.blocks(shards):
            expected = self.constant + sum(self.coefficients[column] for column in columns)
            expected = expected + self.coefficients[values:] @ inside
            deviation = (y - expected)[~then]
            cell = np.full(deviation.size, findings)
            for number in reversed(range(findings)):
                cell[inside[number][~then]] = number
            for power in range(3):
                sums[:, power] += np.bincount(cell, deviation**power, findings + 1)
        return {"sums": sums.ravel()}


# Slices that an item of work looks at: of each the counts by bin are held.
_SLICES_AT_A_TIME = 4096


def bin_values(
    own: Mean,
    lattice: Lattice,
    scaling: Scaling,
    shards: tuple[str, ...],
    slices: pa.Table,
    folder: StoragePath,
) -> WriteParts:
    """Return the transform that writes ``bins`` [3 * BINS] of slices: ``key``, ``centre`` and ``deviation``.

    See `add_bin_sums`: weighted values of both data sets about the centre, per deviation.
    """
    keys = slices.column("key").to_numpy()
    # Those of the same features are in the same item.
    order = np.argsort(lattice.feature_sets(keys)[0], kind="stable")
    bounds = [*range(0, keys.size, _SLICES_AT_A_TIME), keys.size]
    function = BinValues(own.name, lattice, scaling, shards)
    return WriteParts(function, [*pairwise(bounds)], folder, slices.take(order))


@dataclass(frozen=True)
class BinValues:
    """Counts the values of slices between two places of a table by bin."""

    name: str
    lattice: Lattice
    scaling: Scaling
    shards: tuple[str, ...]

    def __call__(self, item: tuple[int, int], shared: pa.Table) -> pa.RecordBatch:
        """Return ``key`` and ``bins``."""
        begin, end = item
        keys, centres, deviations = map(np.array, shared.slice(begin, end - begin).columns)
        space, membership = self.scaling.space, Membership(keys, self.lattice)
        power = 1 if space.weighted else 0
        terms = [space.terms.index(Term(self.name, of, 1, power)) for of in ("new", "old")]
        bins = np.zeros((keys.size, 3, BINS), np.int64)
        for path in self.shards:
            for block in Shard(storage_path(path)).blocks(self.scaling):
                values = np.asarray(sum(block.terms[at] * space.scales[at] for at in terms))
                weights = block.weights[0] * space.weight_scales[0] if space.weighted else None
                slices, rows = membership.pairs(block)
                centre = centres[slices] * (1.0 if weights is None else weights[rows])
                about = (values[rows] - centre) / deviations[slices]
                add_bin_sums(bins, about, EDGES, UNIT, slices)
        flat = pa.FixedSizeListArray.from_arrays(pa.array(bins.ravel()), 3 * BINS)
        return pa.record_batch([pa.array(keys), flat], names=["key", "bins"])


def read_bins(part: pa.Table) -> IntArray:
    """Return the counts by bin [slices, 3, BINS] of a part."""
    flat = part.column("bins").combine_chunks().flatten().to_numpy()
    return np.asarray(flat.reshape(-1, 3, BINS))
