"""How a slice is defined, as a document says it: the condition, the words, the ids or the classifier."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

from slicebeam.transforms.encode.predicates import Singleton, slice_hashes

if TYPE_CHECKING:
    from typing_extensions import Self

_DIGITS = 16


def optional(description: str, default: Any = None) -> Any:
    """Return a field that may be absent."""
    return Field(default=default, description=description)


class Part(BaseModel):
    """A part of the document."""

    # Keys that begin with x_ are notes of other tools: allowed in every object, and passed over.
    model_config = ConfigDict(
        extra="allow",
        frozen=True,
        json_schema_extra={"additionalProperties": False, "patternProperties": {"^x_": {}}},
    )

    @model_validator(mode="after")
    def _without_notes(self) -> Self:
        notes = self.__pydantic_extra__ or {}
        if unknown := [name for name in notes if not name.startswith("x_")]:
            raise ValueError(f"it has no field {unknown[0]!r}")
        notes.clear()
        return self


class Condition(Part):
    """A singleton predicate: a condition on one field."""

    field: str
    op: Literal["==", "in", "not_in", "<", ">=", "between", "is_null", "contains"]
    value: Any = optional(
        "of the column's own JSON type; a list for in, not_in and between (half-open); absent for is_null; dates "
        "and times as ISO strings, decimals as strings, infinities as 'Infinity' and '-Infinity'"
    )


class Predicate(Part):
    """A conjunction of conditions on different fields."""

    all: tuple[Condition, ...]

    @property
    def singletons(self) -> tuple[Singleton, ...]:
        """Its conditions, as data is asked for them."""
        return tuple(
            Singleton(condition.field, condition.op, condition.value) for condition in self.all
        )

    def __str__(self) -> str:
        return " & ".join(map(str, self.singletons))


Id = int | str


class PredicateDefinition(Part):
    """The examples that satisfy a predicate; of a discovered slice it is about ``cluster@K``."""

    kind: Literal["predicate"] = "predicate"
    predicate: Predicate


class MembershipDefinition(Part):
    """Listed examples."""

    kind: Literal["membership"] = "membership"
    ids: tuple[Id, ...] = Field(description="values of the dataset's id_field")


class TextQueryDefinition(Part):
    """The examples whose embedding has at least this similarity to that of a text."""

    kind: Literal["text_query"] = "text_query"
    query: str
    threshold: float = Field(description="smallest cosine similarity of the raw embeddings")
    encoder: str = Field(description="fingerprint of the encoder of the query")


class LlmFilterDefinition(Part):
    """The examples for which a language model answers yes to a question."""

    kind: Literal["llm_filter"] = "llm_filter"
    prompt: str
    model: str = Field(description="path of the file that describes the endpoint")
    ids: tuple[Id, ...] = Field(description="of the examples for which it answered yes")


class ClassifierDefinition(Part):
    """The examples that a logistic regression on the embeddings calls members."""

    kind: Literal["linear_classifier"] = "linear_classifier"
    intercept: float
    coefficients: tuple[float, ...] = Field(description="of the raw embeddings' dimensions")
    threshold: float = optional("least probability", 0.5)
    encoder: str = Field(description="fingerprint of the encoder of the embeddings")


class JoinedDefinition(Part):
    """The examples of any of several slices, as after a merge; or that are in all, as after a split."""

    kind: Literal["any_of", "all_of"]
    of: Annotated[tuple[AnyDefinition, ...], Field(min_length=1)]


class NotDefinition(Part):
    """The examples that are not in a slice."""

    kind: Literal["not"] = "not"
    of: AnyDefinition


AnyDefinition = Annotated[
    PredicateDefinition
    | MembershipDefinition
    | TextQueryDefinition
    | LlmFilterDefinition
    | ClassifierDefinition
    | JoinedDefinition
    | NotDefinition,
    Field(discriminator="kind"),
]
for _model in (JoinedDefinition, NotDefinition):
    _model.model_rebuild()


def slice_id_of(definition: AnyDefinition) -> str:
    """Return the id of a defined slice, 16 hexadecimal digits: of a predicate, as a search has it."""
    if isinstance(definition, PredicateDefinition):
        return f"{int(slice_hashes([definition.predicate.singletons])[0]):0{_DIGITS}x}"
    text = definition.model_dump_json(exclude_none=True)
    return hashlib.sha256(text.encode()).hexdigest()[:_DIGITS]
