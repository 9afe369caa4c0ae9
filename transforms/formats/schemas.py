"""One schema for many files and blocks, and tables converted to it without loss."""

from __future__ import annotations

import io
from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyarrow import types

from slicebeam.metrics.errors import ColumnError, InputError
from slicebeam.transforms.formats.column_kinds import first_refused

_MOST_NAMES = 12
_PLAIN = {
    pa.large_string(): pa.string(),
    pa.string_view(): pa.string(),
    pa.large_binary(): pa.binary(),
    pa.binary_view(): pa.binary(),
    # Arrow neither counts nor sorts 16-bit floats; wider ones hold them exactly.
    pa.float16(): pa.float32(),
}
# The only field of a placeholder begins with this, and goes on with the type that it stands for.
_CANNOT_STORE = "Parquet cannot store "


def storable(table: pa.Table) -> pa.Table:
    """Return a table with a placeholder for each column whose type Parquet cannot store.

    It says which values were null, and why nothing else is known.

    >>> unstorable_reason(storable(pa.table({"x": [{}]})).schema.field("x").type)
    'Parquet cannot store struct<>'
    """
    if _are_storable(table.schema.types):
        return table
    for place, field in enumerate(table.schema):
        if not _are_storable([field.type]):
            kind = pa.struct([(f"{_CANNOT_STORE}{field.type}", pa.null())])
            column = pa.chunked_array(
                [_placeholder(one, kind) for one in table[place].chunks], kind
            )
            table = table.set_column(place, field.name, column)
    return table


def unstorable_reason(data_type: pa.DataType) -> str | None:
    """Return what a placeholder of `storable` says; None of any other type."""
    if types.is_struct(data_type) and data_type.num_fields == 1:
        name: str = data_type.field(0).name
        return name if name.startswith(_CANNOT_STORE) else None
    return None


def _are_storable(data_types: Sequence[pa.DataType]) -> bool:
    columns = [pa.nulls(1, one) for one in data_types]
    try:
        pq.write_table(pa.table(columns, names=list(map(str, range(len(columns))))), io.BytesIO())
    except pa.ArrowNotImplementedError:
        return False
    return True


def _placeholder(values: pa.Array, kind: pa.StructType) -> pa.StructArray:
    nothing = [pa.nulls(len(values), field.type) for field in kind]
    return pa.StructArray.from_arrays(nothing, fields=list(kind), mask=values.is_null())


def _plain(data_type: pa.DataType) -> pa.DataType:
    """Return the type of the values, without how they are encoded."""
    if types.is_dictionary(data_type) or types.is_run_end_encoded(data_type):
        return _plain(data_type.value_type)
    if types.is_list(data_type) or types.is_large_list(data_type):
        return pa.list_(_plain(data_type.value_type))
    return _PLAIN.get(data_type, data_type)


def _wider(one: pa.DataType, other: pa.DataType) -> pa.DataType | None:
    """Return the type that holds the values of both plain types, None if there is none."""
    if one == other or types.is_null(other):
        return one
    if types.is_null(one):
        return other
    both = (one, other)
    if all(map(types.is_struct, both)):
        # Objects without keys are unknown as those are that have some.
        return one if unstorable_reason(other) else other if unstorable_reason(one) else None
    if any(map(types.is_list, both)):
        parts = [t.value_type if types.is_list(t) else t for t in both]
        kinds = (types.is_struct, types.is_map, types.is_union)
        is_object = any(is_kind(t) for t in parts for is_kind in kinds)
        value = None if is_object else _wider(*parts)
        return None if value is None else pa.list_(value)
    if any(map(types.is_nested, both)) or any(map(types.is_fixed_size_binary, both)):
        return None
    if any(map(types.is_integer, both)) and any(map(types.is_floating, both)):
        # A float32 or float16 holds few integers exactly.
        return pa.float64()
    if pa.uint64() in both and any(map(types.is_signed_integer, both)):
        return None
    if any(map(types.is_decimal, both)) and not all(map(types.is_decimal, both)):
        return None
    if any(map(types.is_date, both)) and any(map(types.is_timestamp, both)):
        time = one if types.is_timestamp(one) else other
        return time if time.tz is None else None
    if all(types.is_timestamp(t) and t.tz for t in both) and one.tz != other.tz:
        # Instants are the same in any zone; only how they are shown differs.
        one, other = (pa.timestamp(t.unit, "UTC") for t in both)
    schemas = [pa.schema([("", t)]) for t in (one, other)]
    try:
        return pa.unify_schemas(schemas, promote_options="permissive").field(0).type
    except (pa.ArrowTypeError, pa.ArrowInvalid):
        return None


def unify_schemas(
    schemas: Sequence[tuple[str, pa.Schema]], *, allow_missing: bool = False
) -> pa.Schema:
    """Return the one schema that the tables of all files (name for messages, schema) can be brought to.

    Null gives way to any type; integers widen (a uint64 does not fit with signed ones); integers with
    floats are float64; a date with a timestamp is a timestamp; units are the finest; decimals keep all
    digits; a scalar with a list is a list; text with binary is binary. Dictionary and large types become
    plain ones. Structs and maps must be equal, but a placeholder of `storable` gives way to a struct.
    """
    if not schemas:
        raise InputError("there is no file to read; check the paths of --data")
    merged: dict[str, pa.DataType] = {}
    sources: dict[str, str] = {}
    for file, schema in schemas:
        if len(set(schema.names)) < len(schema.names):
            twice = next(name for name in schema.names if schema.names.count(name) > 1)
            raise InputError(f"{file}: two columns are named {twice!r}; rename one of them")
        for field in schema:
            plain = _plain(field.type)
            before = merged.get(field.name)
            wider = plain if before is None else _wider(before, plain)
            if wider is None:
                raise ColumnError(
                    f"column {field.name!r} is {before} in {sources[field.name]} but {plain} in "
                    f"{file}; give it one type, or leave out one of the files"
                )
            # The file that gave the type it has now, for the message about the next one.
            if wider != before:
                sources[field.name] = file
            merged[field.name] = wider
    if not merged:
        raise InputError(f"{schemas[0][0]}: there are no columns in it")
    if not allow_missing:
        _require_all_columns(schemas, merged)
    return pa.schema(merged.items())


def _require_all_columns(
    schemas: Sequence[tuple[str, pa.Schema]], merged: dict[str, pa.DataType]
) -> None:
    for file, schema in schemas:
        present = set(schema.names)
        missing = next((name for name in merged if name not in present), None)
        if missing is not None:
            other = next(name for name, found in schemas if missing in found.names)
            shown = ", ".join(schema.names[:_MOST_NAMES])
            more = ", …" if len(schema.names) > _MOST_NAMES else ""
            raise ColumnError(
                f"{file}: column {missing!r} is missing, which {other} has; add it, or leave the "
                f"file out. Its columns: {shown}{more}"
            )


def conform(table: pa.Table, schema: pa.Schema) -> pa.Table:
    """Return a table with exactly the columns and types of a unified schema; absent columns are null.

    An InputError names a value that the type does not hold exactly, such as an integer beyond 2^53.
    """
    columns = []
    for field in schema:
        place = table.schema.get_field_index(field.name)
        if place < 0 and field.name in table.column_names:
            raise InputError(f"two columns are named {field.name!r}; rename one of them")
        if place < 0:
            columns.append(pa.chunked_array([pa.nulls(table.num_rows, field.type)]))
        else:
            columns.append(_convert(table.column(place), field.type, field.name))
    return pa.table(columns, schema=schema)


def _convert(column: pa.ChunkedArray, target: pa.DataType, name: str) -> pa.ChunkedArray:
    if column.type == target:
        return column
    plain, wanted = _plain(column.type), _plain(target)
    if _wider(plain, wanted) != wanted:
        raise ColumnError(
            f"column {name!r} is {plain}, which cannot be converted to {target} without loss"
        )
    if unstorable_reason(plain):
        return pa.chunked_array([_placeholder(one, target) for one in column.chunks], target)
    if types.is_dictionary(column.type):
        column = column.cast(column.type.value_type)
    elif types.is_run_end_encoded(column.type):
        decoded = [pc.run_end_decode(chunk) for chunk in column.chunks]
        column = pa.chunked_array(decoded, column.type.value_type)
    if types.is_list(wanted) and not types.is_list(plain) and not types.is_null(plain):
        column = pa.chunked_array(
            [_singletons(chunk) for chunk in _convert(column, wanted.value_type, name).chunks],
            wanted,
        )
    try:
        return column.cast(target)
    except pa.ArrowInvalid as error:
        raise ColumnError(
            f"column {name!r}: {_offending(column, target)} cannot be represented exactly as "
            f"{target}, the type of the column in all files; give it one type "
            f"({str(error).splitlines()[0]})"
        ) from error


def _singletons(values: pa.Array) -> pa.ListArray:
    """Return lists of one value each; a null is a null list."""
    present = values.drop_null()
    ends = np.cumsum(values.is_valid().to_numpy(zero_copy_only=False), dtype=np.int32)
    offsets = np.concatenate([np.zeros(1, np.int32), ends])
    return pa.ListArray.from_arrays(
        offsets, present, type=pa.list_(values.type), mask=values.is_null()
    )


def _offending(column: pa.ChunkedArray, target: pa.DataType) -> str:
    """Return the first value that the cast refuses."""
    values = column.combine_chunks()
    while types.is_list(target):
        values, target = values.flatten(), target.value_type

    def accepts(part: pa.Array) -> bool:
        try:
            part.cast(target)
        except pa.ArrowInvalid:
            return False
        return True

    return first_refused(values, accepts)
