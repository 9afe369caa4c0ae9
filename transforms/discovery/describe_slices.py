"""Descriptions of reported slices: sums over all tested examples, typical ones, and overlaps."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow.parquet as pq

from slicebeam.metrics.chunks import JOINED, Summed
from slicebeam.metrics.discovery import pca
from slicebeam.metrics.discovery.change import ChangeSums, OverlapSums
from slicebeam.metrics.discovery.descriptions import EmbeddingSums, TypicalExamples
from slicebeam.transforms.discovery.derive_columns import (
    CHANGE,
    ROW,
    TESTED,
    is_cluster_field,
    odds_column,
)
from slicebeam.transforms.discovery.embeddings import EmbeddedChunk
from slicebeam.transforms.encode.conditions import satisfying
from slicebeam.transforms.encode.passes import from_arrays, to_arrays
from slicebeam.transforms.storage.storage import storage_path
from slicebeam.transforms.storage.work_files import open_arrow, open_checked, read_facts

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from slicebeam.metrics.arrays import BoolArray, IntArray
    from slicebeam.transforms.discovery.embeddings import TextSample
    from slicebeam.transforms.encode.passes import Found
    from slicebeam.transforms.encode.predicates import Singleton
    from slicebeam.transforms.storage.storage import StoragePath


@dataclass(frozen=True)
class Description(Summed):
    """Sums for reported slices; those of groups of files add up.

    `sampled` [m] are positions of tested examples whose text is in the sample, `inside` [S, m] whether they
    are in the slices. What examples do not have (losses, words) is None, or empty.
    """

    assessment: ChangeSums | None  # the last slice is all examples
    components: Mapping[str, ChangeSums]
    overlap: OverlapSums
    embeddings: EmbeddingSums
    overall: pca.PcaSums | None
    typical: TypicalExamples
    sampled: IntArray = field(metadata=JOINED)
    inside: BoolArray = field(metadata=JOINED)


@dataclass(frozen=True)
class DescribeSlices:
    """Sums over the examples in some derived files, with what belongs to them in other folders."""

    slices: tuple[tuple[Singleton, ...], ...]
    components: Mapping[str, int]
    dimensions: int
    embeddings: StoragePath
    beside: StoragePath
    few: int
    has_change: bool
    has_words: bool
    sample: TextSample | None

    def zero(self) -> Description:
        """Return the sums over no examples."""
        S = len(self.slices)
        return Description(
            ChangeSums.zero(S + 1) if self.has_change else None,
            {name: ChangeSums.zero(K) for name, K in self.components.items() if self.has_change},
            OverlapSums.zero(S),
            EmbeddingSums.zero(S, self.dimensions),
            pca.PcaSums.zero(self.dimensions) if self.has_words else None,
            TypicalExamples.zero(self.few),
            np.zeros(0, np.int64),
            np.zeros((S, 0), bool),
        )

    def __call__(self, paths: Sequence[str]) -> Found:
        """Return the sums over the tested examples of some derived files' notes."""
        total = self.zero()
        for path in map(storage_path, paths):
            facts = read_facts(path)
            if facts["rows"]:
                total += self._of(path, facts)
        return to_arrays(total)

    def _of(self, path: StoragePath, facts: Mapping[str, Any]) -> Description:
        name = path.name.replace(".json", ".arrow")
        beside = open_arrow(self.beside / name).get_batch(0)
        tested = beside.column(TESTED).to_numpy(zero_copy_only=False)
        columns = sorted({one.field for conditions in self.slices for one in conditions})
        with open_checked(path.parent / facts["part"], facts["checksum"]) as stream:
            table = pq.read_table(stream, columns=columns)
        inside = np.zeros((len(self.slices), facts["rows"]), bool)
        # How typical examples are of a slice: the least of its components' log odds.
        odds = np.full(inside.shape, np.finfo(np.float64).max)
        for at, conditions in enumerate(self.slices):
            inside[at] = satisfying(conditions, table)
            for cluster in {one.field for one in conditions if is_cluster_field(one.field)}:
                of_component = beside.column(odds_column(cluster)).to_numpy()[tested]
                np.minimum(odds[at], of_component, out=odds[at])
        rows = beside.column(ROW).to_numpy()[tested]
        change = beside.column(CHANGE).to_numpy()[tested] if self.has_change else None
        assessment, components = None, dict[str, ChangeSums]()
        if change is not None:
            everything = np.ones((1, rows.size), bool)
            assessment = ChangeSums.of(np.concatenate([inside, everything]), change)
            for cluster, K in self.components.items():
                numbers = beside.column(cluster).to_numpy()[tested]
                components[cluster] = ChangeSums.of(numbers == np.arange(K)[:, None], change)
        z = EmbeddedChunk(self.embeddings / name).z[tested]
        sample, positions = self.sample, rows.astype(np.uint64)
        sampled = np.zeros(rows.size, bool) if sample is None else sample.chosen(positions)
        return Description(
            assessment,
            components,
            OverlapSums.of(inside),
            EmbeddingSums.of(inside, z),
            pca.sums(z) if self.has_words else None,
            TypicalExamples.of(inside, odds, rows, self.few, change),
            rows[sampled],
            inside[:, sampled],
        )

    def total(self, parts: Sequence[Found]) -> Description:
        """Return the sums over all files, added in their order."""
        total = zero = self.zero()
        for part in parts:
            read: Description = from_arrays(zero, part)
            inside = read.inside.reshape(len(self.slices), read.sampled.size)
            total += replace(read, inside=inside)
        return total
