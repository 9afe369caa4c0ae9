"""Makes the file of a failure smaller for as long as it fails alike."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import TYPE_CHECKING

from tests.fuzzing import kinds
from tests.fuzzing.pool import Ask, run_cases

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.fuzzing.case import Verdict

# Of one failure.
_MOST_CASES = 100
_SECONDS = 60.0
_MOST_PIECES = 64


def without_pieces(content: bytes, pieces: int) -> Iterator[bytes]:
    """Yield the content without each of so many pieces, cut at line ends where it has many."""
    lines = content.splitlines(keepends=True)
    if len(lines) >= pieces:
        for begin, end in _spans(len(lines), pieces):
            yield b"".join(lines[:begin] + lines[end:])
    else:
        for begin, end in _spans(len(content), pieces):
            yield content[:begin] + content[end:]


def _spans(size: int, pieces: int) -> Iterator[tuple[int, int]]:
    for piece in range(pieces):
        yield size * piece // pieces, size * (piece + 1) // pieces


def smallest(verdict: Verdict, *, workers: int) -> bytes:
    """Return the smallest file found that fails as the case of a verdict does.

    Parameters
    ----------
    verdict : a failure
    workers : processes at once
    """
    case = kinds.case(verdict.kind, verdict.seed, verdict.number)
    content = case.files.get(case.mutated, b"")
    pieces, left, end = 2, _MOST_CASES, time.monotonic() + _SECONDS
    while (
        content
        and left > 0
        and time.monotonic() < end
        and pieces <= min(_MOST_PIECES, 2 * len(content))
    ):
        proposals = [
            one for one in dict.fromkeys(without_pieces(content, pieces)) if one != content
        ]
        asked = Ask(verdict.kind, verdict.seed, verdict.number)
        tried = run_cases(
            [replace(asked, content=one) for one in proposals[:left]], workers=workers
        )
        left -= len(proposals)
        fails = [one.content for one in tried if one.problem == verdict.problem]
        found = [one for one in fails if one is not None]
        if found:
            content, pieces = min(found, key=len), max(2, pieces - 1)
        else:
            pieces *= 2
    return content
