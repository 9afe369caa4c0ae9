"""Phrases for slices from a language model that sees some of their examples."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from slicebeam.metrics.errors import OptionError
from slicebeam.pipelines.paid_api.calls import Item
from slicebeam.pipelines.paid_api.questions import buying, read_api, text_key

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from slicebeam.pipelines.paid_api.api_file import ApiFile
    from slicebeam.transforms.storage.storage import StoragePath

PROMPT = "prompt"
# What a list of phrases is written with, besides the phrases.
_BULLET = re.compile(r"^\s*(?:[-*•–]|\d+[.)])\s*")
_QUOTES = " \t\"'“”‘’`.,;:"
_MOST_WORDS, _LONGEST = 8, 80
_QUESTION = (
    "Below are texts of one group, and texts that are not of it. Name up to ten short phrases, of one "
    "to five words each, that say what the texts of the group are about or have in common and the "
    "others have not. Answer with the phrases alone, one a line.\n\nOf the group:\n{inside}\n\n"
    "Not of the group:\n{outside}\n"
)


def is_model(uri: str) -> bool:
    """Return whether ``--phrases`` names the file of an API, and no list.

    >>> is_model("llm.yaml"), is_model("phrases.txt")
    (True, False)
    """
    return uri.lower().endswith((".yaml", ".yml"))


def phrases_of_model(
    llm: str, groups: Sequence[tuple[Sequence[str], Sequence[str]]], folder: StoragePath
) -> list[str]:
    """Return the phrases that a language model names, those of all slices together.

    One call is made for each slice. Every answer is in a ledger before it is used, so that a question
    is paid for once.
    """
    api = read_phrases_api(llm)
    questions = [
        _QUESTION.format(inside=_listed(inside), outside=_listed(outside))
        for inside, outside in groups
        if inside
    ]
    items = [Item(text_key(question), {PROMPT: question}) for question in questions]
    place = folder / f"phrases-{text_key(api.identity)[:16]}"
    with buying(api, place, {"api": api.identity}, _is_text) as (ledger, http):
        http.buy(items, ledger, ledger.calls + len(items))
        answers = [ledger.answers[item.key] for item in items if item.key in ledger.answers]
    said = [answer.value for answer in answers if answer.problem is None]
    phrases = [phrase for text in said if isinstance(text, str) for phrase in _phrases(text)]
    return list(dict.fromkeys(phrases))


def read_phrases_api(llm: str) -> ApiFile:
    """Return the API in a file, which gets a prompt and answers with text."""
    api = read_api(llm, "--phrases")
    if list(api.columns) != [PROMPT]:
        raise OptionError(
            f"--phrases {llm}: write {{{PROMPT}}} where the prompt belongs, and nothing else in braces"
        )
    if api.labels is not None:
        raise OptionError(f"--phrases {llm}: the answers are phrases; leave 'labels' out")
    return api


def _is_text(value: Any) -> bool:
    return isinstance(value, str)


def _listed(texts: Sequence[str]) -> str:
    return "\n".join(f"- {' '.join(text.split())}" for text in texts)


def _phrases(answer: str) -> Iterator[str]:
    """Yield the phrases of an answer, in any list format."""
    for line in answer.splitlines():
        phrase = _BULLET.sub("", line).strip(_QUOTES)
        if phrase and len(phrase) <= _LONGEST and len(phrase.split()) <= _MOST_WORDS:
            yield phrase
