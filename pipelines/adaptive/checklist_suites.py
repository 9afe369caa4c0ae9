"""Reads CheckList's suites: tables, the pickles of its releases, and raw text files."""

from __future__ import annotations

import gzip
import io
import json
import tarfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Literal

import pyarrow as pa
import pyarrow.parquet as pq
from pyarrow import csv as arrow_csv
from pyarrow import json as arrow_json

from slicebeam.metrics.errors import FileError, unknown_name
from slicebeam.pipelines.adaptive.inert_pickle import Inert, read_inert
from slicebeam.pipelines.adaptive.text_models import Text
from slicebeam.transforms.storage.storage import storage_path

Kind = Literal["MFT", "INV", "DIR", ""]
KINDS: tuple[Kind, ...] = ("MFT", "INV", "DIR")
_NEEDED = ("test", "capability", "type", "input")


@dataclass(frozen=True)
class SuiteTest:
    """A test of a suite: many cases of one expectation.

    Attributes
    ----------
    name, capability : what it is called, and under what
    kind : MFT, INV or DIR; empty where nothing is known
    cases : of each the inputs, the original first
    labels : of each case, or of each of its inputs; None where there is none
    """

    name: str
    capability: str
    kind: Kind
    cases: list[list[Text]] = field(default_factory=list)
    labels: list[Any] = field(default_factory=list)


def read_suite(path: str) -> list[SuiteTest]:
    """Return the tests of a suite: .parquet, .csv, .jsonl, .pkl, .tar.gz or .txt.

    Raises
    ------
    InputError
        The file is missing, or no suite.
    """
    file = storage_path(path)
    try:
        with file.open("rb") as stream:
            data = stream.read()
    except (FileNotFoundError, IsADirectoryError, PermissionError) as error:
        raise FileError(f"{path}: no such file that can be read") from error
    name = path.removesuffix(".gz")
    if name.endswith((".tar", ".tgz")) or path.endswith(".tar.gz"):
        name, data = _packed(path, data)
    elif path.endswith(".gz"):
        data = gzip.decompress(data)
    if name.endswith((".pkl", ".pickle")):
        return list(_of_pickle(path, data))
    if name.endswith(".txt"):
        return [_of_lines(path, data)]
    return list(_of_table(path, _table(path, name, data)))


def _packed(path: str, data: bytes) -> tuple[str, bytes]:
    """Return the one file in an archive that is a suite."""
    with tarfile.open(fileobj=io.BytesIO(data)) as archive:
        names = [one for one in archive.getmembers() if one.isfile()]
        suites = [one for one in names if one.name.endswith((".pkl", ".pickle", ".parquet"))]
        stream = archive.extractfile(suites[0]) if len(suites) == 1 else None
        if stream is None:
            raise FileError(
                f"{path}: it holds {len(suites)} suites (.pkl or .parquet) where one is expected; unpack it, "
                "and name a file"
            )
        return suites[0].name, stream.read()


def _table(path: str, name: str, data: bytes) -> pa.Table:
    try:
        if name.endswith(".parquet"):
            return pq.read_table(io.BytesIO(data))
        if name.endswith(".csv"):
            parse = arrow_csv.ParseOptions(newlines_in_values=True)
            return arrow_csv.read_csv(io.BytesIO(data), parse_options=parse)
        if name.endswith((".jsonl", ".json")):
            return arrow_json.read_json(io.BytesIO(data))
    except (pa.ArrowException, OSError) as error:
        raise FileError(f"{path}: it can't be read ({' '.join(str(error).split())})") from error
    raise FileError(
        f"{path}: a suite is a table (.parquet, .csv, .jsonl), a pickle of CheckList (.pkl, .tar.gz) or lines "
        "of examples (.txt)"
    )


def _of_table(path: str, table: pa.Table) -> Iterator[SuiteTest]:
    for name in _NEEDED:
        if name not in table.column_names:
            raise FileError(f"{path}: {unknown_name('column', name, table.column_names)}")
    found: dict[tuple[str, str], SuiteTest] = {}
    columns = [table[name].to_pylist() for name in _NEEDED]
    rows = table.num_rows
    labels, listed, multi = (
        table[name].to_pylist() if name in table.column_names else [None] * rows
        for name in ("label", "label_json", "multi")
    )
    for place, (name, capability, kind, text) in enumerate(zip(*columns, strict=True)):
        if kind not in KINDS:
            raise FileError(f"{path}, row {place + 1}: type {kind!r} is none of MFT, INV and DIR")
        test = found.setdefault((capability, name), SuiteTest(name, capability, kind))
        label = labels[place]
        if isinstance(label, float):
            label = None if label != label else int(label) if label.is_integer() else label  # noqa: PLR0124
        if (written := listed[place]) is not None:
            label = json.loads(written)
        test.cases.append(_inputs(path, place, text, is_multi=bool(multi[place])))
        test.labels.append(label)
    yield from found.values()


def _inputs(path: str, place: int, text: str, *, is_multi: bool) -> list[Text]:
    """Return the inputs of a case: a text, a pair, or a list of either."""
    if not is_multi and not text.startswith("["):
        return [text]
    try:
        content = json.loads(text)
    except ValueError as error:
        if not is_multi:
            return [text]
        raise FileError(f"{path}, row {place + 1}: the input is no JSON list ({error})") from error
    if is_multi and isinstance(content, list) and content:
        return [_text(one) for one in content]
    is_pair = isinstance(content, list) and len(content) == 2
    return [_text(content)] if is_pair and not is_multi else [text]


def _text(value: Any) -> Text:
    if isinstance(value, (list, tuple)) and len(value) == 2:
        return (str(value[0]), str(value[1]))
    return str(value)


def _of_lines(path: str, data: bytes) -> SuiteTest:
    """Return the examples of a raw file, which says of none what is expected."""
    lines = [line for line in data.decode("utf-8", "replace").splitlines() if line.strip()]
    name = path.rpartition("/")[2].removesuffix(".gz").removesuffix(".txt")
    return SuiteTest(name, "", "", [[line] for line in lines], [None] * len(lines))


def _of_pickle(path: str, data: bytes) -> Iterator[SuiteTest]:
    suite = read_inert(io.BytesIO(data), path)
    tests = suite.state.get("tests") if isinstance(suite, Inert) else None
    info = suite.state.get("info") if isinstance(suite, Inert) else None
    if not isinstance(tests, dict):
        raise FileError(f"{path}: the pickle holds no suite of CheckList")
    about = info.items if isinstance(info, Inert) else info if isinstance(info, dict) else {}
    for name, test in tests.items():
        kind = test.name.rpartition(".")[2] if isinstance(test, Inert) else ""
        if kind not in KINDS:
            raise FileError(
                f"{path}: the test {name!r} is a {kind or type(test).__name__}, none of MFT, INV, DIR"
            )
        content = test.state
        said = about.get(name)
        capability = said.get("capability") if isinstance(said, dict) else None
        cases = [
            [_text(one) for one in case] if isinstance(case, list) else [_text(case)]
            for case in _values(content.get("data"))
        ]
        labels = _plain(content.get("labels"))
        if not isinstance(labels, list):
            labels = [labels] * len(cases)
        yield SuiteTest(
            str(name), str(capability or content.get("capability") or ""), kind, cases, labels
        )


def _values(data: Any) -> list[Any]:
    return list(data) if isinstance(data, (list, tuple)) else []


def _plain(value: Any) -> Any:
    """Return a label, of which numpy may have made a scalar; None for what is no label."""
    if isinstance(value, (list, tuple)):
        return [_plain(one) for one in value]
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, Inert) and value.name == "scalar" and len(value.arguments) == 2:
        kind, raw = value.arguments
        code = kind.arguments[0] if isinstance(kind, Inert) and kind.arguments else ""
        if isinstance(raw, bytes) and isinstance(code, str) and code[:1] in "iu":
            return int.from_bytes(raw, "little", signed=code.startswith("i"))
    return None
