"""Templates that are mined from the tests of a topic: their words exchanged for others of their kind."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from slicebeam.pipelines.adaptive.expectations import OUTPUTS, OUTPUTS_NOT
from slicebeam.pipelines.adaptive.proposers.families import Context, Family
from slicebeam.pipelines.adaptive.proposers.known import known_of
from slicebeam.pipelines.adaptive.proposers.lexicons import (
    drawn,
    filled,
    lexicons,
    slots_of,
    template_of,
)
from slicebeam.pipelines.adaptive.tree import Test

if TYPE_CHECKING:
    from collections.abc import Iterator

# Templates of a round: those of the tests with the highest scores.
_MOST_TEMPLATES = 100


class Mined:
    """Puts names, cities, adjectives and the like of a test into slots, and fills them again."""

    name = "mined"
    needs = "tests in the topic whose answers are known"

    def families(self, context: Context) -> list[Family]:
        """Return a family for each template, those of failing tests first."""
        found: dict[str, Family] = {}
        wrong = {test.id for test in context.failing}
        for test in context.tests:
            expectation, value = known_of(test)
            if expectation not in (OUTPUTS, OUTPUTS_NOT) or test.second_input:
                continue
            template = template_of(test.input)
            name = f"{expectation} {value}: {template}"
            if name in found:
                more = found[name].failures + (test.id in wrong)
                found[name] = replace(found[name], failures=more)
            elif slots_of(template) and len(found) < _MOST_TEMPLATES:
                tests = _Fillings(template, test, expectation, value, context)
                found[name] = Family(self.name, name, tests, failures=int(test.id in wrong))
        return list(found.values())

    def topics(self, context: Context) -> list[str]:  # noqa: ARG002
        """Return none: what is mined belongs where it was found."""
        return []


@dataclass(frozen=True)
class _Fillings:
    """Fills a mined template."""

    template: str
    test: Test
    expectation: str
    value: str
    context: Context

    def __call__(self) -> Iterator[Test]:
        rng = self.context.random(f"{Mined.name} {self.template}")
        words = lexicons()
        while True:
            text = filled(self.template, drawn(self.template, rng, words))
            yield Test(self.test.topic, text, expectation=self.expectation, value=self.value)
