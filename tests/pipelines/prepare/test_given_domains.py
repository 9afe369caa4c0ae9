"""Domains that a ChangeList brings are those of a run, or the run is refused."""

import re

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from slicebeam.metrics.errors import InputError
from slicebeam.pipelines.changelist.dataset import Domain
from slicebeam.pipelines.prepare.given_domains import checked_domain
from tests.running import refused, search


def shape(kind, data_type, *conditions, **more):
    singletons = [{"field": "x", "op": op, "value": value} for op, value in conditions]
    return Domain.model_validate(
        {"name": "x", "kind": kind, "data_type": data_type, "singletons": singletons}
        | {"error": 0.0, "closed": True}
        | more
    )


NULL = ("is_null", None)
GOOD = {
    "bins": ("numeric", "double", ("<", 1), ("between", [1, 2.5]), ("==", 3.0), (">=", 4), NULL),
    "infinite": ("numeric", "double", ("<", "-Infinity"), ("==", "Infinity")),
    "one bin": ("numeric", "int64", (">=", 5)),
    "days": ("numeric", "date32[day]", ("<", "2024-01-03"), (">=", "2024-01-03")),
    "decimals": ("numeric", "decimal128(9, 2)", ("<", "1.50"), (">=", "10.00")),
    "words": ("categorical", "string", ("==", "a"), ("==", "b"), ("not_in", ["a", "b"]), NULL),
    "named later": ("categorical", "string", ("==", "a"), ("not_in", ["a", "b"]), NULL, ("==", "b")),
    "integers once missing": ("categorical", "double", ("==", 1), ("==", 2), NULL),
    "truth": ("categorical", "bool", ("==", False), ("==", True)),
    "lists of integers once missing": ("list", "double", ("contains", 1), ("contains", 2), NULL),
    "tags": ("list", "string", ("contains", "a"), ("contains", "b"), NULL),
}  # fmt: skip
BAD = {
    "no type": (shape("numeric", "int65", ("<", 1)), "data_type 'int65' is not a type"),
    "no digits": (shape("numeric", "decimal128(x)", ("<", "1")), "is not a type"),
    "binary": (shape("categorical", "binary", ("==", "a")), "has no categorical domain"),
    "bins of text": (shape("numeric", "string", ("<", "a")), "has no numeric domain"),
    "words of numbers": (shape("categorical", "double", ("==", 1.5)), "has no categorical domain"),
    "list of dates": (shape("list", "date32[day]", ("contains", "2024-01-01")), "has no list domain"),
    "list of fractions": (shape("list", "double", ("contains", 1.5)), "has no list domain"),
    "list of no integer": (shape("list", "double", NULL), "has no list domain"),
    "nothing": (shape("numeric", "double"), "it has no predicate"),
    "op": (shape("numeric", "double", ("not_in", [1])), "op 'not_in' is not one of a numeric domain"),
    "text": (shape("numeric", "double", ("<", "1")), "predicate 1: '1' is not a value of a column"),
    "truth as number": (shape("numeric", "double", ("<", True)), "True is not a value of a column"),
    "truth as integer": (shape("categorical", "int64", ("==", True)), "True is not a value"),
    "fraction": (shape("categorical", "int64", ("==", 1.5)), "1.5 is not a value of a column of int64"),
    "null": (shape("categorical", "string", ("==", None)), "None is not a value of a column"),
    "out of range": (shape("categorical", "int8", ("==", 300)), "do not fit a column of int8"),
    "no day": (shape("numeric", "date32[day]", ("<", "2024-13-01")), "do not fit a column of date32"),
    "pair": (shape("numeric", "double", ("between", [1])), "op 'between' needs [low, high]"),
    "is_null of": (shape("numeric", "double", ("is_null", 1)), "op 'is_null' takes no value"),
    "null first": (shape("numeric", "double", NULL, ("<", 1), (">=", 1)), "'is_null' is not the last"),
    "null among bins": (shape("numeric", "double", ("<", 1), NULL, (">=", 1)), "'is_null' is not the last"),
    "no bin": (shape("numeric", "double", NULL), "it has no bin"),
    "half a range": (shape("numeric", "double", ("<", 1), seen={"missing": 0, "low": 0.5}), "its low and high do not fit a numeric column"),
    "range of words": (
        shape("categorical", "string", ("==", "a"), seen={"missing": 0, "low": "a", "high": "b"}),
        "its low and high do not fit a numeric column",
    ),
    "range of another type": (
        shape("numeric", "double", ("<", 1), seen={"missing": 0, "low": "a", "high": 1}),
        "'a' is not a value of a column of double",
    ),
    "nulls": (shape("categorical", "string", ("==", "a"), NULL, NULL), "or occurs twice"),
    "twice": (shape("categorical", "string", ("==", "a"), ("==", "a")), "have the same value"),
    "other others": (shape("categorical", "string", ("==", "a"), ("not_in", ["b"])), "'not_in' does not list the values"),
    "order": (shape("numeric", "double", ("between", [3, 4]), ("between", [1, 2])), "bin 1 is empty"),
    "overlap": (shape("numeric", "double", ("<", 2), (">=", 1)), "bin 1 is empty, overlaps the next"),
    "point in range": (shape("numeric", "double", ("==", 1), ("between", [1, 2])), "bin 1 is empty, overlaps the next one, or is out of order"),
    "empty bin": (shape("numeric", "double", ("between", [2, 2])), "bin 1 is empty"),
    "end in the middle": (shape("numeric", "double", (">=", 1), ("between", [2, 3])), "op '>=' is not at the right end of the bins"),
}  # fmt: skip


@pytest.mark.parametrize("name", GOOD)
def test_domains_that_a_run_writes(name):
    kind, data_type, *conditions = GOOD[name]
    given = shape(kind, data_type, *conditions)  # type: ignore[arg-type]
    domain = checked_domain(given)
    assert [(one.op, one.value) for one in domain.singletons] == conditions
    assert (domain.name, domain.kind, domain.data_type) == ("x", kind, data_type)


@pytest.mark.parametrize("name", BAD)
def test_domains_that_no_run_writes(name):
    given, message = BAD[name]
    with pytest.raises(InputError, match=re.escape(message)):
        checked_domain(given)


def test_a_predicate_on_another_column():
    given = shape("numeric", "double", ("<", 1), name="y")
    with pytest.raises(InputError, match=r"predicate 1: it is a predicate on 'x'"):
        checked_domain(given)


ROLES = {"label": "label", "prediction": "prediction", "max_cross_size": 1}


def night(folder, name, column):
    """Write a night's data: every fifth prediction is wrong."""
    label = np.arange(len(column)) % 2
    prediction = np.where(np.arange(len(column)) % 5 == 0, 1 - label, label)
    path = folder / f"{name}.parquet"
    pq.write_table(pa.table({"x": column, "label": label, "prediction": prediction}), path)
    return str(path)


@pytest.mark.parametrize("last", [pa.int64(), pa.float64()], ids=str)
def test_lists_of_integers_that_were_doubles_for_a_night(tmp_path, last):
    nan = float("nan")
    nights = [
        pa.array([[1, 2], [3], [2]] * 100, pa.list_(pa.int64())),
        pa.array([[1.0, nan], [3.0], [2.0]] * 100, pa.list_(pa.float64())),
        pa.array([[1, 2, 4], [3], [4]] * 100, pa.list_(last)),
    ]
    since = {}
    for at, column in enumerate(nights):
        data = (night(tmp_path, f"night {at}", column),)
        found = search(tmp_path / f"out {at}", data=data, **ROLES, **since)
        since = {"since": str(tmp_path / f"out {at}" / "changelist.json")}
        sizes = dict(zip(found.table["slice"], found.table["n"], strict=True))
        values = {v for one in column.to_pylist() for v in one if v == v}
        assert {f"x contains {value:g}" for value in values} <= set(sizes)
        for value in values:
            held = sum(value in one for one in column.to_pylist())
            assert sizes[f"x contains {value:g}"] == held


@pytest.mark.parametrize("option", ["since", "since_if_exists", "domains"])
@pytest.mark.parametrize("dry", [False, True])
def test_errors_name_the_option_that_was_given(tmp_path, capsys, option, dry):
    first = night(tmp_path, "first", pa.array([1.5, 2.5, 4.0, 7.0] * 50))
    second = night(tmp_path, "second", pa.array(["a", "b"] * 100))
    search(tmp_path / "out", data=first, **ROLES)
    document = tmp_path / "out" / "changelist.json"
    flag = "--" + option.replace("_", "-")
    arguments = ["search", f"--data={second}", "--label=label", "--prediction=prediction"]
    arguments += [f"--output={tmp_path}/new", f"{flag}={document}", *["--dry-run"] * dry]
    said = refused(arguments, capsys, folder=tmp_path)
    named = "--domains" if option == "domains" else "--since"
    assert said == (
        f"{named} DIR/out/changelist.json: column 'x' was double and is string now; cast it, or "
        "leave it out with --exclude-features"
    )


@pytest.mark.parametrize("option", ["since", "domains"])
def test_the_remedy_where_most_values_are_in_one_slice(tmp_path, option):
    """What the line says to do is done, and cuts them."""
    rng = np.random.default_rng(4)
    first = night(tmp_path, "first", pa.array(rng.normal(size=1000)))
    second = night(tmp_path, "second", pa.array(rng.normal(50, 1, size=1000)))
    search(tmp_path / "out", data=first, **ROLES)
    given = {option: str(tmp_path / "out" / "changelist.json")}
    found = search(tmp_path / "new", data=second, **ROLES, **given)
    (line,) = found.document["dataset"]["drift"]
    instead = "" if option == "since" else " instead of --domains"
    assert line.endswith(f"that is one slice, so bin the column again with --bins{instead}.")
    assert len(found.table) == 1
    if option == "domains":
        given = {}
    assert len(search(tmp_path / "cut", data=second, bins=10, **ROLES, **given).table) == 10
