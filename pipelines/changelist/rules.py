"""Definitions of a ChangeList as rules that are evaluated on data."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

from slicebeam.pipelines.changelist.discovered import (
    ClassifierDefinition,
    JoinedDefinition,
    LlmFilterDefinition,
    MembershipDefinition,
    NotDefinition,
    PredicateDefinition,
    TextQueryDefinition,
)
from slicebeam.transforms.encode.conditions import (
    AllOf,
    AnyOf,
    ByClassifier,
    ByIds,
    ByPredicate,
    ByQuery,
    Not,
    Rule,
)
from slicebeam.transforms.encode.predicates import slice_hashes

if TYPE_CHECKING:
    from slicebeam.pipelines.changelist.discovered import AnyDefinition

_DIGITS = 16


def rule_of(definition: AnyDefinition) -> Rule:
    """Return the rule of a definition."""
    if isinstance(definition, PredicateDefinition):
        return ByPredicate(definition.predicate.singletons)
    if isinstance(definition, (MembershipDefinition, LlmFilterDefinition)):
        return ByIds(definition.ids)
    if isinstance(definition, TextQueryDefinition):
        return ByQuery(definition.query, definition.threshold)
    if isinstance(definition, ClassifierDefinition):
        return ByClassifier(definition.intercept, definition.coefficients, definition.threshold)
    if isinstance(definition, NotDefinition):
        return Not(rule_of(definition.of))
    parts = tuple(map(rule_of, definition.of))
    return AnyOf(parts) if definition.kind == "any_of" else AllOf(parts)


def slice_id_of(definition: AnyDefinition) -> str:
    """Return the id of a defined slice, 16 hexadecimal digits: of a predicate, as a search has it."""
    if isinstance(definition, PredicateDefinition):
        return f"{int(slice_hashes([definition.predicate.singletons])[0]):0{_DIGITS}x}"
    text = definition.model_dump_json(exclude_none=True)
    return hashlib.sha256(text.encode()).hexdigest()[:_DIGITS]


def encoders_of(definition: AnyDefinition) -> set[str]:
    """Return the fingerprints of the encoders whose embeddings a definition speaks of."""
    if isinstance(definition, (TextQueryDefinition, ClassifierDefinition)):
        return {definition.encoder}
    if isinstance(definition, NotDefinition):
        return encoders_of(definition.of)
    if isinstance(definition, JoinedDefinition):
        return set().union(*map(encoders_of, definition.of))
    return set()
