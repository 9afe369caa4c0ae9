"""Whether a search visits every conjunction: what counting and testing all of them would cost.

A function of the shape of the data and of options that decide the result, never of the machine or of
the engine, so that the same command chooses the same strategy everywhere, also on ``--resume``.
``python benchmarks/cost_model.py --shapes`` prints the estimates beside measurements.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import comb, log, sqrt
from typing import TYPE_CHECKING

from scipy.special import ndtr

from slicebeam.metrics.counting.lattice import Lattice
from slicebeam.metrics.registry import metric

if TYPE_CHECKING:
    from slicebeam.metrics.counting.statistic_space import StatisticSpace
    from slicebeam.pipelines.config.slices import RunConfig

# The longest batch, in CPU seconds of one core, and the most bytes that its results may take.
MOST_SECONDS = 60.0
MOST_BYTES = 1 << 30
# Seconds, measured on one core. Adding an example to a feature tuple's share of a joint table, and making
# and reading one sum of a cell.
_TUPLE_ROW, _CELL_SUM = 1.3e-9, 1.9e-8
# Testing a slice for a metric of counts or means, and for one of ranks, whose sums are long.
_TEST_SLICE, _TEST_RANKED_SLICE = 5e-7, 9e-5
# How much the logarithm of a predicate's share varies.
_SPREAD = 0.4
# A result's numbers are copied while they are joined and sorted.
_COPIES = 3
# Of a part: besides its sums, a slice's key, and p-value, reasons and error for each metric.
_KEY_BYTES, _METRIC_BYTES = 8, 18


@dataclass(frozen=True)
class BatchCost:
    """What a batch costs."""

    seconds: float  # of one core, to count and test
    tested: int  # slices that are large enough
    bytes: int  # of the results that are held together

    @property
    def fits(self) -> bool:
        """Whether it is short and small enough to be the default."""
        return self.seconds <= MOST_SECONDS and self.bytes <= MOST_BYTES


def conjunctions_per_level(lattice: Lattice) -> list[int]:
    """Return how many conjunctions each level has."""
    counts: list[int] = []
    for level in range(1, lattice.max_cross_size + 1):
        counts.append(Lattice(lattice.sizes, level).space() - sum(counts))
    return counts


def test_seconds(config: RunConfig) -> float:
    """Return what testing a slice for all metrics takes."""
    ranked = sum(metric(name).needs.ranked for name in config.metric)
    return ranked * _TEST_RANKED_SLICE + (len(config.metric) - ranked) * _TEST_SLICE


def batch_cost(config: RunConfig, lattice: Lattice, space: StatisticSpace, rows: int) -> BatchCost:
    """Return what counting and testing every conjunction costs."""
    layers = 1 + (config.used_replicates if config.is_paper and config.resamples_examples else 0)
    seconds, tested = 0.0, 0.0
    for level, cells in enumerate(conjunctions_per_level(lattice), start=1):
        tuples = comb(len(lattice.sizes), level)
        seconds += tuples * rows * space.passes * layers * _TUPLE_ROW
        seconds += cells * space.raw_columns * layers * _CELL_SUM
        # Sizes of slices vary about their mean like products of as many shares.
        times = rows * tuples / (cells * config.used_min_slice_size) if cells else 0
        tested += cells * float(ndtr(log(times) / (_SPREAD * sqrt(level)))) if times else 0
    # These corrections need every p-value; the others only those up to alpha.
    kept = 1.0 if config.used_correction in ("bh", "by") else config.used_alpha
    size = _KEY_BYTES + 8 * space.columns + _METRIC_BYTES * len(config.metric)
    return BatchCost(
        seconds + tested * test_seconds(config),
        round(tested),
        round(tested * kept * size * _COPIES),
    )
