"""Reads the sums of slices out of the tables that `slicebeam.metrics.counting.counting` made."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from slicebeam.metrics.arrays import IntArray
    from slicebeam.metrics.counting.counting import Array, State, Unit
    from slicebeam.metrics.counting.lattice import Keys, Lattice
    from slicebeam.metrics.counting.statistic_space import StatisticSpace


class SliceSums(NamedTuple):
    """Sums of slices."""

    keys: Keys  # [slices]
    sums: IntArray  # [slices, 1 + replicates, raw columns]
    nonempty: int  # how many slices of the unit are not empty, reported or not

    @staticmethod
    def none(layers: int, columns: int) -> SliceSums:
        """Return the sums of no slice."""
        return SliceSums(np.zeros(0, np.int64), np.zeros((0, layers, columns), np.int64), 0)


@dataclass(frozen=True)
class SumReader:
    """Reads the sums of slices out of summed tables."""

    lattice: Lattice
    space: StatisticSpace
    layers: int
    min_size: int

    def slices(self, units: Sequence[Unit], state: State) -> Iterator[SliceSums]:
        """Yield the sums of the slices of each unit, tuple by tuple."""
        for unit, arrays in zip(units, state[1:], strict=True):
            if unit.candidates is not None:
                sums = self._listed(unit, arrays, unit.candidates)
                nonempty = int(np.count_nonzero(self.space.sizes(sums[:, 0])))
                yield SliceSums(unit.candidates, sums, nonempty)
            elif unit.method == "sparse":
                if arrays:
                    columns = arrays[1].T.reshape(self.layers, self.space.raw_columns, -1)
                    yield self._every_slice(unit.features, arrays[0], columns)
                else:
                    yield SliceSums.none(self.layers, self.space.raw_columns)
            else:
                margins = Margins(unit.features, arrays[0], self.lattice, self._tables)
                for features in unit.reported:
                    columns = margins.of(features)
                    yield self._every_slice(features, np.arange(columns.shape[2]), columns)

    @property
    def _tables(self) -> tuple[int, int]:
        return self.layers, self.space.raw_columns

    def _every_slice(self, features: tuple[int, ...], codes: Array, by_column: Array) -> SliceSums:
        sizes = by_column[0, : self.space.cells].sum(axis=0)
        matched = self.lattice.matched(features, codes)
        if matched is not None:
            sizes = np.where(matched, sizes, 0)
        kept = np.flatnonzero(sizes >= self.min_size)
        sums = np.ascontiguousarray(by_column[:, :, kept].transpose(2, 0, 1))
        keys = self.lattice.cell_keys(features, codes[kept])
        return SliceSums(keys, sums, int(np.count_nonzero(sizes)))

    def _listed(self, unit: Unit, arrays: list[Array], candidates: Keys) -> IntArray:
        sums = np.zeros((candidates.size, self.layers, self.space.raw_columns), np.int64)
        if unit.method == "inside":
            self._read_inside(unit, arrays, candidates, sums)
        elif unit.method == "listed":
            sums[:] = arrays[0].reshape(self.layers, self.space.raw_columns, -1).transpose(2, 0, 1)
        elif unit.method == "dense":
            margins = Margins(unit.features, arrays[0], self.lattice, self._tables)
            for features, mine in self.lattice.by_tuple(candidates).items():
                wanted = self.lattice.key_cells(candidates[mine], features)
                sums[mine] = margins.of(features)[:, :, wanted].transpose(2, 0, 1)
        elif arrays:
            wanted = self.lattice.key_cells(candidates, unit.features)
            codes = arrays[0]
            at = np.minimum(np.searchsorted(codes, wanted), codes.size - 1)
            found = codes[at] == wanted
            flat = arrays[1].reshape(codes.size, self.layers, self.space.raw_columns)
            sums[found] = flat[at[found]]
        return sums

    def _read_inside(
        self, unit: Unit, arrays: list[Array], candidates: Keys, sums: IntArray
    ) -> None:
        """Fill in the sums of candidates: each has a base and one more predicate."""
        lattice = self.lattice
        digits = lattice.digits(candidates)
        owners = lattice.feature_of[digits]
        for feature, table in zip(unit.extensions, arrays, strict=True):
            mine = np.flatnonzero((owners == feature).any(axis=1))
            if mine.size == 0 or unit.bases is None:
                continue
            base_digits = np.where(owners[mine] == feature, 0, digits[mine])
            base_at = np.searchsorted(unit.bases, lattice.keys_of_sets(base_digits))
            code = np.where(owners[mine] == feature, digits[mine], 0).sum(axis=1)
            code -= lattice.offsets[feature] + 1
            cells = base_at * int(lattice.radices[feature]) + code
            by_column = table.reshape(self.layers, self.space.raw_columns, -1)
            sums[mine] = by_column[:, :, cells].transpose(2, 0, 1)


class Margins:
    """The tables of some of the features of a joint table, as sums over its other axes."""

    def __init__(
        self, features: tuple[int, ...], table: Array, lattice: Lattice, tables: tuple[int, int]
    ) -> None:
        self._lattice, self._shape = lattice, tables
        self._known = {features: table.reshape(*tables, -1)}

    def of(self, features: tuple[int, ...]) -> Array:
        """Return the table [layers, columns, cells] of some of the features.

        It is summed from the smallest table that is known, axis by axis.
        """
        known = self._known.get(features)
        if known is not None:
            return known
        wanted = set(features)
        wider = min(
            (one for one in self._known if wanted.issubset(one)),
            key=lambda one: self._known[one].size,
        )
        table = self._known[wider]
        while len(wider) > len(features):
            radices = self._lattice.radices
            # The widest axis first: it leaves the smallest table for the others.
            axis = max(
                (at for at, feature in enumerate(wider) if feature not in wanted),
                key=lambda at: int(radices[wider[at]]),
            )
            before = int(radices[list(wider[:axis])].prod())
            radix = int(radices[wider[axis]])
            table = table.reshape(*self._shape, before, radix, -1).sum(axis=3)
            table = table.reshape(*self._shape, -1)
            wider = wider[:axis] + wider[axis + 1 :]
            self._known[wider] = table
        return table
