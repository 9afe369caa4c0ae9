"""StratifyPool: a labelled pool becomes strata, their counts, and a few candidates of each.

The second pass over the splits of a source, after `LearnPool`. It counts the examples of each
stratum (label, bin of the difficulty) by what the old API predicted, and keeps those whose ids have
the smallest hashes: a simple random sample without replacement. Samples of parts merge into that of
the whole, so the result does not depend on how the pool is divided. Each group of splits leaves
files in a folder, which the driver merges.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, field
from functools import cached_property
from itertools import chain
from typing import TYPE_CHECKING, Any

import apache_beam as beam
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from slicebeam.metrics.errors import ColumnError
from slicebeam.metrics.randomness import hash64, splitmix64
from slicebeam.transforms.encode.column import id_hashes
from slicebeam.transforms.encode.sources import read_split
from slicebeam.transforms.encode.value_counts import NumberCounts
from slicebeam.transforms.shift.difficulty_bins import difficulty_bins
from slicebeam.transforms.shift.learn_pool import (
    CLASS_TYPES,
    PoolColumns,
    class_values,
    signed_difficulties,
    split_groups,
)
from slicebeam.transforms.shift.pool_candidates import PoolCandidates, plain
from slicebeam.transforms.storage.arrow_files import write_arrow
from slicebeam.transforms.storage.storage import holds

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from numpy.typing import NDArray

    from slicebeam.metrics.arrays import IntArray
    from slicebeam.metrics.counting.counting import Ragged
    from slicebeam.transforms.encode.sources import Chunk, Source, Split
    from slicebeam.transforms.shift.learn_pool import Role
    from slicebeam.transforms.storage.storage import StoragePath

# Where a column of a request stands among what is known of a candidate.
FIELD = "field "
# Cells of a table that a chunk is counted in; in more of them, they are sorted.
_DENSE_CELLS = 1 << 18
# Bytes of counts, before equal ones are summed.
_COUNT_BYTES = 1 << 26


@dataclass(frozen=True)
class Stratification:
    """How the second pass divides the pool; known after the first one.

    Attributes
    ----------
    classes : all classes, sorted; the position of one is its code
    edges : float64 [bins − 1] of the difficulty, ascending
    signed : whether a difficulty counts as negative where the old prediction is wrong
    most : candidates of a stratum; None for all
    """

    columns: PoolColumns
    classes: tuple[Any, ...]
    edges: tuple[float, ...]
    signed: bool
    seed: int
    most: int | None

    @property
    def width(self) -> int:
        """Cells of a label: one for each bin, and the first for a missing difficulty."""
        return len(self.edges) + 2

    @property
    def old_classes(self) -> int:
        """How many counts a stratum has: one where old predictions are not known."""
        return len(self.classes) if self.columns.old_prediction is not None else 1

    @cached_property
    def _value_set(self) -> pa.Array:
        return pa.array(self.classes, CLASS_TYPES[self.columns.class_type])

    @cached_property
    def _class_hashes(self) -> NDArray[np.uint64]:
        """64 bits of each class, from its value: other classes next to it change nothing."""
        digests = [hashlib.sha256(json.dumps(one).encode()).digest() for one in self.classes]
        return np.array([int.from_bytes(one[:8], "big") for one in digests], np.uint64)

    def codes(self, chunk: Chunk, role: Role) -> IntArray:
        """Return the class of each row [rows], −1 for a missing recorded answer.

        Raises
        ------
        InputError
            A class was not there in the first pass.
        """
        values, present = class_values(chunk, self.columns, role)
        found = pc.index_in(values, value_set=self._value_set)
        if found.null_count:
            name = self.columns.class_columns[role]
            raise ColumnError(f"column {name!r} of {chunk.origin} changed while it was read")
        codes: IntArray = found.to_numpy().astype(np.int64)
        if present is None:
            return codes
        everywhere = np.full(chunk.table.num_rows, -1, np.int64)
        everywhere[present] = codes
        return everywhere

    def fingerprint(
        self, identity: NDArray[np.uint64], label: IntArray, old: IntArray | None
    ) -> int:
        """Return the sum, modulo 2⁶⁴, of a hash of each row's id and classes."""
        state = splitmix64(splitmix64(identity) ^ self._class_hashes[label])
        if old is not None:
            state = splitmix64(state ^ self._class_hashes[old])
        return int(state.sum(dtype=np.uint64))


@dataclass
class PoolCounts:
    """The sums of the second pass.

    Attributes
    ----------
    fingerprint : the sum of their hashes, modulo 2⁶⁴
    strata : counts of (cell, old class), packed
    slices : counts of (slice, label, old class), packed
    """

    rows: int = 0
    fingerprint: int = 0
    strata: NumberCounts = field(default_factory=lambda: NumberCounts(pa.int64()))
    slices: NumberCounts = field(default_factory=lambda: NumberCounts(pa.int64()))

    def write(self, path: StoragePath) -> None:
        """Write it to an Arrow file."""
        metadata = {"facts": json.dumps({"rows": self.rows, "fingerprint": self.fingerprint})}
        columns = {}
        for name, counts in (("strata", self.strata), ("slices", self.slices)):
            counts.compact()
            keys, number = counts.counted()
            columns[name] = pa.array([keys], pa.list_(pa.int64()))
            columns[f"{name} count"] = pa.array([number], pa.list_(pa.int64()))
        batch = pa.record_batch(list(columns.values()), names=list(columns))
        write_arrow(
            path, batch.schema.with_metadata(metadata), [batch.replace_schema_metadata(metadata)]
        )

    def merge(self, table: pa.Table) -> None:
        """Take in what another one wrote."""
        facts = json.loads(table.schema.metadata[b"facts"])
        self.rows += facts["rows"]
        self.fingerprint = (self.fingerprint + facts["fingerprint"]) % 2**64
        for name, counts in (("strata", self.strata), ("slices", self.slices)):
            keys, number = (
                table.column(column).chunk(0).values for column in (name, f"{name} count")
            )
            counts.add(keys, number.to_numpy())


def _add(counts: NumberCounts, packed: IntArray, cells: int) -> None:
    """Count packed codes in [0, cells)."""
    if cells <= _DENSE_CELLS:
        dense = np.bincount(packed, minlength=cells)
        held = np.flatnonzero(dense)
        counts.add(pa.array(held), dense[held])
    else:
        counts.add(pa.array(packed))
        if counts.nbytes > _COUNT_BYTES:
            counts.compact()


def stratify_chunk(chunk: Chunk, plan: Stratification, counts: PoolCounts) -> pa.Table:
    """Count the rows of a chunk, and return all of them as candidates.

    Returns
    -------
    Table [rows] with ``cell`` (int32: label code · width + bin + 1), ``hash`` (uint64), ``row``
    (int64: position in the data), ``identity`` (uint64), ``old`` and ``recorded`` (int32 codes,
    where there are such columns), ``slices`` (list of int32, where slices are given), the column of
    ids as ``key`` and the fields, each after `FIELD`.
    """
    columns, rows = plan.columns, chunk.table.num_rows
    label = plan.codes(chunk, "label")
    old = plan.codes(chunk, "old") if columns.old_prediction is not None else None
    bins = np.zeros(rows, np.int64)
    if columns.difficulty is not None:
        wrong = label != old if plan.signed else None
        values = signed_difficulties(chunk, columns.difficulty, wrong)
        bins = difficulty_bins(values, np.array(plan.edges, np.float64))
    cell = label * plan.width + bins + 1
    position = np.arange(chunk.start_row, chunk.start_row + rows)
    identity = position.astype(np.uint64)
    if columns.example_id is not None:
        identity = id_hashes(chunk.table.column(columns.example_id).combine_chunks(), chunk)
    counts.rows += rows
    counts.fingerprint = (counts.fingerprint + plan.fingerprint(identity, label, old)) % 2**64
    cells = len(plan.classes) * plan.width * plan.old_classes
    by_old = np.zeros(rows, np.int64) if old is None else old
    _add(counts.strata, cell * plan.old_classes + by_old, cells)
    found: dict[str, Any] = {
        "cell": pa.array(cell.astype(np.int32)),
        "hash": pa.array(hash64(plan.seed, 0, identity)),
        "row": pa.array(position),
        "identity": pa.array(identity),
    }
    if old is not None:
        found["old"] = pa.array(old.astype(np.int32))
    if columns.recorded is not None:
        found["recorded"] = pa.array(plan.codes(chunk, "recorded").astype(np.int32))
    if columns.by is not None:
        held = columns.by.codes(chunk.table)
        _count_slices(held, label, by_old, columns.by.size, plan, counts)
        offsets = pa.array(held.offsets.astype(np.int32))
        codes = pa.array(held.codes.astype(np.int32))
        found["slices"] = pa.ListArray.from_arrays(offsets, codes)
    if columns.example_id is not None:
        found["key"] = chunk.table.column(columns.example_id)
    for name in columns.fields:
        found[FIELD + name] = chunk.table.column(name)
    return pa.table(found)


def _count_slices(
    held: Ragged,
    label: IntArray,
    old: IntArray,
    size: int,
    plan: Stratification,
    counts: PoolCounts,
) -> None:
    rows = np.repeat(np.arange(label.size), np.diff(held.offsets))
    packed = (held.codes * len(plan.classes) + label[rows]) * plan.old_classes + old[rows]
    _add(counts.slices, packed, size * len(plan.classes) * plan.old_classes)


def stratify_group(
    source: Source, splits: Sequence[Split], plan: Stratification, counts: PoolCounts
) -> Iterator[pa.Table]:
    """Yield the candidates of some splits, and count their rows on the way."""
    chunks = (
        stratify_chunk(chunk, plan, counts)
        for split in splits
        for chunk in read_split(source, split, plan.columns.read())
    )
    if plan.most is None:
        yield from map(plain, chunks)
        return
    candidates = PoolCandidates(plan.most, len(plan.classes) * plan.width)
    for table in chunks:
        candidates.add(table)
    yield candidates.smallest()


def items_path(folder: StoragePath, group: int) -> StoragePath:
    """Return the file of a group's candidates."""
    return folder / f"{group:06d}-items.arrow"


def counts_path(folder: StoragePath, group: int) -> StoragePath:
    """Return the file of a group's counts."""
    return folder / f"{group:06d}-counts.arrow"


class _Stratify(beam.DoFn):
    def __init__(self, source: Source, plan: Stratification, folder: StoragePath) -> None:
        self.source, self.plan, self.folder = source, plan, folder

    def process(self, item: tuple[int, tuple[Split, ...]]) -> Iterator[int]:
        number, splits = item
        counts = PoolCounts()
        tables = stratify_group(self.source, splits, self.plan, counts)
        first = next(tables)
        batches = (
            batch
            for table in chain([first], tables)
            for batch in table.combine_chunks().to_batches()
        )
        write_arrow(items_path(self.folder, number), first.schema, batches)
        counts.write(counts_path(self.folder, number))
        yield number


@dataclass
class StratifyPool(beam.PTransform):
    """Write the counts and candidates of groups of splits: pipeline -> group numbers.

    Attributes
    ----------
    groups : number of groups
    """

    source: Source
    plan: Stratification
    groups: int
    folder: StoragePath

    def expand(self, pipeline: beam.pvalue.PBegin) -> beam.PCollection[int]:
        """Wire the transform."""
        stratifying = _Stratify(self.source, self.plan, self.folder)
        items = split_groups(self.source.splits, self.groups)
        return pipeline | "Groups" >> beam.Create(items) | "Stratify" >> beam.ParDo(stratifying)

    def is_written(self) -> bool:
        """Return whether the findings of all groups, and nothing else, are there."""
        groups = split_groups(self.source.splits, self.groups)
        paths = (
            path(self.folder, number) for number, _ in groups for path in (items_path, counts_path)
        )
        return holds(self.folder, (path.name for path in paths))
