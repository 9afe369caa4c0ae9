"""Descriptions of reported slices: sums over all tested examples, and typical examples."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow.parquet as pq

from slicebeam.metrics.discovery import pca
from slicebeam.metrics.discovery.change import ChangeAssessment, ChangeSums
from slicebeam.metrics.discovery.coverage import OverlapSums
from slicebeam.metrics.discovery.phrases import EmbeddingSums
from slicebeam.metrics.discovery.typical import TopExamples, TypicalExamples
from slicebeam.transforms.discovery.clusters import is_cluster_field
from slicebeam.transforms.discovery.derive_columns import CHANGE, ROW, TESTED, odds_column
from slicebeam.transforms.discovery.embeddings import EmbeddedChunk
from slicebeam.transforms.encode.definitions import ByPredicate, members
from slicebeam.transforms.storage.arrow_files import open_arrow
from slicebeam.transforms.storage.checked_files import open_checked, read_facts
from slicebeam.transforms.storage.storage import storage_path

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    import pyarrow as pa
    from numpy.typing import NDArray

    from slicebeam.metrics.arrays import BoolArray, FloatArray, IntArray
    from slicebeam.transforms.discovery.sample_texts import TextSample
    from slicebeam.transforms.encode.passes import Found
    from slicebeam.transforms.encode.predicates import Singleton
    from slicebeam.transforms.storage.storage import StoragePath


@dataclass(frozen=True)
class Description:
    """Sums for reported slices; those of groups of files add up.

    `sampled` [m] are positions of tested examples whose text is in the sample, `inside` [S, m] whether they
    are in the slices. What examples do not have (losses, words) is None, or empty.
    """

    assessment: ChangeAssessment | None
    components: Mapping[str, ChangeSums]
    overlap: OverlapSums
    embeddings: EmbeddingSums
    overall: pca.PcaSums | None
    typical: TypicalExamples
    sampled: IntArray
    inside: BoolArray

    def __add__(self, other: Description) -> Description:
        one, two = self.assessment, other.assessment
        mine, its = self.overall, other.overall
        return Description(
            one + two if one is not None and two is not None else None,
            {name: sums + other.components[name] for name, sums in self.components.items()},
            self.overlap + other.overlap,
            self.embeddings + other.embeddings,
            mine + its if mine is not None and its is not None else None,
            self.typical + other.typical,
            np.concatenate([self.sampled, other.sampled]),
            np.concatenate([self.inside, other.inside], axis=1),
        )


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
            ChangeAssessment.zero(S) if self.has_change else None,
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
        return dict(_flat(total))

    def _of(self, path: StoragePath, facts: Mapping[str, Any]) -> Description:
        name = path.name.replace(".json", ".arrow")
        beside = open_arrow(self.beside / name).get_batch(0)
        tested = beside.column(TESTED).to_numpy(zero_copy_only=False)
        columns = sorted({one.field for conditions in self.slices for one in conditions})
        with open_checked(path.parent / facts["part"], facts["checksum"]) as stream:
            table = pq.read_table(stream, columns=columns)
        inside = np.zeros((len(self.slices), facts["rows"]), bool)
        for own, conditions in zip(inside, self.slices, strict=True):
            own[:] = members(ByPredicate(conditions), table)
        rows = beside.column(ROW).to_numpy()[tested]
        change = None
        components: dict[str, ChangeSums] = {}
        if self.has_change:
            change = beside.column(CHANGE).to_numpy()[tested]
            components = {
                field: ChangeSums.of_components(
                    beside.column(field).to_numpy()[tested].astype(np.int64), K, change
                )
                for field, K in self.components.items()
            }
        z = EmbeddedChunk(self.embeddings / name).z[tested]
        odds = (
            np.stack([self._odds(beside, conditions)[tested] for conditions in self.slices])
            if (self.slices)
            else np.zeros(inside.shape)
        )
        sampled = (
            self.sample.chosen(rows.astype(np.uint64))
            if self.sample is not None
            else np.zeros(rows.size, bool)
        )
        return Description(
            ChangeAssessment.of(inside, change) if change is not None else None,
            components,
            OverlapSums.of(inside),
            EmbeddingSums.of(inside, z),
            pca.sums(z) if self.has_words else None,
            TypicalExamples.of(inside, odds, rows, self.few, change),
            rows[sampled],
            inside[:, sampled],
        )

    def _odds(self, beside: pa.RecordBatch, conditions: Sequence[Singleton]) -> FloatArray:
        """Return how typical examples are of a slice: the least of its components' log odds."""
        fields = [one.field for one in conditions if is_cluster_field(one.field)]
        odds = [beside.column(odds_column(field)).to_numpy() for field in fields]
        least: FloatArray = np.min(
            [*odds, np.full(beside.num_rows, np.finfo(np.float64).max)], axis=0
        )
        return least

    def total(self, parts: Sequence[Found]) -> Description:
        """Return the sums over all files, added in their order."""
        total = self.zero()
        for part in parts:
            total += self._from(part)
        return total

    def _from(self, found: Found) -> Description:
        S, D = len(self.slices), self.dimensions
        assessment = None
        if self.has_change:
            assessment = ChangeAssessment(_changes("slices", found), _changes("all", found))
        overall = None
        if self.has_words:
            scatter = found["scatter"].reshape(D, D)
            overall = pca.PcaSums(int(found["n"][0]), found["mean"], scatter)
        typical = tuple(
            TopExamples(
                one.role,
                one.most,
                *(found[f"{one.role} {name}"] for name in ("slices", "rows", "odds", "change")),
            )
            for one in TypicalExamples.zero(self.few).top
        )
        return Description(
            assessment,
            {field: _changes(field, found) for field in self.components if self.has_change},
            OverlapSums(found["both"].reshape(S, S)),
            EmbeddingSums(found["members"], found["total"].reshape(S, D)),
            overall,
            TypicalExamples(typical),
            found["sampled"],
            found["inside"].astype(bool).reshape(S, found["sampled"].size),
        )


def _flat(total: Description) -> Iterator[tuple[str, NDArray[Any]]]:
    """Yield all of it as arrays of one dimension, by name."""
    changes = dict(total.components)
    if total.assessment is not None:
        changes |= {"slices": total.assessment.slices, "all": total.assessment.overall}
    for name, sums in changes.items():
        for field in ("n", "total", "scatter", "improved", "degraded"):
            yield f"{name} {field}", getattr(sums, field)
    yield "both", total.overlap.both.ravel()
    yield "members", total.embeddings.n
    yield "total", total.embeddings.total.ravel()
    if total.overall is not None:
        yield "n", np.array([total.overall.n])
        yield "mean", total.overall.mean
        yield "scatter", total.overall.scatter.ravel()
    for top in total.typical.top:
        yield f"{top.role} slices", top.slices
        yield f"{top.role} rows", top.rows
        yield f"{top.role} odds", top.log_odds
        yield f"{top.role} change", top.change
    yield "sampled", total.sampled
    yield "inside", total.inside.ravel().astype(np.uint8)


def _changes(name: str, found: Found) -> ChangeSums:
    fields = ("n", "total", "scatter", "improved", "degraded")
    return ChangeSums(*(found[f"{name} {field}"] for field in fields))
