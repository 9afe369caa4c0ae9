"""Reads and writes the CSV of AdaTest: what nobody touched is written byte for byte as it was read.

Two forms are known: ``topic,input,output,label,labeler,description`` after an index of ids, and the
older ``topic,type,value1,value2,value3``, whose types are such as ``{} should output {}``. Columns
and labels that are not known are kept. Everything is text; what is empty stays empty.
"""

from __future__ import annotations

import csv
import gzip
import io
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from slicebeam.metrics.errors import FileError, unknown_name
from slicebeam.pipelines.adaptive.expectations import OUTPUTS, OUTPUTS_NOT
from slicebeam.pipelines.adaptive.tree import COLUMNS, FAIL, ID, PASS, TOPIC_MARKER, TestTree
from slicebeam.transforms.formats.csv_columns import read_csv_blocks
from slicebeam.transforms.formats.raw_text import open_bytes
from slicebeam.transforms.storage.storage import storage_errors, storage_path, written_whole

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

# What the columns of the older form are here.
_OLDER = {"type": "expectation", "value1": "input", "value2": "value"}
_HEADER = ("", "topic", "input", "output", "label", "labeler", "description")
_BOM = b"\xef\xbb\xbf"


@dataclass(frozen=True)
class TreeSource:
    """The file that a tree was read from.

    Attributes
    ----------
    header : its first line, with the end of the line
    names : what its columns are called here, in its order
    is_older : whether it has the older form
    records : the rows as they are written, with the ends of their lines; large binary [rows]
    table : what was read
    notes : what a user should know about the file
    """

    header: bytes
    names: tuple[str, ...]
    is_older: bool
    records: pa.Array
    table: pa.Table
    notes: tuple[str, ...] = ()

    @property
    def line_end(self) -> str:
        """How lines end in it."""
        return "\r\n" if self.header.endswith(b"\r\n") else "\n"


def read_tree(path: str) -> TestTree:
    """Return the test tree in a CSV file, local or in object storage; ``.gz`` is gzip.

    Raises
    ------
    InputError
        The file is missing or no CSV, it lacks columns of a test tree, or an id occurs twice.
    """
    with open_bytes(path) as stream:
        data = stream.read()
    header, names = _header(path, data)
    is_older = "value1" in names and "input" not in names
    wanted = ("topic", "type", "value1") if is_older else ("input", "output", "label")
    for name in wanted:
        if name not in names:
            error = unknown_name("column", name, names)
            raise FileError(
                f"{path} is no test tree: {error}; its header is as of AdaTest: ,{','.join(_HEADER[1:])}"
            )
    own = tuple(_OLDER.get(name, name) if is_older else name for name in names)
    own = (ID, *own[1:])
    lines = header.count(b"\n") or 1
    blocks = (
        list(
            read_csv_blocks(
                # What was gzip is not any more.
                path.removesuffix(".gz"),
                column_names=own,
                skip_rows=lines,
                open_file=lambda _: io.BytesIO(data),
            )
        )
        if len(data) > len(header)
        else []
    )
    table = (
        pa.concat_tables(blocks)
        if blocks
        else pa.table({name: pa.array([], pa.string()) for name in own})
    )
    records = _records(data, len(header))
    if len(records) != table.num_rows:
        raise FileError(
            f"{path}: a quote stands within a value that is not in quotes, so that rows can't be told "
            'apart; put the value in quotes and double its quotes, as in "5"" wide"'
        )
    if is_older:
        table = _of_older(table)
    table, notes = _with_topics(table, path)
    tree = TestTree.of(table, where=path)
    return TestTree(tree.table, TreeSource(header, own, is_older, records, tree.table, notes))


def _with_topics(table: pa.Table, path: str) -> tuple[pa.Table, tuple[str, ...]]:
    """Return a table whose topics are some, as AdaTest reads them, and what to say of others."""
    table = table.combine_chunks()
    if "topic" not in table.column_names:
        return table, ()
    topics = pc.fill_null(table["topic"], "").combine_chunks()
    good = pc.or_(pc.equal(topics, ""), pc.starts_with(topics, "/"))
    if pc.all(good).as_py() is not False:
        return table, ()
    wrong = topics.filter(pc.invert(good))
    note = (
        f"{path}: rows at the root since their topic does not begin with a slash: {len(wrong):,}; the "
        f"first is {wrong[0].as_py()!r}"
    )
    at = table.schema.get_field_index("topic")
    return table.set_column(at, "topic", pc.if_else(good, topics, "")), (note,)


def _header(path: str, data: bytes) -> tuple[bytes, list[str]]:
    """Return the first record, and the names in it."""
    ends = _record_ends(np.frombuffer(data, np.uint8))
    header = data[: int(ends[0])] if ends.size else data
    try:
        names = next(
            csv.reader(io.StringIO(header.removeprefix(_BOM).decode("utf-8"), newline="")), []
        )
    except (csv.Error, UnicodeDecodeError) as error:
        raise FileError(f"{path}: the header can't be read ({error})") from error
    if len(set(names)) < len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise FileError(f"{path}: the header has two columns named {twice!r}; rename one")
    if not names or ID in names[1:] or names[0] in (*COLUMNS[1:], *_OLDER):
        raise FileError(
            f"{path}: the first column of a test tree has the ids of the tests; its header is as of "
            f"AdaTest: ,{','.join(_HEADER[1:])}"
        )
    return header, names


def _record_ends(data: NDArray[np.uint8]) -> NDArray[np.int64]:
    """Return where the records of a CSV end: after each line end that is in no quotes."""
    lines = np.flatnonzero(data == ord("\n"))
    quotes = np.flatnonzero(data == ord('"'))
    ends = lines[np.searchsorted(quotes, lines) % 2 == 0] + 1
    if data.size and (not ends.size or ends[-1] < data.size):
        ends = np.append(ends, data.size)
    return ends


def _records(data: bytes, begin: int) -> pa.Array:
    """Return the records from a place on, without empty lines."""
    ends = _record_ends(np.frombuffer(data, np.uint8))
    ends = ends[ends >= begin]
    offsets = pa.py_buffer(ends.astype(np.int64).tobytes())
    records = pa.Array.from_buffers(
        pa.large_binary(), max(len(ends) - 1, 0), [None, offsets, pa.py_buffer(data)]
    )
    lengths = np.diff(ends)
    short = np.flatnonzero(lengths <= 2)
    empty = (
        short[[not records[int(one)].as_py().strip(b"\r\n") for one in short]]
        if short.size
        else short
    )
    if empty.size:
        records = records.take(pa.array(np.setdiff1d(np.arange(len(records)), empty)))
    return records


def _of_older(table: pa.Table) -> pa.Table:
    """Return the columns of the older form as those of the newer one."""
    kinds = pc.fill_null(table["expectation"], "")
    marker = pc.equal(kinds, TOPIC_MARKER)
    plain = pc.utf8_trim_whitespace(pc.replace_substring(kinds, "{}", ""))
    table = table.set_column(
        table.column_names.index("expectation"), "expectation", pc.if_else(marker, "", plain)
    )
    label = pc.fill_null(table["label"], "") if "label" in table.column_names else pa.scalar("")
    labels = pc.if_else(marker, TOPIC_MARKER, label)
    if "label" in table.column_names:
        return table.set_column(table.column_names.index("label"), "label", labels)
    return table.append_column("label", labels)


def write_tree(tree: TestTree, path: str) -> None:
    """Write a tree as CSV, atomically: rows as they were read, unless something in them changed.

    Missing topic markers are added; suggestions are not saved. ``.gz`` is gzip, as it is read.

    Raises
    ------
    InputError, EngineError
        The file can't be written.
    """
    data = to_csv(tree)
    if path.endswith(".gz"):
        data = gzip.compress(data, mtime=0)
    target = storage_path(path)
    with storage_errors(target, "write"), written_whole(target) as stream:
        stream.write(data)


def to_csv(tree: TestTree) -> bytes:
    """Return the bytes of a tree's file."""
    tree = tree.without_suggestions().with_markers()
    source = tree.source
    if not isinstance(source, TreeSource):
        names = tuple(name for name in tree.table.column_names if name != ID)
        names = tuple(name for name in names if name in _HEADER or _is_used(tree.table[name]))
        rows = _rendered(tree.table.select([ID, *names]), "\n")
        return _joined(_line(["", *names]) + "\n", rows)
    table, before = tree.table, source.table
    if source.is_older:
        table, before = (_as_older(one, source.names) for one in (table, before))
    place = pc.index_in(table[ID].combine_chunks(), before[ID].combine_chunks())
    known = place.fill_null(0).to_numpy()
    unchanged = place.is_valid().to_numpy(zero_copy_only=False).copy()
    added = []
    for name in table.column_names:
        now = table[name].combine_chunks()
        if name in before.column_names and len(before):
            same = pc.equal(now, before[name].take(pa.array(known)).combine_chunks())
            is_same = same.to_numpy(zero_copy_only=False)
        else:
            is_same = pc.equal(now, "").to_numpy(zero_copy_only=False)
        if name in source.names:
            unchanged &= is_same
        elif not (is_same | (now.to_numpy(zero_copy_only=False) == "")).all():
            added.append(name)
    return _with_source(source, table, known, unchanged, added)


def _with_source(
    source: TreeSource,
    table: pa.Table,
    known: NDArray[np.int64],
    unchanged: NDArray[np.bool_],
    added: list[str],
) -> bytes:
    """Return the bytes of a file, with the rows that did not change as they were.

    Parameters
    ----------
    known : which row of the source each row was; [rows], int64
    unchanged : whether it still is; [rows]
    added : columns that the source has not
    """
    if not added and unchanged.all():
        # The last line may have had no end.
        records = source.records.take(pa.array(known))
        return _joined(source.header.decode("utf-8"), records)
    end = source.line_end
    header = source.header.decode("utf-8").rstrip("\r\n")
    if added:
        header += f",{_line(added)}"
    rendered = _rendered(table.select(list(source.names)).filter(pa.array(~unchanged)), "")
    kept = source.records.take(pa.array(known[unchanged])).cast(pa.large_string())
    kept = pc.replace_substring_regex(kept, r"\r?\n\z", "")
    order = np.argsort(np.argsort(~unchanged, kind="stable"), kind="stable")
    rows = pa.concat_arrays([kept, rendered]).take(pa.array(order))
    if added:
        rows = pc.binary_join_element_wise(rows, _rendered(table.select(added), ""), _text(","))
    return _joined(header + end, pc.binary_join_element_wise(rows, _text(end), _text("")))


def _as_older(table: pa.Table, names: tuple[str, ...]) -> pa.Table:
    """Return a table whose expectations are types, such as ``{} should output {}``.

    A label of a person says the same as a type, unless the file has a column for it.
    """
    label, output = table["label"], table["output"]
    judged = pc.and_(pc.equal(table["expectation"], ""), pc.is_in(label, pa.array([PASS, FAIL])))
    judged = pc.and_(judged, pc.not_equal(output, ""))
    if "label" in names:
        judged = pc.and_(judged, pa.scalar(False))
    kind = pc.if_else(
        judged, pc.if_else(pc.equal(label, PASS), OUTPUTS, OUTPUTS_NOT), table["expectation"]
    )
    marker = pc.equal(label, TOPIC_MARKER)
    types = pc.binary_join_element_wise("{} ", kind, " {}", "")
    types = pc.if_else(marker, TOPIC_MARKER, pc.if_else(pc.equal(kind, ""), "", types))
    columns: dict[str, Any] = {name: table[name] for name in table.column_names}
    columns["expectation"] = types
    columns["value"] = pc.if_else(judged, output, table["value"])
    columns["label"] = pc.if_else(pc.or_(marker, judged), "", label)
    columns["output"] = pc.if_else(judged, "", output)
    return pa.table(columns)


def _is_used(column: Any) -> bool:
    return bool(pc.any(pc.not_equal(column, "")).as_py())


def _rendered(table: pa.Table, end: str) -> Any:
    """Return rows as CSV, quoted where a value needs it; large strings."""
    columns = [_quoted(column.combine_chunks()) for column in table.columns]
    joined = pc.binary_join_element_wise(*columns, _text(","))
    return pc.binary_join_element_wise(joined, _text(end), _text(""))


def _quoted(column: Any) -> Any:
    column = column.cast(pa.large_string())
    needs = pc.match_substring_regex(column, r'[,"\r\n]')
    if not pc.any(needs).as_py():
        return column
    doubled = pc.replace_substring(column, '"', '""')
    return pc.if_else(
        needs, pc.binary_join_element_wise(_text('"'), doubled, _text('"'), _text("")), column
    )


def _text(text: str) -> Any:
    return pa.scalar(text, pa.large_string())


def _line(names: Sequence[str]) -> str:
    """Return names as a line of CSV, without its end."""
    return ",".join(_quoted(pa.array(names, pa.string())).to_pylist())


def _joined(header: str, rows: Any) -> bytes:
    """Return a header and rows one after another."""
    parts = [header.encode("utf-8")]
    for chunk in rows.chunks if isinstance(rows, pa.ChunkedArray) else [rows]:
        if len(chunk):
            _, ends, data = chunk.buffers()
            bounds = np.frombuffer(ends, np.int64)[chunk.offset : chunk.offset + len(chunk) + 1]
            parts.append(data.slice(int(bounds[0]), int(bounds[-1] - bounds[0])).to_pybytes())
    return b"".join(parts)
