"""The examples that items to label are drawn from."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from slicebeam.metrics.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from slicebeam.metrics.arrays import BoolArray, IntArray
    from slicebeam.transforms.encode.definitions import Id


class SlicePopulation(NamedTuple):
    """All examples, and which of them are in the slice."""

    # A `DocumentData`, which a layer above opens; tests hold examples in memory.
    data: Any
    member: BoolArray


def ids_at(ids: pa.Array, positions: IntArray) -> tuple[Id, ...]:
    """Return the ids of examples at some positions."""
    return tuple(ids.take(pa.array(positions)).to_pylist())


def positions_of(ids: pa.Array, items: Sequence[Id]) -> IntArray:
    """Return where examples are, int64; `InputError` where there is none of an id."""
    places = pc.index_in(pa.array(items, ids.type), value_set=ids)
    if places.null_count:
        lost = items[places.is_null().to_pylist().index(True)]
        raise InputError(
            f"item {lost!r} was drawn but is no longer in the data; give the --data that it was "
            "drawn from"
        )
    positions: IntArray = places.cast(pa.int64()).to_numpy()
    return positions
