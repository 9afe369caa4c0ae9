import math
from datetime import date, datetime, timezone

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slicebeam.metrics.errors import InputError
from slicebeam.transforms.formats.column_kinds import block_kinds, date_kinds, parse_column
from slicebeam.transforms.formats.csv_columns import read_csv_blocks
from tests.transforms.formats.reading import write
from tests.transforms.formats.test_csv_columns import read


def resolve(*values):
    return block_kinds(pa.table({"x": pa.array(values, pa.string())}))["x"].resolve()


@pytest.mark.parametrize(("values", "data_type"), [
    ([], pa.null()),
    ([None, None], pa.null()),
    (["NA", None, "", "nan"], pa.null()),
    (["true", "False", "TRUE"], pa.bool_()),
    (["true", "NA", None], pa.bool_()),
    (["true", "1"], pa.string()),
    (["tRue"], pa.string()),
    (["1", "-5", "0", "N/A", " 7 ", ""], pa.int64()),
    (["9223372036854775807", "-9223372036854775808"], pa.int64()),
    (["9223372036854775808", "1"], pa.string()),
    (["-9223372036854775809"], pa.string()),
    (["9223372036854775808", "1.5"], pa.string()),
    (["9223372036854775807", "1.5"], pa.float64()),
    (["1234567890123456789.5"], pa.float64()),
    (["0", "0.5", "-0.5", "-0", "#N/A", "None"], pa.float64()),
    (["1e5", "-1E-3", "inf", "-inf", "NaN"], pa.float64()),
    (["1.", ".5", "0e1"], pa.float64()),
    (["1e999"], pa.string()),
    (["007"], pa.string()),
    (["-007"], pa.string()),
    (["00"], pa.string()),
    (["00.5"], pa.string()),
    (["1", "+7"], pa.string()),
    (["0x1F"], pa.string()),
    (["-0x1F"], pa.string()),
    (["1,5"], pa.string()),
    (["1_000"], pa.string()),
    (["-"], pa.string()),
    (["."], pa.string()),
    (["NAN", "1"], pa.string()),
    (["-nan", "1"], pa.string()),
    (["٣"], pa.string()),
    (["NA", "DE", "FR"], pa.string()),
    (["NA", "Nancy"], pa.string()),
    (["2020-01-31", "null"], pa.date32()),
    (["2020-02-30"], pa.string()),
    (["2020-1-1"], pa.string()),
    (["20200101"], pa.int64()),
    (["2020-01-01", "2020-01-01 10:00"], pa.timestamp("us")),
    (["2020-01-01T10:00:00.123456"], pa.timestamp("us")),
    (["2020-01-01T10:00:00Z", "2020-01-01 10:00:00+02:00"], pa.timestamp("us", "UTC")),
    (["2020-01-01T10:00:00Z", "2020-01-01T10:00:00"], pa.string()),
    (["2020-01-01", "5"], pa.string()),
    (["<=50K", ">50K"], pa.string()),
    (["a\0"], pa.string()),
    (["\0"], pa.string()),
])  # fmt: skip
def test_type_of_a_column(values, data_type):
    assert resolve(*values) == data_type
    # Many rows of few values take the way over distinct values.
    assert resolve(*(values * 3000)) == data_type


def test_kinds_of_a_slice():
    column = pa.array(["x", None, "1", None, "2", "y"]).slice(1, 4)
    assert block_kinds(pa.table({"x": column}))["x"].resolve() == pa.int64()
    assert parse_column(column, pa.int64()).to_pylist() == [None, 1, None, 2]


spelled = st.one_of(
    st.none(),
    st.sampled_from(["", "NA", "nan", "true", "False", "007", "+7", "0", "-0", "inf", "1e400"]),
    st.sampled_from(["2020-01-01", "2020-01-01 10:00", "2020-01-01T00:00:00Z", " 5", "x", "é-"]),
    st.integers(-(2**65), 2**65).map(str),
    st.floats().map(repr),
    st.dates().map(str),
    st.datetimes().map(str),
    st.text(st.sampled_from("0123456789-+.eE xNa"), max_size=5),
)  # fmt: skip


@settings(max_examples=400, deadline=None)
@given(st.lists(spelled, max_size=8), st.integers(0, 8), st.integers(0, 8))
@pytest.mark.slow
def test_kinds_merge_and_parse(values, one, two):
    low, high = sorted((one, two))
    parts = [values[:low], values[low:high], values[high:]]
    a, b, c = (block_kinds(pa.table({"x": pa.array(part, pa.string())}))["x"] for part in parts)
    whole = block_kinds(pa.table({"x": pa.array(values, pa.string())}))["x"]
    assert a & b & c == whole
    data_type, column = whole.resolve(), pa.array(values, pa.string())
    parsed = parse_column(column, data_type)
    assert (parsed.type, len(parsed)) == (data_type, len(values))
    encoded = parse_column(pa.chunked_array([column.dictionary_encode()]), data_type)
    assert encoded.type == data_type
    for value, was in zip(parsed.to_pylist(), values, strict=True):
        if was is None:
            assert value is None
        elif data_type == pa.int64() and value is not None:
            assert value == int(was)
        elif data_type == pa.float64() and value is not None:
            assert value == float(was)
        elif data_type == pa.string():
            assert value == was
        elif data_type == pa.date32() and value is not None:
            assert value == date.fromisoformat(was.strip())
    assert str(encoded.to_pylist()) == str(parsed.to_pylist())


def test_parsed_values():
    def parse(data_type, *values):
        return parse_column(pa.array(values, pa.string()), data_type).to_pylist()

    assert parse(pa.bool_(), "TRUE", "false", None, "NA") == [True, False, None, None]
    assert parse(pa.float64(), "NaN", " 1.5", "-inf", "3") == [None, 1.5, -math.inf, 3.0]
    assert parse(pa.null(), "NA", None, "") == [None, None, None]
    assert parse(pa.string(), "NA", None, "") == ["NA", None, ""]
    assert parse(pa.timestamp("us"), "2020-01-01", "2020-01-01T10:00") == [
        datetime(2020, 1, 1),  # noqa: DTZ001
        datetime(2020, 1, 1, 10),  # noqa: DTZ001
    ]
    assert parse(pa.timestamp("us", "UTC"), "2020-01-01T10:00:00+02:00") == [
        datetime(2020, 1, 1, 8, tzinfo=timezone.utc)
    ]


def test_refused_value_is_named():
    column = pa.array([str(i) for i in range(1000)] + ["abc"] + ["xyz"] * 50)
    for values in (column, column.dictionary_encode(), pa.chunked_array([column])):
        with pytest.raises(InputError, match="column 'age': 'abc' is not int64"):
            parse_column(values, pa.int64(), column="age")
    with pytest.raises(InputError, match="'007' is not int64"):
        parse_column(pa.array(["7", "007"]), pa.int64(), column="age")


def test_unused_dictionary_values_are_not_parsed():
    column = pa.DictionaryArray.from_arrays(pa.array([0, None, 1, 0]), pa.array(["1", "2", "x"]))
    assert parse_column(column, pa.int64()).to_pylist() == [1, None, 2, 1]


def test_integers_that_turn_to_text_late(tmp_path):
    lines = [f"{i},{i % 7}\n" for i in range(40000)]
    lines[39000] = "39000,seven\n"
    path = write(tmp_path / "a.csv", "id,code\n" + "".join(lines))
    kinds, turned = {}, []
    for number, block in enumerate(read_csv_blocks(path, block_bytes=1 << 13)):
        for name, found in block_kinds(block).items():
            kinds[name] = found & kinds.get(name, found)
        if kinds["code"].resolve() == pa.string():
            turned.append(number)
    assert turned[0] >= 30
    assert kinds["id"].resolve() == pa.int64()
    assert kinds["code"].resolve() == pa.string()
    values = parse_column(read(path)["code"], kinds["code"].resolve()).to_pylist()
    assert values == [line.strip().split(",")[1] for line in lines]


def test_dates_among_strings():
    none = pa.array([None, None], pa.string())
    columns = {"day": ["2020-01-01", None], "number": ["1", "2"], "none": none}
    table = pa.table({**columns, "word": ["NA", "NA"], "n": [1, 2]})
    types = {name: kinds.resolve() for name, kinds in date_kinds(table).items()}
    text = {"number": pa.string(), "word": pa.string()}
    assert types == {"day": pa.date32(), "none": pa.null(), **text}
