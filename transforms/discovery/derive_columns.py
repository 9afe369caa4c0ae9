"""Examples with columns derived from embeddings, as Parquet files to search.

The components of mixtures are columns, too: ``cluster@25`` of an example is the one it belongs to.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from scipy.special import expit

from slicebeam.metrics.discovery import pca
from slicebeam.metrics.discovery.mixture import log_responsibilities, most_likely
from slicebeam.metrics.errors import EngineError, InputError
from slicebeam.transforms.discovery.embeddings import EmbeddedChunk, chunk_losses, chunk_name
from slicebeam.transforms.encode.column import ChunkColumn
from slicebeam.transforms.encode.conditions import columns_of, members
from slicebeam.transforms.encode.domains import FeatureDomain
from slicebeam.transforms.encode.passes import one_thread
from slicebeam.transforms.encode.predicates import Singleton
from slicebeam.transforms.encode.sources import StoredFile, open_parquet
from slicebeam.transforms.storage.storage import matching, written_whole
from slicebeam.transforms.storage.work_files import (
    checksum_of,
    read_facts,
    write_arrow,
    write_facts,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

    from slicebeam.metrics.arrays import BoolArray, FloatArray
    from slicebeam.metrics.discovery.mixture import Mixture
    from slicebeam.metrics.discovery.pca import Pca
    from slicebeam.transforms.discovery.embeddings import ExampleSplit
    from slicebeam.transforms.encode.column import Chunk
    from slicebeam.transforms.encode.definitions import AnyDefinition
    from slicebeam.transforms.encode.extract_predictions import Outcome
    from slicebeam.transforms.encode.sources import Source
    from slicebeam.transforms.storage.storage import StoragePath


_PREFIX = "cluster@"


def cluster_field(components: int) -> str:
    """Return the name of the column of components of a mixture of this size.

    >>> cluster_field(25)
    'cluster@25'
    """
    return f"{_PREFIX}{components}"


def is_cluster_field(name: str) -> bool:
    """Return whether a column is one of components.

    >>> is_cluster_field("cluster@25"), is_cluster_field("cluster")
    (True, False)
    """
    return name.startswith(_PREFIX) and name.removeprefix(_PREFIX).isdecimal()


class Assigned(NamedTuple):
    """Which component each example belongs to (of several the first), and its share r of the example.

    Members are ranked by log(r/(1 − r)), which is finite: most have r = 1.
    """

    component: NDArray[np.int32]
    responsibility: NDArray[np.float32]
    log_odds: FloatArray

    def column(self, components: int) -> pa.DictionaryArray:
        """Return the components as text, since they are names and no numbers."""
        names = pa.array([str(number) for number in range(components)], pa.string())
        return pa.DictionaryArray.from_arrays(pa.array(self.component), names)


@dataclass(frozen=True)
class Clusters:
    """Mixtures of several resolutions, by their column, and the principal axes that they are fitted along.

    Without axes they are of the embeddings themselves.
    """

    axes: Pca | None
    mixtures: Mapping[str, Mixture]

    @cached_property
    def domains(self) -> tuple[FeatureDomain, ...]:
        """The columns as features, of which each component is a predicate."""
        return tuple(
            FeatureDomain(
                field,
                "categorical",
                "string",
                tuple(Singleton(field, "==", str(j)) for j in range(mixture.components)),
            )
            for field, mixture in self.mixtures.items()
        )

    def assigned(self, z: NDArray[np.float32], first_row: int = 0) -> dict[str, Assigned]:
        """Return which component of each mixture examples (embeddings [rows, D]) belong to."""
        x = z if self.axes is None else pca.projected(z, self.axes, first_row)
        found = {}
        for field, mixture in self.mixtures.items():
            component, odds = most_likely(log_responsibilities(mixture, x, None, first_row)[0])
            share = expit(odds).astype(np.float32)
            found[field] = Assigned(component.astype(np.int32), share, odds)
        return found


ROW, CHANGE, TESTED = "row", "change", "tested"


def odds_column(field: str) -> str:
    """Return the column that says how typical an example is of its component."""
    return f"log odds of {field}"


def share_column(field: str) -> str:
    """Return the column that holds an example's responsibility of its component."""
    return f"responsibility of {field}"


@dataclass(frozen=True)
class Derivation:
    """The columns derived from each chunk, and their folder.

    `definitions` are of slices without a predicate, by the column of their members. Folder `beside` gets what is
    reported of each example, with the change of its loss by `outcome` and `metric`. The examples that
    `split` has for the mixtures are left out.
    """

    columns: tuple[str, ...]
    embeddings: StoragePath | None
    folder: StoragePath
    clusters: Clusters | None
    definitions: Mapping[str, AnyDefinition]
    queries: Mapping[str, NDArray[np.float32]]
    id_field: str | None = None
    beside: StoragePath | None = None
    outcome: Outcome | None = None
    metric: str = ""
    split: ExampleSplit | None = None

    @property
    def read(self) -> list[str]:
        """The columns that are read of the examples."""
        fields = set(self.clusters.mixtures) if self.clusters is not None else set()
        of_definitions = set[str]().union(
            *(columns_of(definition, self.id_field) for definition in self.definitions.values())
        )
        # Beside a group, which is what is resampled, ids are no column of the search.
        ids = [self.id_field] if self.beside is not None and self.id_field is not None else []
        return list(dict.fromkeys([*self.columns, *ids, *sorted(of_definitions - fields)]))


def derive_chunk(wanted: Derivation, chunk: Chunk) -> int:
    """Write the tested examples of a chunk with derived columns, and return its number of rows."""
    z, assigned, table = None, dict[str, "Assigned"](), chunk.table
    name = chunk_name(chunk.split, chunk.batch)
    if wanted.embeddings is not None:
        z = EmbeddedChunk(wanted.embeddings / name).z
    if wanted.clusters is not None and z is not None:
        with one_thread():
            assigned = wanted.clusters.assigned(z, chunk.origin_row + 1)
        for field, rows in assigned.items():
            components = wanted.clusters.mixtures[field].components
            table = table.append_column(field, rows.column(components))
    tested = np.ones(chunk.table.num_rows, bool)
    if wanted.split is not None:
        tested = ~wanted.split.is_discovery(chunk)
    kept = table.select([*wanted.columns, *assigned])
    for field, definition in wanted.definitions.items():
        inside = members(definition, table, z, wanted.queries, wanted.id_field)
        kept = kept.append_column(field, pa.array(inside))
    if wanted.beside is not None:
        batch = _beside(chunk, wanted, assigned, tested)
        write_arrow(wanted.beside / name, batch.schema, [batch])
    kept = kept.filter(pa.array(tested))
    facts: dict[str, Any] = {
        "path": chunk.origin,
        "row": chunk.origin_row,
        "examples": chunk.table.num_rows,
        "rows": kept.num_rows,
    }
    if kept.num_rows:
        part = wanted.folder / chunk_name(chunk.split, chunk.batch, "parquet")
        with written_whole(part) as stream:
            pq.write_table(kept, stream, row_group_size=kept.num_rows)
            facts |= {"part": part.name, "checksum": checksum_of(stream)}
    write_facts(wanted.folder / chunk_name(chunk.split, chunk.batch, "json"), facts)
    return chunk.table.num_rows


def _beside(
    chunk: Chunk, wanted: Derivation, assigned: dict[str, Assigned], tested: BoolArray
) -> pa.RecordBatch:
    """Return the further values reported for each example, tested or not."""
    columns: dict[str, Any] = {ROW: chunk.positions.astype(np.int64), TESTED: tested}
    losses = chunk_losses(chunk, wanted.outcome, wanted.metric)
    if losses is not None:
        columns[CHANGE] = losses.change
    for field, rows in assigned.items():
        columns[field] = rows.component
        columns[share_column(field)] = rows.responsibility
        columns[odds_column(field)] = rows.log_odds
    if wanted.id_field is not None:
        columns["id"] = ChunkColumn.of(chunk, wanted.id_field).plain
    return pa.record_batch(columns)


def derived_examples(folder: StoragePath) -> int:
    """Return the number of examples that are derived, those that are left out too."""
    return sum(int(read_facts(path)["examples"]) for path in matching(folder, "*.json"))


def derived_source(folder: StoragePath, rows: int) -> Source:
    """Return the source of the derived files, of so many examples with those that shaped the mixtures."""
    if missing := rows - derived_examples(folder):
        raise EngineError(
            f"{folder}: {missing:,} of {rows:,} examples are missing; run again without --resume"
        )
    files = [
        StoredFile(str(folder / one["part"]), one["path"], one["row"], checksum=one["checksum"])
        for one in map(read_facts, matching(folder, "*.json"))
        if "part" in one
    ]
    if not files:
        raise InputError("no example is left to test; lower --discovery-share")
    return open_parquet(files)
