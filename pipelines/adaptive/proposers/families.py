"""What a proposer is: a source of families of tests, each made in one way."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple
from uuid import UUID, uuid5

import numpy as np

from slicebeam.pipelines.adaptive.failure_scores import FAILS_ABOVE
from slicebeam.pipelines.adaptive.topics import is_within
from slicebeam.pipelines.adaptive.tree import Test, TestTree

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from numpy.typing import NDArray

# Column of a tree that names the family that a test is of, as ``proposer: family``.
ORIGIN = "origin"
_PROPOSALS = UUID("5a0f31f2-7f0c-5c7b-9b43-0b7d1f0c2a55")
_MOST_TESTS = 2_000
# Names that models give to the classes of sentiment.
SENTIMENTS: Mapping[str, tuple[str, ...]] = {
    "positive": ("positive", "pos"),
    "negative": ("negative", "neg"),
    "neutral": ("neutral", "neu"),
}


@dataclass(frozen=True)
class Context:
    """What proposers see."""

    tree: TestTree
    # float64 [rows of the tree], failure scores by the target model, NaN where there is none.
    scores: NDArray[np.float64]
    topic: str  # The focus topic, that gets the proposals.
    pool: Sequence[str]  # Without labels and duplicates.
    outputs: tuple[str, ...] = ()  # Of the model, as far as known.
    other: TestTree | None = None
    seed: int = 0
    has_pairs: bool = False

    @cached_property
    def tests(self) -> list[Test]:
        """The tests in the focus topic and below it, those with the highest scores first.

        Of a very large topic those with the highest scores.
        """
        rows = np.flatnonzero(self.tree.is_test & self.tree.within(self.topic))
        rows = rows[self.tree.column("label")[rows] != "off_topic"]
        order = np.argsort(-np.nan_to_num(self.scores[rows], nan=-1.0), kind="stable")
        return list(self.tree.rows(rows[order][:_MOST_TESTS]))

    @cached_property
    def _score_by_id(self) -> dict[str, float]:
        return dict(zip(self.tree.column("id").tolist(), self.scores.tolist(), strict=True))

    def score_of(self, test: Test) -> float:
        """Return the failure score of a test of the tree; NaN where it has none."""
        return self._score_by_id[test.id]

    @cached_property
    def failing(self) -> list[Test]:
        """Those of `tests` that fail."""
        return [test for test in self.tests if self.score_of(test) > FAILS_ABOVE]

    @cached_property
    def sentiments(self) -> Mapping[str, str]:
        """The model's outputs for positive, negative and neutral, as far as it has them."""
        found = {}
        for meaning, names in SENTIMENTS.items():
            for output in self.outputs:
                if output.strip().casefold() in names:
                    found[meaning] = output
        return found

    def random(self, name: str) -> np.random.Generator:
        """Return random numbers for a purpose, others once the tree has grown."""
        digest = hashlib.sha256(f"{self.seed} {len(self.tree)} {self.topic} {name}".encode())
        return np.random.default_rng(int.from_bytes(digest.digest()[:8], "big"))

    def placed(self, topic: str) -> str | None:
        """Return where a test of a topic of the proposer's own goes; None for nowhere.

        At the root it goes into that topic; in a topic that has it, or lies below it, into the focus.
        """
        if self.topic == "" or is_within(topic, self.topic):
            return topic
        return self.topic if is_within(self.topic, topic) else None


@dataclass(frozen=True)
class Family:
    """Tests that are made in one way, so that one's failure makes the others' likely."""

    proposer: str
    name: str  # Unique among its families.
    # Yields tests one after another; it ends where there are no more.
    tests: Callable[[], Iterator[Test]] = field(repr=False)
    failures: int = 0  # Failing tests of the topic that it was made of.

    @property
    def origin(self) -> str:
        """What the column `ORIGIN` has of its tests."""
        return f"{self.proposer}: {self.name}"

    def named(self, test: Test) -> Test:
        """Return a test of it with its origin, and an id that depends on nothing else."""
        parts = (
            test.topic,
            test.input,
            test.second_input,
            test.other_inputs,
            test.expectation,
            test.value,
        )
        id_ = uuid5(_PROPOSALS, "\0".join(parts)).hex
        other: dict[str, Any] = {**test.other, ORIGIN: self.origin}
        return replace(test, id=id_, other=other)


class Proposer(NamedTuple):
    """A way to propose tests."""

    needs: str  # What has to be given besides the tree, in words.
    # Returns its families for a topic; none where it lacks what it needs.
    families: Callable[[Context], list[Family]]
    # Returns topics that could be below the focus topic, the most promising ones first.
    topics: Callable[[Context], list[str]] = lambda _: []
