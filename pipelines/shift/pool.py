"""The pool of `slicebeam shift`: labelled data as strata, counts and candidates, in two passes."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from slicebeam.metrics.arrays import Ragged
from slicebeam.metrics.errors import ColumnError, InputError, OptionError, shortened
from slicebeam.metrics.randomness import hash64, splitmix64
from slicebeam.pipelines.shift.candidates import PoolCandidates
from slicebeam.pipelines.shift.difficulties import (
    MOST_DISTINCT,
    difficulties,
    difficulty_bins,
    quantile_edges,
)
from slicebeam.transforms.encode.column import ChunkColumn, id_hashes, missing_mask
from slicebeam.transforms.encode.conditions import SliceMembership
from slicebeam.transforms.encode.extract_predictions import MOST_CLASSES
from slicebeam.transforms.encode.predicates import Singleton, json_values
from slicebeam.transforms.encode.sources import read_split
from slicebeam.transforms.encode.value_counts import NumberCounts, present_values, unsupported

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from numpy.typing import NDArray

    from slicebeam.metrics.arrays import BoolArray, FloatArray, IntArray
    from slicebeam.transforms.encode.column import Chunk
    from slicebeam.transforms.encode.sources import Source

Role = Literal["label", "old", "recorded"]

# The Arrow types in which classes are compared.
_CLASS_TYPES = {"string": pa.string(), "double": pa.float64(), "int64": pa.int64()}
# Cells of a table that a chunk is counted in; in more of them, they are sorted.
_DENSE_CELLS = 1 << 18
# Bytes of counts, before equal ones are summed.
_COUNT_BYTES = 1 << 26
# Entries of the confusion matrices of all slices together.
_MOST_ENTRIES = 1 << 24
_SHOWN = 5


@dataclass(frozen=True)
class PoolColumns:
    """The columns of a pool that are read.

    ``old_prediction``: the old API's predictions, None if unknown. ``difficulty``: numbers, such as
    a confidence; a value may be missing. ``recorded``: recorded answers of the new API; a missing
    one is "no result". ``example_id``: identifies an example; None for its position in the data.
    ``by``: slices for which the shift is wanted too. ``class_type``: Arrow type in which classes are compared, of
    `extract_predictions.class_type`.
    """

    label: str
    old_prediction: str | None
    difficulty: str | None
    recorded: str | None
    example_id: str | None
    by: SliceMembership | None
    class_type: str

    @property
    def arrow_type(self) -> pa.DataType:
        """The type of classes."""
        return _CLASS_TYPES[self.class_type]

    @property
    def class_columns(self) -> dict[Role, str]:
        """The columns of classes, by role."""
        named: tuple[tuple[Role, str | None], ...] = (
            ("label", self.label),
            ("old", self.old_prediction),
            ("recorded", self.recorded),
        )
        return {role: column for role, column in named if column is not None}

    def learned(self) -> list[str]:
        """Return the columns that the first pass reads."""
        return _different([*self.class_columns.values(), self.difficulty])

    def counted(self) -> list[str]:
        """Return the columns that the second pass reads."""
        sliced = self.by.columns if self.by is not None else ()
        return _different([*self.learned(), self.example_id, *sliced])


def _different(names: Iterable[str | None]) -> list[str]:
    return list(dict.fromkeys(name for name in names if name is not None))


@dataclass(frozen=True)
class PoolItems:
    """The candidates of all strata, ordered by stratum and then by the hash of their identity.

    ``stratum``: int32 [n]. ``identity``: uint64 [n] what identifies the example: a hash of its id,
    or its position. ``keys``: string [n] the id, or ``#17`` for the example at position 17, counted
    from 0. ``old``: int32 [n] code of the old API's prediction, None if unknown. ``recorded``:
    int32 [n] code of the recorded answer, −1 for "no result", None without such a column.
    ``row``: int64 [n] position in the data. ``slices``: codes of the
    slices that each is in, None if no slices were given.
    """

    stratum: NDArray[np.int32]
    identity: NDArray[np.uint64]
    keys: pa.StringArray
    old: NDArray[np.int32] | None
    recorded: NDArray[np.int32] | None
    row: IntArray
    slices: Ragged | None


@dataclass(frozen=True)
class PoolSlices:
    """Counts of slices.

    ``sizes``: int64 [G] examples of each slice. ``labels``: int64 [G, L] of them those of each
    label, as in `LabelledPool.labels`. ``old``: int64 [G, L, P] of these those of each old
    prediction, None if that is not known.
    """

    sizes: IntArray
    labels: IntArray
    old: IntArray | None


@dataclass(frozen=True)
class LabelledPool:
    """A labelled pool, divided into strata.

    ``classes``: all classes [P] as JSON values, sorted; the position of one is its code.
    ``labels``: int64 [L] codes of the classes that occur as labels, ascending: rows of the
    matrices. ``stratum_row``: int64 [S] position in ``labels`` of each stratum's label; strata are
    ordered by label and bin, and each has examples. ``stratum_bin``: int64 [S] bin of the
    difficulty, −1 where it is missing. ``edges``: float64 [at most bins − 1] a difficulty of at
    least ``edges[k]`` is in bin k + 1 or above. ``sizes``: int64 [S] examples. ``old``: int64 [S,
    P] of these those of each old prediction, None if that is not known. ``starts``: int64 [S + 1]
    where the candidates of each stratum begin. ``fingerprint``: 64 bits of all examples'
    identities, labels and old predictions, in any order.
    """

    rows: int
    classes: tuple[Any, ...]
    labels: IntArray
    stratum_row: IntArray
    stratum_bin: IntArray
    edges: FloatArray
    sizes: IntArray
    old: IntArray | None
    items: PoolItems
    starts: IntArray
    fingerprint: int
    slices: PoolSlices | None


def read_pool(
    columns: PoolColumns,
    source: Source,
    *,
    bins: int,
    signed: bool,
    seed: int,
    most: int | None,
    extra_classes: Sequence[Any] = (),
) -> LabelledPool:
    """Read a pool in two passes, in memory of its strata and candidates.

    ``signed``: whether a difficulty counts as negative where the old prediction is wrong. ``most``:
    candidates of a stratum; None for all examples. ``extra_classes``: classes that an answer may
    have although no column of the pool does.
    """
    if source.rows == 0:
        raise InputError("the pool has no examples; give --data with labelled examples")
    signed = signed and columns.difficulty is not None
    known, edges = _learned(columns, source, bins, signed=signed)
    classes = all_classes(columns, known, extra_classes)
    counts = _Counts(columns, tuple(classes), edges, seed, most, signed=signed)
    for chunk in _chunks(source, columns.counted()):
        counts.add(chunk)
    return counts.pool()


def _chunks(source: Source, columns: Sequence[str]) -> Iterator[Chunk]:
    for split in source.splits:
        yield from read_split(source, split, columns)


def _learned(
    columns: PoolColumns, source: Source, bins: int, *, signed: bool
) -> tuple[dict[Role, pa.Array], FloatArray]:
    """Return the classes of each column, and the edges of the bins."""
    known = dict.fromkeys(columns.class_columns, pa.array([], columns.arrow_type))
    counts = NumberCounts(pa.float64(), MOST_DISTINCT)
    for chunk in _chunks(source, columns.learned()):
        values = {role: _class_values(chunk, columns, role)[0] for role in known}
        for role, array in values.items():
            known[role] = pa.concat_arrays([known[role], array.unique()]).unique()
            _check_classes(known[role], columns, role)
        if columns.difficulty is not None:
            wrong = None
            if signed:
                unequal = pc.not_equal(values["label"], values["old"])
                wrong = unequal.to_numpy(zero_copy_only=False)
            difficulty = _signed(chunk, columns.difficulty, wrong)
            counts.add(pa.array(difficulty[~np.isnan(difficulty)]))
    return known, quantile_edges(*_counted(counts), bins)


def _class_values(
    chunk: Chunk, columns: PoolColumns, role: Role
) -> tuple[pa.Array, BoolArray | None]:
    """Return the classes that a column holds, and in which rows they are; None for in all.

    Only recorded answers may be missing.
    """
    column, present = ChunkColumn.of(chunk, columns.class_columns[role]), None
    missing = missing_mask(column.plain) if role == "recorded" else None
    if missing is not None:
        present = ~missing
        column = replace(column, array=column.plain.filter(pa.array(present)))
    values = column.classes(columns.class_type)
    # Adding zero makes -0.0 the 0.0 that it equals.
    return pc.add(values, 0.0) if pa.types.is_floating(values.type) else values, present


def _check_classes(known: pa.Array, columns: PoolColumns, role: Role) -> None:
    """Refuse classes that are too many, or fractions."""
    name = columns.class_columns[role]
    what = f"label {name!r}" if role == "label" else f"prediction {name!r}"
    if len(known) > MOST_CLASSES:
        raise InputError(
            f"{what} has more than {MOST_CLASSES:,} distinct values: it is not a class; a shift needs "
            "classes"
        )
    if pa.types.is_floating(known.type):
        for value in known.to_pylist():
            if not value.is_integer():
                raise InputError(
                    f"{what} holds fractions ({value!r}): it is not a class; a shift needs classes"
                )


def _signed(chunk: Chunk, name: str, wrong: BoolArray | None) -> FloatArray:
    """Return the difficulties [rows] of a chunk, negative where the old prediction is wrong."""
    values = difficulties(chunk.table.column(name), name, chunk)
    return values if wrong is None else np.where(wrong, -values, values)


class _Counts:
    """The second pass: counts of cells (label, bin of the difficulty), and their candidates.

    PoolCandidates are the examples whose ids have the smallest hashes: a simple random sample.
    """

    def __init__(
        self,
        columns: PoolColumns,
        classes: tuple[Any, ...],
        edges: FloatArray,
        seed: int,
        most: int | None,
        *,
        signed: bool,
    ) -> None:
        self.columns, self.classes, self.edges, self.seed = columns, classes, edges, seed
        self.signed = signed
        # Cells of a label: one for each bin, and the first for a missing difficulty.
        self.width = edges.size + 2
        self.old_classes = len(classes) if columns.old_prediction is not None else 1
        self.rows = self.fingerprint = 0
        self.strata, self.slices = NumberCounts(pa.int64()), NumberCounts(pa.int64())
        self.candidates = PoolCandidates(most, len(classes) * self.width)
        self._value_set = pa.array(classes, columns.arrow_type)
        # 64 bits of each class, from its value: other classes next to it change nothing.
        digests = [hashlib.sha256(json.dumps(value).encode()).digest() for value in classes]
        words = [int.from_bytes(digest[:8], "big") for digest in digests]
        self._class_hashes = np.array(words, np.uint64)

    def add(self, chunk: Chunk) -> None:
        """Count the rows of a chunk."""
        columns, rows = self.columns, chunk.table.num_rows
        label = self._codes(chunk, "label")
        old = None if columns.old_prediction is None else self._codes(chunk, "old")
        bins = np.zeros(rows, np.int64)
        if columns.difficulty is not None:
            wrong = label != old if self.signed else None
            bins = difficulty_bins(_signed(chunk, columns.difficulty, wrong), self.edges)
        cell = label * self.width + bins + 1
        position = np.arange(chunk.start_row, chunk.start_row + rows)
        identity = position.astype(np.uint64)
        if columns.example_id is not None:
            ids = ChunkColumn.of(chunk, columns.example_id)
            identity = id_hashes(ids.array, chunk)
        state = splitmix64(splitmix64(identity) ^ self._class_hashes[label])
        if old is not None:
            state = splitmix64(state ^ self._class_hashes[old])
        self.rows += rows
        self.fingerprint = (self.fingerprint + int(state.sum(dtype=np.uint64))) % 2**64
        by_old = np.zeros(rows, np.int64) if old is None else old
        cells = len(self.classes) * self.width * self.old_classes
        _add(self.strata, cell * self.old_classes + by_old, cells)
        known: dict[str, Any] = {
            "cell": cell.astype(np.int32),
            "hash": hash64(self.seed, 0, identity),
            "row": position,
            "identity": identity,
        }
        if old is not None:
            known["old"] = old.astype(np.int32)
        if columns.recorded is not None:
            known["recorded"] = self._codes(chunk, "recorded").astype(np.int32)
        if columns.by is not None:
            held = columns.by.codes(chunk.table)
            of_row = np.repeat(np.arange(rows), np.diff(held.offsets))
            packed = (held.codes * len(self.classes) + label[of_row]) * self.old_classes
            cells = columns.by.size * len(self.classes) * self.old_classes
            _add(self.slices, packed + by_old[of_row], cells)
            lists = (held.offsets.astype(np.int32), held.codes.astype(np.int32))
            known["slices"] = pa.ListArray.from_arrays(*map(pa.array, lists))
        if columns.example_id is not None:
            known["key"] = pc.cast(ids.plain, pa.large_string())
        self.candidates.add(pa.table(known))

    def _codes(self, chunk: Chunk, role: Role) -> IntArray:
        """Return the class of each row [rows], −1 for a missing recorded answer."""
        values, present = _class_values(chunk, self.columns, role)
        places = pc.index_in(values, value_set=self._value_set)
        if places.null_count:
            name = self.columns.class_columns[role]
            raise ColumnError(f"column {name!r} of {chunk.origin} changed while it was read")
        codes: IntArray = places.to_numpy().astype(np.int64)
        if present is None:
            return codes
        everywhere = np.full(chunk.table.num_rows, -1, np.int64)
        everywhere[present] = codes
        return everywhere

    def pool(self) -> LabelledPool:
        """Return the pool; refuse candidates with the same id."""
        columns, classes = self.columns, len(self.classes)
        packed, number = _counted(self.strata)
        cell, old = np.divmod(packed, self.old_classes)
        cells, at = np.unique(cell, return_inverse=True)
        by_old = np.zeros((cells.size, self.old_classes), np.int64)
        by_old[at, old] = number
        label, slot = np.divmod(cells, self.width)
        labels = np.unique(label)
        known = columns.old_prediction is not None
        table = self.candidates.smallest()
        stratum = np.searchsorted(cells, table.column("cell").to_numpy())
        slices = None
        if columns.by is not None:
            packed, number = _counted(self.slices)
            of_slices = np.zeros(columns.by.size * classes * self.old_classes, np.int64)
            of_slices[packed] = number
            of_slices = of_slices.reshape(columns.by.size, classes, self.old_classes)[:, labels]
            by_label = of_slices.sum(axis=2)
            slices = PoolSlices(by_label.sum(axis=1), by_label, of_slices if known else None)
        return LabelledPool(
            self.rows,
            self.classes,
            labels,
            np.searchsorted(labels, label),
            slot - 1,
            self.edges,
            by_old.sum(axis=1),
            by_old if known else None,
            _items(columns, stratum, table),
            np.searchsorted(stratum, np.arange(cells.size + 1)),
            self.fingerprint,
            slices,
        )


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


def _counted(counts: NumberCounts) -> tuple[NDArray[Any], IntArray]:
    counts.compact()
    packed, number = counts.counted()
    return packed.to_numpy(), number


def all_classes(
    columns: PoolColumns, known: Mapping[Role, pa.Array], extra_classes: Sequence[Any]
) -> list[Any]:
    """Return all classes, sorted, after checking that predictions speak of those of the label."""
    found = {role: set(array.to_pylist()) for role, array in known.items()}
    labels = found["label"]
    for role, name in columns.class_columns.items():
        if found[role] and not found[role] & labels:
            raise InputError(
                f"prediction {name!r} never equals label {columns.label!r}: labels are "
                f"{_some(labels)}, predictions are {_some(found[role])}; use the same spelling"
            )
    extra = {_as_class(value, columns) for value in extra_classes}
    together = set().union(extra, *found.values())
    if len(together) > MOST_CLASSES:
        raise InputError(
            f"label {columns.label!r} and the predictions have {len(together):,} classes in all, "
            f"and at most {MOST_CLASSES:,} are possible; merge rare ones"
        )
    matrices = len(labels) * (len(together) if columns.old_prediction is not None else 1)
    if columns.by is not None and columns.by.size * matrices > _MOST_ENTRIES:
        raise OptionError(
            f"--by: {columns.by.size:,} slices of confusion matrices of {len(labels):,} × "
            f"{len(together):,} classes are too many; name fewer slices"
        )
    return sorted(together)


def _some(values: set[Any]) -> str:
    shown = sorted(values)[:_SHOWN]
    return ", ".join(map(repr, shown)) + (", …" if len(values) > len(shown) else "")


def _as_class(value: Any, columns: PoolColumns) -> Any:
    """Return a class in the common type."""
    if columns.class_type == "string":
        if isinstance(value, str):
            return value
    elif isinstance(value, (bool, int, float)) and float(value).is_integer():
        if columns.class_type == "double":
            return float(value)
        # A column of integers holds none beyond.
        if -(2**63) <= value < 2**63:
            return int(value)
    kind = "text" if columns.class_type == "string" else "whole numbers"
    raise InputError(
        f"class {shortened(repr(value))} is not a class of label {columns.label!r}, whose classes "
        f"are {kind}; write it like the label"
    )


def _items(columns: PoolColumns, stratum: IntArray, table: pa.Table) -> PoolItems:
    row = table.column("row").to_numpy()
    identity = table.column("identity").to_numpy()
    if columns.example_id is None:
        texts = pa.array(row).cast(pa.string())
        keys = pc.binary_join_element_wise(pa.scalar("#"), texts, pa.scalar(""))
    else:
        keys = pc.cast(table.column("key"), pa.string()).combine_chunks()
        _refuse_repeated(columns.example_id, keys, identity, row)

    def codes(name: str) -> NDArray[np.int32] | None:
        return table.column(name).to_numpy() if name in table.column_names else None

    slices = None
    if columns.by is not None:
        lists = table.column("slices").combine_chunks()
        lengths = pc.list_value_length(lists).to_numpy().astype(np.int64)
        flat = pc.list_flatten(lists).to_numpy().astype(np.int64)
        slices = Ragged(np.concatenate([[0], np.cumsum(lengths)]), flat)
    return PoolItems(
        stratum.astype(np.int32), identity, keys, codes("old"), codes("recorded"), row, slices
    )


def _refuse_repeated(
    example_id: str, keys: pa.StringArray, identity: NDArray[np.uint64], row: IntArray
) -> None:
    """Raise an InputError where two candidates have the same id."""
    order = np.lexsort((row, identity))
    again = np.flatnonzero(identity[order][1:] == identity[order][:-1])
    # Different texts may have the same hash, if hardly ever.
    for at in again.tolist():
        one, other = order[at], order[at + 1]
        if keys[one] == keys[other]:
            raise OptionError(
                f"--example-id: column {example_id!r} holds {shortened(repr(keys[one].as_py()))} "
                f"more than once (examples {row[one] + 1:,} and {row[other] + 1:,} of the data); "
                "an id must be unique"
            )


def by_values(source: Source, column: str, most: int = MOST_CLASSES) -> SliceMembership:
    """Return the values of a column as slices: a predicate each, sorted, and one for missing ones.

    Of a list each element is a value; a column of many values is refused.
    """
    kind = source.column_type(column, "--by")
    if reason := unsupported(kind):
        raise OptionError(f"--by {column}: {reason}; name a column with few values")
    is_list = pa.types.is_list(kind)
    value_type = kind.value_type if is_list else kind
    known = pa.array([], value_type)
    is_missing = False
    for split in source.splits:
        for chunk in read_split(source, split, [column]):
            array = chunk.table.column(column).combine_chunks()
            if is_list:
                is_missing = is_missing or array.null_count > 0
                array = pc.list_flatten(array)
            distinct, has_missing = _distinct(array, value_type)
            is_missing = is_missing or (has_missing and not is_list)
            known = pa.concat_arrays([known, distinct]).unique()
            if len(known) > most:
                raise OptionError(
                    f"--by {column}: it has more than {most:,} different values, each of which "
                    "would be a slice; name a column with few values"
                )
    if pa.types.is_null(value_type):
        values = []
    else:
        values = json_values(known.take(pc.array_sort_indices(known)))
    op = "contains" if is_list else "=="
    slices = [(Singleton(column, op, value),) for value in values]
    if is_missing:
        slices.append((Singleton(column, "is_null"),))
    return SliceMembership(tuple(slices))


def _distinct(array: pa.Array, kind: pa.DataType) -> tuple[pa.Array, bool]:
    """Return the distinct values of an array that are not missing, and whether some are."""
    distinct = array.unique().cast(kind)
    if pa.types.is_floating(kind):
        # Adding zero makes -0.0 the 0.0 that it equals.
        distinct = pc.add(distinct, pa.scalar(0.0, kind))
    present, missing = present_values(distinct)
    return present, missing > 0
