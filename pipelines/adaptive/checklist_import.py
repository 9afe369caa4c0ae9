"""``slicebeam adapt import-checklist``: a suite of CheckList becomes a test tree.

A case of a suite is one test, as in CheckList: it fails if any of its perturbed inputs does. What a test
expects is a function in CheckList's code, which no file holds but a pickle, where it would have to run. A
YAML file says it instead, by the name of the test.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from slicebeam.metrics.errors import FileError, InputError, unknown_name
from slicebeam.pipelines.adaptive.checklist_suites import SuiteTest, read_suite
from slicebeam.pipelines.adaptive.expectations import (
    OUTPUTS,
    OUTPUTS_NOT,
    SAME,
    as_value,
    parse_expectation,
)
from slicebeam.pipelines.adaptive.topics import below
from slicebeam.pipelines.adaptive.tree import FAIL, PASS, Test, TestTree
from slicebeam.pipelines.adaptive.tree_files import write_tree
from slicebeam.transforms.formats.strict_text import parse_yaml
from slicebeam.transforms.storage.storage import storage_path

if TYPE_CHECKING:
    from slicebeam.pipelines.adaptive.text_models import Text
    from slicebeam.pipelines.config.adapt import ImportChecklistConfig

# What CheckList tolerates in an invariance where nothing else is said.
_INVARIANT = f"{SAME} (tolerance=0.1)"
_LABELER = "checklist"
_IDS = uuid.UUID("5c1f2f0e-0b3a-5c38-8f5e-2d1f5bb1a6d7")


@dataclass(frozen=True)
class SuiteExpectations:
    """What a YAML file says of the tests of a suite.

    Attributes
    ----------
    classes : names of the labels 0, 1, …; empty where labels are names themselves
    tests : by the name of a test an expectation with its value, or one for each label
    """

    classes: tuple[str, ...] = ()
    tests: dict[str, str | dict[Any, str]] | None = None

    def label(self, label: Any) -> str:
        """Return what the model puts out for a label."""
        if self.classes and isinstance(label, int) and 0 <= label < len(self.classes):
            return self.classes[label]
        return str(label)


@dataclass(frozen=True)
class ImportedSuite:
    """What was imported.

    Attributes
    ----------
    tree : the file that was written
    tests : in it
    topics : with tests
    refused : tests of the suite that were left out, with the reason
    """

    tree: str
    tests: int
    topics: int
    refused: dict[str, str]


def import_checklist(config: ImportChecklistConfig, note: Callable[[str], None]) -> ImportedSuite:
    """Write the tree of a suite, and return what is in it.

    Raises
    ------
    InputError
        The suite or the expectations are wrong, or nothing can be imported.
    """
    if storage_path(config.to).exists():
        raise FileError(f"--to {config.to} exists; name a new file, or remove it")
    suite = read_suite(config.suite)
    expectations = read_expectations(config.expectations)
    names = {one.name for one in suite}
    for name in expectations.tests or {}:
        if name not in names:
            raise InputError(
                f"--expectations {config.expectations}: {unknown_name('test', name, sorted(names))}"
            )
    tests: list[Test] = []
    refused: dict[str, str] = {}
    topics = 0
    for one in suite:
        made, reason = tests_of(one, expectations)
        tests += made
        topics += bool(made)
        if reason:
            refused[one.name] = reason
    if not tests:
        raise FileError(f"{config.suite}: nothing in it can be imported: {_reasons(refused)}")
    if refused:
        note(
            f"{len(refused):,} tests are left out, since what they expect is code in CheckList: "
            f"{_reasons(refused)}; say it in --expectations"
        )
    if any(not one.kind for one in suite):
        note(
            f"{config.suite} holds examples without expectations: none is scored until it is labelled pass or "
            "fail with an output"
        )
    write_tree(TestTree.of_tests(tests), config.to)
    return ImportedSuite(config.to, len(tests), topics, refused)


def _reasons(refused: dict[str, str]) -> str:
    shown = list(refused.items())[:3]
    more = ", …" if len(refused) > len(shown) else ""
    return "; ".join(f"{name!r} ({reason})" for name, reason in shown) + more


def read_expectations(path: str | None) -> SuiteExpectations:
    """Return what a YAML file says: ``classes``, and ``tests`` by name.

    Raises
    ------
    InputError
        It is missing or wrong.
    """
    if path is None:
        return SuiteExpectations()
    option = f"--expectations {path}"
    try:
        content, _ = parse_yaml(storage_path(path).read_text("utf-8"))
    except FileNotFoundError as error:
        raise FileError(f"{option}: no such file") from error
    except (OSError, ValueError) as error:
        raise FileError(f"{option}: no readable YAML ({' '.join(str(error).split())})") from error
    if not isinstance(content, dict):
        raise InputError(f"{option}: a mapping with 'classes' and 'tests' is expected")
    for key in content:
        if key not in ("classes", "tests"):
            raise InputError(f"{option}: {unknown_name('key', str(key), ('classes', 'tests'))}")
    tests = content.get("tests") or {}
    for name, given in tests.items():
        for text in given.values() if isinstance(given, dict) else [given]:
            try:
                _parted(str(text))
            except InputError as error:  # noqa: PERF203
                raise InputError(f"{option}, {name!r}: {error}") from error
    return SuiteExpectations(tuple(map(str, content.get("classes") or ())), tests)


def _parted(text: str) -> tuple[str, str]:
    """Return an expectation and the output behind it, as in ``should not output negative``."""
    for name in (OUTPUTS_NOT, OUTPUTS):
        if text.startswith(f"{name} ") and not text.startswith(f"{name} ("):
            return name, text[len(name) :].strip()
    parse_expectation(text)
    return text, ""


def tests_of(suite: SuiteTest, expectations: SuiteExpectations) -> tuple[list[Test], str]:
    """Return the tests of a suite's test, and why some can't be imported; empty where all are."""
    topic = below(below("", suite.capability) if suite.capability else "", suite.name)
    given = (expectations.tests or {}).get(suite.name)
    made: list[Test] = []
    reason = ""
    for place, (inputs, label) in enumerate(zip(suite.cases, suite.labels, strict=True)):
        labels = label if isinstance(label, list) else [label] * len(inputs)
        said: str | None = given if isinstance(given, str) else None
        if isinstance(given, dict):
            said = given.get(label) if not isinstance(label, list) else None
        if suite.kind == "INV":
            said = said or _INVARIANT
        if suite.kind in ("INV", "DIR"):
            if said is None:
                reason = "its direction"
            elif len(inputs) > 1:
                made.append(_compared(topic, suite, place, inputs, said))
            continue
        # Of a case with several inputs each is expected to be right.
        for number, (text, own) in enumerate(zip(inputs, labels, strict=True)):
            one = _judged(topic, suite, f"{place}.{number}", text, said, own, expectations)
            if one is None:
                reason = "it has no label"
            else:
                made.append(one)
    return made, reason


def _compared(topic: str, suite: SuiteTest, place: int, inputs: list[Text], said: str) -> Test:
    first, *others = inputs
    return Test(
        topic,
        _first(first),
        expectation=said,
        value=as_value(list(others)),
        second_input=_second(first),
        labeler=_LABELER,
        description=f"{suite.kind} {place}",
        id=_id(topic, str(place)),
    )


def _judged(
    topic: str,
    suite: SuiteTest,
    place: str,
    text: Text,
    said: str | None,
    label: Any,
    expectations: SuiteExpectations,
) -> Test | None:
    made: dict[str, Any] = {}
    if said is not None:
        name, output = _parted(said)
        if name in (OUTPUTS, OUTPUTS_NOT) and output:
            made = {"output": output, "label": PASS if name == OUTPUTS else FAIL}
        else:
            made = {"expectation": said}
    elif label is not None:
        made = {"output": expectations.label(label), "label": PASS}
    elif suite.kind:
        return None
    return Test(
        topic,
        _first(text),
        second_input=_second(text),
        labeler=_LABELER,
        description=f"{suite.kind} {place}".strip(),
        id=_id(topic, place),
        **made,
    )


def _first(text: Text) -> str:
    return text[0] if isinstance(text, tuple) else text


def _second(text: Text) -> str:
    return text[1] if isinstance(text, tuple) else ""


def _id(topic: str, place: str) -> str:
    """Return the id of a case: the same in every import of the suite."""
    return uuid.uuid5(_IDS, f"{topic} {place}").hex
