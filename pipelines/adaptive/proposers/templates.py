"""Tests by templates whose answers are known, such as "I thought the {thing} would be {good}, but …"."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import TYPE_CHECKING, Any

from slicebeam.metrics.errors import FileError, InputError, unknown_name
from slicebeam.pipelines.adaptive.expectations import OUTPUTS, OUTPUTS_NOT, SAME
from slicebeam.pipelines.adaptive.proposers.lexicons import lexicons, slots_of
from slicebeam.transforms.storage.storage import storage_path
from slicebeam.transforms.storage.strict_text import parse_yaml

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

_KEYS = ("topic", "output", "output not", "vary", "text")
_KINDS = {"output": OUTPUTS, "output not": OUTPUTS_NOT, "vary": SAME}


@dataclass(frozen=True)
class SentenceTemplate:
    """A template, and what is expected of a model on it."""

    topic: str
    text: str  # With slots, such as ``{city}``.
    expectation: str
    value: str  # The class; of an invariance the slot whose word must not matter.


@dataclass(frozen=True)
class TemplateFile:
    """Templates, and the words of their slots."""

    templates: tuple[SentenceTemplate, ...]
    words: Mapping[str, tuple[str, ...]]


def read_templates(path: str) -> TemplateFile:
    """Return the templates of a YAML file."""
    try:
        text = storage_path(path, "--templates").read_text("utf-8")
    except (OSError, ValueError) as error:
        raise FileError(f"--templates {path}: it can't be read ({error})") from error
    return _parsed(text, f"--templates {path}")


@cache
def sentiment_templates() -> TemplateFile:
    """Return the templates for models of sentiment."""
    return _parsed(
        files(__package__).joinpath("sentiment.yaml").read_text("utf-8"), "sentiment.yaml"
    )


def _parsed(text: str, where: str) -> TemplateFile:
    try:
        content, _ = parse_yaml(text)
    except ValueError as error:
        raise FileError(f"{where}: it can't be read ({' '.join(str(error).split())})") from error
    if not isinstance(content, dict) or not isinstance(content.get("templates"), list):
        raise InputError(f"{where}: a mapping with a list 'templates' is expected")
    for key in content:
        if key not in ("slots", "templates"):
            raise InputError(f"{where}: {unknown_name('key', str(key), ('slots', 'templates'))}")
    words, slots = dict(lexicons()), content.get("slots") or {}
    if not isinstance(slots, dict):
        raise InputError(
            f"{where}: slots is {slots!r}; write a list of words for each name of a slot"
        )
    for slot, listed in slots.items():
        if not isinstance(listed, list) or not listed:
            raise InputError(f"{where}: slot {slot!r} has no words; write a list of them")
        words[str(slot)] = tuple(map(str, listed))
    found = [one for entry in content["templates"] for one in _entry(entry, words, where)]
    return TemplateFile(tuple(found), words)


def _entry(
    entry: Any, words: Mapping[str, tuple[str, ...]], where: str
) -> Iterator[SentenceTemplate]:
    if not isinstance(entry, dict):
        raise InputError(
            f"{where}: the template {entry!r} is no mapping; give topic, text and output"
        )
    for key in entry:
        if key not in _KEYS:
            raise InputError(f"{where}: {unknown_name('key', str(key), _KEYS)}")
    kinds = [key for key in _KINDS if key in entry]
    topic, texts = str(entry.get("topic", "")), entry.get("text")
    if len(kinds) != 1:
        raise InputError(f"{where}: a template in {topic!r} needs one of {', '.join(_KINDS)}")
    if not topic.startswith("/"):
        raise InputError(f"{where}: topic {topic!r} does not begin with a slash")
    value = str(entry[kinds[0]])
    for text in texts if isinstance(texts, list) else [texts]:
        if not isinstance(text, str):
            raise InputError(f"{where}: a template in {topic!r} has no text")
        for slot in slots_of(text):
            if slot not in words:
                raise InputError(f"{where}, {text!r}: {unknown_name('slot', slot, words)}")
        if kinds[0] == "vary" and (value not in slots_of(text) or len(words[value]) < 2):
            raise InputError(
                f"{where}, {text!r}: vary: {value} is none of its slots with two words"
            )
        if not slots_of(text):
            raise InputError(f"{where}, {text!r}: it has no slot, such as {{city}}")
        yield SentenceTemplate(topic, text, _KINDS[kinds[0]], value)
