"""Tests by edits of texts: the edited text means the same, or, negated, the opposite.

Of a test whose answer is known the edited one has the same answer. Of a text of the pool, of which
nobody knows what the model should say, it should say the same before and after the edit.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from slicebeam.pipelines.adaptive.expectations import OUTPUTS, OUTPUTS_NOT, SAME, as_value
from slicebeam.pipelines.adaptive.proposers.edits import applicable, edits, negated
from slicebeam.pipelines.adaptive.proposers.families import Context, Family
from slicebeam.pipelines.adaptive.proposers.known import known_of
from slicebeam.pipelines.adaptive.topics import below
from slicebeam.pipelines.adaptive.tree import Test

if TYPE_CHECKING:
    from collections.abc import Iterator

    import numpy as np

_NEGATION = "negation"
_TOPIC = "/Robustness"


class Perturbations:
    """Edits tests and texts of the pool."""

    name = "perturbations"
    needs = "tests in the topic, or --pool"

    def families(self, context: Context) -> list[Family]:
        """Return a family for each edit, of tests and of the pool."""
        found = []
        for name in (*edits(), _NEGATION):
            if context.tests:
                found.append(Family(self.name, f"{name} in tests", _OfTests(name, context)))
            if context.pool and name != _NEGATION:
                found.append(Family(self.name, f"{name} in texts", _OfPool(name, context)))
        return found

    def topics(self, context: Context) -> list[str]:
        """Return the topics of edits."""
        if context.topic not in ("", _TOPIC):
            return []
        names = dict.fromkeys(name.partition(":")[0] for name in edits())
        return [below(_TOPIC, name.capitalize()) for name in names]


@dataclass(frozen=True)
class _OfTests:
    """Edits tests whose answer is known, those that fail first."""

    edit: str
    context: Context

    def __call__(self) -> Iterator[Test]:
        rng = self.context.random(f"{Perturbations.name} {self.edit} in tests")
        for test in self.context.tests:
            expectation, value = known_of(test)
            if expectation not in (OUTPUTS, OUTPUTS_NOT):
                continue
            if self.edit != _NEGATION:
                text = edits()[self.edit](test.input, rng)
            elif (
                expectation == OUTPUTS
                and not test.second_input
                and value in self.context.sentiments.values()
            ):
                neutral = self.context.sentiments.get("neutral")
                text = None if value == neutral else negated(test.input)
                expectation = OUTPUTS_NOT
            else:
                text = None
            if text is not None:
                yield Test(
                    test.topic,
                    text,
                    expectation=expectation,
                    value=value,
                    second_input=test.second_input,
                )


@dataclass(frozen=True)
class _OfPool:
    """Edits texts of the pool: first those of tests that fail since the output changed."""

    edit: str
    context: Context

    def __call__(self) -> Iterator[Test]:
        context = self.context
        rng = context.random(f"{Perturbations.name} {self.edit} in texts")
        place = context.topic or below(_TOPIC, self.edit.partition(":")[0].capitalize())
        for text, edited in applicable(edits()[self.edit], self._texts(rng), rng):
            yield Test(place, edited, expectation=SAME, value=as_value([text]))

    def _texts(self, rng: np.random.Generator) -> Iterator[str]:
        pool = self.context.pool
        known = frozenset(pool)
        yield from (
            test.value
            for test in self.context.failing
            if test.expectation == SAME and test.value in known
        )
        yield from (pool[row] for row in rng.permutation(len(pool)).tolist())
