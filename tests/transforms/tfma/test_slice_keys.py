"""Slices as keys of TFMA."""

import pytest

from slicebeam.transforms.encode.predicates import Singleton
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
    assert (third[-1], last) == (("slice", "21"), (("slice", "words"),))
