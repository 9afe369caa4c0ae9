"""Tables in memory, from any library that exports its columns to Arrow, as files to read."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from slicebeam.metrics.errors import ColumnError, InputError
from slicebeam.transforms.formats.schemas import storable


def files_of(data: Any, path: Path) -> tuple[str, ...]:
    """Return the files of the data, which are written where it is a table."""
    if isinstance(data, (str, os.PathLike)):
        return (os.fspath(data),)
    if isinstance(data, (list, tuple)) and all(
        isinstance(path_, (str, os.PathLike)) for path_ in data
    ):
        return tuple(os.fspath(path_) for path_ in data)
    table = storable(arrow_table(data))
    try:
        pq.write_table(table, path)
    except pa.ArrowException as error:
        reason = str(error).splitlines()[0]
        raise InputError(
            f"the table can't be read ({reason}); write it as Parquet, and give the path"
        ) from error
    return (str(path),)


def arrow_table(data: Any) -> pa.Table:
    """Return a table from pandas, polars, Arrow or any other source of an Arrow stream.

    Raises
    ------
    InputError
        It is not a table.
    """
    try:
        if isinstance(data, pa.Table):
            return _without_views(data)
        if type(data).__module__.partition(".")[0] == "pandas":
            return pa.Table.from_pandas(_plain(data), preserve_index=False)
        # By its method ``__arrow_c_stream__``, where it is not a batch of Arrow's.
        return _without_views(pa.table(data))
    except (TypeError, ValueError, pa.ArrowException) as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise InputError(
            f"a {type(data).__name__} cannot be read as data ({reason}); give a table of pandas, "
            "polars or Arrow, or paths"
        ) from error


def _plain(data: Any) -> Any:
    """Return a pandas frame whose named index levels are columns, and whose intervals are text.

    An index without a name is not a column: it would be searched as a feature.
    """
    import pandas as pd

    if not isinstance(data, pd.DataFrame):
        return data
    frame = data.copy(deep=False)
    for level, name in enumerate(frame.index.names):
        if name is None:
            continue
        if name in frame.columns:
            raise ColumnError(
                f"the index is named {name!r}, as a column is; rename one, or reset_index(drop=True)"
            )
        frame[name] = frame.index.get_level_values(level)
    for place, kind in enumerate(frame.dtypes):
        if isinstance(kind, pd.IntervalDtype):
            column = frame.iloc[:, place].astype("category")
        elif isinstance(kind, pd.CategoricalDtype):
            column = frame.iloc[:, place]
        else:
            continue
        if isinstance(column.cat.categories.dtype, pd.IntervalDtype):
            frame.isetitem(place, column.cat.rename_categories(str).array)
    return frame


def _without_views(table: pa.Table) -> pa.Table:
    """Return a table whose texts are no views, which Parquet can't hold."""
    fields = [field.with_type(_without_view(field.type)) for field in table.schema]
    return table if fields == list(table.schema) else table.cast(pa.schema(fields))


def _without_view(kind: pa.DataType) -> pa.DataType:
    if kind in (pa.string_view(), pa.binary_view()):
        return pa.large_string() if kind == pa.string_view() else pa.large_binary()
    is_list = pa.types.is_list(kind) or pa.types.is_large_list(kind)
    if is_list or pa.types.is_dictionary(kind):
        values = _without_view(kind.value_type)
        if values != kind.value_type:
            if is_list:
                return pa.large_list(values)
            return pa.dictionary(kind.index_type, values, kind.ordered)
    return kind
