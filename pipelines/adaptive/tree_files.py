"""Reads and writes test trees as CSV in the form of AdaTest.

The header is ``,topic,input,output,label,labeler,description``, the first column has the ids. Columns and
labels that are not known are kept. Everything is text; what is empty stays empty. The older form
``topic,type,value1,value2,value3``, whose types are such as ``{} should output {}``, is read, and written
as the newer one.
"""

from __future__ import annotations

import csv
import gzip
import io
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from slicebeam.metrics.errors import FileError, SlicebeamError, unknown_name
from slicebeam.pipelines.adaptive.expectations import NOT_HIGHER
from slicebeam.pipelines.adaptive.tree import ADATEST, COLUMNS, ID, TOPIC_MARKER, TestTree
from slicebeam.transforms.formats.csv_columns import read_csv_blocks
from slicebeam.transforms.formats.raw_text import open_bytes
from slicebeam.transforms.storage.storage import storage_errors, storage_path, written_whole

# What the columns of the older form are here.
_OLDER = {"type": "expectation", "value1": "input", "value2": "value"}
_NOT_MORE = "{} should not be more {} than {}"
_HEADER = f"its header is as of AdaTest: ,{','.join(ADATEST)}"
# What pickles begin with, and no text does.
_PICKLE = b"\x80"
_QUOTE, _COMMA, _NOTHING = (pa.scalar(sign, pa.large_string()) for sign in ('"', ",", ""))


def read_tree(path: str) -> TestTree:
    """Return the test tree in a CSV file, local or in object storage; ``.gz`` is gzip."""
    with open_bytes(path) as stream:
        data = stream.read()
    names, lines = _header(path, data)
    is_older = "value1" in names and "input" not in names
    for name in ("topic", "type", "value1") if is_older else ("input", "output", "label"):
        if name not in names:
            error = unknown_name("column", name, names)
            raise FileError(f"{path} is not a test tree: {error}; {_HEADER}")
    if is_older:
        names = [_OLDER.get(name, name) for name in names]
    names = [ID, *names[1:]]
    table = pa.table({name: pa.array([], pa.string()) for name in names})
    if data.split(b"\n", lines)[lines:] not in ([], [b""]):
        blocks = read_csv_blocks(
            path.removesuffix(".gz"),
            column_names=names,
            skip_rows=lines,
            open_file=lambda _: io.BytesIO(data),
        )
        try:
            table = pa.concat_tables(blocks).combine_chunks()
        except SlicebeamError as error:
            # Trees have no options for their columns.
            reason = str(error).partition("; the first line may not be data")[0]
            raise type(error)(reason.replace("--column-names has", "the header has")) from error
    notes = []
    if is_older:
        table = _of_older(table)
        notes.append(f"{path} has AdaTest's older form; it is written in the newer one")
    return TestTree.of(
        _at_the_root(table, path, notes),
        header=() if is_older else tuple(names[1:]),
        notes=tuple(notes),
        where=path,
    )


def _header(path: str, data: bytes) -> tuple[list[str], int]:
    """Return the names in the first record, and the number of its lines."""
    if data.startswith(_PICKLE):
        raise FileError(
            f'{path} is a pickle, whose code could run; save the tree as CSV in AdaTest: tree.to_csv("tests.csv")'
        )
    text = io.TextIOWrapper(io.BytesIO(data), "utf-8-sig", newline="")
    reader = csv.reader(text)
    try:
        names = next(reader, [])
    except (csv.Error, UnicodeDecodeError) as error:
        raise FileError(f"{path} is not a CSV file in UTF-8 ({error})") from error
    if len(set(names)) < len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise FileError(f"{path}: the header has two columns named {twice!r}; rename one")
    if not names or ID in names[1:] or names[0] in (*COLUMNS[1:], *_OLDER):
        raise FileError(
            f"{path}: the first column of a test tree has the ids of the tests; {_HEADER}"
        )
    return names, reader.line_num


def _at_the_root(table: pa.Table, path: str, notes: list[str]) -> pa.Table:
    """Return a table in which what is not a topic is the root, as AdaTest reads it, and note it."""
    if "topic" not in table.column_names:
        return table
    topics = pc.fill_null(table["topic"], "")
    good = pc.or_(pc.equal(topics, ""), pc.starts_with(topics, "/"))
    wrong = topics.filter(pc.invert(good))
    if not len(wrong):
        return table
    notes.append(
        f"{path}: rows at the root since their topic does not begin with a slash: {len(wrong):,}; the "
        f"first is {wrong[0].as_py()!r}"
    )
    at = table.schema.get_field_index("topic")
    return table.set_column(at, "topic", pc.if_else(good, topics, ""))


def _of_older(table: pa.Table) -> pa.Table:
    """Return the columns of the older form as those of the newer one."""
    columns = {name: pc.fill_null(table[name], "") for name in table.column_names}
    kinds = columns["expectation"]
    is_marker = pc.equal(kinds, TOPIC_MARKER)
    plain = pc.utf8_trim_whitespace(pc.replace_substring(kinds, "{}", ""))
    if "value3" in columns:
        # The class stands between the inputs: {} should not be more {} than {}.
        compares = pc.equal(kinds, _NOT_MORE)
        named = pc.binary_join_element_wise(f"{NOT_HIGHER} (class=", columns["value"], ")", "")
        plain = pc.if_else(compares, named, plain)
        columns["value"] = pc.if_else(compares, columns["value3"], columns["value"])
        columns["value3"] = pc.if_else(compares, "", columns["value3"])
    columns["expectation"] = pc.if_else(is_marker, "", plain)
    columns["label"] = pc.if_else(is_marker, TOPIC_MARKER, columns.get("label", ""))
    return pa.table(columns)


def write_tree(tree: TestTree, path: str) -> bytes:
    """Write a tree as CSV, atomically, and return what was written; ``.gz`` is gzip.

    Missing topic markers are added; suggestions are not saved.
    """
    data = to_csv(tree)
    if path.endswith(".gz"):
        data = gzip.compress(data, mtime=0)
    target = storage_path(path)
    with storage_errors(target, "write"), written_whole(target) as stream:
        stream.write(data)
    return data


def to_csv(tree: TestTree) -> bytes:
    """Return the bytes of a tree's file: the columns that it was read with, and those that are used."""
    tree = tree.without_suggestions().with_markers()
    names = list(tree.header or ADATEST)
    for name in tree.table.column_names:
        if name not in (ID, *names) and pc.any(pc.not_equal(tree.table[name], "")).as_py():
            names.append(name)
    columns = [_quoted(tree.table[name].combine_chunks()) for name in (ID, *names)]
    rows = pc.binary_join_element_wise(*columns, _COMMA).to_pylist()
    header = ",".join(["", *_quoted(pa.array(names, pa.string())).to_pylist()])
    return "\n".join([header, *rows, ""]).encode()


def _quoted(column: Any) -> Any:
    """Return values as CSV has them: in quotes where they hold a comma, a quote or a line end."""
    column = column.cast(pa.large_string())
    needs = pc.match_substring_regex(column, r'[,"\r\n]')
    if not pc.any(needs).as_py():
        return column
    doubled = pc.replace_substring(column, '"', '""')
    return pc.if_else(needs, pc.binary_join_element_wise(_QUOTE, doubled, _QUOTE, _NOTHING), column)
