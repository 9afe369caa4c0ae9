"""Slices as slice keys of TensorFlow Model Analysis, without it."""

import subprocess
import sys

import numpy as np
import pytest

from slicebeam.metrics.errors import InputError
from slicebeam.transforms.encode.conditions import SliceMembership
from slicebeam.transforms.encode.predicates import Singleton
from slicebeam.transforms.tfma.extractor import FoundSlices, read_slices
from slicebeam.transforms.tfma.install import tfma_module
from slicebeam.transforms.tfma.slice_keys import NamedSlice, key_part, slice_keys


@pytest.mark.parametrize(("op", "value", "part"), [
    ("==", "a", ("x", "a")),
    ("contains", "a", ("x", "a")),
    ("==", True, ("x", 1)),
    ("==", 3, ("x", 3)),
    ("==", 0.5, ("x", 0.5)),
    # What a float32 would round has a column of its own.
    ("==", 0.1, ("x (value)", "0.1")),
    ("==", 2**70, ("x (value)", str(2**70))),
    ("<", 3, ("x (range)", "< 3")),
    (">=", 3, ("x (range)", ">= 3")),
    ("between", [3, 4.5], ("x (range)", "[3, 4.5)")),
    ("in", ["a", "b"], ("x (values)", "in {a, b}")),
    ("not_in", list(range(12)), ("x (values)", "not in {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, … 2 more}")),
    ("is_null", None, ("x (missing)", "yes")),
])  # fmt: skip
def test_the_part_of_a_condition(op, value, part):
    assert key_part(Singleton("x", op, value)) == part


def test_keys_are_sorted_and_differ():
    long = [*range(11), 12], [*range(11), 13]
    slices = [
        NamedSlice("1", "one", (Singleton("b", "==", 1), Singleton("a", "==", "x"))),
        *(NamedSlice(f"2{at}", "", (Singleton("c", "in", one),)) for at, one in enumerate(long)),
        NamedSlice("3", "words", None),
    ]
    first, second, third, last = slice_keys(slices)
    assert first == (("a", "x"), ("b", 1))
    assert second != third
    assert third[-1] == ("slice", "21")
    assert last == (("slice", "words"),)


def test_examples_get_the_keys_of_their_slices():
    predicates = (
        (Singleton("age", "between", [37, 41]), Singleton("sex", "==", "F")),
        (Singleton("age", "is_null"),),
        (Singleton("tags", "contains", "b"),),
        (Singleton("old", "==", True),),
    )
    named = [NamedSlice(str(at), "", one) for at, one in enumerate(predicates)]
    keys = slice_keys(named)
    found = FoundSlices(tuple(keys), SliceMembership(predicates))
    examples = [
        {"age": np.array([40.0], np.float32), "sex": np.array([b"F"]), "old": np.array([1])},
        {"age": np.array([41.0], np.float32), "sex": np.array([b"F"]), "old": np.array([0])},
        {"age": np.array([], np.float32), "tags": np.array([b"a", b"b"]), "old": np.array([1])},
        {"sex": np.array([[b"F"]]), "tags": np.array([b"a"]), "old": np.array([0])},
    ]
    expected = [[keys[0], keys[3]], [], [keys[1], keys[2], keys[3]], [keys[1]]]
    assert found.keys_of(examples) == expected
    with pytest.raises(InputError, match="feature 'sex' has 2 values"):
        found.keys_of([{"sex": np.array([b"F", b"M"])}])


def test_a_document_that_is_none(tmp_path):  # type: ignore[no-untyped-def]
    with pytest.raises(InputError, match="no such file"):
        read_slices(str(tmp_path))
    (tmp_path / "changelist.json").write_text("{}")
    with pytest.raises(InputError, match="no ChangeList with slices"):
        read_slices(str(tmp_path))


def test_what_is_missing_is_named_with_the_command(monkeypatch):
    monkeypatch.setitem(sys.modules, "tensorflow_model_analysis", None)
    with pytest.raises(InputError, match=r"in the checkout, run pip install '\.\[tfma\]'"):
        tfma_module("proto.config_pb2", "slicebeam export tfma")


def test_nothing_else_imports_tensorflow():
    code = (
        "import sys; from slicebeam.pipelines.cli import run; run(['demo', '--quiet']);"
        "import slicebeam.transforms.tfma;"
        "print([n for n in sys.modules if n.partition('.')[0] in"
        " ('tensorflow', 'tensorflow_model_analysis', 'tfx_bsl')])"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ran.stdout.splitlines()[-1] == "[]"
