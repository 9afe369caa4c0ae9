"""The prompts that make a language model go on with the tests or the subtopics of a topic.

Ribeiro and Lundberg, "Adaptive testing and debugging of NLP models", ACL 2022, appendix A: a prompt is
a list of tests without a word of instruction, each a line of quoted values, below its topic where
topics differ. What all items share is left out.
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING
from urllib.parse import unquote

import numpy as np

from slicebeam.pipelines.adaptive.prompt_items import (
    IN_SUBTOPIC,
    IN_TOPIC,
    ONE_FURTHER,
    OUTSIDE,
    PROMPT_SIZE,
    repetitions,
    select_items,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from slicebeam.metrics.arrays import FloatArray

# Candidates of a prompt: the best by score and membership. Similarities are of all pairs of them.
_MOST_CANDIDATES = 500
# What ends an item in a prompt and in a completion.
END = '"\n'
_BETWEEN = '" "'
# What chat models put before an item of a list, and what they say of one or instead of one.
_BULLET = re.compile(r'^\s*(?:[-*•]|\d+[.)])\s+(?=")')
_PREAMBLE = re.compile(
    r":\**$|^(?:sure|certainly|of course|absolutely|okay)[!,.] (?:here|i\b|let)"
    r"|^(?:sure|certainly|of course|absolutely)!?$|^here(?:'s|’s| is| are) (?:a|an|another|one|some|the) "
    r"(?:\w+ )?(?:new |next )?(?:item|test|example|topic|sentence|list|continuation)"
    r"|^(?:i'm|i’m|i am) sorry, but i (?:can|am)|^as an ai\b|^i (?:can't|can’t|cannot) (?:continue|help|assist)",
    re.IGNORECASE,
)


@dataclass(frozen=True)
class PromptItem:
    """A test that may stand in a prompt; of topic suggestions, a topic."""

    key: str
    topic: str  # Where it is, such as ``/Negation/Negated%20positive``; of a topic its parent.
    text: str  # The input of the test; of a topic its name, decoded.
    output: str  # Expected or seen output; empty for a topic.
    score: float  # Failure score in [0, 1].


@dataclass(frozen=True)
class Prompt:
    """A prompt, and how what completes it is read."""

    text: str  # What is sent; it ends with the quotation mark that begins a new item.
    topic: str
    # Of the items, where all have the same; None where completions bring their own.
    output: str | None
    keys: tuple[str, ...]  # Of the items, in their order.


@dataclass(frozen=True)
class Completion:
    """An item that a completion gave: the text of a test or topic, and the output that it named."""

    text: str
    output: str


def membership(topic: str, focus: str) -> float:
    """Return the factor of a test by its topic.

    >>> membership("/A", "/A"), membership("/A/B", "/A"), f"{membership('', '/A'):.0e}"
    (1.0, 0.0001, '1e-18')
    """
    if topic == focus:
        return IN_TOPIC
    if topic.startswith(f"{focus}/"):
        return IN_SUBTOPIC
    here, there = _parts(focus), _parts(topic)
    shared = 0
    while shared < min(len(here), len(there)) and here[shared] == there[shared]:
        shared += 1
    return OUTSIDE * ONE_FURTHER ** (len(here) + len(there) - 2 * shared)


def build_prompts(
    items: Sequence[PromptItem],
    focus: str,
    proposals: int,
    *,
    seed: int,
    prompt_size: int = PROMPT_SIZE,
) -> list[Prompt]:
    """Return the prompts of a round, each to be completed ⌊K / r⌋ times; none without an item.

    Items outside the focus topic come where it has too few, so that an empty topic is shown its neighbours.
    """
    factors = np.array([membership(item.topic, focus) for item in items], np.float64)
    scores = np.array([item.score for item in items], np.float64)
    first = np.argsort(-scores * factors - 1e-6 * factors, kind="stable")[:_MOST_CANDIDATES]
    candidates = [items[row] for row in first]
    if not candidates:
        return []
    similarities = text_similarities([f"{item.text}\n{item.output}" for item in candidates])
    ids = np.array([_hashed(item.key) for item in candidates], np.uint64)
    made = []
    for repetition in range(repetitions(proposals, prompt_size)):
        rows = select_items(
            scores[first],
            factors[first],
            similarities,
            ids,
            seed=seed,
            repetition=repetition,
            prompt_size=prompt_size,
        )
        made.append(prompt_of([candidates[row] for row in rows], focus))
    return made


def prompt_of(items: Sequence[PromptItem], focus: str) -> Prompt:
    """Return the prompt of items in their order.

    >>> print(prompt_of([PromptItem("1", "/A", "Bad.", "pos", 1.0)], "/A").text)
    "Bad."
    "
    """
    shows_topics = any(item.topic != focus for item in items)
    outputs = {item.output for item in items}
    shows_outputs = len(outputs) > 1
    lines = []
    for item in items:
        values = [item.text, item.output] if shows_outputs else [item.text]
        lines.append(f"{unquote(item.topic)}\n" if shows_topics else "")
        lines.append(f'"{_BETWEEN.join(values)}{END}')
    lines.append(f'{unquote(focus)}\n"' if shows_topics else '"')
    output = None if shows_outputs else next(iter(outputs), "")
    return Prompt("".join(lines), focus, output, tuple(item.key for item in items))


def completion_of(text: str, prompt: Prompt) -> Completion | None:
    r"""Return the item of a completion, None where it has none.

    Chat models begin with words about the list, its topic, or the quotation mark that ends the prompt;
    none of these is part of the item.

    >>> prompt = Prompt("", "/A", None, ())
    >>> completion_of('Not bad." "pos"', prompt)
    Completion(text='Not bad.', output='pos')
    >>> completion_of('Sure, here is one:\n"Not bad." "pos"', prompt)
    Completion(text='Not bad.', output='pos')
    """
    lines = [_BULLET.sub("", line).strip() for line in text.splitlines()]
    around = ("", "```", unquote(prompt.topic))
    lines = [line for line in lines if line not in around and not _PREAMBLE.search(line)]
    if not lines:
        return None
    # A first line that ends with a quotation mark goes on with the prompt.
    quoted = (line for line in lines if line.startswith('"'))
    item = lines[0] if lines[0].endswith('"') else next(quoted, lines[0])
    item = item.removeprefix('"').removesuffix('"').strip()
    output = prompt.output or ""
    if prompt.output is None:
        item, between, output = item.partition(_BETWEEN)
        if not between:
            return None
    return Completion(item, output) if item else None


def topic_items(topics: Sequence[str], scores: FloatArray) -> list[PromptItem]:
    """Return topics as the items of prompts; `scores` has the largest failure score of each."""
    found = {}
    for topic, score in zip(topics, scores, strict=True):
        parent, _, name = topic.rpartition("/")
        if topic:
            found[topic] = PromptItem(topic, parent, unquote(name), "", float(score))
    return list(found.values())


def new_texts(completions: Sequence[Completion], known: Sequence[str]) -> list[Completion]:
    """Return completions without those whose text is known or occurred before.

    Blanks and capitals make no difference.
    """
    seen = set(map(_folded, known))
    found = []
    for completion in completions:
        folded = _folded(completion.text)
        if folded not in seen:
            seen.add(folded)
            found.append(completion)
    return found


def text_similarities(texts: Sequence[str]) -> FloatArray:
    """Return the cosine similarities of texts by the pieces of their words, float64 [n, n].

    A text without a letter is like itself only.
    """
    from sklearn.feature_extraction.text import TfidfVectorizer

    vectorizer = TfidfVectorizer(analyzer="char_wb", ngram_range=(2, 4), sublinear_tf=True)
    try:
        vectors = vectorizer.fit_transform(texts)
    except ValueError:
        return np.eye(len(texts))
    similarities = np.asarray((vectors @ vectors.T).toarray(), np.float64)
    np.fill_diagonal(similarities, 1.0)
    return similarities


def _parts(topic: str) -> list[str]:
    return [part for part in topic.split("/") if part]


def _folded(text: str) -> str:
    return " ".join(text.casefold().split())


def _hashed(key: str) -> int:
    return int.from_bytes(hashlib.sha256(key.encode()).digest()[:8], "big")
