"""Values of Arrow columns for numpy: which are missing, and how they are ordered."""

from __future__ import annotations

import decimal
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from slicebeam.metrics.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    from slicebeam.metrics.arrays import BoolArray


def arrow_type(text: str) -> pa.DataType:
    """Return the Arrow type of its text form, ``str(data_type)``.

    >>> arrow_type("timestamp[us, tz=UTC]")
    TimestampType(timestamp[us, tz=UTC])
    """
    head, _, rest = text.partition("[")
    if head == "timestamp":
        unit, _, zone = rest.rstrip("]").partition(", tz=")
        return pa.timestamp(unit, zone or None)
    if head.startswith("decimal"):
        name, _, digits = text.rstrip(")").partition("(")
        precision, scale = digits.split(",")
        return getattr(pa, name)(int(precision), int(scale))
    if head in ("date32", "date64"):
        return {"date32": pa.date32(), "date64": pa.date64()}[head]
    if head in ("time32", "time64"):
        return pa.type_for_alias(text)
    names = {"float": "float32", "double": "float64", "halffloat": "float16"}
    return pa.type_for_alias(names.get(text, text))


def boolean_mask(values: pa.Array) -> BoolArray:
    """Return a boolean array as numpy has it: bool [rows], without nulls."""
    mask: BoolArray = values.to_numpy(zero_copy_only=False).astype(bool)
    return mask


def python_values(values: pa.Array | pa.ChunkedArray) -> list[Any]:
    """Return values as Python has them; times that it cannot represent as text.

    Nanoseconds are microseconds where no digit is lost. Arrow alone would return them as objects of
    pandas, and fail without it.

    >>> python_values(pa.array([1000, None], pa.timestamp("ns")))
    [datetime.datetime(1970, 1, 1, 0, 0, 0, 1), None]
    >>> python_values(pa.array([1001, None], pa.timestamp("ns")))
    ['1970-01-01 00:00:00.000001001', None]
    """
    listed: list[Any]
    try:
        listed = values.cast(_with_times(values.type, _in_microseconds)).to_pylist()
    except (ValueError, OverflowError):
        listed = values.cast(_with_times(values.type, lambda _: pa.string())).to_pylist()
    return listed


def python_rows(table: pa.Table) -> list[dict[str, Any]]:
    """Return the rows of a table, whose values are those of `python_values`."""
    columns = map(python_values, table.columns)
    return [dict(zip(table.column_names, row, strict=True)) for row in zip(*columns, strict=True)]


def _in_microseconds(kind: pa.DataType) -> pa.DataType:
    if getattr(kind, "unit", None) != "ns":
        return kind
    if pa.types.is_timestamp(kind):
        return pa.timestamp("us", kind.tz)
    return pa.time64("us") if pa.types.is_time(kind) else pa.duration("us")


def _with_times(kind: pa.DataType, changed: Callable[[pa.DataType], pa.DataType]) -> pa.DataType:
    """Return a type, in which others may be nested, with its dates and times changed."""
    if pa.types.is_dictionary(kind):
        return _with_times(kind.value_type, changed)
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return pa.large_list(_with_times(kind.value_type, changed))
    if pa.types.is_map(kind):
        return pa.map_(*(_with_times(part, changed) for part in (kind.key_type, kind.item_type)))
    if pa.types.is_struct(kind):
        return pa.struct([(part.name, _with_times(part.type, changed)) for part in kind])
    return changed(kind) if pa.types.is_temporal(kind) else kind


def missing_mask(values: pa.Array) -> BoolArray | None:
    """Return where a column is null or NaN, None if nothing is."""
    missing = None
    if values.null_count:
        missing = boolean_mask(pc.is_null(values))
    if pa.types.is_floating(values.type):
        nan = np.isnan(
            np.asarray(
                pc.fill_null(values, float("nan")) if values.null_count else values,
                dtype=np.float64,
            )
        )
        if nan.any():
            missing = nan
    return missing


def sortable(values: pa.Array) -> NDArray[Any]:
    """Return numbers that are ordered as the values are: int64, uint64 or float64 [rows].

    A null has any number: see `missing_mask`.
    """
    kind = values.type
    if pa.types.is_decimal(kind):
        try:
            narrow = values.cast(pa.decimal128(18, kind.scale))
        except pa.ArrowInvalid as error:
            raise InputError(f"{kind} values of more than 18 digits: cast the column") from error
        words = np.frombuffer(narrow.buffers()[1], dtype="<i8")[::2]
        return words[narrow.offset : narrow.offset + len(narrow)].copy()
    if pa.types.is_temporal(kind):
        width = pa.int32() if kind.bit_width == 32 else pa.int64()
        values = values.view(width).cast(pa.int64())
    elif pa.types.is_floating(kind):
        values = values.cast(pa.float64())
    elif kind != pa.uint64():
        values = values.cast(pa.int64())
    if values.null_count:
        values = pc.fill_null(values, 0)
    numbers: NDArray[Any] = values.to_numpy(zero_copy_only=False)
    return numbers


def from_numbers(numbers: NDArray[Any], kind: pa.DataType) -> pa.Array:
    """Return values of the type from the numbers of `sortable`, which may be rounded to doubles."""
    if pa.types.is_floating(kind):
        return pa.array(numbers).cast(kind)
    width = np.uint64 if kind == pa.uint64() else np.int64
    limits = np.iinfo(width)
    whole = pa.array(
        [min(max(int(number), limits.min), limits.max) for number in numbers.tolist()],
        pa.from_numpy_dtype(width),
    )
    if pa.types.is_decimal(kind):
        unit = decimal.Decimal(1).scaleb(-kind.scale)
        return pa.array([number * unit for number in whole.to_pylist()], kind)
    if pa.types.is_temporal(kind):
        return whole.cast(pa.int32() if kind.bit_width == 32 else pa.int64()).view(kind)
    return whole.cast(kind)


def successors(values: pa.Array) -> pa.Array:
    """Return the next larger value of the type for each value."""
    kind = values.type
    if pa.types.is_floating(kind):
        numbers = values.to_numpy(zero_copy_only=False)
        return pa.array(np.nextafter(numbers, numbers.dtype.type(np.inf)))
    if pa.types.is_decimal(kind):
        unit = pa.scalar(decimal.Decimal(1).scaleb(-kind.scale), kind)
        return pc.add(values, unit).cast(kind)
    if pa.types.is_temporal(kind):
        width = pa.int32() if kind.bit_width == 32 else pa.int64()
        return pc.add(values.view(width), pa.scalar(1, width)).view(kind)
    return pc.add(values, pa.scalar(1, kind))
