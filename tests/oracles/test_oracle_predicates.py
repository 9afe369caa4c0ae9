"""The oracle's reading of predicates, against cases worked by hand."""

import datetime as dt
import decimal

import numpy as np
import pandas as pd
import pytest

from tests.oracles import predicates


def rows(frame, op, value=None, field="x"):
    """Return the positions of the rows for which one condition holds."""
    condition = {"field": field, "op": op}
    if op != "is_null":
        condition["value"] = value
    found = predicates.mask(frame, {"all": [condition]})
    assert found.dtype == bool
    assert found.shape == (len(frame),)
    return np.flatnonzero(found).tolist()


def arrow(values, kind):
    pa = pytest.importorskip("pyarrow")
    array = pa.array(values, type=getattr(pa, kind)())
    return pd.Series(array, dtype=pd.ArrowDtype(array.type))


NUMBERS = {
    "float64": lambda v: pd.Series([np.nan if x is None else x for x in v], dtype="float64"),
    "float32": lambda v: pd.Series([np.nan if x is None else x for x in v], dtype="float32"),
    "Float64": lambda v: pd.Series(v, dtype="Float64"),
    "Int64": lambda v: pd.Series(v, dtype="Int64"),
    "object": lambda v: pd.Series(v, dtype=object),
    "category": lambda v: pd.Series(pd.Categorical(v)),
    "arrow int64": lambda v: arrow(v, "int64"),
    "arrow float32": lambda v: arrow([None if x is None else float(x) for x in v], "float32"),
}


@pytest.mark.parametrize("make", NUMBERS.values(), ids=NUMBERS.keys())
def test_numbers_in_every_dtype(make):
    frame = pd.DataFrame({"x": make([37, 41, None, 40, 36])})
    assert rows(frame, "between", [37, 41]) == [0, 3]
    assert rows(frame, "<", 37) == [4]
    assert rows(frame, ">=", 40) == [1, 3]
    assert rows(frame, "==", 40) == [3]
    assert rows(frame, "==", 40.0) == [3]
    assert rows(frame, "in", [36, 41, 7]) == [1, 4]
    assert rows(frame, "not_in", [36, 41, 7]) == [0, 3]
    assert rows(frame, "is_null") == [2]


TEXTS = {
    "str": pd.Series,
    "object": lambda v: pd.Series(v, dtype=object),
    "string": lambda v: pd.Series(v, dtype="string"),
    "category": lambda v: pd.Series(pd.Categorical(v)),
    "arrow": lambda v: arrow(v, "string"),
}


@pytest.mark.parametrize("make", TEXTS.values(), ids=TEXTS.keys())
def test_texts_in_every_dtype(make):
    frame = pd.DataFrame({"x": make(["a", "", None, "Infinity", "b"])})
    assert rows(frame, "==", "") == [1]
    assert rows(frame, "==", "Infinity") == [3]
    assert rows(frame, "in", ["a", "b"]) == [0, 4]
    assert rows(frame, "not_in", ["a", "b"]) == [1, 3]
    assert rows(frame, "not_in", []) == [0, 1, 3, 4]
    assert rows(frame, "is_null") == [2]


@pytest.mark.parametrize("dtype", ["object", "boolean", "bool[pyarrow]"])
def test_bools(dtype):
    frame = pd.DataFrame({"x": pd.Series([True, False, None], dtype=dtype)})
    assert rows(frame, "==", True) == [0]
    assert rows(frame, "in", [False]) == [1]
    assert rows(frame, "is_null") == [2]
    with pytest.raises(TypeError, match="the value 1 "):
        rows(frame, "==", 1)


def test_infinite_floats_are_strings_and_nan_is_missing():
    frame = pd.DataFrame({"x": [-np.inf, -1.0, np.inf, np.nan]})
    assert rows(frame, "==", "Infinity") == [2]
    assert rows(frame, ">=", "-Infinity") == [0, 1, 2]
    assert rows(frame, "<", "Infinity") == [0, 1]
    assert rows(frame, "between", ["-Infinity", "Infinity"]) == [0, 1]
    assert rows(frame, "is_null") == [3]


def test_arrow_floats_with_null_and_nan():
    frame = pd.DataFrame({"x": arrow([1.0, None, float("nan")], "float64")})
    assert rows(frame, "is_null") == [1, 2]
    assert rows(frame, "not_in", [2.0]) == [0]


def test_float32_rounds_the_constant_as_pandas_does():
    frame = pd.DataFrame({"x": np.array([0.1, 0.2], dtype=np.float32)})
    for constant in (0.1, float(np.float32(0.1))):
        assert rows(frame, "==", constant) == [0]
        assert rows(frame, ">=", constant) == [0, 1]
        assert rows(frame, "<", constant) == []


def test_integers_beyond_floats_are_exact():
    frame = pd.DataFrame({"x": [2**53, 2**53 + 1]})
    assert rows(frame, "==", 2**53 + 1) == [1]
    assert rows(frame, ">=", 2**53 + 1) == [1]


def test_dates_times_and_timestamps():
    days = [dt.date(2024, 2, 29), None, dt.date(2024, 3, 1)]
    for column in (pd.Series(days, dtype=object), arrow(days, "date32")):
        frame = pd.DataFrame({"x": column})
        assert rows(frame, "==", "2024-02-29") == [0]
        assert rows(frame, "<", "2024-03-01") == [0]
        assert rows(frame, "is_null") == [1]

    frame = pd.DataFrame({"x": [dt.time(8), dt.time(22, 30), None]})
    assert rows(frame, "between", ["08:00:00", "22:30:00"]) == [0]

    moments = pd.Series(
        pd.to_datetime(["2024-01-01T00:00:00.000000001", "2024-01-01", None], format="ISO8601")
    )
    frame = pd.DataFrame({"x": moments})
    assert rows(frame, "==", "2024-01-01T00:00:00") == [1]
    assert rows(frame, ">=", "2024-01-01T00:00:00.000000001") == [0]
    assert rows(frame, "is_null") == [2]

    frame = pd.DataFrame({"x": moments.dt.tz_localize("Europe/Zurich")})
    assert rows(frame, "==", "2023-12-31T23:00:00Z") == [1]
    assert rows(frame, "==", "2024-01-01T00:00:00") == [1]
    with pytest.raises(TypeError, match="time zone"):
        rows(pd.DataFrame({"x": moments}), "==", "2024-01-01T00:00:00Z")


def test_decimals():
    values = [decimal.Decimal("1.10"), decimal.Decimal("NaN"), None, decimal.Decimal("2.5")]
    frame = pd.DataFrame({"x": pd.Series(values, dtype=object)})
    assert rows(frame, "==", "1.1") == [0]
    assert rows(frame, ">=", "1.1") == [0, 3]
    assert rows(frame, "is_null") == [1, 2]
    with pytest.raises(TypeError, match=r"1\.1"):
        rows(frame, "==", 1.1)


def test_lists():
    lists = [["night", "rain"], [], None, ["day", None], ["night", "night"]]
    arrays = [None if one is None else np.array(one, dtype=object) for one in lists]
    pa = pytest.importorskip("pyarrow")
    array = pa.array(lists)
    for column in (
        pd.Series(lists, dtype=object),
        pd.Series(arrays, dtype=object),
        pd.Series(array, dtype=pd.ArrowDtype(array.type)),
    ):
        frame = pd.DataFrame({"x": column})
        assert rows(frame, "contains", "night") == [0, 4]
        assert rows(frame, "contains", "nigh") == []
        assert rows(frame, "is_null") == [2]
    narrow = pd.Series([np.array([0.1], dtype=np.float32), np.array([0.2])], dtype=object)
    assert rows(pd.DataFrame({"x": narrow}), "contains", 0.1) == [0]
    with pytest.raises(TypeError, match="list columns"):
        rows(pd.DataFrame({"x": ["night"]}), "contains", "night")


def test_conjunctions_go_by_position_not_by_index():
    frame = pd.DataFrame({"a": [1, 2, 3], "b": ["u", "u", "v"]}, index=[7, 7, 0])
    predicate = {
        "all": [{"field": "a", "op": ">=", "value": 2}, {"field": "b", "op": "==", "value": "u"}]
    }
    assert predicates.mask(frame, predicate).tolist() == [False, True, False]
    assert predicates.mask(frame, {"all": []}).tolist() == [True] * 3
    assert predicates.mask(frame.iloc[:0], predicate).shape == (0,)


@pytest.mark.parametrize(
    ("op", "value", "error"),
    [
        ("==", None, ValueError),
        ("==", float("nan"), ValueError),
        ("==", "1", TypeError),
        ("in", 1, ValueError),
        ("between", [1], ValueError),
        ("<=", 1, ValueError),
    ],
)
def test_a_predicate_of_the_wrong_shape_is_an_error(op, value, error):
    with pytest.raises(error):
        rows(pd.DataFrame({"x": [1.0, 2.0]}), op, value)


def test_unknown_field_and_keys_are_errors():
    frame = pd.DataFrame({"x": [1]})
    with pytest.raises(ValueError, match="unknown field 'y'"):
        rows(frame, "==", 1, field="y")
    with pytest.raises(ValueError, match="any"):
        predicates.mask(frame, {"any": []})
