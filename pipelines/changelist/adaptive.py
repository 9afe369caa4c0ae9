"""What became of the topics of a test tree."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Literal

from pydantic import Field

from slicebeam.pipelines.changelist.parts import Part, Sha256

# Names of classes that are shown.
_MOST_NAMED = 5


class TopicOutcome(Part):
    """How the tests of a topic, and of those below it, came out; its slice has the intervals."""

    slice_id: str
    topic: str = Field(description="as it is written in the tree, percent-encoded or not")
    tests: int
    failures: int
    failures_before: int | None = Field(default=None, description="of the old model")
    newly_failing: int | None = Field(
        default=None, description="tests that only the new model fails"
    )
    newly_passing: int | None = Field(
        default=None, description="tests that only the old model fails"
    )
    rule: Literal["passing", "failing", "fixed", "broken"] = Field(
        description="by the rule of AdaTest: a topic fails from a fifth of failing tests on; it is fixed "
        "or broken where this differs between the models"
    )
    significant: Literal["fixed", "broken"] | None = Field(
        default=None,
        description="whether significantly fewer, or more, of the same tests fail: McNemar's test, "
        "corrected over all topics; p-values are those of the slice",
    )
    trained: bool = Field(
        default=False,
        description="whether tests of it were exported as training data, so that it proves little",
    )
    undecided: int = Field(
        default=0,
        description="further tests that could not be scored, though they expect something of the model",
    )


class PaidAnswers(Part):
    """What an endpoint's answers cost."""

    model: str
    calls: int = Field(description="that count: answers, and where these count the lost calls")
    replayed: int = Field(
        description="those of the calls that earlier runs with the ledger had paid"
    )
    unaccounted: int = Field(description="calls without an outcome, which may have been charged")
    price: float | None = None
    currency: str | None = None
    spent: float | None = Field(
        default=None, description="price of the calls; None without a price"
    )


class AdaptiveTests(Part):
    """The tests of a tree, and their topics."""

    tree: str
    tree_sha256: Sha256
    models: Annotated[tuple[str, ...], Field(min_length=1, max_length=2)] = Field(
        description="the new one last"
    )
    tests: int = Field(description="that were scored by every model")
    unscored: dict[str, int] = Field(
        default={}, description="how many were not scored, by the reason"
    )
    fails_from: float = Field(description="share of failing tests from which on a topic fails")
    topics_in_tree: int
    topics: tuple[TopicOutcome, ...] = Field(
        description="of the slices of the document, in their order"
    )
    untested: dict[str, int] = Field(
        default={},
        description="topics of which no test could be scored, with the number of tests that were to be",
    )
    classes: dict[str, str] = Field(
        default={},
        description="classes of the models, by the names in the tree that are others (--classes)",
    )
    never_given: dict[str, int] = Field(
        default={},
        description="number of tests by the class that they name, as the tree writes it, where a model never "
        "gave it and may not have it: these tests say nothing",
    )
    paid: tuple[PaidAnswers, ...] = ()

    def trained_text(self) -> str:
        """Return what it means that topics were trained on; empty where none was."""
        if not any(one.trained for one in self.topics):
            return ""
        return (
            "(trained): tests of the topic, or of one below it, were exported as training data, so that it "
            "proves little about others."
        )


def never_given_text(never_given: Mapping[str, int]) -> str:
    """Return which classes tests name that a model never gave, with the remedy."""
    names = sorted(never_given)
    shown = [f"{name!r} ({never_given[name]:,} tests)" for name in names[:_MOST_NAMED]]
    more = ", …" if len(names) > _MOST_NAMED else ""
    first = names[0].strip()
    return (
        f"classes that tests name and a model never gave: {', '.join(shown)}{more}; map them to its classes "
        f"with --classes, or say that it has them, as in --classes {first}={first}"
    )
