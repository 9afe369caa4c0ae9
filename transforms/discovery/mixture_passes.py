"""What discovery sums over the embeddings of all examples: PCA, and the iterations of EM."""

from __future__ import annotations

import operator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from slicebeam.metrics.discovery import mixture as em
from slicebeam.metrics.discovery import pca
from slicebeam.transforms.discovery.embeddings import (
    DISCOVERY,
    EmbeddedChunk,
    loss_column,
    write_embeddings,
)
from slicebeam.transforms.encode.passes import from_arrays, one_thread, summed, to_arrays
from slicebeam.transforms.storage.storage import storage_path

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from numpy.typing import NDArray

    from slicebeam.metrics.discovery.mixture import Mixture, MixtureSums
    from slicebeam.metrics.discovery.pca import Pca, PcaSums
    from slicebeam.transforms.encode.passes import Found, RowGroup
    from slicebeam.transforms.storage.storage import StoragePath

    # Embeddings and losses of examples.
    _Rows = tuple[NDArray[np.float32], list[NDArray[Any]]]

# Rows that are summed together: enough that adding up sums costs nothing beside taking them.
_BLOCK = 1 << 13


@dataclass(frozen=True)
class SumForPca:
    """The sums that principal components of embeddings of D dimensions are computed from."""

    dimensions: int

    def __call__(self, group: RowGroup) -> Found:
        """Return the sums over those examples of a group that shape the mixtures."""
        found = pca.PcaSums.zero(self.dimensions)
        for z, _ in shaping_blocks(group):
            with one_thread():
                found += pca.sums(z)
        return to_arrays(found)

    def total(self, parts: Sequence[Found]) -> PcaSums:
        """Return the sums over all files."""
        total: PcaSums = summed(pca.PcaSums.zero(self.dimensions), parts)
        return total


@dataclass(frozen=True)
class Project:
    """Writes the coordinates along principal axes of the embeddings in some files, under their names."""

    axes: Pca
    folder: StoragePath

    def __call__(self, paths: Sequence[str]) -> Found:
        """Write them, and return how many there are."""
        rows = 0
        for path in map(storage_path, paths):
            chunk = EmbeddedChunk(path)
            others = {name: chunk.column(name) for name in chunk.names}
            with one_thread():
                projected = pca.projected(chunk.z, self.axes)
            write_embeddings(self.folder / path.name, projected, others, {})
            rows += len(chunk.z)
        return {"rows": np.array([rows])}


@dataclass(frozen=True)
class SumForMixtures:
    """The sums of an iteration of EM, for several mixtures in one pass."""

    mixtures: tuple[Mixture, ...]

    def __call__(self, group: RowGroup) -> Found:
        """Return the sums over those examples of a group that shape the mixtures."""
        totals = [em.MixtureSums.zero(mixture) for mixture in self.mixtures]
        for z, losses in shaping_blocks(group):
            with one_thread():
                for number, mixture in enumerate(self.mixtures):
                    own = losses[: len(mixture.heads)]
                    totals[number] += em.sums(mixture, z, own)
        return to_arrays(totals)

    def total(self, parts: Sequence[Found]) -> list[MixtureSums]:
        """Return the sums over all files, added in their order."""
        totals = zeros = [em.MixtureSums.zero(mixture) for mixture in self.mixtures]
        for part in parts:
            totals = list(map(operator.add, totals, from_arrays(zeros, part)))
        return totals


def shaping(chunk: EmbeddedChunk, begin: int = 0, end: int | None = None) -> _Rows:
    """Return the embeddings and the losses of those of a file's rows that shape mixtures."""
    rows = slice(begin, end)
    names = [loss_column(number) for number in range(2) if loss_column(number) in chunk.names]
    z, losses = chunk.z[rows], [chunk.column(name)[rows] for name in names]
    if DISCOVERY not in chunk.names:
        return z, losses
    some = chunk.column(DISCOVERY)[rows]
    return z[some], [loss[some] for loss in losses]


def shaping_blocks(group: RowGroup) -> Iterator[_Rows]:
    """Yield what `shaping` returns of each block of rows, counted from the group's first."""
    # Blocks go over the ends of files: what is summed block by block is then the same to the byte
    # however the data was divided into files. Blocks of which nothing shapes mixtures are left out.
    pieces: list[_Rows] = []
    room = _BLOCK
    for path, begin, end in zip(*group, strict=True):
        chunk, at = EmbeddedChunk(storage_path(path)), begin
        while at < end:
            stop = min(end, at + room)
            pieces.append(shaping(chunk, at, stop))
            room -= stop - at
            at = stop
            if room == 0:
                yield from _joined(pieces)
                pieces, room = [], _BLOCK
    yield from _joined(pieces)


def _joined(pieces: list[_Rows]) -> Iterator[_Rows]:
    if len(pieces) > 1:
        z = np.concatenate([own for own, _ in pieces])
        losses = [np.concatenate(each) for each in zip(*(own for _, own in pieces), strict=True)]
        pieces = [(z, losses)]
    yield from (piece for piece in pieces if len(piece[0]))
