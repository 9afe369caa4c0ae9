"""How often each class of the label occurs, alone and with each value of a feature."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from slicebeam.metrics.counting.counting import Ragged
from slicebeam.transforms.encode.extract_predictions import MOST_CLASSES

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import pyarrow as pa

    from slicebeam.metrics.arrays import IntArray

# A column is not counted with the label where there are more cells of a value and a class.
MOST_CELLS = 4096


@dataclass(frozen=True)
class LabelCounts:
    """The classes of all examples.

    `classes`: of the label, sorted. `sizes`: int64 [classes] examples of each. `tables`: of each
    feature, int64 [codes, classes] examples by its value and their class, None for lists and for
    what has more than `MOST_CELLS` cells.
    """

    classes: tuple[Any, ...]
    sizes: IntArray
    tables: tuple[IntArray | None, ...]


def count_labels(
    labels: pa.Array | None, codes: Sequence[IntArray | Ragged], radices: Sequence[int]
) -> dict[str, Any] | None:
    """Return the counts of a shard as JSON: ``classes``, ``sizes`` and the flat ``tables``.

    `labels`: classes [rows], None if labels are no classes. `codes`: of each feature, int64 [rows]
    or ragged. `radices`: number of codes of each feature.

    Returns: None without labels, and where they have too many values to be classes.
    """
    if labels is None:
        return None
    coded = labels.dictionary_encode()
    classes, label = coded.dictionary.to_pylist(), coded.indices.to_numpy().astype(np.int64)
    if len(classes) > MOST_CLASSES:
        return None
    tables: list[list[int] | None] = []
    for code, radix in zip(codes, radices, strict=True):
        cells = radix * len(classes)
        if isinstance(code, Ragged) or cells > MOST_CELLS:
            tables.append(None)
        else:
            tables.append(np.bincount(code * len(classes) + label, minlength=cells).tolist())
    sizes = np.bincount(label, minlength=len(classes)).tolist()
    return {"classes": classes, "sizes": sizes, "tables": tables}


def sum_labels(
    shards: Sequence[Mapping[str, Any] | None], radices: Sequence[int]
) -> LabelCounts | None:
    """Return the counts of all shards; None if those of one are missing.

    `shards`: what `count_labels` returned for each of them. `radices`: number of codes of each
    feature.
    """
    counted = [one for one in shards if one is not None]
    if len(counted) < len(shards):
        return None
    classes = sorted({name for one in counted for name in one["classes"]})
    position = {name: at for at, name in enumerate(classes)}
    columns = [np.array([position[name] for name in one["classes"]], int) for one in counted]
    sizes = np.zeros(len(classes), np.int64)
    for one, own in zip(counted, columns, strict=True):
        # Classes may be equal and yet two in a shard, such as 0.0 and -0.0.
        np.add.at(sizes, own, np.array(one["sizes"], np.int64))
    tables: list[IntArray | None] = []
    for feature, radix in enumerate(radices):
        parts = [one["tables"][feature] for one in counted]
        # Each shard has a part of the classes, and so perhaps few enough cells.
        if radix * len(classes) > MOST_CELLS or any(part is None for part in parts):
            tables.append(None)
            continue
        table = np.zeros((radix, len(classes)), np.int64)
        for part, own in zip(parts, columns, strict=True):
            counts = np.array(part, np.int64).reshape(radix, own.size)
            np.add.at(table.T, own, counts.T)
        tables.append(table)
    return LabelCounts(tuple(classes), sizes, tuple(tables))
