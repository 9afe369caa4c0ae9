"""What a search will cost, from the shape of its data alone.

The constants are CPU seconds and bytes that were measured on one core of an Intel Xeon (the machine
of docs/explanation/benchmarks.md, Python 3.11, numpy 2) in November 2026.
``benchmarks/cost_model.py`` prints estimate against measurement: for batch searches of census data,
16 thousand to a million examples, the CPU was between 0.7 and 1.4 times what was estimated from the
files' footers, the slices tested between 0.8 and 1.3 times, and the bytes written between 0.8 and
1.4 times; the bounds for ``priority`` were 2 to 3 times too high in CPU and up to 20 times in
slices. Other data was not tried. The cost of machines that start or wait is not included.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import comb
from typing import TYPE_CHECKING

import numpy as np

from slicebeam.metrics.counting.counting import Resampling
from slicebeam.metrics.counting.counting_plan import (
    TABLE_ROW,
    TABLE_UNIT,
    Budget,
    balanced,
    blocks,
    plan_all,
    plan_listed,
)
from slicebeam.metrics.counting.lattice import Lattice
from slicebeam.pipelines.search.batch_cost import (
    KEY_BYTES,
    METRIC_BYTES,
    batch_cost,
    conjunctions_per_level,
    test_seconds,
)
from slicebeam.transforms.count.combine_slice_metrics import work_items

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from slicebeam.metrics.arrays import FloatArray
    from slicebeam.metrics.counting.counting_plan import PlannedUnit
    from slicebeam.metrics.counting.statistic_space import StatisticSpace
    from slicebeam.pipelines.config.search import SearchConfig
    from slicebeam.pipelines.config.slices import RunConfig
    from slicebeam.pipelines.plan.data_shape import ColumnShape

# Importing what a run needs, and its own work apart from that of stages.
IMPORT_SECONDS, OWN_SECONDS = 1.5, 0.5
# Reading a value to learn domains, and to encode it; a byte of text that becomes Parquet.
LEARN_VALUE, ENCODE_VALUE, CONVERT_BYTE = 1.3e-8, 2.5e-8, 1.2e-8
# Summing an example of a shard, for totals and for each of sizes, scores and buckets.
PASS_ROW = 2e-8
# Telling an example from equal ones.
NUMBER_ROW = 3e-7
# What counting takes in fact of what the plan reckons with.
COUNT_FACTOR = 1.1
# What is worked out and written of a slice afterwards.
REPORT_SLICE = 4e-6
# Telling slices apart by their examples, and choosing some twenty findings: an example.
HASH_ROW, FINDINGS_ROW = 4.5e-7, 1.5e-6
# Values of a list column that an example has.
LISTED = 2
# Of the bytes of text that become Parquet.
PARQUET_SHARE = 0.25
# Of the conjunctions that independent features would fill, what each further predicate leaves.
DEPENDENCE = 0.6
# Slices whose sizes are guessed for each level.
_DRAWN = 20_000
_SEED = 7


@dataclass(frozen=True)
class StageCost:
    """What a stage costs."""

    stage: str
    seconds: float
    shuffled_bytes: int = 0
    written_bytes: int = 0
    candidates: int = 0
    tested: int = 0
    is_bound: bool = False


@dataclass(frozen=True)
class Shape:
    """What the model knows of data and search.

    Attributes
    ----------
    values_learned, values_encoded : columns that are read to learn domains, and to encode
    converted_bytes : of text that becomes Parquet
    """

    rows: int
    values_learned: int
    values_encoded: int
    converted_bytes: int
    columns: tuple[ColumnShape, ...]
    space: StatisticSpace

    def lattice(self, max_cross_size: int) -> Lattice:
        """Return the slices of the guessed domains."""
        return Lattice(
            tuple(column.size for column in self.columns),
            max(1, min(max_cross_size, len(self.columns))),
            tuple(column.is_list for column in self.columns),
        )


def estimate(config: SearchConfig, shape: Shape, workers: int) -> list[StageCost]:
    """Return what each stage of a search costs, in their order."""
    lattice = shape.lattice(config.max_cross_size)
    cost = batch_cost(config, lattice, shape.space, shape.rows)
    strategy = config.resolved_strategy(lattice.space(), batch_fits=cost.fits)
    if strategy == "batch":
        planned = plan_all(lattice, budget_of(config, shape))
        batch = _batch(config, shape, planned, lattice, workers)
        counted = [replace(batch, seconds=cost.seconds)]
    else:
        counted = _iterations(config, shape, lattice, strategy)
    return [*_reading(config, shape), *counted, _describing(config, shape, counted)]


def estimate_given(config: RunConfig, shape: Shape, workers: int) -> list[StageCost]:
    """Return what each stage of a check costs, whose slices are the values of one list column."""
    lattice = shape.lattice(1)
    keys = lattice.singleton_keys()
    none = np.zeros(keys.size, np.int64)
    planned = plan_listed(keys, none, none, lattice, budget_of(config, shape))
    counted = [_batch(config, shape, planned, lattice, workers)]
    return [*_reading(config, shape), *counted, _describing(config, shape, counted)]


def _reading(config: RunConfig, shape: Shape) -> list[StageCost]:
    """Return the cost of the work before slices are counted."""
    stages: list[StageCost] = []
    if shape.converted_bytes:
        written = int(PARQUET_SHARE * shape.converted_bytes)
        stages.append(
            StageCost("convert", shape.converted_bytes * CONVERT_BYTE, written_bytes=written)
        )
    if shape.values_learned:
        stages.append(StageCost("domains", shape.rows * shape.values_learned * LEARN_VALUE))
    stages.append(
        StageCost(
            "encode",
            shape.rows * shape.values_encoded * ENCODE_VALUE,
            written_bytes=shape.rows * row_bytes(config, shape),
        )
    )
    space = shape.space
    passes = 1 + 2 * space.ranked + bool(space.terms or space.weighted)
    passes += bool(space.terms and space.comparison == "overall")
    stages.append(StageCost("totals", passes * shape.rows * PASS_ROW))
    if config.numbers_rows:
        stages.append(StageCost("ids", shape.rows * NUMBER_ROW))
    return stages


def _describing(config: RunConfig, shape: Shape, counted: Sequence[StageCost]) -> StageCost:
    """Return the cost of the work on tested slices."""
    tested = sum(stage.tested for stage in counted)
    examples = shape.rows * (HASH_ROW + FINDINGS_ROW)
    described = tested * REPORT_SLICE * len(config.metric)
    is_bound = any(stage.is_bound for stage in counted)
    return StageCost("describe", examples + described, is_bound=is_bound)


def budget_of(config: RunConfig, shape: Shape) -> Budget:
    """Return the budget that a plan of the search would have."""
    from slicebeam.pipelines.search.slice_counter import TABLES_SHARE

    paper = Resampling(config.used_replicates, config.seed) if config.is_paper else None
    layers = 1 + (paper.replicates if paper and config.resamples_examples else 0)
    space = shape.space
    return Budget(
        shape.rows, space.raw_columns, space.passes, layers, config.memory // TABLES_SHARE
    )


def row_bytes(config: RunConfig, shape: Shape) -> int:
    """Return the bytes of an example in a shard."""
    space = shape.space
    widths = [int(np.min_scalar_type(column.size).itemsize) for column in shape.columns]
    # Of a list, where it begins, and some of its values.
    codes = sum(
        4 + LISTED * width if column.is_list else width
        for width, column in zip(widths, shape.columns, strict=True)
    )
    values = {(term.value, term.source) for term in space.terms if term.value}
    measured = space.sides * space.ranked + space.weighted + len(values)
    has_id = bool(config.group) or config.numbers_rows
    cell: int = np.min_scalar_type(space.cells).itemsize
    return codes + cell + 8 * (measured + has_id)


def _part_bytes(config: RunConfig, shape: Shape, slices: int) -> int:
    of_one = KEY_BYTES + 8 * shape.space.columns + METRIC_BYTES * len(config.metric)
    return slices * of_one


def _batch(
    config: RunConfig,
    shape: Shape,
    planned_units: Iterable[PlannedUnit],
    lattice: Lattice,
    workers: int,
) -> StageCost:
    """Return what counting slices in one go costs, from the plan that would be made."""
    budget = budget_of(config, shape)
    units = list(planned_units)
    if workers > 1:
        budget = balanced(units, budget, workers)
    planned = sum(unit.seconds for unit in units)
    made = list(blocks(units, budget))
    # The shards are dealt out to several workers where the blocks are too few for them.
    items = work_items(range(len(made)), [str(n) for n in range(workers)], planned, workers)
    groups = max(1, len(items) // max(1, len(made)))
    tested = tested_slices(shape, lattice, config.used_min_slice_size)
    seconds = planned * COUNT_FACTOR + tested * test_seconds(config)
    return StageCost(
        "iteration-1",
        seconds,
        sum(unit.bytes for unit in units) * groups if groups > 1 else 0,
        _part_bytes(config, shape, tested),
        lattice.space(),
        tested,
    )


def _iterations(
    config: SearchConfig, shape: Shape, lattice: Lattice, strategy: str
) -> list[StageCost]:
    """Return bounds for iterations whose candidates depend on earlier results."""
    budget = budget_of(config, shape)
    per_level = conjunctions_per_level(lattice)
    if strategy == "iterative":
        counts = per_level
    else:
        later = sum(per_level[1:])
        most = min(config.max_candidates or later, later)
        counts = [per_level[0], *(most for _ in range(config.iterations - 1))]
    stages = []
    for number, candidates in enumerate(counts):
        if not candidates:
            continue
        # Each tuple of features that has a candidate is a pass over the examples at most.
        level = min(number + 1, len(per_level))
        passes = min(comb(len(lattice.sizes), level), candidates)
        seconds = passes * (budget.rows * budget.sums * TABLE_ROW + TABLE_UNIT)
        stages.append(
            StageCost(
                f"iteration-{number + 1}",
                seconds * COUNT_FACTOR + candidates * test_seconds(config),
                0,
                _part_bytes(config, shape, candidates),
                candidates,
                candidates,
                is_bound=True,
            )
        )
    return stages


def tested_slices(shape: Shape, lattice: Lattice, min_size: int) -> int:
    """Return the approximate number of slices with at least this many examples.

    Features are taken for independent, bins for equally frequent, and the k-th most frequent value
    of another column for 1/k as frequent as the first.
    """
    generator = np.random.default_rng(_SEED)
    shares = [_shares(column) for column in shape.columns]
    flat = np.concatenate(shares)
    if flat.size == 0:
        # A check of a clean run has no slice.
        return 0
    owner = np.repeat(np.arange(len(shares)), [len(one) for one in shares])
    total = 0.0
    for level, candidates in enumerate(conjunctions_per_level(lattice), start=1):
        # Singletons drawn alike make each conjunction equally likely, once features differ.
        drawn = generator.integers(0, flat.size, (_DRAWN, level))
        features = np.sort(owner[drawn], axis=1)
        differ = (np.diff(features, axis=1) > 0).all(axis=1)
        if not differ.any():
            continue
        expected = shape.rows * flat[drawn[differ]].prod(axis=1)
        filled = float((expected >= min_size).mean())
        total += candidates * filled * DEPENDENCE ** (level - 1)
    return round(total)


def _shares(column: ColumnShape) -> FloatArray:
    """Return the share of the examples that each predicate of a column holds."""
    if column.has_equal_bins:
        return np.full(column.size, 1.0 / column.size)
    rank = 1.0 / np.arange(1, column.size + 1)
    return rank / rank.sum()


def totals(stages: Sequence[StageCost]) -> StageCost:
    """Return the sum over stages."""
    return StageCost(
        "all",
        sum(stage.seconds for stage in stages),
        sum(stage.shuffled_bytes for stage in stages),
        sum(stage.written_bytes for stage in stages),
        sum(stage.candidates for stage in stages),
        sum(stage.tested for stage in stages),
        any(stage.is_bound for stage in stages),
    )
