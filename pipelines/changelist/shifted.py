"""How the confusion matrix of a prediction API shifted, and how the topics of a test tree came out."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import Field

from slicebeam.metrics.errors import counted
from slicebeam.pipelines.changelist.parts import Direction, Estimate, Sha256
from slicebeam.transforms.encode.definitions import Part, optional

Matrix = tuple[tuple[float, ...], ...]


class ChangedCell(Part):
    """A cell of the confusion matrix that changed significantly."""

    label: Any
    prediction: Any = optional("null: an answer that is not a class")
    shift: Estimate = Field(description="new minus old probability of this label and prediction")
    p_value: float
    p_adjusted: float


class ShiftStratum(Part):
    """Items of one label and one bin of the difficulty, and how many were queried."""

    label: Any
    low: float | None = optional("least difficulty; null: no bound")
    high: float | None = optional("difficulty below which all are; null: no bound")
    missing: bool = optional("whether these are the items without a difficulty", False)
    size: int
    calls: int
    variance: float | None = optional(
        "estimated variance of what the estimate sums, over all cells and times their squared weights: MASA's "
        "uncertainty score σ², after use of the old predictions; absent of fewer than two answers"
    )
    optimal_calls: float | None = optional("for the least error; it may exceed the size")


class ShiftFocus(Part):
    """The weighted sum of the cells of the confusion matrix that --focus names."""

    of: str = Field(description="accuracy, label:prediction, or the file of the weights")
    weights: Matrix
    before: float
    after: Estimate
    shift: Estimate = Field(description="new minus old")
    p_value: float
    significant: bool
    higher_is_better: bool | None = optional("absent if right and wrong predictions have weights")
    direction: Direction

    def line(self) -> str:
        """Return how it changed, as a sentence without its end."""
        words = {"degraded": "significantly worse", "improved": "significantly better"}
        called = words.get(self.direction, "significant") if self.significant else "not significant"
        return (
            f"--focus {self.of}: {self.before:.4g} → {self.after.value or 0.0:.4g} "
            f"({self.shift.text('+.4f')}, p = {self.p_value:.2g}, {called})"
        )


class ShiftCost(Part):
    """The queried items and their cost."""

    calls: int = Field(description="answers in the estimate")
    replayed: int = Field(description="of these, answers that the ledger had from earlier runs")
    no_result: int = Field(description="of these, answers that are not a class")
    unaccounted: int = optional("further calls without an answer, which may have been charged", 0)
    price: float | None = optional("of a call")
    currency: str | None = None
    spent: float | None = optional("price of all answers, replayed ones too")


class SliceShift(Part):
    """The shift on a slice of the pool, from the calls that all slices share."""

    slice_id: str
    calls: int = Field(description="of the items of the slice")
    old_matrix: Matrix | None = None
    new_matrix: Matrix = Field(description="of the items of the slice: it sums to 1")
    shift: Matrix
    shift_lo: Matrix
    shift_hi: Matrix


class Shift(Part):
    """How the confusion matrix Pr(label = i, prediction = j) of an API changed."""

    method: Literal["plus", "masa", "proportional"]
    labels: tuple[Any, ...] = Field(description="of the rows of the matrices")
    predictions: tuple[Any, ...] = Field(description="of the columns; null: answers of no class")
    old_matrix: Matrix
    new_matrix: Matrix
    new_errors: Matrix = Field(description="its standard errors, widened for the unseen")
    shift: Matrix = Field(description="new minus old")
    shift_lo: Matrix
    shift_hi: Matrix
    confidence: float = Field(description="of the intervals, and of the target error")
    focus: ShiftFocus | None = optional("of --focus")
    corrected_for: str = Field(description="how the significance of cells was corrected")
    changed: tuple[ChangedCell, ...] = Field(description="cells that changed, the largest first")
    frobenius_bound: float = Field(description="of the matrix's error, weighted by a focus")
    stopped: Literal["budget", "target_error", "pool"] = Field(description="what was reached first")
    budget: int | None = optional("calls")
    target_error: float | None = None
    reliance: float | None = optional("weight of the old predictions as a control variate, 0 to 1")
    old_from: Literal["predictions", "document"] = Field(description="document: known with errors")
    cost: ShiftCost
    strata: tuple[ShiftStratum, ...]
    slices: tuple[SliceShift, ...] = ()
    warnings: tuple[str, ...] = ()


# Names of classes that are shown.
_MOST_NAMED = 5


class TopicOutcome(Part):
    """How the tests of a topic, and of those below it, came out; its slice has the intervals."""

    slice_id: str
    topic: str = Field(description="as it is written in the tree, percent-encoded or not")
    tests: int
    failures: int
    failures_before: int | None = optional("of the old model")
    newly_failing: int | None = optional("tests that only the new model fails")
    newly_passing: int | None = optional("tests that only the old model fails")
    rule: Literal["passing", "failing", "fixed", "broken"] = Field(description="AdaTest's rule")
    significant: Literal["fixed", "broken"] | None = optional("McNemar's test, over all topics")
    trained: bool = optional("whether its tests were exported as training data", False)
    undecided: int = optional("further tests with an expectation that could not be scored", 0)


class PaidAnswers(Part):
    """What an endpoint's answers cost."""

    model: str
    calls: int = Field(description="that count: answers, and where these count the lost calls")
    replayed: int = Field(description="those of the calls that earlier runs with the ledger paid")
    unaccounted: int = Field(description="calls without an outcome, which may have been charged")
    price: float | None = None
    currency: str | None = None
    spent: float | None = optional("price of the calls; None without a price")


class AdaptiveTests(Part):
    """The tests of a tree, and their topics."""

    tree: str
    tree_sha256: Sha256
    models: Annotated[tuple[str, ...], Field(min_length=1, max_length=2)] = Field(
        description="the new one last"
    )
    tests: int = Field(description="that were scored by every model")
    unscored: dict[str, int] = optional("how many were not scored, by the reason", {})
    fails_from: float = Field(description="share of failing tests from which on a topic fails")
    topics_in_tree: int
    topics: tuple[TopicOutcome, ...] = Field(description="of the document's slices, in their order")
    untested: dict[str, int] = optional("number of tests by topic, where none could be scored", {})
    classes: dict[str, str] = optional("models' classes by their names in the tree (--classes)", {})
    never_given: dict[str, int] = optional("tests by the class they name and no model gave", {})
    paid: tuple[PaidAnswers, ...] = ()

    def trained_text(self) -> str:
        """Return what it means that topics were trained on; empty where none was."""
        if not any(topic.trained for topic in self.topics):
            return ""
        return (
            "(trained): tests of the topic, or of one below it, were exported as training data, so that it "
            "proves little about others."
        )


def never_given_text(never_given: Mapping[str, int]) -> str:
    """Return which classes tests name that a model never gave, with the remedy."""
    names = sorted(never_given)
    shown = [f"{name!r} ({counted(never_given[name], 'test')})" for name in names[:_MOST_NAMED]]
    more = ", …" if len(names) > _MOST_NAMED else ""
    first = names[0].strip()
    return (
        f"classes that tests name and a model never gave: {', '.join(shown)}{more}; map them to its classes "
        f"with --classes, or say that it has them, as in --classes {first}={first}"
    )
