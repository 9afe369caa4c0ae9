"""The words of an error: the nearest name, the remedy, and nothing that a terminal obeys."""

import pytest

from slicebeam.metrics import errors


@pytest.mark.parametrize(("what", "name", "known", "kind", "message"), [
    ("column", "AGEE", ["age", "label"], errors.ColumnError, "unknown column 'AGEE'; did you mean 'age'? columns: age, label"),
    ("option", "zzz", ["alpha"], errors.OptionError, "unknown option 'zzz'; options: alpha"),
    ("metric", "auk", [f"m{i}" for i in range(13)], errors.InputError, f"unknown metric 'auk'; metrics: {', '.join(f'm{i}' for i in range(12))}, …"),
    ("column", "age", ["age\tsex"], errors.ColumnError, "unknown column 'age': the only column is 'age\\tsex'; are values separated by tab? give --delimiter tab"),
])  # fmt: skip
def test_a_name_that_is_not_known(what, name, known, kind, message):
    error = errors.unknown_name(what, name, known)
    assert (type(error), str(error)) == (kind, message)


@pytest.mark.parametrize(("text", "expected"), [
    (errors.flag("max_cross_size"), "--max-cross-size"),
    (errors.counted(1, "finding"), "1 finding"),
    (errors.counted(1200, "slice"), "1,200 slices"),
    (errors.counted(0, "finding"), "no findings"),
    (errors.percent(0.125), "12.5%"),
    (errors.percent(0.99999), "over 99.9%"),
    (errors.percent(0.0001), "below 0.1%"),
    (errors.percent(0.0), "0.0%"),
    (errors.percent(1.0), "100.0%"),
    (errors.install_hint("s3"), "in the checkout, run pip install '.[s3]'"),
])  # fmt: skip
def test_words_of_messages(text, expected):
    assert text == expected


def test_a_message_is_printable():
    assert errors.printable("tab\t, \x1b[31m and \u202e") == "tab\t, \\x1b[31m and \\u202e"
    assert errors.printable("a " + "x" * 400) == "a " + "x" * 400
    assert errors.printable("x" * 401) == "x" * 150 + "…" + "x" * 150


def test_only_one_column_of_many_separators_asks_for_a_delimiter():
    assert (
        errors.delimiter_hint(["a;b;c\td"]) == "are values separated by ';'? give --delimiter ';'"
    )
    assert errors.delimiter_hint(["a;b", "c"]) == errors.delimiter_hint(["plain"]) == ""
