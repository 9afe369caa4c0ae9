"""Each promise of SECURITY.md names tests that are there."""

import ast
import re
from functools import cache
from pathlib import Path

import pytest

HERE = Path(__file__).parent
PAGE = HERE.parent / "SECURITY.md"
_ROW = re.compile(r"\| (\d+) \| (.+) \| (.+) \|")
_TEST = re.compile(r"`((?:\w+/)*test_\w+\.py)::(test_\w+)`")


def promises(text):
    table = text.partition("## Promises")[2].partition("\n## ")[0]
    rows = [line for line in table.splitlines() if line.startswith("|")][2:]
    found = {}
    for line in rows:
        row = _ROW.fullmatch(line)
        if row is None or int(row[1]) in found:
            raise ValueError(f"no promise: {line}")
        left = _TEST.sub("", row[3]).strip()
        if left:
            raise ValueError(f"promise {row[1]}: no test: {left}")
        found[int(row[1])] = (row[2], _TEST.findall(row[3]))
    return found


@cache
def names_in(file):
    """The tests of a file that are not skipped for good."""
    path = HERE / file
    if not path.is_file():
        return frozenset()
    tree = ast.parse(path.read_text("utf-8"))
    return frozenset(
        node.name
        for node in tree.body
        if isinstance(node, ast.FunctionDef)
        and not any("skip" in ast.unparse(one) for one in node.decorator_list)
    )


def unheld(text):
    """What is wrong with the promises of a page."""
    wrong = []
    for number, (_, tests) in promises(text).items():
        if not tests:
            wrong.append(f"promise {number} names no test")
        wrong += [
            f"promise {number}: there is no {file}::{name}"
            for file, name in tests
            if name not in names_in(file)
        ]
    return wrong


def test_every_promise_is_held_by_tests():
    text = PAGE.read_text("utf-8")
    found = promises(text)
    assert list(found) == list(range(1, len(found) + 1))
    assert len(found) >= 20
    assert unheld(text) == []


def test_every_test_of_strangers_input_is_a_promise():
    named = {one for _, tests in promises(PAGE.read_text("utf-8")).values() for one in tests}
    for file in ("test_confirmation.py", "test_hostile_endpoint.py"):
        assert {(file, name) for name in names_in(file) if name.startswith("test_")} <= named


@pytest.mark.parametrize(("row", "wrong"), [
    ("| 1 | It holds. | `transforms/formats/test_json_lines.py::test_nobody` |", "there is no transforms/formats/test_json_lines.py"),
    ("| 1 | It holds. | `test_nobody.py::test_nobody` |", "there is no test_nobody.py"),
])  # fmt: skip
def test_a_promise_without_its_test_is_found(row, wrong):
    (found,) = unheld(f"## Promises\n\n| | a | b |\n|---|---|---|\n{row}\n\n## Else\n")
    assert wrong in found
