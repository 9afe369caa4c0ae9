"""A round of the testing loop: which families of tests are drawn from, and what comes of it.

Most proposals are of families whose tests fail in the tree already, in proportion to how many do; the
others explore. So what is accepted steers what is proposed next.
"""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from slicebeam.pipelines.adaptive.failure_scores import FAILS_ABOVE
from slicebeam.pipelines.adaptive.proposers.families import ORIGIN, Context, Family
from slicebeam.pipelines.adaptive.tree import PASS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from slicebeam.pipelines.adaptive.scoring import Scored
    from slicebeam.pipelines.adaptive.tree import Test

# Share of the proposals that explores, where there is a family to go on with.
EXPLORED = 1 / 10
# Most of a round that one family gets, as a share.
_MOST_OF_FAMILY = 1 / 8
# Cosine similarity of the pieces of words from which on a text is the same test again.
_SAME = 0.95
# Duplicates in a row after which a family has nothing new.
_MOST_DUPLICATES = 200
# Tests of the topic that proposals are compared with.
_MOST_COMPARED = 5_000


@dataclass(frozen=True)
class Suggestion:
    """A proposal; once it is scored, the ``output`` of its test is what the model said."""

    test: Test
    family: Family
    score: float = math.nan  # Failure score in [0, 1]; NaN where nobody can say.

    @property
    def fails(self) -> bool:
        """Whether the model fails it; nobody can say so of a guess."""
        return self.score > FAILS_ABOVE and not self.test.is_guess


@dataclass(frozen=True)
class Yield:
    """What came of the proposals of a proposer."""

    proposer: str
    proposals: int
    failing: int  # By answers that are known.
    guesses: int  # A person is to say whether they fail.

    @property
    def per_hundred(self) -> float:
        """Failing tests of 100 proposals."""
        return 100 * self.failing / self.proposals


def draw(
    context: Context, families: Sequence[Family], number: int, bought: Sequence[Family] = ()
) -> list[Suggestion]:
    """Return proposals of a round, without duplicates; fewer where families have no more."""
    rng = context.random("round")
    novelty = _Novelty(context)
    found: list[Suggestion] = []
    for family in bought:
        source = _Source(family, novelty)
        while len(found) < number and (test := source.next()) is not None:
            found.append(Suggestion(test, family))
    number -= len(found)
    return found + _drawn(context, families, novelty, number, rng)


def _drawn(
    context: Context,
    families: Sequence[Family],
    novelty: _Novelty,
    number: int,
    rng: np.random.Generator,
) -> list[Suggestion]:
    sources = {family.origin: _Source(family, novelty) for family in families}
    weights = _weights(context, families)
    known = [one for one in sources if one in weights]
    explored = max(1, round(number * EXPLORED)) if known else number
    most = max(1, round(number * _MOST_OF_FAMILY))
    found: list[Suggestion] = []
    while known and len(found) < number - explored:
        share = np.array([weights[one] for one in known])
        origin = known[int(rng.choice(len(known), p=share / share.sum()))]
        test = sources[origin].next() if sources[origin].drawn < most else None
        if test is None:
            known.remove(origin)
        else:
            found.append(Suggestion(test, sources[origin].family))
    by_proposer: dict[str, list[str]] = {}
    for origin, source in sources.items():
        if origin not in weights:
            by_proposer.setdefault(source.family.proposer, []).append(origin)
    found += _explored(rng, by_proposer, sources, number - len(found))
    # Where nothing is left to explore, families go on beyond their share.
    rest = {"": [one for one in sources if one in weights]}
    return found + _explored(rng, rest, sources, number - len(found))


def scored(
    proposals: Sequence[Suggestion], score: Callable[[Sequence[Test]], Scored]
) -> list[Suggestion]:
    """Return proposals with their scores, those that fail first, and what is certain before guesses."""
    said = score([one.test for one in proposals])
    rows = zip(proposals, said.outputs.tolist(), said.failures.tolist(), strict=True)
    found = [
        replace(one, test=replace(one.test, output=output or ""), score=value)
        for one, output, value in rows
    ]
    return sorted(
        found, key=lambda one: (-np.nan_to_num(one.score, nan=-1.0), one.test.is_guess, one.test.id)
    )


def yields(suggestions: Sequence[Suggestion]) -> list[Yield]:
    """Return what each proposer's proposals came to, the best first."""
    counts: dict[str, list[int]] = {}
    for one in suggestions:
        row = counts.setdefault(one.family.proposer, [0, 0, 0])
        row[0] += 1
        row[1] += one.fails
        row[2] += one.test.is_guess
    found = [Yield(name, *row) for name, row in counts.items()]
    return sorted(found, key=lambda one: (-one.per_hundred, one.proposer))


def _weights(context: Context, families: Sequence[Family]) -> dict[str, float]:
    """Return a weight of each family that has failing tests in the topic, by its origin."""
    failing = Counter(test.other.get(ORIGIN, "") for test in context.failing)
    failing.update({family.origin: family.failures for family in families if family.failures})
    passing = Counter(test.other.get(ORIGIN, "") for test in context.tests if test.label == PASS)
    failing.pop("", None)
    # The number of failures times their share, as after one failure and one pass before.
    return {
        origin: number * (number + 1) / (number + passing[origin] + 2)
        for origin, number in failing.items()
    }


def _explored(
    rng: np.random.Generator,
    by_proposer: dict[str, list[str]],
    sources: dict[str, _Source],
    number: int,
) -> list[Suggestion]:
    """Draw from proposers in equal parts, and from the families of each in equal parts."""
    found: list[Suggestion] = []
    names = sorted(name for name, origins in by_proposer.items() if origins)
    while names and len(found) < number:
        name = names[int(rng.integers(len(names)))]
        origins = by_proposer[name]
        at = int(rng.integers(len(origins)))
        test = sources[origins[at]].next()
        if test is None:
            del origins[at]
            if not origins:
                names.remove(name)
        else:
            found.append(Suggestion(test, sources[origins[at]].family))
    return found


class _Source:
    """The tests of a family that are new."""

    def __init__(self, family: Family, novelty: _Novelty) -> None:
        self.family, self._novelty = family, novelty
        self._tests: Iterator[Test] | None = None
        self.drawn = 0

    def next(self) -> Test | None:
        """Return its next test, None where it has no new one."""
        if self._tests is None:
            self._tests = self.family.tests()
        for _ in range(_MOST_DUPLICATES):
            test = next(self._tests, None)
            if test is None:
                return None
            if self._novelty.takes(test):
                self.drawn += 1
                return self.family.named(test)
        return None


class _Novelty:
    """Tells tests that are new from those that are in the tree, or were proposed before."""

    def __init__(self, context: Context) -> None:
        from sklearn.feature_extraction.text import HashingVectorizer

        self._vectorizer = HashingVectorizer(
            analyzer="char_wb", ngram_range=(2, 4), alternate_sign=False, n_features=1 << 16
        )
        self._has_pairs = context.has_pairs
        tree = context.tree
        known = tree.is_test & tree.within(context.topic)
        columns = (tree.column(name)[known].tolist() for name in ("input", "second_input"))
        texts = [_text(*pair) for pair in zip(*columns, strict=True)]
        self._texts = set(map(_folded, texts))
        self._vectors: list[Any] = []
        if texts:
            self._vectors.append(self._vectorizer.transform(texts[-_MOST_COMPARED:]))

    def takes(self, test: Test) -> bool:
        """Whether a test is new; from then on it is not."""
        text = _text(test.input, test.second_input)
        folded = _folded(text)
        if not test.input.strip() or folded in self._texts:
            return False
        if bool(test.second_input) != self._has_pairs:
            return False
        vector = self._vectorizer.transform([text])
        if any((block @ vector.T).max() > _SAME for block in self._vectors):
            return False
        self._texts.add(folded)
        self._add(vector)
        return True

    def _add(self, vector: Any) -> None:
        from scipy.sparse import vstack

        if len(self._vectors) < 2:
            self._vectors.append(vector)
        else:
            self._vectors[-1] = vstack([self._vectors[-1], vector], format="csr")


def _text(first: str, second: str) -> str:
    return f"{first}\n{second}"


def _folded(text: str) -> str:
    return " ".join(text.casefold().split())
