"""Slices of unstructured data in a ChangeList: how they were found, named and defined."""

from __future__ import annotations

from datetime import datetime
from typing import Any, Literal

from pydantic import Field

from slicebeam.pipelines.changelist.parts import Estimate, SliceCoverage
from slicebeam.transforms.encode.definitions import Id, Part, optional


class Phrase(Part):
    """Words that may describe a slice."""

    text: str
    score: float = Field(description="inner product with the slice's mean minus the overall mean")
    correlation: float | None = optional("of membership with the examples' similarity to it")
    source: Literal["corpus", "given", "llm"]


class ShownExample(Part):
    """An example of a slice."""

    role: Literal["representative", "improved", "degraded", "boundary"]
    id: Id | None = optional("absent if no column identifies examples")
    row: int = Field(description="position among all examples, from 0")
    membership: float = Field(description="least responsibility of its components, by embeddings")
    change: float | None = optional("loss before minus after; for one model, mean loss minus its")
    display: dict[str, Any] = optional("fields that show it, such as the text", {})


class Overlap(Part):
    """How much of two reported slices is the same."""

    slice_id: str
    jaccard: float


class Found(Part):
    """What discovery knows about a slice."""

    z: float | None = optional("|mean D|/sqrt((variance of D + .05)/n), by which slices are ranked")
    improved: int | None = optional("examples whose loss fell")
    degraded: int | None = optional("examples whose loss rose")
    tied: int | None = None
    opposite_to_global: bool = optional("whether all examples changed the other way", False)
    phrases: tuple[Phrase, ...] = ()
    examples: tuple[ShownExample, ...] = ()
    overlaps: tuple[Overlap, ...] = optional("with other slices, the findings and the first", ())


class Resolution(Part):
    """One mixture, which divides embeddings into components."""

    field: str = Field(description="the column of its components, such as cluster@25")
    components: int
    nonempty: int | None = optional("components with at least one tested example")
    iterations: int
    converged: bool
    mean_log_likelihood: float
    r2: float | None = optional("share of the variance of D that membership explains")
    r2_expected: float | None = optional("the same if losses do not depend on membership")


class Discovery(Part):
    """How slices were discovered."""

    encoder: str = Field(description="encoder of the embeddings")
    encoder_fingerprint: str
    embedding_field: str | None = None
    text_field: str | None = None
    dimensions: int = Field(description="of an embedding")
    kept_dimensions: int = Field(description="principal components that the mixtures are fitted to")
    kept_variance: float = Field(description="share of the variance that they keep")
    loss_weight: float
    discovery_share: float | None = optional("share that shaped the mixtures and was not tested")
    discovery_examples: int = Field(description="examples that the mixtures are fitted to")
    evaluation_examples: int = Field(description="examples that were tested")
    mixture_fingerprint: str = Field(description="of the content of mixture.npz")
    resolutions: tuple[Resolution, ...]
    described: int = Field(description="number of first slices with phrases and examples")


class Round(Part):
    """Labels of one round of attribution."""

    phase: Literal["train", "precision", "recall"]
    round: int
    labelled: int
    positive: int
    unsure: int
    exponent: float | None = optional("of the proposal, for recall")
    uniform_share: float | None = None
    seed: int
    labeler: str


class Attribution(Part):
    """To what extent words are true of a slice."""

    text: str
    queries: tuple[str, ...] = ()
    state: Literal["labelling", "estimated", "accepted", "rejected"]
    precision: Estimate
    recall: Estimate
    missed: Estimate = Field(description="share of the examples outside that satisfy the words")
    least_precision: float
    least_recall: float
    looks: int = Field(description="planned number of looks at the labels")
    rounds: tuple[Round, ...] = ()
    labels_uri: str


class Edit(Part):
    """A recorded change of the document, and how to undo it."""

    at: datetime
    op: Literal[
        "add_slice",
        "remove_slice",
        "rename",
        "describe",
        "merge",
        "split",
        "annotate",
        "attribute",
        "undo",
    ]
    target: str = Field(description="slice_id, or changelist_id")
    before: Any = None
    after: Any = None
    note: str | None = None
    coverage: tuple[SliceCoverage, ...] | None = optional("before it, if it changed the slices")


class Parent(Part):
    """The revision that a revision was made from."""

    changelist_id: str
    revision: int
    fingerprint: str
