"""Tests of another tree: what one model failed is a good guess of what another one fails."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from slicebeam.metrics.errors import InputError
from slicebeam.pipelines.adaptive.expectations import parse_expectation
from slicebeam.pipelines.adaptive.proposers.families import Context, Family
from slicebeam.pipelines.adaptive.proposers.known import known_of
from slicebeam.pipelines.adaptive.topics import is_within
from slicebeam.pipelines.adaptive.tree import OFF_TOPIC, Test, TestTree

if TYPE_CHECKING:
    from collections.abc import Iterator


class OtherTree:
    """Proposes the tests that another tree has in the topic, a family a topic."""

    name = "tree"
    needs = "--other-tree"

    def families(self, context: Context) -> list[Family]:
        """Return a family for each topic of the other tree that belongs to the focus topic."""
        other, found = context.other, []
        for topic in [] if other is None else other.topics():
            place = context.placed(topic)
            if place is not None and other is not None:
                found.append(Family(self.name, topic or "/", _Tests(other, topic, place, context)))
        return found

    def topics(self, context: Context) -> list[str]:
        """Return the topics of the other tree below the focus topic."""
        names = [] if context.other is None else context.other.topics()
        return [one for one in names if one != context.topic and is_within(one, context.topic)]


@dataclass(frozen=True)
class _Tests:
    """Yields the tests of a topic of another tree."""

    other: TestTree
    topic: str
    place: str
    context: Context

    def __call__(self) -> Iterator[Test]:
        other = self.other
        rows = np.flatnonzero(other.directly_in(self.topic) & other.is_test)
        rng = self.context.random(f"{OtherTree.name} {self.topic}")
        for test in other.rows(rng.permutation(rows)):
            expectation, value = known_of(test)
            if _is_known(expectation) and test.label != OFF_TOPIC:
                yield Test(
                    self.place,
                    test.input,
                    expectation=expectation,
                    value=value,
                    second_input=test.second_input,
                )


def _is_known(expectation: str) -> bool:
    try:
        parse_expectation(expectation)
    except InputError:
        return False
    return True
