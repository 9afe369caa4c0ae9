"""The domains of columns, learned in one pass from how often each value occurs.

Domains of an earlier run are kept, and completed with values that are new in this data.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from slicebeam.metrics.errors import InputError
from slicebeam.transforms.encode.column import boolean_mask, plain_type, sortable, successors
from slicebeam.transforms.encode.domains import (
    ColumnSummary,
    FeatureDomain,
    Kind,
    LeftOutColumn,
    UnseenValue,
)
from slicebeam.transforms.encode.frozen_domains import FrozenBins, FrozenDomain, with_new_values
from slicebeam.transforms.encode.predicates import Singleton, json_values, shortened
from slicebeam.transforms.encode.rounded_edges import rounded_edges
from slicebeam.transforms.encode.sources import read_split
from slicebeam.transforms.encode.value_counts import (
    ColumnCounter,
    ValueCounts,
    most_frequent,
    unsupported,
)
from slicebeam.transforms.storage.parts import WriteParts

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from slicebeam.metrics.arrays import BoolArray, IntArray
    from slicebeam.transforms.encode.sources import Source
    from slicebeam.transforms.storage.storage import StoragePath

# A distinct value takes about its own width and a count, and twice that while parts are merged.
_BYTES_PER_ROW = 48


@dataclass(frozen=True)
class DomainOptions:
    """How columns are divided into predicates.

    Domains in `frozen` are kept and completed, where a new value needs `smallest` examples to be named.
    """

    bins: int
    top_values: int
    named: frozenset[str]
    memory: int
    frozen: Mapping[str, FrozenDomain] = field(default_factory=dict)
    smallest: int = 1
    exact_edges: bool = False


def column_groups(features: Sequence[str], rows: int, memory: int) -> list[tuple[str, ...]]:
    """Return the features in groups whose distinct values fit the memory together."""
    width = max(1, memory // 2 // max(1, rows * _BYTES_PER_ROW))
    return [tuple(features[i : i + width]) for i in range(0, len(features), width)]


def learn_columns(
    source: Source, features: Sequence[str], options: DomainOptions
) -> Iterator[FeatureDomain | LeftOutColumn]:
    """Yield the domain of each feature, or why it has none, reading only these columns."""
    supported = []
    for name in features:
        # A column that has a domain was held against it.
        frozen = options.frozen.get(name)
        reason = None if frozen else unsupported(source.schema.field(name).type)
        if reason:
            yield LeftOutColumn(name, reason)
        else:
            supported.append(name)
    if not supported:
        return
    most_bytes = options.memory // 3 // len(supported)
    kinds = {name: plain_type(source.schema.field(name).type) for name in supported}
    counters: dict[str, ColumnCounter | FrozenBins] = {}
    for name, kind in kinds.items():
        frozen = options.frozen.get(name)
        bins = frozen is not None and frozen.domain.kind == "numeric"
        counters[name] = FrozenBins(frozen) if frozen and bins else ColumnCounter(kind, most_bytes)
    for split in source.splits:
        for chunk in read_split(source, split, supported):
            for name, counter in counters.items():
                counter.add(chunk.table.column(name))
    for name, counter in counters.items():
        if isinstance(counter, FrozenBins):
            yield counter.result()
            continue
        counted, error = counter.result()
        if name in options.frozen:
            yield with_new_values(
                options.frozen[name],
                counted,
                top_values=options.top_values,
                smallest=options.smallest,
                error=error,
            )
            continue
        yield learn_domain(
            name,
            counted,
            bins=options.bins,
            top_values=options.top_values,
            named=name in options.named,
            error=error,
            exact_edges=options.exact_edges,
        )


def domain_from_json(shape: dict[str, Any]) -> FeatureDomain | LeftOutColumn:
    """Return the domain of its JSON form."""
    if "reason" in shape:
        return LeftOutColumn(**shape)
    return FeatureDomain(
        **{
            **shape,
            "singletons": tuple(Singleton(**singleton) for singleton in shape["singletons"]),
            "seen": ColumnSummary(**shape["seen"]) if shape.get("seen") else None,
            "new_values": tuple(UnseenValue(**value) for value in shape.get("new_values", ())),
        }
    )


def _learned(source: Source, options: DomainOptions, features: tuple[str, ...]) -> pa.RecordBatch:
    shapes = map(asdict, learn_columns(source, features, options))
    return pa.record_batch([pa.array(map(json.dumps, shapes), pa.string())], names=["domain"])


def learn_domains(
    source: Source, features: Sequence[str], options: DomainOptions, folder: StoragePath
) -> WriteParts:
    """Return the transform that writes the domains of all features, a part for a group of columns.

    Columns are stored apart, so nothing is read twice and nothing is shuffled.
    """
    groups = column_groups(features, source.rows, options.memory)
    return WriteParts(partial(_learned, source, options), groups, folder)


def written_domains(parts: Sequence[pa.Table]) -> list[dict[str, Any]]:
    """Return what `learn_domains` wrote as JSON, in the order of the features."""
    return [json.loads(text) for part in parts for text in part.column("domain").to_pylist()]


# A text column of which more than this share of the values are distinct is an id or free text.
MOST_DISTINCT = 0.5
# Below this many values nothing can be said about a column being an id.
FEW_VALUES = 100
# An id of pairs: how often a value occurs at most, and what share of integers occurs just twice.
_MOST_OF_PAIR = 3
_TWICE = 0.8


def is_categorical(kind: pa.DataType, distinct: int, bins: int) -> bool:
    """Return whether a column's values are categories: text, bool, integers with few values."""
    if pa.types.is_string(kind) or pa.types.is_boolean(kind):
        return True
    return bool(pa.types.is_integer(kind)) and distinct <= 2 * bins


def learn_domain(
    name: str,
    counted: ValueCounts,
    *,
    bins: int,
    top_values: int,
    named: bool,
    error: float = 0.0,
    exact_edges: bool = False,
) -> FeatureDomain | LeftOutColumn:
    """Return the domain of a column, or why it has none."""
    # A column that the user `named` is never taken for an id. `error`: of the sketch that counted.
    kind, distinct = counted.values.type, counted.distinct
    present = counted.rows - counted.missing
    if counted.list_column:
        present = int(counted.counts.sum())
    if distinct == 0:
        return LeftOutColumn(name, "every value is missing")
    if distinct == 1 and counted.missing == 0 and not counted.list_column:
        value = json_values(counted.values)[0]
        shown = shortened(value) if isinstance(value, str) else value
        return LeftOutColumn(name, f"one value only ({shown!r})")
    if pa.types.is_decimal(kind):
        try:
            sortable(counted.values)
        except InputError as too_wide:
            return LeftOutColumn(name, str(too_wide))
    ids = present > FEW_VALUES and not named
    # A sketch knows the number of distinct values to about one percent.
    most = present if error == 0 else 0.98 * present
    if ids and pa.types.is_integer(kind) and distinct >= most:
        return LeftOutColumn(name, f"all of its {present:,} integers are distinct: an id")
    if ids and pa.types.is_string(kind) and distinct > MOST_DISTINCT * present:
        return LeftOutColumn(
            name, f"{distinct:,} distinct values in {present:,}: an id or free text"
        )
    if ids and not error and not counted.list_column and _are_pairs(counted, distinct, present):
        return LeftOutColumn(
            name,
            f"{distinct:,} distinct values in {present:,}, about twice each: an id of pairs; name "
            "the column in --features to keep it",
        )
    if counted.list_column:
        return _value_domain(name, "list", counted, top_values, error)
    if is_categorical(kind, distinct, bins):
        domain = _value_domain(name, "categorical", counted, top_values, error)
    else:
        domain = numeric_domain(name, counted, bins, error, exact_edges=exact_edges)
    return domain if domain.size > 1 else LeftOutColumn(name, "all of its values are in one bin")


def _are_pairs(counted: ValueCounts, distinct: int, present: int) -> bool:
    """Return whether the values of text or of integers occur about twice each, as ids of pairs do."""
    # Integers that measure something may repeat as seldom, but by chance: two in five of them at most
    # occur twice. So nearly all have to.
    kind, counts = counted.values.type, counted.counts
    if counts.max() > _MOST_OF_PAIR:
        return False
    if pa.types.is_string(kind):
        return distinct * _MOST_OF_PAIR >= present
    return bool(pa.types.is_integer(kind)) and np.mean(counts == 2) >= _TWICE


def _value_domain(
    name: str, kind: Kind, counted: ValueCounts, top_values: int, error: float
) -> FeatureDomain:
    top = most_frequent(counted.counts, top_values)
    values = json_values(counted.values.take(pa.array(top)))
    op = "contains" if kind == "list" else "=="
    singletons = [Singleton(name, op, value) for value in values]
    if kind != "list" and (top.size < counted.distinct or error):
        singletons.append(Singleton(name, "not_in", values))
    rest = np.delete(counted.counts, top)
    distinct = None if kind == "list" else int(counted.distinct)
    seen = ColumnSummary(
        int(counted.missing), int(rest.sum()), int(rest.max(initial=0)), distinct=distinct
    )
    return _domain(name, kind, counted, singletons, error, seen)


def _domain(
    name: str,
    kind: Kind,
    counted: ValueCounts,
    singletons: list[Singleton],
    error: float,
    seen: ColumnSummary,
) -> FeatureDomain:
    missing = [Singleton(name, "is_null")] if counted.missing else []
    every = (*singletons, *missing)
    return FeatureDomain(name, kind, str(counted.values.type), every, error, seen=seen)


def numeric_domain(
    name: str, counted: ValueCounts, bins: int, error: float = 0.0, *, exact_edges: bool = False
) -> FeatureDomain:
    """Return the bins of a numeric column: `bins` quantiles, with `rounded_edges` unless exact."""
    # A value that alone holds more than 1/bins of the column gets a bin of its own (else the deciles of a
    # column that is mostly zero collapse to one). A range must not contain it, so ranges break there.
    values, counts = counted.values, counted.counts
    low, high = json_values(values.take(pa.array([0, len(values) - 1])))
    present = int(counts.sum())
    heavy = counts * bins > present
    if error:
        values, counts, heavy = _without_gaps(values, counts, heavy)
    lower = np.zeros(counts.size, bool)
    rest = np.where(heavy, 0, counts)
    before = np.cumsum(rest) - rest
    light = np.flatnonzero(~heavy)
    if light.size:
        # A bin begins at the value whose rank is nearest to the quantile, the lower one of two.
        targets = rest.sum() * np.arange(bins) / bins
        ranks = before[light]
        at = np.clip(np.searchsorted(ranks, targets), 1, max(light.size - 1, 1))
        nearer_below = targets - ranks[at - 1] <= ranks[np.minimum(at, light.size - 1)] - targets
        at = np.minimum(np.where(nearer_below, at - 1, at), light.size - 1)
        lower[light[at]] = True
        lower[light[0]] = True
    lower |= heavy
    after_heavy = np.flatnonzero(heavy) + 1
    lower[after_heavy[after_heavy < counts.size]] = True
    starts = np.flatnonzero(lower)
    if exact_edges:
        edges = json_values(values.take(pa.array(starts)))
    else:
        edges = rounded_edges(values, counts, starts, heavy[starts], bins)
    ends = np.append(starts[1:], counts.size)
    singletons = []
    for i, (start, end) in enumerate(zip(starts, ends, strict=True)):
        if heavy[start]:
            singletons.append(Singleton(name, "==", edges[i]))
        elif start == 0 and end == counts.size:
            # The only bin: all values, which the comparison with its smallest value says.
            singletons.append(Singleton(name, ">=", edges[i]))
        elif start == 0:
            singletons.append(Singleton(name, "<", edges[i + 1]))
        elif end == counts.size:
            singletons.append(Singleton(name, ">=", edges[i]))
        else:
            singletons.append(Singleton(name, "between", [edges[i], edges[i + 1]]))
    seen = ColumnSummary(int(counted.missing), low=low, high=high, distinct=int(counted.distinct))
    return _domain(name, "numeric", counted, singletons, error, seen)


def _without_gaps(
    values: pa.Array, counts: IntArray, heavy: BoolArray
) -> tuple[pa.Array, IntArray, BoolArray]:
    """Return sketched values, with the next value after each heavy one."""
    # A sketch does not know the smallest value above a heavy one, where a range has to begin for
    # every value to be in a bin.
    after = np.flatnonzero(heavy[:-1]) + 1
    following = successors(values.take(pa.array(after - 1)))
    is_gap = boolean_mask(pc.not_equal(following, values.take(pa.array(after))))
    after, following = after[is_gap], following.filter(pa.array(is_gap))
    order = np.argsort(np.concatenate([np.arange(counts.size), after - 0.5]))
    return (
        pa.concat_arrays([values, following]).take(pa.array(order)),
        np.append(counts, np.zeros(after.size, np.int64))[order],
        np.append(heavy, np.zeros(after.size, bool))[order],
    )
