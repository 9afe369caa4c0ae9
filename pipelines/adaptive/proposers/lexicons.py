"""Lists of words by what they are, such as names, cities and adjectives, and templates of them."""

from __future__ import annotations

import json
import re
from functools import cache
from importlib.resources import files
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    import numpy as np

_SLOT = re.compile(r"\{(\w+)\}")
_ARTICLE = re.compile(r"\b([Aa])n? (?=(\w+))")
_SAID_WITH_AN = re.compile(r"(?!eu|one)[aeio]|u(?!kr|gand|rug|ni[tvq]|se)", re.IGNORECASE)
# Slots whose words may be exchanged wherever they stand. Things and verbs of the present may not:
# a pool is no film, and "like" is not always what somebody does.
_MINED = (
    "male_name",
    "female_name",
    "city",
    "nationality",
    "country",
    "positive_adjective",
    "negative_adjective",
    "positive_verb_past",
    "negative_verb_past",
    "neutral_adjective",
    "profession",
    "belief",
)
# Words that mean what their slot says only where they are capitalised.
_NAMES = frozenset({"male_name", "female_name", "last_name", "city", "country", "nationality"})


@cache
def lexicons() -> Mapping[str, tuple[str, ...]]:
    """Return the words of each slot. Those of CheckList are under the MIT licence beside them."""
    text = files(__package__).joinpath("lexicons.json").read_text("utf-8")
    words = {name: tuple(dict.fromkeys(listed)) for name, listed in json.loads(text).items()}
    words["first_name"] = tuple(dict.fromkeys((*words["male_name"], *words["female_name"])))
    return words


def slots_of(template: str) -> tuple[str, ...]:
    """Return the names of a template's slots, each once.

    >>> slots_of("{this} {thing} is a {thing}.")
    ('this', 'thing')
    """
    return tuple(dict.fromkeys(_SLOT.findall(template)))


def filled(template: str, words: Mapping[str, str]) -> str:
    """Return a template with words in its slots, a capital at its beginning and the right articles.

    >>> filled("a {adjective} {thing}.", {"adjective": "awful", "thing": "room"})
    'An awful room.'
    """
    text = _SLOT.sub(lambda slot: words[slot[1]], template)
    text = _ARTICLE.sub(lambda found: f"{found[1]}{_n(found[2])} ", text)
    return text if template.startswith("{") and len(text.split()) == 1 else _capitalised(text)


def drawn(
    template: str, rng: np.random.Generator, words: Mapping[str, tuple[str, ...]]
) -> dict[str, str]:
    """Return a word for each slot of a template."""
    return {slot: words[slot][int(rng.integers(len(words[slot])))] for slot in slots_of(template)}


def template_of(text: str) -> str:
    """Return the template of a text: slots for the words that the lexicons know, each slot once.

    >>> template_of("Sarah liked that awful room, not the good one.")
    '{female_name} {positive_verb_past} that {negative_adjective} room, not the {positive_adjective} one.'
    """
    pattern, slot_of = _mining()
    used: dict[str, str] = {}

    def replaced(found: re.Match[str]) -> str:
        word = found[0]
        slot = slot_of(word)
        # The second word of a slot is another one than the first, and stays.
        if slot is None or used.setdefault(slot, word) != word:
            return word
        return f"{{{slot}}}"

    return pattern.sub(replaced, text.replace("{", "(").replace("}", ")"))


@cache
def _mining() -> tuple[re.Pattern[str], Callable[[str], str | None]]:
    known: dict[str, str] = {}
    names: dict[str, str] = {}
    for slot in _MINED:
        for word in lexicons()[slot]:
            (names if slot in _NAMES else known).setdefault(word, slot)
    longest_first = sorted({*known, *names}, key=lambda word: (-len(word), word))
    pattern = re.compile(rf"\b(?:{'|'.join(map(re.escape, longest_first))})\b")

    def slot_of(word: str) -> str | None:
        return names.get(word) or known.get(word)

    return pattern, slot_of


def _n(word: str) -> str:
    return "n" if _SAID_WITH_AN.match(word) else ""


def _capitalised(text: str) -> str:
    return text[:1].upper() + text[1:]
