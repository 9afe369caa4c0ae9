"""LearnPool: the first pass over a labelled pool finds its classes and counts its difficulties."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import apache_beam as beam
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from slicebeam.metrics.errors import InputError
from slicebeam.transforms.encode.column import ChunkColumn
from slicebeam.transforms.encode.column_values import missing_mask
from slicebeam.transforms.encode.extract_predictions import MOST_CLASSES
from slicebeam.transforms.encode.sources import read_split
from slicebeam.transforms.shift.difficulty_bins import DifficultyCounts, difficulties
from slicebeam.transforms.storage.arrow_files import write_arrow
from slicebeam.transforms.storage.storage import holds

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from slicebeam.metrics.arrays import BoolArray, FloatArray
    from slicebeam.transforms.encode.conditions import SliceMembership
    from slicebeam.transforms.encode.sources import Chunk, Source, Split
    from slicebeam.transforms.storage.storage import StoragePath

Role = Literal["label", "old", "recorded"]

# The Arrow types in which classes are compared.
CLASS_TYPES = {"string": pa.string(), "double": pa.float64(), "int64": pa.int64()}


@dataclass(frozen=True)
class PoolColumns:
    """The columns of a pool that are read.

    Attributes
    ----------
    old_prediction : column of the old API's predictions, None if unknown
    difficulty : column of numbers, such as a confidence; a value may be missing
    recorded : column of recorded answers of the new API; a missing one is "no result"
    example_id : column that identifies an example; None for its position in the data
    fields : columns that requests are made of, kept for the candidates only
    by : slices for which the shift is wanted too
    class_type : Arrow type text in which classes are compared, from
        `slicebeam.transforms.encode.extract_predictions.class_type`
    """

    label: str
    old_prediction: str | None
    difficulty: str | None
    recorded: str | None
    example_id: str | None
    fields: tuple[str, ...]
    by: SliceMembership | None
    class_type: str

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
        return _distinct([*self.class_columns.values(), self.difficulty])

    def read(self) -> list[str]:
        """Return the columns that the second pass reads."""
        sliced = self.by.columns if self.by is not None else ()
        return _distinct([*self.learned(), self.example_id, *self.fields, *sliced])


def _distinct(names: Iterable[str | None]) -> list[str]:
    return list(dict.fromkeys(name for name in names if name is not None))


def split_groups(splits: Sequence[Split], groups: int) -> list[tuple[int, tuple[Split, ...]]]:
    """Return the splits in at most this many numbered, nonempty groups."""
    dealt = [tuple(splits[group::groups]) for group in range(groups)]
    return [(number, some) for number, some in enumerate(dealt) if some]


def class_values(
    chunk: Chunk, columns: PoolColumns, role: Role
) -> tuple[pa.Array, BoolArray | None]:
    """Return the classes that a column holds, and in which rows they are; None for in all.

    Only recorded answers may be missing.

    Raises
    ------
    InputError
        A label or an old prediction is missing, or a class is none of the common type.
    """
    name = columns.class_columns[role]
    array = chunk.table.column(name).combine_chunks()
    present = None
    if role == "recorded":
        plain = array.cast(array.type.value_type) if _is_encoded(array) else array
        missing = missing_mask(plain)
        if missing is not None:
            present = ~missing
            array = plain.filter(pa.array(present))
    found = ChunkColumn(name, array, chunk).classes(columns.class_type)
    # Adding zero makes -0.0 the 0.0 that it equals.
    return pc.add(found, 0.0) if pa.types.is_floating(found.type) else found, present


def _is_encoded(array: pa.Array) -> bool:
    return bool(pa.types.is_dictionary(array.type))


class PoolValues:
    """The results of the first pass: the classes of each column, and counts of difficulties.

    Parameters
    ----------
    signed : whether a difficulty counts as negative where the old prediction is wrong
    """

    def __init__(self, columns: PoolColumns, *, signed: bool) -> None:
        self.columns, self.signed = columns, signed
        self.rows = 0
        empty = pa.array([], CLASS_TYPES[columns.class_type])
        self.classes: dict[Role, pa.Array] = dict.fromkeys(columns.class_columns, empty)
        self.difficulties = DifficultyCounts()

    def add(self, chunk: Chunk) -> None:
        """Take in a chunk with the columns `PoolColumns.learned`."""
        self.rows += chunk.table.num_rows
        found = {}
        for role in self.classes:
            found[role], _ = class_values(chunk, self.columns, role)
            self.add_classes(role, found[role].unique())
        if self.columns.difficulty is not None:
            wrong = None
            if self.signed:
                unequal = pc.not_equal(found["label"], found["old"])
                wrong = unequal.to_numpy(zero_copy_only=False)
            values = signed_difficulties(chunk, self.columns.difficulty, wrong)
            self.difficulties.add(values[~np.isnan(values)])

    def add_classes(self, role: Role, distinct: pa.Array) -> None:
        """Take in classes of a column.

        Raises
        ------
        InputError
            It has too many, or fractions.
        """
        known = pa.concat_arrays([self.classes[role], distinct]).unique()
        name = self.columns.class_columns[role]
        what = f"label {name!r}" if role == "label" else f"prediction {name!r}"
        if len(known) > MOST_CLASSES:
            raise InputError(
                f"{what} has more than {MOST_CLASSES:,} distinct values: it is not a class; a "
                "shift needs classes"
            )
        if pa.types.is_floating(known.type):
            fractions = [value for value in known.to_pylist() if not value.is_integer()]
            if fractions:
                raise InputError(
                    f"{what} holds fractions ({fractions[0]!r}): it is not a class; a shift needs classes"
                )
        self.classes[role] = known

    def write(self, path: StoragePath) -> None:
        """Write it to an Arrow file."""
        values, counts = self.difficulties.counted()
        facts = {
            "rows": self.rows,
            "classes": {role: found.to_pylist() for role, found in self.classes.items()},
            "resolution": self.difficulties.resolution,
        }
        metadata = {"facts": json.dumps(facts, ensure_ascii=False)}
        batch = pa.record_batch([pa.array(values), pa.array(counts)], names=["value", "count"])
        write_arrow(
            path, batch.schema.with_metadata(metadata), [batch.replace_schema_metadata(metadata)]
        )

    def merge(self, table: pa.Table) -> None:
        """Take in what another one wrote."""
        facts = json.loads(table.schema.metadata[b"facts"])
        self.rows += facts["rows"]
        for role, listed in facts["classes"].items():
            self.add_classes(role, pa.array(listed, self.classes[role].type))
        self.difficulties.merge(
            table.column("value").to_numpy(), table.column("count").to_numpy(), facts["resolution"]
        )


def signed_difficulties(chunk: Chunk, name: str, wrong: BoolArray | None) -> FloatArray:
    """Return the difficulties [rows] of a chunk, negative where the old prediction is wrong.

    Parameters
    ----------
    wrong : bool [rows], None if difficulties have no sign
    """
    values = difficulties(chunk.table.column(name), name, chunk)
    return values if wrong is None else np.where(wrong, -values, values)


def learn_group(
    source: Source, splits: Sequence[Split], columns: PoolColumns, *, signed: bool
) -> PoolValues:
    """Return the results of the first pass for some splits."""
    values = PoolValues(columns, signed=signed)
    for split in splits:
        for chunk in read_split(source, split, columns.learned()):
            values.add(chunk)
    return values


class _Learn(beam.DoFn):
    def __init__(
        self, source: Source, columns: PoolColumns, folder: StoragePath, *, signed: bool
    ) -> None:
        self.source, self.columns, self.folder, self.signed = source, columns, folder, signed

    def process(self, item: tuple[int, tuple[Split, ...]]) -> Iterator[int]:
        number, splits = item
        values = learn_group(self.source, splits, self.columns, signed=self.signed)
        values.write(self.folder / f"{number:06d}.arrow")
        yield number


@dataclass
class LearnPool(beam.PTransform):
    """Write the classes and difficulties of groups of splits: pipeline -> group numbers.

    Attributes
    ----------
    signed : whether a difficulty counts as negative where the old prediction is wrong
    groups : number of groups
    """

    source: Source
    columns: PoolColumns
    signed: bool
    groups: int
    folder: StoragePath

    def expand(self, pipeline: beam.pvalue.PBegin) -> beam.PCollection[int]:
        """Wire the transform."""
        learning = _Learn(self.source, self.columns, self.folder, signed=self.signed)
        items = split_groups(self.source.splits, self.groups)
        return pipeline | "Groups" >> beam.Create(items) | "Learn" >> beam.ParDo(learning)

    def is_written(self) -> bool:
        """Return whether the findings of all groups, and nothing else, are there."""
        groups = split_groups(self.source.splits, self.groups)
        return holds(self.folder, (f"{number:06d}.arrow" for number, _ in groups))
