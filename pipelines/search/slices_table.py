"""The table of slices, slices.parquet."""

from __future__ import annotations

from typing import IO, TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from slicebeam.metrics.measures.metric import Slices
from slicebeam.metrics.measures.registry import metric_on
from slicebeam.metrics.significance.outcome_codes import METHODS, REASONS
from slicebeam.pipelines.search.refinement_labels import LABELS, NO_LABEL

if TYPE_CHECKING:
    from collections.abc import Sequence

    from slicebeam.metrics.arrays import FloatArray, NDArray
    from slicebeam.pipelines.search.results import FindingList, MetricResult, Results


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
            for list_ in lists:
                if list_.model.metric == measured.name:
                    rank[list_.positions] = np.arange(1, list_.positions.size + 1)
            for begin in range(0, results.keys.size, _ROWS_AT_A_TIME):
                part = slice(begin, begin + _ROWS_AT_A_TIME)
                writer.write_table(_table(results, measured, part, rank[part]))


def _table(
    results: Results, measured: MetricResult, part: slice, rank: NDArray[np.int32]
) -> pa.Table:
    names, space = results.names, results.prepared.space
    keys, sizes, label = results.keys[part], results.sizes[part], measured.label[part]
    # How examples changed between two models; null where that is not known.
    moved = metric_on(measured.name, space).movement(Slices(results.sums[part], space))
    nulls = pa.nulls(keys.size)
    counts = [None, None] if moved is None else [moved.improved, moved.degraded]
    improved, degraded = (nulls if count is None else pa.array(count) for count in counts)
    columns = {
        "slice_id": names.ids(keys),
        "slice": names.texts(keys),
        "predicate": names.predicates(keys),
        "cross_size": pa.array(results.levels[part].astype(np.int8)),
        "n": pa.array(sizes),
        "share": pa.array(sizes / results.prepared.rows),
        "metric": pa.array([measured.name] * keys.size, pa.string()),
        **{name: _floats(getattr(measured, name)[part]) for name in _NUMBERS},
        "significant": pa.array(measured.significant[part]),
        "impact": _floats(sizes * measured.delta[part]),
        "inconsistency": nulls if moved is None else _floats(moved.inconsistency),
        "improved": improved,
        "degraded": degraded,
        "label": pa.array(LABELS, pa.string()).take(pa.array(label)),
        "parent": names.ids(np.where(label == NO_LABEL, 0, measured.parent[part])),
        "test": _texts(METHODS, measured.method[part]),
        "reason": _texts(REASONS, measured.reason[part]),
        "finding": pa.array(rank, mask=rank == 0),
    }
    for name in ("value", "complement"):
        # Null as well where the number that it is about is undefined.
        number, error = getattr(measured, name)[part], getattr(measured, f"{name}_error")[part]
        columns[f"{name}_error"] = _floats(np.where(np.isnan(number), np.nan, error))
    digits = names.lattice.digits(keys)
    for at in range(_SINGLETONS):
        # From 1 in the order of the document's domains.
        digit = digits[:, at] if at < digits.shape[1] else np.zeros(len(digits), np.int64)
        columns[f"singleton_{at + 1}"] = pa.array(digit.astype(np.int32), mask=digit == 0)
    return pa.table([columns[name] for name in SCHEMA.names], schema=SCHEMA)


def _floats(values: FloatArray) -> pa.Array:
    """Return floats with null where a number is undefined."""
    return pa.array(values, pa.float64(), mask=np.isnan(values))


def _texts(texts: tuple[str, ...], codes: NDArray[np.int8]) -> pa.Array:
    """Return the meanings of the codes, null for 0."""
    return pa.array([None, *texts[1:]], pa.string()).take(pa.array(codes))
