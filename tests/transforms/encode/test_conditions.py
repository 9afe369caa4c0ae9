"""Conditions and definitions of given slices: which examples they hold of, against pandas; their text."""

import datetime as dt
import decimal
import math

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

from slicebeam.metrics.errors import InputError
from slicebeam.transforms.encode.conditions import SliceMembership, check_condition, holds
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
    rng = np.random.default_rng(0)
    rows = 20_000
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
