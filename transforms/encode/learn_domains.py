"""One pass over the feature columns gives the singleton predicates of each.

Domains of an earlier run are kept, and completed with values that are new in this data.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from slicebeam.transforms.encode.domain_learning import learn_domain
from slicebeam.transforms.encode.domains import (
    ColumnSummary,
    FeatureDomain,
    LeftOutColumn,
    UnseenValue,
)
from slicebeam.transforms.encode.frozen_domains import FrozenBins, FrozenDomain, with_new_values
from slicebeam.transforms.encode.predicates import Singleton
from slicebeam.transforms.encode.sources import read_split
from slicebeam.transforms.encode.value_counts import ColumnCounter, unsupported
from slicebeam.transforms.storage.parts import WriteParts

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from slicebeam.transforms.encode.sources import Source
    from slicebeam.transforms.storage.storage import StoragePath

# A distinct value takes about its own width and a count, and twice that while parts are merged.
_BYTES_PER_ROW = 48


@dataclass(frozen=True)
class DomainOptions:
    """How columns are divided into predicates.

    `top_values`: values of a categorical column with a predicate of their own. `frozen`: domains of
    an earlier run by column, which are kept and completed. `smallest`: examples that a new value
    needs to be named. `exact_edges`: whether the edges of bins are values of the data, not rounded
    ones.
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
    kinds = {name: _value_type(source.schema.field(name).type) for name in supported}
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


def _value_type(kind: Any) -> Any:
    return kind.value_type if pa.types.is_dictionary(kind) else kind


def domain_to_json(domain: FeatureDomain | LeftOutColumn) -> dict[str, Any]:
    """Return the JSON form of a domain or of a column that was left out."""
    return asdict(domain)


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
    shapes = map(domain_to_json, learn_columns(source, features, options))
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
