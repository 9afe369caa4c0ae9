"""A slice: its origin, its size and the changes on it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import Field

from slicebeam.pipelines.changelist.changes import Change
from slicebeam.pipelines.changelist.discovered import AnyDefinition, Attribution, Found
from slicebeam.pipelines.changelist.parts import Part

if TYPE_CHECKING:
    from collections.abc import Iterable


class Origin(Part):
    """How a slice came into the document."""

    method: Literal[
        "metadata_search", "mixture", "text_filter", "lm_filter", "classifier", "manual", "imported"
    ] = Field(
        default="metadata_search",
        description="found by a search, found by a mixture over embeddings, defined by a text, a "
        "language model, a classifier or by hand, or taken from another document for "
        "a check",
    )
    derived_from: str | None = Field(
        default=None, description="changelist_id of the document that it was taken from"
    )


class Size(Part):
    """How large a slice is."""

    n: int
    share: float


class Refinement(Part):
    """Whether a slice adds to the slices above it."""

    label: Literal["new", "refines", "inherited"]
    parent: str | None = Field(
        default=None, description="slice_id of the parent that explains it best"
    )
    p_refine: float | None = Field(
        default=None, description="probability that a random part of that parent is as extreme"
    )


class Slice(Part):
    """A slice that is reported for any metric of a search, or a finding, or any slice of a check."""

    slice_id: str
    name: str
    description: str | None = Field(default=None, description="written by a person")
    notes: tuple[str, ...] = Field(default=(), description="written by people")
    rank: int | None = Field(
        default=None,
        description="in documents of earlier versions, which had a cover in place of findings",
    )
    explained: float | None = Field(default=None, description="in documents of earlier versions")
    origin: Origin = Origin()
    definition: AnyDefinition
    cross_size: int
    size: Size
    impact: float | None = Field(
        default=None, description="n times delta of the primary metric; absent if undefined"
    )
    refinement: Refinement | None = Field(
        default=None,
        description="after a search only: a check does not compare slices with those above them; "
        "for the first metric in which it adds to them",
    )
    same_examples_as: tuple[str, ...] = Field(
        default=(), description="longer predicates with the same examples"
    )
    found: Found | None = Field(default=None, description="description of a discovered slice")
    attribution: Attribution | None = Field(
        default=None, description="to what extent its words are true"
    )
    changes: Annotated[tuple[Change, ...], Field(min_length=1)]

    def words(self) -> str:
        """Return what people call it, in lower case: name, description, notes, phrases, attributed words."""
        said = [self.name, self.description, *self.notes]
        said += [] if self.found is None else [one.text for one in self.found.phrases]
        said += [] if self.attribution is None else [self.attribution.text]
        return "\n".join(filter(None, said)).lower()

    def has_words(self, words: Iterable[str]) -> bool:
        """Return whether all of some words, of `words_of`, are in what people call it."""
        return all(map(self.words().__contains__, words))


def words_of(text: str) -> list[str]:
    """Return the words of a text filter, which are joined by &, in lower case."""
    return [word for one in text.lower().split("&") if (word := one.strip())]
