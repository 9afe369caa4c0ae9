from datetime import date, datetime
from decimal import Decimal

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slicebeam.metrics.errors import InputError
from slicebeam.transforms.formats.schemas import conform, storable, unify_schemas, unstorable_reason
from tests.refusals import refuses

STRUCT = pa.struct([("a", pa.int8())])


def unify(*types):
    files = [(f"f{i}.parquet", pa.schema([("x", t)])) for i, t in enumerate(types)]
    return unify_schemas(files).field("x").type


def convert(values, from_type, to_type):
    result = conform(pa.table({"x": pa.array(values, from_type)}), pa.schema([("x", to_type)]))
    assert result.schema == pa.schema([("x", to_type)])
    result.validate(full=True)
    return result["x"].to_pylist()


@pytest.mark.parametrize(("one", "other", "both"), [
    (pa.null(), pa.int8(), pa.int8()),
    (pa.null(), pa.list_(pa.string()), pa.list_(pa.string())),
    (pa.null(), pa.struct([("a", pa.int8())]), pa.struct([("a", pa.int8())])),
    (pa.int8(), pa.int64(), pa.int64()),
    (pa.uint8(), pa.uint32(), pa.uint32()),
    (pa.uint8(), pa.int8(), pa.int16()),
    (pa.uint32(), pa.int8(), pa.int64()),
    (pa.uint64(), pa.int64(), None),
    (pa.int64(), pa.float32(), pa.float64()),
    (pa.uint64(), pa.float64(), pa.float64()),
    (pa.float32(), pa.float64(), pa.float64()),
    (pa.float16(), pa.float32(), pa.float32()),
    (pa.string(), pa.large_string(), pa.string()),
    (pa.string_view(), pa.dictionary(pa.int8(), pa.large_string()), pa.string()),
    (pa.dictionary(pa.int32(), pa.int32()), pa.int64(), pa.int64()),
    (pa.large_binary(), pa.binary(), pa.binary()),
    (pa.string(), pa.binary(), pa.binary()),
    (pa.large_list(pa.large_string()), pa.list_(pa.string()), pa.list_(pa.string())),
    (pa.list_(pa.int32()), pa.list_(pa.float64()), pa.list_(pa.float64())),
    (pa.list_(pa.null()), pa.list_(pa.string()), pa.list_(pa.string())),
    (pa.string(), pa.list_(pa.string()), pa.list_(pa.string())),
    (pa.int8(), pa.list_(pa.int64()), pa.list_(pa.int64())),
    (pa.string(), pa.list_(pa.int64()), None),
    (pa.date32(), pa.date64(), pa.date64()),
    (pa.date32(), pa.timestamp("ms"), pa.timestamp("ms")),
    (pa.date32(), pa.timestamp("ms", "UTC"), None),
    (pa.timestamp("s"), pa.timestamp("ns"), pa.timestamp("ns")),
    (pa.timestamp("s", "UTC"), pa.timestamp("ms", "Europe/Berlin"), pa.timestamp("ms", "UTC")),
    (pa.timestamp("s"), pa.timestamp("s", "UTC"), None),
    (pa.time32("s"), pa.time64("us"), pa.time64("us")),
    (pa.duration("s"), pa.duration("ms"), pa.duration("ms")),
    (pa.decimal128(10, 2), pa.decimal128(8, 4), pa.decimal128(12, 4)),
    (pa.decimal128(38, 0), pa.decimal128(38, 38), pa.decimal256(76, 38)),
    (pa.decimal128(10, 2), pa.int32(), None),
    (pa.decimal128(10, 2), pa.float64(), None),
    (pa.bool_(), pa.int8(), None),
    (pa.string(), pa.float64(), None),
    (pa.string(), pa.date32(), None),
    (pa.struct([("a", pa.int8())]), pa.struct([("a", pa.int16())]), None),
    (STRUCT, STRUCT, STRUCT),
    (pa.list_(pa.float32(), 3), pa.list_(pa.float32(), 3), pa.list_(pa.float32(), 3)),
])  # fmt: skip
def test_common_type(one, other, both):
    if both is None:
        for pair in ((one, other), (other, one)):
            refuses(InputError, r"column 'x' is .* in f0.parquet but .* in f1", unify, *pair)
    else:
        assert unify(one, other) == both
        assert unify(other, one) == both
        assert unify(one, other, one) == both


def unstorable(values, kind):
    return storable(pa.table({"x": pa.array(values, kind)}))


def test_what_parquet_cannot_store_gives_way_to_a_struct_and_keeps_its_nulls():
    empty = unstorable([{}, None], pa.struct([]))
    kind = empty.schema.field("x").type
    assert unify(kind, STRUCT) == unify(STRUCT, kind) == STRUCT
    assert unify(kind, pa.null()) == unify(pa.null(), kind) == kind
    nested = unstorable([{"b": {}}], pa.struct([("b", pa.struct([]))])).schema.field("x").type
    assert unify(kind, nested) == kind
    with pytest.raises(InputError, match=r"'x' is .*Parquet cannot store struct<>.* but int8 in"):
        unify(kind, pa.int8())
    assert conform(empty, pa.schema([("x", STRUCT)]))["x"].to_pylist() == [{"a": None}, None]


def test_only_what_parquet_cannot_store_becomes_a_placeholder(tmp_path):
    lists = pa.list_(pa.struct([]))
    table = pa.table(
        {
            "number": [1, 2],
            "lists": pa.array([[{}], None], lists),
            "object": [{"a": 1}, None],
            "map": pa.nulls(2, pa.map_(pa.string(), pa.struct([]))),
            "interval": pa.array([(1, 2, 3), None], pa.month_day_nano_interval()),
            "sparse": pa.nulls(2, pa.dictionary(pa.int8(), STRUCT)),
        }
    )
    stored = storable(table)
    reasons = {field.name: unstorable_reason(field.type) for field in stored.schema}
    assert {name for name, reason in reasons.items() if reason is None} == {"number", "object"}
    assert reasons["lists"] == f"Parquet cannot store {lists}"
    assert stored.select(["number", "object"]) == table.select(["number", "object"])
    assert stored["interval"].is_null().to_pylist() == [False, True]
    pq.write_table(stored, tmp_path / "stored.parquet")
    assert pq.read_table(tmp_path / "stored.parquet") == stored


def test_order_and_metadata():
    files = [
        ("a", pa.schema([pa.field("x", pa.int8(), nullable=False), ("y", pa.null())], {"k": "v"})),
        ("b", pa.schema([("y", pa.string()), ("x", pa.int64())])),
    ]
    schema = unify_schemas(files)
    assert schema.equals(pa.schema([("x", pa.int64()), ("y", pa.string())]), check_metadata=True)


def test_what_does_not_fit_is_named():
    files = [
        (f"f{i}", pa.schema([("x", t)]))
        for i, t in enumerate([pa.null(), pa.int8(), pa.int8(), pa.string()])
    ]
    refuses(InputError, "column 'x' is int8 in f1 but string in f3; ", unify_schemas, files)
    files = [("a", pa.schema([("x", pa.int8())])), ("b", pa.schema([("y", pa.int8())]))]
    with pytest.raises(InputError, match=r"a: column 'y' is missing, which b has; .*columns: x"):
        unify_schemas(files)
    assert unify_schemas(files, allow_missing=True).names == ["x", "y"]
    schema = pa.schema([("x", pa.int8()), ("x", pa.int8())])
    refuses(InputError, "f: two columns are named 'x'", unify_schemas, [("f", schema)])
    table = pa.Table.from_arrays([pa.array([1]), pa.array([2])], names=["x", "x"])
    refuses(InputError, "two columns are named 'x'", conform, table, pa.schema([("x", pa.int64())]))
    refuses(InputError, "no file", unify_schemas, [])


def test_conform_selects_orders_and_adds():
    table = pa.table({"a": [1, 2], "b": ["x", None], "c": [True, False]})
    schema = pa.schema([("b", pa.string()), ("d", pa.list_(pa.int8())), ("a", pa.float64())])
    assert conform(table, schema).to_pylist() == [
        {"b": "x", "d": None, "a": 1.0},
        {"b": None, "d": None, "a": 2.0},
    ]
    empty = conform(table.slice(0, 0), schema)
    assert (empty.num_rows, empty.schema) == (0, schema)


@pytest.mark.parametrize(("values", "from_type", "to_type", "expected"), [
    (["a", None, "a"], pa.dictionary(pa.int8(), pa.large_string()), pa.string(), None),
    ([1, None], pa.dictionary(pa.int8(), pa.int32()), pa.float64(), [1.0, None]),
    (["a", None], pa.string_view(), pa.string(), None),
    (["a", None, "b"], pa.string(), pa.list_(pa.string()), [["a"], None, ["b"]]),
    ([1, None], pa.int32(), pa.list_(pa.float64()), [[1.0], None]),
    ([[1], None, []], pa.large_list(pa.int8()), pa.list_(pa.float64()), [[1.0], None, []]),
    ([[], None], pa.list_(pa.null()), pa.list_(pa.string()), None),
    ([None, None], pa.null(), pa.list_(pa.string()), None),
    ([date(2020, 1, 2)], pa.date32(), pa.timestamp("us"), [datetime(2020, 1, 2)]),  # noqa: DTZ001
    ([date(2020, 1, 2)], pa.date32(), pa.date64(), None),
    (["a"], pa.string(), pa.binary(), [b"a"]),
    ([Decimal("1.25")], pa.decimal128(5, 2), pa.decimal128(12, 4), [Decimal("1.2500")]),
    ([1.5, None], pa.float16(), pa.float32(), None),
    ([2**53, -(2**53)], pa.int64(), pa.float64(), [2.0**53, -(2.0**53)]),
    ([{"a": 1}], pa.struct([("a", pa.int8())]), pa.struct([("a", pa.int8())]), None),
])  # fmt: skip
def test_conform_values(values, from_type, to_type, expected):
    assert convert(values, from_type, to_type) == (values if expected is None else expected)


def test_conform_runs_slices_and_chunks():
    column = pa.RunEndEncodedArray.from_arrays([2, 3], pa.array(["a", "b"]))
    table = conform(pa.table({"x": column}), pa.schema([("x", pa.string())]))
    assert table["x"].to_pylist() == ["a", "a", "b"]
    column = pa.chunked_array([["a", None], ["b", "c"]]).slice(1, 2)
    table = conform(pa.table({"x": column}), pa.schema([("x", pa.list_(pa.string()))]))
    assert table["x"].to_pylist() == [None, ["b"]]


@pytest.mark.parametrize(("values", "from_type", "to_type", "shown"), [
    ([1, 2**53 + 1, 2**60], pa.int64(), pa.float64(), str(2**53 + 1)),
    ([1, None, -(2**53) - 1], pa.int64(), pa.float64(), str(-(2**53) - 1)),
    ([1, 2**64 - 1], pa.uint64(), pa.float64(), str(2**64 - 1)),
    ([[1], [2, 2**53 + 1]], pa.list_(pa.int64()), pa.list_(pa.float64()), str(2**53 + 1)),
    ([1, 2**53 + 1], pa.int64(), pa.list_(pa.float64()), str(2**53 + 1)),
    ([date(9999, 1, 1)], pa.date32(), pa.timestamp("ns"), "9999-01-01"),
])  # fmt: skip
def test_conform_refuses_to_lose_data(values, from_type, to_type, shown):
    with pytest.raises(InputError, match=f"column 'x': {shown} cannot be represented exactly as"):
        convert(values, from_type, to_type)


@pytest.mark.parametrize(("from_type", "to_type"), [
    (pa.float64(), pa.int64()),
    (pa.string(), pa.int64()),
    (pa.int64(), pa.string()),
    (pa.int64(), pa.int32()),
    (pa.list_(pa.int64()), pa.int64()),
    (pa.bool_(), pa.int64()),
])  # fmt: skip
def test_conform_only_widens(from_type, to_type):
    refuses(InputError, r"column 'x' is .* without loss", convert, [None], from_type, to_type)


simple = st.sampled_from(
    [pa.null(), pa.bool_(), pa.int8(), pa.int64(), pa.uint16(), pa.float32(), pa.float64(),
     pa.string(), pa.large_string(), pa.dictionary(pa.int32(), pa.string()),
     pa.date32(), pa.timestamp("us"), pa.list_(pa.int16()), pa.list_(pa.string()),
     pa.decimal128(9, 2)]
)  # fmt: skip


def unify_or_none(types):
    try:
        return unify(*types)
    except InputError:
        return None


@settings(max_examples=300, deadline=None)
@given(st.lists(simple, min_size=1, max_size=4), st.randoms())
def test_order_of_files_does_not_matter(types, random):
    results = [unify_or_none(order) for order in (types, random.sample(types, len(types)))]
    assert results[0] == results[1]
    if results[0] is not None:
        for data_type in types:
            assert convert([None], data_type, results[0]) == [None]
