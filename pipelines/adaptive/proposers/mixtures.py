"""Texts mixed of parts of the pool on which the model says the same: it should say it of the whole."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from slicebeam.pipelines.adaptive.expectations import SAME, as_value
from slicebeam.pipelines.adaptive.proposers.families import Context, Family
from slicebeam.pipelines.adaptive.tree import Test

if TYPE_CHECKING:
    from collections.abc import Iterator

_TOPIC = "/Robustness/Mixtures"
_FEWEST_WORDS, _MOST_WORDS = 3, 12
# Texts of which parts are asked about, at a time.
_TOGETHER = 64
_PARTS = re.compile(r"(?<=[.!?])\s+|[,;:]\s+|\s+-+\s+")
# What may turn the meaning of a part that follows without a full stop.
_TURNING = re.compile(
    r"\b(?:no|not|never|nobody|nothing|nor|without|hardly|if|unless|would|could|should|too|than|except)\b|n't",
    re.IGNORECASE,
)
_APART = "full stops"
_JOINS = {_APART: ". ", "and": " and ", "commas": ", "}


class Mixtures:
    """Joins runs of words of two texts of the pool to which the model gives the same output."""

    name = "mixtures"
    needs = "--pool"

    def families(self, context: Context) -> list[Family]:
        """Return a family for each way to join; none without a pool."""
        if not context.pool:
            return []
        return [Family(self.name, join, _Joined(join, context)) for join in _JOINS]

    def topics(self, context: Context) -> list[str]:
        """Return the topic of mixtures, at the root."""
        return [_TOPIC] if context.topic == "" and context.pool else []


@dataclass(frozen=True)
class _Joined:
    """Yields joined parts."""

    join: str
    context: Context

    def __call__(self) -> Iterator[Test]:
        context = self.context
        rng = context.random(f"{Mixtures.name} {self.join}")
        order = rng.permutation(len(context.pool)).tolist()
        waiting: dict[str, str] = {}
        for start in range(0, len(order), _TOGETHER):
            texts = [context.pool[row] for row in order[start : start + _TOGETHER]]
            parts = list(dict.fromkeys(part for text in texts if (part := _part(text))))
            if self.join != _APART:
                parts = [part for part in parts if not _TURNING.search(part)]
            for part, output in zip(parts, context.answers(parts), strict=True):
                first = waiting.pop(output, None)
                if first is None:
                    waiting[output] = part
                    continue
                yield Test(
                    context.topic or _TOPIC,
                    f"{first}{_JOINS[self.join]}{part}.",
                    expectation=SAME,
                    value=as_value([first, part]),
                )


def _part(text: str) -> str | None:
    """Return the first run of a text that is as long as a clause."""
    for part in _PARTS.split(text):
        words = part.strip(" .!?\"'()")
        if _FEWEST_WORDS <= len(words.split()) <= _MOST_WORDS:
            return words
    return None
