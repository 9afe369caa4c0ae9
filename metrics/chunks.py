"""Chunks of examples: blocks of their embeddings, rows that are not valid, and sums that add up."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import Field, dataclass, fields
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from slicebeam.metrics.arrays import FloatArray, NDArray
from slicebeam.metrics.errors import InputError

if TYPE_CHECKING:
    from typing_extensions import Self


Embeddings: TypeAlias = NDArray[np.float32] | FloatArray

# Metadata of fields that are not added up: what is summed, and rows that stand one after another.
FIXED, JOINED = {"is": "fixed"}, {"is": "joined"}


@dataclass(frozen=True)
class Summed:
    """Sums over a chunk: ``+`` adds them field by field, tuples and mappings of them item by item.

    Sums of doubles agree to the byte if chunks are added in the same order, else to about 1e-13.
    Fields with the metadata `FIXED` must be equal; those with `JOINED` are joined along the last axis.
    """

    def __add__(self, other: Self) -> Self:
        if type(self) is not type(other):
            raise ValueError("sums of different kinds cannot be added")
        both = ((f, getattr(self, f.name), getattr(other, f.name)) for f in fields(self))
        return type(self)(*(_added(*values) for values in both))


def _added(column: Field[Any], mine: Any, its: Any) -> Any:
    if column.metadata == JOINED:
        return np.concatenate([mine, its], axis=-1)
    if isinstance(mine, tuple):
        return tuple(a + b for a, b in zip(mine, its, strict=True))
    if isinstance(mine, Mapping):
        return {name: sums + its[name] for name, sums in mine.items()}
    is_fixed = mine is None or bool(column.metadata)
    if not is_fixed and getattr(mine, "shape", None) == getattr(its, "shape", None):
        return mine + its
    if is_fixed and (mine is its or np.array_equal(mine, its)):
        return mine
    raise ValueError(f"sums of a different {column.name} cannot be added")


def blocks(rows: int, size: int) -> Iterator[slice]:
    """Yield the rows of each block; the last may be shorter."""
    for begin in range(0, rows, size):
        yield slice(begin, min(begin + size, rows))


def not_finite(z: Embeddings, first_row: int) -> InputError:
    """Return the error that names the first row with a value that is not finite, or with the largest."""
    finite = np.isfinite(z)
    place = np.argmax(np.abs(z)) if finite.all() else np.argmin(finite)
    row, column = np.unravel_index(int(place), z.shape)
    return InputError(
        f"the embedding of row {first_row + row} has {z[row, column]} in dimension {column}; "
        "embeddings must be finite numbers whose squares are too: leave the example out, or embed "
        "it again"
    )


def check_finite(z: Embeddings, first_row: int = 0) -> None:
    """Raise an InputError that names the row if a value or its square is not finite."""
    for rows in blocks(z.shape[0], 4096):
        with np.errstate(over="ignore", invalid="ignore"):
            total = np.square(z[rows], dtype=np.float64).sum()
        if not np.isfinite(total):
            raise not_finite(z[rows], first_row + rows.start)


def check_losses(losses: FloatArray, name: str, first_row: int) -> None:
    """Raise an InputError that names the row if a loss, or its square, is not finite."""
    with np.errstate(over="ignore", invalid="ignore"):
        finite = np.isfinite(np.square(losses))
    if not finite.all():
        row = int(np.argmin(finite))
        raise InputError(
            f"{name} of row {first_row + row} is {losses[row]}; losses must be finite numbers whose "
            "squares are too: leave the example out, or clip its loss"
        )
