"""Asks a person in the terminal, and stores each answer at once."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from slicebeam.metrics.errors import InputError, printable
from slicebeam.pipelines.attribution.labels import WORDS, label_of
from slicebeam.pipelines.attribution.sheets import rows_of

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from slicebeam.pipelines.attribution.labels import Labels
    from slicebeam.pipelines.attribution.population import SlicePopulation
    from slicebeam.transforms.encode.definitions import Id

_QUIT, _BACK = ("q", "quit"), ("b", "back")
_LONGEST = 2000
LABELER = "terminal"


def terminal_labeler() -> TerminalLabeler:
    """Return the labeler that asks in the terminal."""
    if not sys.stdin.isatty():
        raise InputError(
            "without --labels or --llm, you label by hand, but standard input is not a terminal; "
            "give one of the two options, or label the sheets of 'slicebeam attribute sample'"
        )

    def say(text: str) -> None:
        sys.stderr.write(f"{text}\n")

    def read(prompt: str) -> str:
        # The result alone is for stdout.
        sys.stderr.write(prompt)
        sys.stderr.flush()
        line = sys.stdin.readline()
        if not line:
            raise EOFError
        return line

    return TerminalLabeler(read, say)


class TerminalLabeler:
    """A person who reads an item and presses a key."""

    def __init__(self, read: Callable[[str], str], say: Callable[[str], None]) -> None:
        self._read, self._say = read, say

    def label(self, items: Sequence[Id], population: SlicePopulation, store: Labels) -> None:
        """Ask about each item until all are labelled or the person quits."""
        rows = rows_of(population, items)
        self._say(f"Is this true of the item: {printable(store.text)}\n")
        at = 0
        while at < len(items):
            self._say(f"{at + 1} of {len(items)}")
            self._say(_shown(rows[at]))
            step = self._answer(items[at], store, is_first=at == 0)
            if step is None:
                return
            at += step

    def _answer(self, item: Id, store: Labels, *, is_first: bool) -> int | None:
        """Keep an answer, and return by how many items to continue; None to end."""
        before = store.known.get(item)
        was = "" if before is None else f" (was {WORDS[before.label]})"
        while True:
            try:
                given = self._read(f"yes, no, unsure, back, quit [y/n/u/b/q]{was}: ")
            except EOFError:
                return None
            word = given.strip().casefold()
            if word in _QUIT:
                return None
            if word in _BACK:
                if is_first:
                    self._say("this is the first item")
                    continue
                return -1
            label = label_of(word)
            if label is not None:
                store.add({item: label}, LABELER)
                return 1
            self._say(f"{printable(word)!r} is not an answer; press y, n, u, b or q")


def _shown(row: Mapping[str, Any]) -> str:
    lines = []
    for name, value in row.items():
        text = "" if value is None else str(value)
        if len(text) > _LONGEST:
            text = f"{text[:_LONGEST]}…"
        lines.append(f"  {printable(name)}: {printable(text)}")
    return "\n".join(lines)
