"""Embeddings as chunks of rows, and the error for a row that is not one."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

import numpy as np
from numpy.typing import NDArray

from slicebeam.metrics.arrays import FloatArray
from slicebeam.metrics.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Iterator

Embeddings: TypeAlias = NDArray[np.float32] | FloatArray


def blocks(rows: int, size: int) -> Iterator[slice]:
    """Yield the rows of each block; the last may be shorter."""
    for begin in range(0, rows, size):
        yield slice(begin, min(begin + size, rows))


def not_finite(z: Embeddings, first_row: int) -> InputError:
    """Return the error for a chunk of which a value, or its square, is not finite."""
    finite = np.isfinite(z)
    place = np.argmax(np.abs(z)) if finite.all() else np.argmin(finite)
    row, column = (int(each) for each in np.unravel_index(int(place), z.shape))
    return InputError(
        f"the embedding of row {first_row + row} has {z[row, column]} in dimension {column}; "
        "embeddings must be finite numbers whose squares are too: leave the example out, or embed "
        "it again"
    )


def check_finite(z: Embeddings, first_row: int = 0) -> None:
    """Check that all values and their squares are finite."""
    for rows in blocks(z.shape[0], 4096):
        with np.errstate(over="ignore", invalid="ignore"):
            total = np.square(z[rows], dtype=np.float64).sum()
        if not np.isfinite(total):
            raise not_finite(z[rows], first_row + rows.start)
