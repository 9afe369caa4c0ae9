"""The table of all slices of a result, and which of them the document lists."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from slicebeam.metrics.measures.metric import Slices
from slicebeam.metrics.measures.registry import metric_on
from slicebeam.metrics.significance.outcome_codes import METHODS, REASONS
from slicebeam.pipelines.search.refinement_labels import LABELS, NO_LABEL, says_more

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import IO

    from numpy.typing import NDArray

    from slicebeam.pipelines.search.findings import FindingList
    from slicebeam.pipelines.search.results import MetricResult, Results

# The document lists this many slices at most; all of them are in slices.parquet.
MOST_REPORTED = 1000
_ROWS_AT_A_TIME = 1 << 15


def _fields(kind: pa.DataType, names: str) -> list[tuple[str, pa.DataType]]:
    return [(name, kind) for name in names.split()]


SCHEMA = pa.schema(
    [
        *_fields(pa.string(), "slice_id slice predicate"),
        ("cross_size", pa.int8()),
        ("n", pa.int64()),
        ("share", pa.float64()),
        ("metric", pa.string()),
        *_fields(pa.float64(), "value value_low value_high value_error"),
        *_fields(pa.float64(), "reference complement complement_error"),
        *_fields(pa.float64(), "delta ci_low ci_high p_value q_value"),
        ("significant", pa.bool_()),
        *_fields(pa.float64(), "impact inconsistency"),
        *_fields(pa.int64(), "improved degraded"),
        *_fields(pa.string(), "label parent test reason"),
        *_fields(pa.int32(), "finding singleton_1 singleton_2 singleton_3"),
    ]
)
# The columns of numbers that may be undefined, as `MetricResult` has them.
_NUMBERS = (
    *("value", "value_low", "value_high", "reference", "complement"),
    *("delta", "ci_low", "ci_high", "p_value", "q_value"),
)
# Slices of more conditions have their first ones in the columns of codes.
_SINGLETONS = 3


def write_slices(stream: IO[bytes], results: Results, lists: Sequence[FindingList]) -> None:
    """Write the table of all kept slices, metric by metric, by level and predicate."""
    # One row group at a time: the texts of a million slices would take a gigabyte.
    with pq.ParquetWriter(stream, SCHEMA, compression="zstd") as writer:
        for measured in results.metrics:
            rank = np.zeros(results.keys.size, np.int32)
            for one in lists:
                if one.model.metric == measured.name:
                    rank[one.positions] = np.arange(1, one.positions.size + 1)
            for begin in range(0, results.keys.size, _ROWS_AT_A_TIME):
                part = slice(begin, begin + _ROWS_AT_A_TIME)
                writer.write_table(_table(results, measured, part, rank[part]))


def _table(
    results: Results, measured: MetricResult, part: slice, rank: NDArray[np.int32]
) -> pa.Table:
    names = results.names
    keys, sizes = results.keys[part], results.sizes[part]
    delta = measured.delta[part]
    label = measured.label[part]
    columns = {
        "slice_id": names.ids(keys),
        "slice": names.texts(keys),
        "predicate": names.predicates(keys),
        "cross_size": pa.array(results.levels[part].astype(np.int8)),
        "n": pa.array(sizes),
        "share": pa.array(sizes / results.prepared.rows),
        "metric": pa.array([measured.name] * keys.size, pa.string()),
        **{name: _floats(getattr(measured, name)[part]) for name in _NUMBERS},
        **{
            # Null as well where the number that it is about is undefined.
            f"{name}_error": _floats(
                np.where(
                    np.isnan(getattr(measured, name)), np.nan, getattr(measured, f"{name}_error")
                )[part]
            )
            for name in ("value", "complement")
        },
        "significant": pa.array(measured.significant[part]),
        "impact": _floats(sizes * delta),
        **_movement(results, measured, part),
        "label": pa.array(LABELS, pa.string()).take(pa.array(label)),
        "parent": names.ids(np.where(label == NO_LABEL, 0, measured.parent[part])),
        "test": _texts(METHODS, measured.method[part]),
        "reason": _texts(REASONS, measured.reason[part]),
        "finding": pa.array(rank, mask=rank == 0),
        **_singletons(names.lattice.digits(keys)),
    }
    return pa.table([columns[name] for name in SCHEMA.names], schema=SCHEMA)


def _movement(results: Results, measured: MetricResult, part: slice) -> dict[str, pa.Array]:
    """Return how examples changed between two models; null where that is not known."""
    found = metric_on(measured.name, results.prepared.space).movement(
        Slices(results.sums[part], results.prepared.space)
    )
    nulls = pa.nulls(results.keys[part].size)
    if found is None:
        return {"inconsistency": nulls, "improved": nulls, "degraded": nulls}
    return {
        "inconsistency": _floats(found.inconsistency),
        "improved": nulls if found.improved is None else pa.array(found.improved),
        "degraded": nulls if found.degraded is None else pa.array(found.degraded),
    }


def _singletons(digits: NDArray[np.int64]) -> dict[str, pa.Array]:
    """Return the numbers of a slice's singletons, from 1 in the order of the document's domains."""
    columns = {}
    for at in range(_SINGLETONS):
        known = digits[:, at] if at < digits.shape[1] else np.zeros(len(digits), np.int64)
        columns[f"singleton_{at + 1}"] = pa.array(known.astype(np.int32), mask=known == 0)
    return columns


def _floats(values: NDArray[np.float64]) -> pa.Array:
    """Return floats with null where a number is undefined."""
    return pa.array(values, pa.float64(), mask=np.isnan(values))


def _texts(texts: tuple[str, ...], codes: NDArray[np.int8]) -> pa.Array:
    """Return the meanings of the codes, null for 0."""
    return pa.array([None, *texts[1:]], pa.string()).take(pa.array(codes))


@dataclass(frozen=True)
class Reported:
    """The slices that a run reports, as positions in its `Results`, the worst of each metric first.

    ``positions`` has each slice once: those of the first metric, then those only of the second, and so on.
    """

    positions: NDArray[np.int64]
    by_metric: tuple[NDArray[np.int64], ...]

    def listed(self, needed: NDArray[np.int64], most: int = MOST_REPORTED) -> NDArray[np.int64]:
        """Return the positions of at most ``most`` slices that a document lists, the needed ones among them.

        In the order of ``positions``, others last; of too many every metric has as many as any other.
        """
        others = np.setdiff1d(needed, self.positions)
        every = np.concatenate([self.positions, others])
        if every.size <= most:
            return every
        last = max(int(one.max(initial=0)) for one in (every, *self.by_metric))
        best = np.full(last + 1, every.size)
        for order in self.by_metric:
            best[order] = np.minimum(best[order], np.arange(order.size))
        best[needed] = -1
        return every[np.sort(np.argsort(best[every], kind="stable")[:most])]


def joined(orders: Sequence[NDArray[np.int64]]) -> Reported:
    """Return the reported slices from the order of each metric."""
    every = np.concatenate(orders)
    _, first = np.unique(every, return_index=True)
    return Reported(every[np.sort(first)], tuple(orders))


def said_by(results: Results, measured: MetricResult) -> NDArray[np.int64]:
    """Return the positions of the slices that say more in a metric, each set of examples once."""
    return np.flatnonzero(says_more(measured.label) & (results.same_as == results.keys))


def worst_first(results: Results, measured: MetricResult) -> NDArray[np.int64]:
    """Return the slices to report: *new* or *refining* in a metric, each set of examples once, the worst first.

    Worst by the end of the delta's interval that is nearer to 0: slices that are surely bad come
    before slices that may be very bad.
    """
    chosen = said_by(results, measured)
    delta = measured.delta[chosen]
    upward = np.where(delta > 0, measured.ci_low[chosen], -measured.ci_high[chosen])
    # With --alternative both the worse slices come first.
    order = np.lexsort(
        (results.keys[chosen], results.levels[chosen], -upward, ~measured.worse[chosen])
    )
    return chosen[order]


def given_order(results: Results) -> Reported:
    """Return all given slices: of each metric the significant ones first, and of these the worse ones.

    Among these they are in the order of the interval's end that is nearer to 0. Slices that are not
    significant follow in the same order, those without a delta last.
    """
    orders = [_given_first(results, measured) for measured in results.metrics]
    significant = [
        order[measured.significant[order]]
        for order, measured in zip(orders, results.metrics, strict=True)
    ]
    return Reported(joined([*significant, orders[0]]).positions, tuple(orders))


def _given_first(results: Results, measured: MetricResult) -> NDArray[np.int64]:
    worse = measured.worse
    harm = np.where(worse, 1, -1) * np.where(measured.delta > 0, measured.ci_low, -measured.ci_high)
    harm = np.where(np.isnan(harm), -np.inf, harm)
    # Nothing says of a slice without a delta that it is worse, whichever way is better.
    is_unknown = np.isnan(measured.delta)
    return np.lexsort((results.keys, -harm, ~worse, is_unknown, ~measured.significant))
