"""Conditions and definitions of given slices: which examples they hold of, against pandas; their text."""

import datetime as dt
import decimal
import math

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import TypeAdapter
from sklearn.linear_model import LogisticRegression
from sklearn.metrics.pairwise import cosine_similarity

from slicebeam.metrics.errors import InputError
from slicebeam.transforms.encode.conditions import (
    SliceMembership,
    check_condition,
    columns_of,
    encoders_of,
    holds,
    members,
    needs_embeddings,
    needs_ids,
    queries_of,
    similarities,
)
from slicebeam.transforms.encode.definitions import (
    AnyDefinition,
    ClassifierDefinition,
    Condition,
    JoinedDefinition,
    MembershipDefinition,
    NotDefinition,
    Predicate,
    PredicateDefinition,
    TextQueryDefinition,
)
from slicebeam.transforms.encode.predicates import Singleton
from tests.oracles import predicates

NAN = math.nan
COLUMNS = {
    "int8": (pa.array([6, -3, None, 100, 7, 7], pa.int8()), [7, 100, 1000, 6.5, 7.0, -3]),
    "int64": (pa.array([2**53 + 1, 2**53, None, 0, -1, 5]), [2**53, 2**53 + 1, 0, 4.5]),
    "uint64": (pa.array([2**63, 2**64 - 1, None, 0, 1, 5], pa.uint64()), [2**63, 0, 5]),
    "double": (pa.array([0.1, -0.0, NAN, None, math.inf, 2.5]), [0.1, 0, 0.0, 2.5, "Infinity"]),
    "float": (pa.array([0.1, 0.3, NAN, None, 2.0, -1.5], pa.float32()), [0.1, 0.3, 2, -1.5]),
    "bool": (pa.array([True, False, None, True, False, True]), [True, False]),
    "text": (pa.array(["a", "b", None, "", "A", "a b"]), ["a", "", "a b", "zz"]),
    "date": (pa.array([dt.date(2026, 1, day) for day in (1, 2, 3, 4, 5)] + [None], pa.date32()), ["2026-01-02", "2026-01-04"]),
    "time": (pa.array([hour * 3_600_000_000 for hour in range(5)] + [None], pa.timestamp("us")), ["2026-01-01T02:00:00", "2026-01-01T03:30:00"]),
    "decimal": (pa.array([decimal.Decimal(text) for text in ("1.50", "2.25", "0.00", "-1.00")] + [None] * 2), ["1.50", "0.00", "2.00"]),
}  # fmt: skip
ORDERED = [name for name in COLUMNS if name not in ("bool", "text")]


def cases():
    found = []
    for name, (_, values) in COLUMNS.items():
        found += [(name, "==", value) for value in values]
        found += [(name, op, values) for op in ("in", "not_in")]
        found += [(name, "not_in", values[:1]), (name, "is_null", None)]
        if name in ORDERED:
            found += [(name, op, value) for op in ("<", ">=") for value in values]
            found += [(name, "between", [low, high]) for low in values for high in values]
    return found


@pytest.mark.parametrize(("name", "op", "value"), cases())
def test_a_condition_holds_of_what_pandas_says(name, op, value):
    column = COLUMNS[name][0]
    shape = {"field": name, "op": op} | ({} if op == "is_null" else {"value": value})
    frame = pd.DataFrame({name: pd.Series(column, dtype=pd.ArrowDtype(column.type))})
    # pandas' own nullable integers: nothing is rounded on the way to the oracle.
    if pa.types.is_floating(column.type):
        frame = pd.DataFrame({name: column.to_numpy(zero_copy_only=False)})
    expected = predicates.mask(frame, {"all": [shape]})
    condition = Singleton(name, op, value)
    assert holds(column, condition).tolist() == expected.tolist()
    # Encoded as a dictionary, as text is read.
    if not pa.types.is_boolean(column.type):
        assert holds(column.dictionary_encode(), condition).tolist() == expected.tolist()
    # And in a slice of a longer array, which keeps its offset.
    longer = pa.concat_arrays([column[:3], column])
    assert holds(longer[3:], condition).tolist() == expected.tolist()


def test_lists():
    tags = pa.array([["a", "b"], [], None, ["b", None], ["a", "a"]])
    assert holds(tags, Singleton("t", "contains", "a")).tolist() == [1, 0, 0, 0, 1]
    assert holds(tags[1:], Singleton("t", "contains", "b")).tolist() == [0, 0, 1, 0]
    assert holds(tags, Singleton("t", "is_null")).tolist() == [0, 0, 1, 0, 0]


@pytest.mark.parametrize(("column", "op", "value", "message"), [
    ("int8", "==", "7", "values ['7'] do not fit a column of int8"),
    ("int8", "==", True, "values [True] do not fit a column of int8"),
    ("text", "==", 7, "values [7] do not fit a column of string"),
    ("text", "<", "b", "op '<' is for numbers, dates and times, but the column is string"),
    ("bool", ">=", True, "op '>=' is for numbers"),
    ("bool", "==", "true", "do not fit a column of bool"),
    ("date", "==", "2026-13-01", "do not fit a column of date32"),
    ("decimal", "==", "1.555", "do not fit a column of decimal"),
    ("int8", "contains", 7, "op 'contains' is for lists"),
    ("int8", "between", [1], "op 'between' needs [low, high], not [1]"),
    ("int8", "in", [], "op 'in' needs a list of values, not []"),
    ("int8", "in", 7, "op 'in' needs a list of values, not 7"),
    ("int8", "==", None, "op '==' needs a value, not None; missing values are matched by"),
    ("int8", "in", [[1]], "op 'in' needs a value, not [1]"),
])  # fmt: skip
def test_what_does_not_fit_a_column(column, op, value, message):
    with pytest.raises(InputError) as error:
        holds(COLUMNS[column][0], Singleton(column, op, value))
    assert message in str(error.value)


def test_the_codes_of_overlapping_slices():
    rng, rows = np.random.default_rng(0), 20_000
    frame = pd.DataFrame({"x": rng.integers(0, 10, rows), "y": rng.choice(list("abc"), rows)})
    slices = [
        [Singleton("x", ">=", 5)],
        [Singleton("x", "<", 0)],
        [Singleton("y", "==", "a"), Singleton("x", "between", [2, 7])],
        [Singleton("y", "in", ["a", "b"])],
    ]
    member = SliceMembership(tuple(map(tuple, slices)))
    assert member.columns == ("x", "y")
    table = pa.table({"x": frame["x"], "y": pa.array(frame["y"], pa.string())})
    table = pa.concat_tables([table.slice(0, 777), table.slice(777)])
    codes = member.codes(table)
    expected = np.stack(
        [predicates.mask(frame, {"all": [c.to_json() for c in one]}) for one in slices], axis=1
    )
    assert expected.sum(axis=0).min() == 0
    assert np.diff(codes.offsets).tolist() == expected.sum(axis=1).tolist()
    assert codes.codes.tolist() == np.nonzero(expected)[1].tolist()


@pytest.mark.parametrize(("kind", "value", "said"), [
    (pa.int64(), [2, 1], "'x in [2, 1)' contains no value, because the bounds are swapped; write 'x in [1, 2)'"),
    (pa.float32(), [0.5, -0.5], "'x in [0.5, -0.5)' contains no value"),
    (pa.float64(), [2, 2], "because the upper bound is not part of the interval; write 'x = 2'"),
    (pa.float64(), ["Infinity", 1], "because the bounds are swapped"),
    (pa.date32(), ["2026-02-01", "2026-01-31"], "write 'x in [2026-01-31, 2026-02-01)'"),
    (pa.decimal128(9, 2), ["10.00", "9.50"], "write 'x in [9.50, 10.00)'"),
])  # fmt: skip
def test_an_empty_interval_is_refused(kind, value, said):
    with pytest.raises(InputError) as error:
        check_condition(Singleton("x", "between", value), kind)
    assert said in str(error.value)
    with pytest.raises(InputError):
        check_condition(Singleton("x", "between", value), pa.dictionary(pa.int32(), kind))


def test_intervals_that_hold_something_are_not():
    for kind, value in (
        (pa.int64(), [0.2, 0.7]),
        (pa.float32(), [1.0, 1.0 + 1e-12]),
        (pa.float64(), ["-Infinity", "Infinity"]),
        (pa.int64(), [2**62, 2**62 + 1]),
    ):
        check_condition(Singleton("x", "between", value), kind)


ROWS = 500
RANDOM = np.random.default_rng(7)
EMBEDDINGS = RANDOM.normal(size=(ROWS, 16)).astype(np.float32)
EMBEDDINGS[3] = 0


FRAME = pd.DataFrame({
    "id": [f"n{row}" for row in range(ROWS)], "age": RANDOM.integers(17, 90, ROWS),
    "sex": RANDOM.choice(["Female", "Male", None], ROWS),
})  # fmt: skip
KINDS = {"id": pa.string(), "age": pa.int64(), "sex": pa.string()}
TABLE = pa.Table.from_pandas(FRAME, pa.schema(KINDS), preserve_index=False)
QUERY = RANDOM.normal(size=16).astype(np.float32)


def where(*conditions):
    conditions = [Condition(field=field, op=op, value=value) for field, op, value in conditions]
    return PredicateDefinition(predicate=Predicate(all=tuple(conditions)))


def by_ids(*ids):
    return MembershipDefinition(ids=ids)


def by_query(query, threshold):
    return TextQueryDefinition(query=query, threshold=threshold, encoder="e1")


def by_classifier(intercept, coefficients, threshold):
    weights = {"intercept": intercept, "coefficients": coefficients}
    return ClassifierDefinition(**weights, threshold=threshold, encoder="e2")


def any_of(*parts):
    return JoinedDefinition(kind="any_of", of=parts)


def all_of(*parts):
    return JoinedDefinition(kind="all_of", of=parts)


def outside(part):
    return NotDefinition(of=part)


YOUNG = where(("age", "<", 25))
FEMALE = where(("sex", "==", "Female"))
OLD_WOMEN = where(("age", ">=", 60), ("sex", "==", "Female"))
SOME = by_ids("n1", "n4", "n499", "elsewhere")


def held(rule, table=TABLE):
    return members(rule, table, EMBEDDINGS[: table.num_rows], {"words": QUERY}, "id")


# Each with its members by pandas and scikit-learn.
COSINES = cosine_similarity(EMBEDDINGS.astype(float), QUERY[None].astype(float))[:, 0]
CLASSIFIER = LogisticRegression().fit(EMBEDDINGS, FRAME["age"] < 40)
LEAVES = {
    YOUNG: FRAME["age"] < 25,
    FEMALE: FRAME["sex"] == "Female",
    OLD_WOMEN: (FRAME["age"] >= 60) & (FRAME["sex"] == "Female"),
    where(): FRAME["age"] > 0,
    SOME: FRAME["id"].isin(["n1", "n4", "n499"]),
    by_query("words", 0.25): pd.Series(COSINES >= 0.25),
    by_classifier(
        float(CLASSIFIER.intercept_[0]), tuple(CLASSIFIER.coef_[0].tolist()), 0.4
    ): pd.Series(CLASSIFIER.predict_proba(EMBEDDINGS)[:, 1] >= 0.4),
}


@pytest.mark.parametrize("rule", LEAVES, ids=lambda rule: type(rule).__name__)
def test_leaf_holds_where_the_oracle_says(rule):
    found = held(rule)
    assert found.dtype == bool
    assert found.sum() > 0
    np.testing.assert_array_equal(found, LEAVES[rule].to_numpy())


def trees():
    leaves = st.sampled_from(list(LEAVES))
    return st.recursive(
        leaves,
        lambda inner: st.one_of(
            st.builds(outside, inner),
            st.lists(inner, min_size=1, max_size=3).map(lambda parts: any_of(*parts)),
            st.lists(inner, min_size=1, max_size=3).map(lambda parts: all_of(*parts)),
        ),
        max_leaves=6,
    )


def by_pandas(rule):
    if isinstance(rule, NotDefinition):
        return ~by_pandas(rule.of)
    if isinstance(rule, JoinedDefinition):
        parts = pd.concat([by_pandas(part) for part in rule.of], axis=1)
        return parts.any(axis=1) if rule.kind == "any_of" else parts.all(axis=1)
    return LEAVES[rule]


@settings(max_examples=200, deadline=None, derandomize=True)
@given(trees())
def test_nested_rules(rule):
    np.testing.assert_array_equal(held(rule), by_pandas(rule).to_numpy())


def test_split_parts_are_disjoint_and_together_the_slice():
    # Where the column is missing, an example is in the second part.
    first, second = held(all_of(SOME, FEMALE)), held(all_of(SOME, outside(FEMALE)))
    assert not (first & second).any()
    np.testing.assert_array_equal(first | second, held(SOME))


@pytest.mark.parametrize(("kind", "values", "ids"), [
    (pa.int32(), [5, 6, None, 7], (7, 5, 2**70, -(2**70))),
    (pa.uint64(), [5, 2**63 + 1, None, 7], (2**63 + 1, -1)),
    (pa.int64(), [5, -6, None, 7], (-6, 2**63)),
    (pa.string(), ["5", "6", None, "7"], ("7", "x")),
    (pa.large_string(), ["5", "6", None, "7"], ("6",)),
    (pa.dictionary(pa.int8(), pa.string()), ["5", "6", None, "6"], ("6",)),
])  # fmt: skip
def test_ids_of_each_type(kind, values, ids):
    table = pa.table({"key": pa.array(values, kind)})
    found = members(by_ids(*ids), table, id_field="key")
    assert found.tolist() == [value is not None and value in ids for value in values]


@pytest.mark.parametrize(("kind", "ids", "reason"), [
    (pa.string(), (5,), "id 5 of a slice does not fit column 'key', which is string"),
    (pa.int64(), ("5",), "id '5' of a slice does not fit column 'key', which is int64"),
    (pa.float64(), (5,), "column 'key' is double; ids are whole numbers or texts"),
    (pa.bool_(), (1,), "column 'key' is bool; ids"),
])  # fmt: skip
def test_ids_of_another_type_are_refused(kind, ids, reason):
    with pytest.raises(InputError, match=reason):
        members(by_ids(*ids), pa.table({"key": pa.array([], kind)}), id_field="key")


@pytest.mark.parametrize(("rule", "given", "message"), [
    (SOME, (), "give --example-id"),
    (SOME, (None, None, "idd"), "unknown column 'idd'; did you mean 'id'"),
    (by_query("words", 0.1), (None, {"words": QUERY}), "this data has none"),
    (by_query("other", 0.1), (EMBEDDINGS, {"words": QUERY}), "'other' has no embedding"),
    (by_classifier(0.0, (1.0, 2.0), 0.5), (EMBEDDINGS,), "of 2 dimensions, but those of this data have 16"),
    (where(("agee", "<", 25)), (), "unknown column 'agee'; did you mean 'age'"),
    (where(("sex", "<", 25)), (), "column 'sex': op '<' is for numbers"),
])  # fmt: skip
def test_what_is_missing_is_refused(rule, given, message):
    with pytest.raises(InputError, match=message):
        members(rule, TABLE, *given)


def test_zero_vectors_are_similar_to_nothing():
    assert similarities(EMBEDDINGS, QUERY)[3] == 0
    assert not similarities(EMBEDDINGS, np.zeros(16)).any()
    np.testing.assert_allclose(similarities(EMBEDDINGS, QUERY), COSINES, rtol=0, atol=1e-14)
    # Their squares are beyond single precision.
    large = np.array([[3e30, 4e30], [3e-30, 4e-30]], np.float32)
    np.testing.assert_allclose(similarities(large, np.array([1.0, 0.0])), 0.6, rtol=1e-6)


def test_result_does_not_depend_on_chunks():
    random = np.random.default_rng(1)
    wide = random.normal(size=(9001, 65)).astype(np.float32)
    query = random.normal(size=65)
    whole = similarities(wide, query)
    parts = [similarities(wide[begin : begin + 77], query) for begin in range(0, 9001, 77)]
    np.testing.assert_array_equal(np.concatenate(parts), whole)


def test_empty_chunk():
    empty = TABLE.slice(0, 0)
    for rule in LEAVES:
        assert held(rule, empty).shape == (0,)


def test_what_a_rule_needs():
    rule = any_of(all_of(YOUNG, outside(FEMALE)), SOME, by_query("words", 0.5))
    assert columns_of(rule) == {"age", "sex"}
    assert columns_of(rule, "id") == {"age", "sex", "id"}
    assert columns_of(YOUNG, "id") == {"age"}
    assert (needs_ids(rule), needs_ids(YOUNG)) == (True, False)
    assert (needs_embeddings(rule), needs_embeddings(all_of(YOUNG, SOME))) == (True, False)
    assert needs_embeddings(outside(by_classifier(0.0, (1.0,), 0.5)))
    assert queries_of(rule) == {"words"}


PARTS = [
    {"kind": "membership", "ids": ["n1", "n2"]},
    {"kind": "llm_filter", "prompt": "?", "model": "llm.yaml", "ids": ["n3"]},
    {"kind": "text_query", "query": "words", "threshold": 0.25, "encoder": "e1"},
    {"kind": "linear_classifier", "intercept": 0.5, "coefficients": [1.0, -1.0], "threshold": 0.75, "encoder": "e2"},
]  # fmt: skip
AGE = {"kind": "predicate", "predicate": {"all": [{"field": "age", "op": "<", "value": 25}]}}
DEFINITION = {"kind": "all_of", "of": [{"kind": "any_of", "of": PARTS}, {"kind": "not", "of": AGE}]}


def test_a_documents_definition():
    definition = TypeAdapter(AnyDefinition).validate_python(DEFINITION)
    one, other, query, classifier = definition.of[0].of
    assert definition == all_of(any_of(one, other, query, classifier), outside(YOUNG))
    assert (query, classifier) == (by_query("words", 0.25), by_classifier(0.5, (1.0, -1.0), 0.75))
    wanted = FRAME["id"].isin(["n1", "n2", "n3"]) | (COSINES >= 0.25)
    of_two = held(all_of(any_of(one, other, query), outside(YOUNG)))
    np.testing.assert_array_equal(of_two, (wanted & ~LEAVES[YOUNG]).to_numpy())
    assert encoders_of(definition) == {"e1", "e2"}
    assert encoders_of(definition.of[1]) == set()
