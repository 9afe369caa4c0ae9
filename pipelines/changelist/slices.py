"""A slice, its changes, and the findings: the few slices that are worse than expected from those before them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated, Literal

from pydantic import Field

from slicebeam.pipelines.changelist.changes import Change
from slicebeam.pipelines.changelist.discovered import Attribution, Found
from slicebeam.pipelines.changelist.parts import Confusion, Count, Probability
from slicebeam.transforms.encode.definitions import (
    AnyDefinition,
    Part,
    Predicate,
    PredicateDefinition,
    optional,
)
from slicebeam.transforms.encode.predicates import Singleton


class Origin(Part):
    """How a slice came into the document."""

    method: Literal[
        "metadata_search", "mixture", "text_filter", "lm_filter", "classifier", "manual", "imported"
    ] = optional(
        "found by a search, found by a mixture over embeddings, defined by a text, a language model, a classifier "
        "or by hand, or taken from another document for a check",
        "metadata_search",
    )
    derived_from: str | None = optional("changelist_id of the document that it was taken from")


class Size(Part):
    """How large a slice is."""

    n: int
    share: float


class Refinement(Part):
    """Whether a slice adds to the slices above it."""

    label: Literal["new", "refines", "inherited"]
    parent: str | None = optional("slice_id of the parent that explains it best")
    p_refine: float | None = optional("probability that a random part of that parent is as extreme")


class Slice(Part):
    """A slice that is reported for any metric of a search, or a finding, or any slice of a check."""

    slice_id: str
    name: str
    description: str | None = optional("written by a person")
    notes: tuple[str, ...] = optional("written by people", ())
    origin: Origin = Origin()
    definition: AnyDefinition
    cross_size: int
    size: Size
    impact: float | None = optional("n times delta of the primary metric; absent if undefined")
    refinement: Refinement | None = optional("for the first metric in which it adds to those above")
    same_examples_as: tuple[str, ...] = optional("longer predicates with the same examples", ())
    confusion: Confusion | None = optional(
        "which classes are predicted for which labels; absent without predicted classes, or with more than 10"
    )
    found: Found | None = optional("description of a discovered slice")
    attribution: Attribution | None = optional("to what extent its words are true")
    changes: Annotated[tuple[Change, ...], Field(min_length=1)]

    @property
    def predicate(self) -> Predicate | None:
        """The predicate that defines it; None where something else does."""
        definition = self.definition
        return definition.predicate if isinstance(definition, PredicateDefinition) else None

    @property
    def conditions(self) -> tuple[Singleton, ...]:
        """The conditions of its predicate; none where it has no predicate."""
        return () if self.predicate is None else self.predicate.singletons

    def words(self) -> str:
        """Return what people call it, in lower case: name, description, notes, phrases, attributed words."""
        texts = [self.name, self.description, *self.notes]
        texts += [] if self.found is None else [phrase.text for phrase in self.found.phrases]
        texts += [] if self.attribution is None else [self.attribution.text]
        return "\n".join(filter(None, texts)).lower()

    def has_words(self, words: Iterable[str]) -> bool:
        """Return whether all of some words, of `words_of`, are in what people call it."""
        return all(map(self.words().__contains__, words))


def words_of(text: str) -> list[str]:
    """Return the words of a text filter, which are joined by &, in lower case."""
    return [word for part in text.lower().split("&") if (word := part.strip())]


class CorrectedDifference(Part):
    """A difference without what selecting the slice among many adds to it, and its interval."""

    difference: float
    low: float | None = None
    high: float | None = None


class ConfirmedDifference(Part):
    """A finding on the reserved examples alone, which it was not selected on."""

    examples: int = Field(description="reserved ones of the slice in the metric's denominator")
    value: float | None = optional("as that of the finding; absent with fewer than 10 examples")
    difference: float | None = optional("from what findings of lower rank let expect of them")
    low: float | None = optional("end of the 95 % interval of the difference")
    high: float | None = None
    p_value: float | None = optional("as the finding's, of one test: not corrected for others")


class Finding(Part):
    """A slice that is worse (or better) than expected from the findings of lower rank."""

    metric: str
    direction: Literal["worse", "better"]
    rank: Annotated[int, Field(ge=1)] = Field(description="place within metric and direction")
    slice_id: str
    n: int = Field(description="its examples in the denominator; see `counted` of the metric")
    value: float = Field(description="the metric on the slice; for two models its change")
    before: float | None = optional("the metric on earlier data; only with two data sets")
    near: tuple[str, ...] = optional(
        "slice_ids of others that tell nearly as much of a change; only with two data sets", ()
    )
    expected: float = Field(description="value that the findings of lower rank let expect")
    corrected: CorrectedDifference = Field(description="for the choice of the slice")
    difference: float = Field(description="value minus expected, as observed")
    interval: tuple[float | None, float | None] = Field(description="of the observed difference")
    p_value: Probability = Field(description="of a slice as extreme, by those of lower rank alone")
    confirmed: ConfirmedDifference | None = optional("present with --confirm")
    held_share: float | None = optional("of what counts against the metric, in findings so far")
    rate_outside: float | None = optional("the metric, or its change, outside the findings so far")


class Intersection(Part):
    """Examples that are in the same of the first ten findings, and in no other of these."""

    findings: tuple[int, ...] = Field(description="their ranks; empty of examples in none of them")
    share: float = Field(gt=0, le=1, description="of the weight of all examples that are counted")
    value: float | None = Field(description="the metric, or its change, over these examples")


class FindingModel(Part):
    """How the findings of a metric and a direction were chosen."""

    metric: str
    direction: Literal["worse", "better"]
    kind: Literal["logistic", "linear"] | None = optional("of log odds, or of the value")
    coefficients: tuple[float, ...] = optional("of all examples, then of each finding by rank", ())
    unbounded: tuple[float, ...] = optional("direction of infinite coefficients", ())
    removed: tuple[int, ...] = optional("ranks of findings that an edit removed", ())
    intersections: tuple[Intersection, ...] = optional("the largest sets of examples first", ())
    r2: float | None = optional("share of the variance that membership explains, removed ones too")
    r2_expected: float | None = optional("mean of r2 if membership said nothing")
    candidates: Count = optional("slices that findings were chosen from", 0)
    left_out: Count = optional("significant slices that were too many to be considered", 0)
    stop: Literal[
        "nothing left", "small differences", "no candidates", "most findings", "not possible"
    ] = Field(
        description="nothing left: no other slice is worse than expected from the findings; small differences: "
        "others are, but by too little to list; no candidates: no slice is significant; most findings: "
        "there are 50; not possible: see reason"
    )
    reason: str | None = optional("why there can be no findings")

    def listed(self, findings: Iterable[Finding]) -> list[Finding]:
        """Return those of a document's findings that it is about."""
        wanted = self.metric, self.direction
        return [finding for finding in findings if (finding.metric, finding.direction) == wanted]

    @property
    def whole(self) -> str:
        """What findings hold a share of, in words."""
        return "all errors" if self.kind == "logistic" else "the sum of all values"
