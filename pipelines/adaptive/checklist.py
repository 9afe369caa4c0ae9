"""``slicebeam adapt import-checklist``: a suite of CheckList, as a table, becomes a test tree.

A case of a suite is one test, as in CheckList: it fails if any of its perturbed inputs does. What a test
expects beyond a label is a function in CheckList's code; a YAML file says it instead, by the name of the test.
"""

from __future__ import annotations

import io
import json
import uuid
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
from pyarrow import csv as arrow_csv

from slicebeam.metrics.errors import FileError, InputError, unknown_name
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
from slicebeam.transforms.storage.storage import open_input, storage_path
from slicebeam.transforms.storage.strict_text import parse_yaml

if TYPE_CHECKING:
    from collections.abc import Callable

    from slicebeam.pipelines.adaptive.text_models import Text
    from slicebeam.pipelines.config.adapt import ImportChecklistConfig

_KINDS = ("MFT", "INV", "DIR")
_COLUMNS = ("test", "capability", "type", "input")
# What CheckList tolerates in an invariance where nothing else is said.
_INVARIANT = f"{SAME} (tolerance=0.1)"
_IDS = uuid.UUID("5c1f2f0e-0b3a-5c38-8f5e-2d1f5bb1a6d7")
_ONE_INPUT = "one input alone, where INV and DIR compare several"
_OTHER_LABELS = "its list of labels is not as long as that of its inputs"
_NO_LABEL, _DIRECTION = "it has no label", "its direction"


@dataclass(frozen=True)
class SuiteExpectations:
    """What a YAML file says of the tests of a suite."""

    # Names of the labels 0, 1, …; empty where labels are names themselves.
    classes: tuple[str, ...] = ()
    # By the name of a test an expectation with its value, or one for each label.
    tests: dict[str, str | dict[Any, str]] = field(default_factory=dict)

    def label(self, label: Any) -> str:
        """Return what the model puts out for a label."""
        written = str(label)
        at = int(written) if written.isdecimal() else len(self.classes)
        return self.classes[at] if at < len(self.classes) else written

    def of(self, test: str, label: Any) -> str | None:
        """Return what a test expects where it has a label; None where that is not said."""
        said = self.tests.get(test)
        if isinstance(said, dict):
            return {str(key): text for key, text in said.items()}.get(str(label))
        return said


@dataclass(frozen=True)
class ImportedSuite:
    """What was imported."""

    tree: str
    tests: int  # Tests of the suite that were imported; a topic each.
    cases: int  # Tests of the tree.
    # Tests of the suite of which nobody knows what they expect, with the reason.
    left_out: dict[str, str]
    unread: dict[str, int]  # How many rows could not be read, by the reason.


@dataclass(frozen=True)
class _Case:
    """A row of a suite: its input, a text or a list, whether that is of variants, and its label."""

    content: str | list[Any]
    multi: bool | None
    label: Any


def import_checklist(config: ImportChecklistConfig, note: Callable[[str], None]) -> ImportedSuite:
    """Write the tree of a suite, and return what is in it."""
    if storage_path(config.to).exists():
        raise FileError(f"--to {config.to} exists; name a new file, or remove it")
    unread: Counter[str] = Counter()
    suite = _cases(config.suite, unread)
    expectations = read_expectations(config.expectations)
    names = sorted({name for _, name, _ in suite})
    for name in expectations.tests:
        if name not in names:
            raise InputError(
                f"--expectations {config.expectations}: {unknown_name('test', name, names)}"
            )
    tests: list[Test] = []
    left_out: dict[str, str] = {}
    topics = set()
    for (capability, name, kind), cases in suite.items():
        topic = below(below("", capability) if capability else "", name)
        made, reason = _tests_of(topic, name, kind, cases, expectations, unread)
        if reason:
            left_out[name] = reason
        if made:
            topics.add(topic)
        tests += made
    for reason, number in unread.items():
        note(f"{config.suite}: {number:,} rows could not be read: {reason}")
    for reason in dict.fromkeys(left_out.values()):
        listed = ", ".join(repr(name) for name, why in left_out.items() if why == reason)
        note(
            f"left out, since what they expect is code in CheckList ({reason}); say it in --expectations: {listed}"
        )
    if not tests:
        raise FileError(f"{config.suite}: nothing in it can be imported")
    write_tree(TestTree.of_tests(tests), config.to)
    return ImportedSuite(config.to, len(topics), len(tests), left_out, dict(unread))


def _tests_of(
    topic: str,
    name: str,
    kind: str,
    cases: list[_Case],
    expectations: SuiteExpectations,
    unread: Counter[str],
) -> tuple[list[Test], str]:
    """Return the tests of a suite's test, and why some are left out; empty where none is."""
    are_pairs = kind == "MFT" and all(len(case.content) == 2 for case in cases if _is_flat(case))
    tests, reason = [], ""
    for place, case in enumerate(cases):
        inputs, said = _inputs(case, are_pairs=are_pairs), expectations.of(name, case.label)
        labels = case.label if isinstance(case.label, list) else [case.label] * len(inputs)
        if kind == "MFT" and len(labels) != len(inputs):
            unread[_OTHER_LABELS] += 1
        elif kind == "MFT":
            made = _judged(topic, place, inputs, labels, said, expectations)
            reason = reason if made else _NO_LABEL
            tests += made
        elif len(inputs) < 2:
            unread[_ONE_INPUT] += 1
        elif said or kind == "INV":
            # The first input is compared with the others.
            columns = {"expectation": said or _INVARIANT, "value": as_value(inputs[1:])}
            tests.append(_test(topic, kind, str(place), inputs[0], **columns))
        else:
            reason = _DIRECTION
    return tests, reason


def _cases(path: str, unread: Counter[str]) -> dict[tuple[str, str, str], list[_Case]]:
    """Return the cases of a suite by capability, name and type; count those that can't be read."""
    table = _table(path)
    for name in _COLUMNS:
        if name not in table.column_names:
            raise FileError(f"{path}: {unknown_name('column', name, table.column_names)}")
    columns = [
        table[name].to_pylist() if name in table.column_names else [None] * len(table)
        for name in (*_COLUMNS, "label", "multi")
    ]
    suite: dict[tuple[str, str, str], list[_Case]] = {}
    for name, capability, kind, text, label, multi in zip(*columns, strict=True):
        content = _parsed(text)
        if multi is False and isinstance(text, str) and len(content) != 2:
            content = text
        if kind not in _KINDS:
            unread[f"type {kind!r} is not MFT, INV or DIR"] += 1
        elif not name or not content or not isinstance(content, (str, list)):
            unread["no test, or no text as input"] += 1
        elif multi and isinstance(content, str):
            unread["the input is not a JSON list, and multi is true"] += 1
        else:
            key = (capability or "", name, kind)
            suite.setdefault(key, []).append(_Case(content, multi, _label(label)))
    return suite


def _parsed(text: Any) -> Any:
    """Return the list that a text is in JSON, else the text: it may begin with a bracket."""
    try:
        content = json.loads(text) if isinstance(text, str) and text.startswith("[") else text
    except ValueError:
        return text
    return content if isinstance(content, list) else text


def _label(label: Any) -> Any:
    """Return a label, or a list of one for each input; None where there is none."""
    if isinstance(label, float):
        return None if label != label else int(label) if label.is_integer() else label  # noqa: PLR0124
    return None if label == "" else _parsed(label)


def _is_pair(value: Any) -> bool:
    return isinstance(value, (list, tuple)) and len(value) == 2


def _is_flat(case: _Case) -> bool:
    """Whether an input is a list of texts: a pair, or variants of a text."""
    return isinstance(case.content, list) and not all(map(_is_pair, case.content))


def _inputs(case: _Case, *, are_pairs: bool) -> list[Text]:
    """Return the inputs of a case; ``are_pairs`` says what two texts are where ``multi`` does not."""
    if isinstance(case.content, str):
        return [case.content]
    if not _is_flat(case):
        return [(str(first), str(second)) for first, second in case.content]
    if case.multi or (case.multi is None and not are_pairs):
        return [str(text) for text in case.content]
    first, second = case.content
    return [(str(first), str(second))]


def _table(path: str) -> pa.Table:
    if not path.endswith((".parquet", ".csv")):
        raise FileError(
            f"{path}: a suite is a table, .parquet or .csv, with the columns test, capability, type, input and "
            "label; the how-to of test trees shows how CheckList writes one"
        )
    try:
        with open_input(storage_path(path)) as stream:
            data = stream.read()
        if path.endswith(".parquet"):
            return pq.read_table(io.BytesIO(data))
        return arrow_csv.read_csv(
            io.BytesIO(data),
            parse_options=arrow_csv.ParseOptions(newlines_in_values=True),
            convert_options=arrow_csv.ConvertOptions(
                column_types=dict.fromkeys(_COLUMNS, pa.string())
            ),
        )
    except (FileNotFoundError, IsADirectoryError, PermissionError) as error:
        raise FileError(f"{path}: no such file that can be read") from error
    except (pa.ArrowException, OSError) as error:
        raise FileError(f"{path}: it can't be read ({' '.join(str(error).split())})") from error


def read_expectations(path: str | None) -> SuiteExpectations:
    """Return what a YAML file says: ``classes``, and ``tests`` by name."""
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
    for name, said in tests.items():
        for text in said.values() if isinstance(said, dict) else [said]:
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


def _judged(
    topic: str,
    place: int,
    inputs: list[Text],
    labels: list[Any],
    said: str | None,
    expectations: SuiteExpectations,
) -> list[Test]:
    """Return the test of a case of MFT, which each of its inputs has to pass; one for each label."""
    by_label: dict[tuple[str, str], list[Text]] = {}
    name, output = _parted(said) if said else (OUTPUTS, "")
    for text, label in zip(inputs, labels, strict=True):
        if said:
            by_label.setdefault((name, output), []).append(text)
        elif label is not None:
            by_label.setdefault((name, expectations.label(label)), []).append(text)
    tests = []
    for number, ((name, output), (first, *others)) in enumerate(by_label.items()):
        columns = {"expectation": name}
        if output:
            columns = {"output": output, "label": PASS if name == OUTPUTS else FAIL}
        columns["other_inputs"] = as_value(others) if others else ""
        tests.append(_test(topic, "MFT", f"{place}.{number}", first, **columns))
    return tests


def _test(topic: str, kind: str, place: str, text: Text, **columns: Any) -> Test:
    """Return the test of an input, whose id is the same in every import of the suite."""
    first, second = text if isinstance(text, tuple) else (text, "")
    return Test(
        topic,
        first,
        second_input=second,
        labeler="checklist",
        description=f"{kind} {place}",
        id=uuid.uuid5(_IDS, f"{topic} {place}").hex,
        **columns,
    )
