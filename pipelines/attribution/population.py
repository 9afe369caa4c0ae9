"""The examples that items to label are drawn from."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

import pyarrow as pa
import pyarrow.compute as pc

from slicebeam.metrics.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy as np
    from numpy.typing import NDArray

    from slicebeam.metrics.arrays import BoolArray, FloatArray, IntArray
    from slicebeam.pipelines.changelist.discovered import AnyDefinition, Id
    from slicebeam.pipelines.changelist.slices import Slice


class SlicePopulation(Protocol):
    """All examples, and which of them are in the slice.

    Attributes
    ----------
    ids : int64 or string [n], unique
    hashes : uint64 [n] of the ids
    member : bool [n], in the slice
    """

    @property
    def ids(self) -> pa.Array:
        """What identifies the examples."""

    @property
    def hashes(self) -> NDArray[np.uint64]:
        """Hashes of the ids."""

    @property
    def member(self) -> BoolArray:
        """Which examples are in the slice."""

    def similarity(self, queries: Sequence[str]) -> NDArray[np.float32]:
        """Return float32 [q, n]: the cosine of each example's embedding with each query's."""

    def rows(self, positions: IntArray) -> pa.Table:
        """Return the fields that show some examples, in this order."""

    def embeddings(self, positions: IntArray) -> NDArray[np.float32]:
        """Return the raw embeddings of some examples, float32 [m, D]."""

    def scores(self, coefficients: FloatArray, intercept: float) -> FloatArray:
        """Return float64 [n]: the probabilities of a logistic regression on raw embeddings."""

    def column(self, name: str) -> pa.Array:
        """Return a recorded column, in the order of the ids; `InputError` where there is none."""

    def defined(self, name: str, definition: AnyDefinition, member: BoolArray) -> Slice:
        """Return a slice as the document states it, with a new slice_id and its changes."""


def ids_at(population: SlicePopulation, positions: IntArray) -> tuple[Id, ...]:
    """Return the ids of some examples."""
    return tuple(population.ids.take(pa.array(positions)).to_pylist())


def positions_of(population: SlicePopulation, ids: Sequence[Id]) -> IntArray:
    """Return where examples of these ids are, int64.

    Raises
    ------
    InputError
        There is none of one of the ids.
    """
    found = pc.index_in(pa.array(ids, population.ids.type), value_set=population.ids)
    if found.null_count:
        lost = ids[found.is_null().to_pylist().index(True)]
        raise InputError(
            f"item {lost!r} was drawn but is no longer in the data; give the --data that it was "
            "drawn from"
        )
    positions: IntArray = found.cast(pa.int64()).to_numpy()
    return positions
