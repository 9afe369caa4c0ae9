"""What the training data says: its labels, those of some texts, and rows drawn at random."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from slicebeam.metrics.errors import ColumnError, unknown_name
from slicebeam.metrics.randomness import hash64

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from slicebeam.metrics.arrays import IntArray
    from slicebeam.pipelines.adaptive.text_models import Text
    from slicebeam.pipelines.adaptive.training_files import TrainingFile

_DRAWS, _ORDER = 0, 1


@dataclass(frozen=True, eq=False)
class TrainingRows:
    """What was read of training data. Rows without a text or a label do not count.

    Attributes
    ----------
    drawn : numbers of rows of the file, in the order of a random draw without replacement; int64
    labels : the labels, by how a model puts them out
    labels_of : of the texts that were looked up, the labels that they have there, as a model puts them out
    """

    drawn: IntArray
    labels: dict[str, Any]
    labels_of: dict[Text, set[str]]


def read_rows(
    file: TrainingFile,
    texts: Sequence[str],
    label: str,
    most: int,
    seed: int,
    looked_up: Collection[Text] = (),
) -> TrainingRows:
    """Read the labels and texts of training data.

    Parameters
    ----------
    texts, label : names of columns; of texts one, or two of pairs
    most : rows to draw
    looked_up : texts whose labels are wanted

    Raises
    ------
    InputError
        The file can't be read, it lacks a column, or one is none of texts, or of labels.
    """
    columns = (*texts, label)
    labels: dict[str, Any] = {}
    labels_of: dict[Text, set[str]] = {}
    least, begin = np.empty((0, 2), np.uint64), 0
    for table in file.blocks(columns):
        # A key that no object of a block has is no column of it.
        found = [_column(table, name) for name in columns]
        for name, column in zip(columns, found, strict=True):
            _check(name, column, file.path, is_text=name != label)
        usable = _usable(found, len(table))
        numbers = np.flatnonzero(usable).astype(np.uint64) + np.uint64(begin)
        hashes = hash64(seed, _DRAWS, numbers)
        least = np.concatenate([least, np.stack([hashes, numbers], axis=1)])
        least = least[np.argsort(least[:, 0], kind="stable")[:most]]
        kept = [column.filter(pa.array(usable)) for column in found]
        labels.update((str(one), one) for one in pc.unique(kept[-1]).to_pylist())
        for text, one in _looked_up(kept, looked_up):
            labels_of.setdefault(text, set()).add(one)
        begin += len(table)
    for name in columns:
        if name not in file.names:
            option = "--label" if name == label else "--text"
            error = unknown_name("column", name, file.names)
            raise ColumnError(f"{option} {name}: {file.path}: {error}")
    return TrainingRows(least[:, 1].astype(np.int64), labels, labels_of)


def mixed_order(number: int, seed: int) -> IntArray:
    """Return a random order of places; int64 [number]."""
    order: IntArray = np.argsort(hash64(seed, _ORDER, np.arange(number, dtype=np.uint64)))
    return order


def _column(table: pa.Table, name: str) -> Any:
    if name in table.column_names:
        return table[name]
    return pa.chunked_array([pa.nulls(len(table))])


def _check(name: str, column: Any, path: str, *, is_text: bool) -> None:
    kind = column.type
    if pa.types.is_dictionary(kind):
        kind = kind.value_type
    known = (
        pa.types.is_string,
        pa.types.is_large_string,
        pa.types.is_string_view,
        pa.types.is_null,
    )
    labels = (pa.types.is_boolean, pa.types.is_integer, pa.types.is_floating)
    if not any(one(kind) for one in (known if is_text else (*known, *labels))):
        option, what = ("--text", "texts") if is_text else ("--label", "labels")
        raise ColumnError(
            f"{option} {name}: {path}: the column has {kind} values, which are no {what}; name another column"
        )


def _usable(columns: Sequence[Any], rows: int) -> Any:
    """Return which rows have a value in each of some columns; bool [rows]."""
    usable = np.ones(rows, bool)
    for column in columns:
        is_float = pa.types.is_floating(column.type)
        usable &= ~np.asarray(pc.is_null(column, nan_is_null=is_float)).astype(bool)
    return usable


def _looked_up(columns: Sequence[Any], wanted: Collection[Text]) -> list[tuple[Text, str]]:
    """Return those of some texts that rows have, with the labels of these.

    Parameters
    ----------
    columns : the texts, one column or two, and the labels
    """
    if not wanted:
        return []
    first = pa.array(sorted({one if isinstance(one, str) else one[0] for one in wanted}))
    inside = pc.is_in(columns[0].cast(pa.string()), first)
    *texts, labels = (column.filter(inside).to_pylist() for column in columns)
    keys = texts[0] if len(texts) == 1 else list(zip(*texts, strict=True))
    return [(key, str(label)) for key, label in zip(keys, labels, strict=True) if key in wanted]
