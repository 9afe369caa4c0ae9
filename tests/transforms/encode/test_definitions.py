"""How a slice is defined: its id, its conditions as text, and what a document may hold besides."""

import hashlib

import pytest
from pydantic import TypeAdapter, ValidationError

from slicebeam.transforms.encode.definitions import (
    AnyDefinition,
    MembershipDefinition,
    Predicate,
    PredicateDefinition,
    slice_id_of,
)
from slicebeam.transforms.encode.predicates import Singleton, slice_hashes


def of_json(**content):
    return TypeAdapter(AnyDefinition).validate_python(content)


YOUNG = {"field": "age", "op": "<", "value": 25}


def test_a_predicate_has_the_id_of_a_search():
    women = {"field": "sex", "op": "==", "value": "Female"}
    definition = of_json(kind="predicate", predicate={"all": [YOUNG, women]})
    assert isinstance(definition, PredicateDefinition)
    assert str(definition.predicate) == "age < 25 & sex = Female"
    (number,) = slice_hashes([(Singleton("sex", "==", "Female"), Singleton("age", "<", 25))])
    assert slice_id_of(definition) == f"{int(number):016x}"


def test_the_id_of_another_definition_is_a_hash_of_its_json():
    definition = MembershipDefinition(ids=("a", "b"))
    wanted = hashlib.sha256(b'{"kind":"membership","ids":["a","b"]}').hexdigest()
    assert slice_id_of(definition) == wanted[:16]
    other = of_json(kind="not", of={"kind": "membership", "ids": ["a", "b"]})
    assert slice_id_of(other) != slice_id_of(definition)


def test_notes_of_other_tools_are_passed_over():
    noted = Predicate.model_validate({"all": [{**YOUNG, "x_by": "me"}], "x_note": 1})
    assert noted == Predicate.model_validate({"all": [YOUNG]})
    with pytest.raises(ValidationError, match="it has no field 'note'"):
        Predicate.model_validate({"all": [], "note": 1})


def test_an_unknown_kind_is_refused():
    with pytest.raises(ValidationError, match="tag 'ids'"):
        of_json(kind="ids", ids=["a"])
    with pytest.raises(ValidationError, match="at least 1 item"):
        of_json(kind="any_of", of=[])
