"""Damage to bytes that knows nothing of what they mean."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

_LONGEST_BLOCK = 64
_ODD_BYTES = (0x00, 0x0A, 0x0D, 0x22, 0x2C, 0x7F, 0x80, 0xC3, 0xFE, 0xFF)


def _span(rng: random.Random, size: int) -> tuple[int, int]:
    begin = rng.randrange(size)
    return begin, min(size, begin + rng.randint(1, _LONGEST_BLOCK))


def flip_bit(rng: random.Random, data: bytes) -> bytes:
    at = rng.randrange(len(data))
    return data[:at] + bytes([data[at] ^ 1 << rng.randrange(8)]) + data[at + 1 :]


def overwrite(rng: random.Random, data: bytes) -> bytes:
    at = rng.randrange(len(data))
    return data[:at] + bytes([rng.choice(_ODD_BYTES)]) + data[at + 1 :]


def scramble(rng: random.Random, data: bytes) -> bytes:
    begin, end = _span(rng, len(data))
    return data[:begin] + rng.randbytes(end - begin) + data[end:]


def insert(rng: random.Random, data: bytes) -> bytes:
    at = rng.randrange(len(data) + 1)
    return data[:at] + bytes([rng.choice(_ODD_BYTES)]) * rng.randint(1, 3) + data[at:]


def truncate(rng: random.Random, data: bytes) -> bytes:
    # A copy that stopped misses little or much.
    lost = rng.choice((1, 2, 8, rng.randint(1, len(data))))
    return data[: max(0, len(data) - lost)]


def behead(rng: random.Random, data: bytes) -> bytes:
    return data[rng.choice((1, 2, 8, rng.randint(1, len(data)))) :]


def delete_block(rng: random.Random, data: bytes) -> bytes:
    begin, end = _span(rng, len(data))
    return data[:begin] + data[end:]


def duplicate_block(rng: random.Random, data: bytes) -> bytes:
    begin, end = _span(rng, len(data))
    return data[:end] + data[begin:]


def swap_blocks(rng: random.Random, data: bytes) -> bytes:
    cuts = sorted(rng.randrange(len(data) + 1) for _ in range(3))
    return data[: cuts[0]] + data[cuts[1] : cuts[2]] + data[cuts[0] : cuts[1]] + data[cuts[2] :]


def append_garbage(rng: random.Random, data: bytes) -> bytes:
    return data + rng.randbytes(rng.randint(1, _LONGEST_BLOCK))


MUTATIONS: tuple[Callable[[random.Random, bytes], bytes], ...] = (
    flip_bit,
    flip_bit,
    overwrite,
    scramble,
    insert,
    truncate,
    behead,
    delete_block,
    duplicate_block,
    swap_blocks,
    append_garbage,
)


def splice(rng: random.Random, data: bytes, other: bytes) -> bytes:
    """Return the beginning of one file and the end of another."""
    return data[: rng.randrange(len(data) + 1)] + other[rng.randrange(len(other) + 1) :]


def damage(
    rng: random.Random, data: bytes, *, times: int | None = None, others: Sequence[bytes] = ()
) -> tuple[bytes, list[str]]:
    """Return the bytes after some mutations, and the names of these.

    Parameters
    ----------
    rng : of the case
    data : what is damaged
    times : how many mutations; one to four where it is not given
    others : files that ``data`` may be spliced with
    """
    names = []
    for _ in range(times if times is not None else rng.choice((1, 1, 1, 2, 2, 3, 4))):
        if not data:
            break
        if others and rng.random() < 0.08:
            data = splice(rng, data, rng.choice(others))
            names.append("splice")
            continue
        mutation = rng.choice(MUTATIONS)
        data = mutation(rng, data)
        names.append(mutation.__name__)
    return data, names


def damage_between(rng: random.Random, data: bytes, begin: int, end: int) -> tuple[bytes, str]:
    """Return the bytes after one mutation of the part from ``begin`` to ``end``."""
    part, names = damage(rng, data[begin:end], times=1)
    return data[:begin] + part + data[end:], "".join(names)
