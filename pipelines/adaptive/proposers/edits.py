"""Edits of a text that don't change what it says."""

from __future__ import annotations

import re
from functools import cache
from typing import TYPE_CHECKING, TypeAlias

from slicebeam.pipelines.adaptive.proposers.lexicons import lexicons

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    import numpy as np

    # Returns the edited text, None where the edit does not apply.
    Edit: TypeAlias = Callable[[str, np.random.Generator], str | None]

_LONG_WORD = re.compile(r"[A-Za-z]{4,}")
# No years, rates or ratings.
_NUMBER = re.compile(
    r"(?<![\d./$])\b(?!19|20)\d{2,}\b(?![./%]|\d| *(?:out of|percent|stars?|times|points)\b)"
)
_END = re.compile(r"[.!?…\s]+$")
_SIMPLE = 10
_NOT_SIMPLE = re.compile(
    r"[,;:?]|\b(?:not|no|never|nobody|nothing|anything|far|but|and|or|that|what|who|which|if|when)\b|n't",
    re.IGNORECASE,
)
_EXPANDED = {
    "aren't": "are not",
    "can't": "cannot",
    "couldn't": "could not",
    "didn't": "did not",
    "doesn't": "does not",
    "don't": "do not",
    "hadn't": "had not",
    "hasn't": "has not",
    "haven't": "have not",
    "isn't": "is not",
    "shouldn't": "should not",
    "wasn't": "was not",
    "weren't": "were not",
    "won't": "will not",
    "wouldn't": "would not",
    "i'm": "i am",
    "i've": "i have",
    "they're": "they are",
    "we're": "we are",
    "you're": "you are",
}
# Names that are often something else.
_AMBIGUOUS = frozenset(
    {"Angel", "Christian", "Faith", "Grace", "Joy", "Mark", "Will", "Chase", "Grant"}
)
# Both ways, each a family of its own.
_SAME_MEANING = (
    ("movie", "film"),
    (", but", ", yet"),
    ("although", "even though"),
    ("a lot of", "lots of"),
    ("maybe", "perhaps"),
    ("almost", "nearly"),
    ("very", "really"),
    ("buy", "purchase"),
)
# A sentence within another one says the same.
_FRAMES = (
    "As I said, {}",
    "In my opinion, {}",
    "To sum up: {}",
    "{} That is all.",
    "{} @airline",
    "{} https://t.co/a1B2c3",
)


@cache
def edits() -> Mapping[str, Edit]:
    """Return the edits by name."""
    found: dict[str, Edit] = {
        "typos": _typo,
        "contractions expanded": _replacing(_EXPANDED),
        "contractions": _replacing({long: short for short, long in _EXPANDED.items()}),
        "numbers": _number,
        "lower case": lambda text, _: _other(text, text.lower()),
        "upper case": lambda text, _: _other(text, text.upper()),
        "full stop": lambda text, _: _ending(text, "."),
        "no full stop": lambda text, _: _ending(text, ""),
    }
    for slot in ("male_name", "female_name", "city", "country"):
        found[f"names: {slot.replace('_', ' ')}"] = _exchanging(lexicons()[slot])
    for one, other in _SAME_MEANING:
        for first, second in ((one, other), (other, one)):
            found[f"paraphrase: {first} as {second}"] = _replacing({first: second})
    for frame in _FRAMES:
        found[f"paraphrase: {frame}"] = _framing(frame)
    return found


def negated(text: str) -> str | None:
    """Return a simple statement negated, None for what is no simple statement.

    >>> negated("The room was nice."), negated("It was nice, but small.")
    ('The room was not nice.', None)
    """
    found = list(re.finditer(r"\b(?:is|was|are|were)\b", text))
    if len(found) != 1 or len(text.split()) > _SIMPLE or _NOT_SIMPLE.search(text):
        return None
    return f"{text[: found[0].end()]} not{text[found[0].end() :]}"


def _other(text: str, edited: str) -> str | None:
    return edited if edited != text and edited.strip() else None


def _ending(text: str, end: str) -> str | None:
    """Exchange how a text ends, unless it asks something."""
    return None if "?" in text[-3:] else _other(text, f"{_END.sub('', text)}{end}")


def _typo(text: str, rng: np.random.Generator) -> str | None:
    """Exchange two letters within a word."""
    words = [found.span() for found in _LONG_WORD.finditer(text)]
    if not words:
        return None
    start, end = words[int(rng.integers(len(words)))]
    at = int(rng.integers(start + 1, end - 2)) if end - start > 4 else start + 1
    return _other(text, text[:at] + text[at + 1] + text[at] + text[at + 2 :])


def _number(text: str, rng: np.random.Generator) -> str | None:
    """Exchange a number for another one of as many digits."""
    numbers = list(_NUMBER.finditer(text))
    if not numbers:
        return None
    found = numbers[int(rng.integers(len(numbers)))]
    digits = "".join(str(int(rng.integers(1, 10))) for _ in found[0])
    return _other(text, text[: found.start()] + digits + text[found.end() :])


def _replacing(pairs: Mapping[str, str]) -> Edit:
    words = "|".join(
        rf"\b{re.escape(one)}" if one[0].isalpha() else re.escape(one) for one in pairs
    )
    pattern = re.compile(rf"(?:{words})\b", re.IGNORECASE)

    def replaced(found: re.Match[str]) -> str:
        new = pairs[found[0].lower()]
        return new[:1].upper() + new[1:] if found[0][0].isupper() else new

    return lambda text, _: _other(text, pattern.sub(replaced, text))


def _exchanging(words: tuple[str, ...]) -> Edit:
    known = [word for word in words if word not in _AMBIGUOUS]
    pattern = re.compile(rf"\b(?:{'|'.join(map(re.escape, known))})\b")

    def exchanged(text: str, rng: np.random.Generator) -> str | None:
        found = pattern.search(text)
        if found is None:
            return None
        new = words[int(rng.integers(len(words)))]
        return _other(text, re.sub(rf"\b{re.escape(found[0])}\b", new, text))

    return exchanged


def _framing(frame: str) -> Edit:
    before, _, after = frame.partition("{}")

    def framed(text: str, _: np.random.Generator) -> str | None:
        whole = text if not after.strip() or _END.search(text) else f"{text}."
        return f"{before}{whole}{after}"

    return framed


def applicable(
    edit: Edit, texts: Iterator[str], rng: np.random.Generator
) -> Iterator[tuple[str, str]]:
    """Yield texts that an edit applies to, and what it makes of them."""
    for text in texts:
        edited = edit(text, rng)
        if edited is not None:
            yield text, edited
