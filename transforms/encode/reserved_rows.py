"""The examples that are reserved for measuring what a search of the others finds."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from slicebeam.metrics.randomness import hash64, uniform
from slicebeam.transforms.encode.column import ChunkColumn, id_hashes

if TYPE_CHECKING:
    from slicebeam.metrics.arrays import BoolArray
    from slicebeam.transforms.encode.column import Chunk

# A stream of random words apart from those of replicates, which count from 0, and of discovery.
_RESERVED = -5


@dataclass(frozen=True)
class ReservedRows:
    """About this share of the examples, or the others, by a hash of a column or of the position.

    Examples with the same value in the column, such as those of a group, stay together.
    """

    share: float
    seed: int
    column: str | None
    option: str
    is_reserved: bool

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns that decide."""
        return () if self.column is None else (self.column,)

    def holds(self, chunk: Chunk) -> BoolArray:
        """Return which examples [rows] of a chunk of the whole data these are."""
        if self.column is None:
            ids = np.arange(
                chunk.start_row, chunk.start_row + chunk.table.num_rows, dtype=np.uint64
            )
        else:
            ids = id_hashes(ChunkColumn.of(chunk, self.column).array, chunk, self.option)
        reserved = uniform(hash64(self.seed, _RESERVED, ids)) < self.share
        return np.asarray(reserved == self.is_reserved)
