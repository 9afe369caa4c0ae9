"""A slice: its origin, its size and the changes on it."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from slicebeam.pipelines.changelist.changes import Change
from slicebeam.pipelines.changelist.discovered import AnyDefinition, Attribution, Found
from slicebeam.pipelines.changelist.parts import Part


class Origin(Part):
    """How a slice came into the document."""

    method: Literal[
        "metadata_search",
        "mixture",
        "text_filter",
        "lm_filter",
        "classifier",
        "manual",
        "imported",
    ] = Field(
        "metadata_search",
        description="found by a search, found by a mixture over embeddings, defined by a text, a "
        "language model, a classifier or by hand, or taken from another document to be checked "
        "again",
    )
    derived_from: str | None = Field(
        None, description="changelist_id of the document that it was taken from"
    )


class Size(Part):
    """How large a slice is."""

    n: int
    share: float


class Refinement(Part):
    """Whether a slice adds to the slices above it."""

    label: Literal["new", "refines", "inherited"]
    parent: str | None = Field(None, description="slice_id of the parent that explains it best")
    p_refine: float | None = Field(
        None, description="probability that a random part of that parent is as extreme"
    )


class Slice(Part):
    """A slice that is reported for any metric of a search, or a finding, or any slice of a check."""

    slice_id: str
    name: str
    description: str | None = Field(None, description="written by a person")
    notes: tuple[str, ...] = Field((), description="written by people")
    rank: int | None = Field(
        None, description="of documents of earlier versions, which had a cover in place of findings"
    )
    explained: float | None = Field(None, description="of documents of earlier versions")
    origin: Origin = Origin()
    definition: AnyDefinition
    cross_size: int
    size: Size
    impact: float | None = Field(
        None, description="n times delta of the primary metric; absent where that is undefined"
    )
    refinement: Refinement | None = Field(
        None,
        description="of a search only: in a check no slice is held against those above it; by the first "
        "metric in which it says more",
    )
    same_examples_as: tuple[str, ...] = Field(
        (), description="longer predicates that hold of the very same examples"
    )
    found: Found | None = Field(None, description="of a discovered slice: what it is like")
    attribution: Attribution | None = Field(None, description="how far its words are true")
    changes: Annotated[tuple[Change, ...], Field(min_length=1)]
