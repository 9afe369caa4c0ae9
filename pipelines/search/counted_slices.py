"""Slices as they were counted and tested: tables by key, and parts of the search with what changes them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from slicebeam.metrics.counting.lattice import contains
from slicebeam.transforms.count.tables import read_part

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from numpy.typing import NDArray

    from slicebeam.metrics.counting.lattice import Keys
    from slicebeam.transforms.storage.storage import StoragePath

    Array = NDArray[Any]


@dataclass(frozen=True)
class SliceTable:
    """Slices with columns by name, [slices] or [slices, …]; those of parts are named as `tested_block` says."""

    keys: Keys
    columns: Mapping[str, Array]

    def __getitem__(self, name: str) -> Array:
        return self.columns[name]

    def take(self, positions: Array) -> SliceTable:
        """Return the slices at some positions."""
        columns = {name: column[positions] for name, column in self.columns.items()}
        return SliceTable(self.keys[positions], columns)

    def by_key(self) -> SliceTable:
        """Return the slices in the order of their keys, so that `at` finds them."""
        return self.take(np.argsort(self.keys))

    def at(self, keys: Keys) -> NDArray[np.int64]:
        """Return the positions of slices that are in this table, which is in the order of its keys."""
        return np.searchsorted(self.keys, keys)

    def stacked(self, name: str, numbers: Iterable[int]) -> Array:
        """Return the numbered columns of a name as one [slices, numbers], such as the sums ``c0`` …."""
        return np.stack([self.columns[f"{name}{number}"] for number in numbers], axis=1)

    def sizes(self, cells: int) -> NDArray[np.int64]:
        """Return how many examples the slices of a part have."""
        sizes: NDArray[np.int64] = np.sum([self[f"c{cell}"] for cell in range(cells)], axis=0)
        return sizes

    def changed(self, change: SliceTable) -> SliceTable:
        """Return the slices of a part with the columns that another table, in the order of its keys, has of them."""
        own = np.flatnonzero(contains(change.keys, self.keys))
        if own.size == 0:
            return self
        at = change.at(self.keys[own])
        columns = dict(self.columns)
        # A slice that is too small for a test has no p-value, now as before.
        tested = ~np.isnan(self["p0"][own])
        for name in change.columns.keys() & columns.keys():
            some = slice(None) if name.startswith("c") else tested
            columns[name] = np.array(columns[name])
            columns[name][own[some]] = change[name][at[some]]
        return SliceTable(self.keys, columns)


def joined(tables: Sequence[SliceTable]) -> SliceTable:
    """Return the slices of one or more tables with the same columns."""
    return SliceTable(
        np.concatenate([table.keys for table in tables]),
        {name: np.concatenate([table[name] for table in tables]) for name in tables[0].columns},
    )


@dataclass(frozen=True)
class CountedPart:
    """The slices of a block of a plan: its file, and what second tests changed since it was written."""

    path: StoragePath
    changes: list[SliceTable] = field(default_factory=list)


def tables_of(parts: Iterable[CountedPart]) -> Iterator[SliceTable]:
    """Yield the slices of each part."""
    for part in parts:
        batch = read_part(part.path)
        columns = {name: batch.column(name).to_numpy() for name in batch.schema.names}
        table = SliceTable(columns.pop("key"), columns)
        for change in part.changes:
            table = table.changed(change)
        yield table


def looked_up(
    parts: Iterable[CountedPart],
    keys: Keys,
    numbers: Callable[[SliceTable], Array],
    width: int | None = None,
) -> NDArray[np.int64]:
    """Return numbers [slices] or [slices, width] of slices (sorted keys); 0 where a slice is in no part."""
    found = np.zeros(keys.size if width is None else (keys.size, width), np.int64)
    for table in tables_of(parts):
        own = np.flatnonzero(contains(keys, table.keys))
        found[np.searchsorted(keys, table.keys[own])] = numbers(table)[own]
    return found
