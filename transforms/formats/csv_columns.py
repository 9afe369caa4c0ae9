"""CSV files as blocks of text columns."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from itertools import islice
from typing import BinaryIO

import pyarrow as pa

from slicebeam.metrics.errors import FileError, InputError, delimiter_hint
from slicebeam.transforms.formats.raw_text import (
    LARGEST_BLOCK,
    beginning,
    open_bytes,
    open_stored,
    require_text,
    require_text_file,
    require_whole_gzip,
)

_SHOWN = 80
# What Arrow says of a row whose length is wrong, and the beginning of its text.
_WRONG_LENGTH = re.compile(r"Row #(\d+): Expected (\d+) columns, got (\d+): (.*)", re.DOTALL)


class _Body:
    """The bytes after the header as a file for Arrow; always ends in a line end."""

    closed = False

    def __init__(self, head: bytes, stream: BinaryIO, lines: int, delimiter: str) -> None:
        # Arrow takes a byte order mark away from where it begins, which here is a value's own.
        self._head = b"\xef\xbb\xbf" + head if head.startswith(b"\xef\xbb\xbf") else head
        self._stream = stream
        self.lines = lines
        self._opening = f'{delimiter}"'.encode()
        self.tail = b""
        self._quotes = 0

    def read(self, size: int = -1) -> bytes:
        if self._head:
            data, self._head = self._head[:size], self._head[size:]
            data += self._stream.read(size - len(data))
        else:
            data = self._stream.read(size)
        if len(data) > 1 and data.endswith(b"\r"):
            # Of a carriage return and a line feed in two reads Arrow drops the latter, in a value too.
            self._head, data = b"\r" + self._head, data[:-1]
        if not data and not self.tail.endswith(b"\n"):
            data = b"\n"
        self.lines += data.count(b"\n")
        self._quotes += data.count(b'"')
        self.tail = (self.tail + data[-_SHOWN:])[-_SHOWN:]
        return data

    def close(self) -> None:
        self.closed = True

    def opens_quote(self, last: str | None) -> bool:
        """Whether the last value of the file began with a quote that never closes."""
        # The body ends in a line end, so such a value holds everything up to the end.
        if last is None or not last.endswith(("\n", "\r")):
            return False
        written = last.replace('"', '""').encode()
        if written.strip(b"\r\n"):
            begins = [written[-_SHOWN:]]
        else:
            begins = [self._opening + written]
            # Alone on its line, a quote that opens looks like one that closes, which has a partner.
            if self._quotes % 2:
                begins += [b'\n"' + written, b'\r"' + written]
        # Of a carriage return and the line end that was added, Arrow leaves the first only.
        ends = tuple((one + added)[-_SHOWN:] for one in begins for added in (b"", b"\n"))
        return (b"\n" + self.tail).endswith(ends)


def _begin(
    stream: BinaryIO, path: str, column_names: Sequence[str] | None, skip_rows: int, delimiter: str
) -> tuple[list[str], _Body]:
    """Read the lines before the first row of data: the names and the bytes that follow."""
    head = b""
    size = 1 << 16
    while True:
        head += stream.read(size)
        more = stream.read(1)
        head += more
        ended = not more
        text_bytes = head.removeprefix(b"\xef\xbb\xbf")
        # A block may end within a character: the incomplete one waits for the next bytes.
        complete = text_bytes if ended else text_bytes[: text_bytes.rfind(b"\n") + 1]
        require_text(complete, path, 1)
        lines = iter(io.StringIO(complete.decode("utf-8"), newline=""))
        consumed: list[str] = list(islice(lines, skip_rows))
        if column_names is not None:
            _refuse_header(lines, path, column_names, skip_rows, delimiter)
        rows = csv.reader(_remember(lines, consumed), delimiter=delimiter)
        try:
            names = list(column_names) if column_names is not None else next(filter(None, rows), [])
        except csv.Error as error:
            raise InputError(f"{path}: the header cannot be read ({error})") from error
        used = len("".join(consumed).encode("utf-8"))
        if ended or used < len(complete):
            body = text_bytes[used:]
            if ended and column_names is None and not body:
                _require_closed("".join(consumed[skip_rows:]), path, delimiter)
            if not names or (column_names is not None and ended and not body.strip(b"\r\n")):
                raise FileError(f"{path}: the file is empty; a CSV file starts with a header")
            return names, _Body(body, stream, len(consumed), delimiter)
        if len(head) > LARGEST_BLOCK:
            raise InputError(f"{path}: the header does not end within 256 MB; is this a CSV file?")
        size = len(head)


def _refuse_header(
    lines: Iterable[str], path: str, column_names: Sequence[str], skip_rows: int, delimiter: str
) -> None:
    """Raise an InputError where the first line of data is the names that were given."""
    filled = (one for one in enumerate(lines, skip_rows + 1) if one[1].strip("\r\n"))
    number, line = next(filled, (0, ""))
    # What can't be read is not a header; Arrow says what is wrong with it.
    with suppress(csv.Error):
        if line and next(csv.reader([line], delimiter=delimiter), []) == list(column_names):
            raise InputError(
                f"{path}, line {number}: the file starts with the names given by --column-names; "
                f"leave --column-names out, or give --skip-rows {number}"
            )


def _require_closed(header: str, path: str, delimiter: str) -> None:
    """Raise an InputError where a quote in a file of a header only is never closed."""
    # What follows a quote that is open belongs to its value.
    *_, last = csv.reader(io.StringIO(f"{header}\nend", newline=""), delimiter=delimiter)
    if last != ["end"]:
        raise InputError(
            f"{path}: a quote in the header is never closed: {beginning(header)!r}; close it or "
            "double it"
        )


def _remember(lines: Iterable[str], consumed: list[str]) -> Iterator[str]:
    for line in lines:
        consumed.append(line)
        yield line


def _require_names(path: str, names: Sequence[str]) -> None:
    where = f"{path}: the header"
    remedy = "rename it, or name all columns with --column-names (and --skip-rows 1 to leave this line out)"
    seen: set[str] = set()
    for place, name in enumerate(names, 1):
        if not name.strip():
            raise InputError(f"{where} has no name for column {place} of {len(names)}; {remedy}")
        if name in seen:
            raise InputError(f"{where} has two columns named {name!r}; {remedy}")
        seen.add(name)


def read_csv_blocks(
    path: str,
    *,
    column_names: Sequence[str] | None = None,
    skip_rows: int = 0,
    delimiter: str = ",",
    block_bytes: int = 16 << 20,
    open_file: Callable[[str], BinaryIO] = open_stored,
) -> Iterator[pa.Table]:
    """Yield a CSV file (gzip if it ends in ``.gz``) as tables of text columns, in file order.

    Values are exactly as written: an unquoted empty field is null, a quoted empty one is ``""``; empty
    lines are left out. A file of a header alone gives one table without rows. `column_names` are those
    of a file without a header, `skip_rows` lines come before the header or the data, and a block grows
    from `block_bytes` up to 256 MB where a single row is longer.
    """
    if column_names is not None:
        _require_names("--column-names", column_names)
    finished = 0
    while True:
        rows_before = finished
        held: pa.Table | None = None
        try:
            with open_bytes(path, open_file) as stream:
                names, body = _begin(stream, path, column_names, skip_rows, delimiter)
                if column_names is None:
                    _require_names(path, names)
                for table in _arrow_blocks(body, names, block_bytes, delimiter):
                    # After a retry with larger blocks, the rows already given are left out.
                    fresh = table.slice(rows_before) if rows_before else table
                    rows_before -= table.num_rows - fresh.num_rows
                    if fresh.num_rows:
                        if held is not None:
                            finished += held.num_rows
                            yield held
                        held = fresh
                if held is not None:
                    # Arrow reads ahead: what the file ends in is known when all of it was read.
                    last = held[held.num_columns - 1][-1].as_py()
                    if body.opens_quote(last):
                        line = body.lines - last.count("\n") + 1
                        raise InputError(
                            f"{path}, line {line}: a quote opened here is never closed: "
                            f"{beginning(last)!r}; close it or double it"
                        )
                    finished += held.num_rows
                    yield held
                if not finished:
                    yield pa.table({name: pa.array([], pa.string()) for name in names})
                return
        except pa.ArrowInvalid as error:
            if "straddl" in str(error) and block_bytes < LARGEST_BLOCK:
                block_bytes = min(block_bytes * 4, LARGEST_BLOCK)
                continue
            require_whole_gzip(path, open_file)
            # Arrow looks at the lengths of rows before it looks at their text.
            require_text_file(path, open_file)
            found = _WRONG_LENGTH.search(str(error))
            if found:
                with open_bytes(path, open_file) as stream:
                    line = _line_of(stream, skip_rows, delimiter, int(found[2]))
                where = f"line {line}" if line else f"row {found[1]} of the data"
                header = names if column_names is None else None
                what = _length_error(found, header, delimiter, line or skip_rows + 1)
                raise InputError(f"{path}, {where}: {what}") from error
            if "straddl" in str(error):
                read = finished + (0 if held is None else held.num_rows)
                raise InputError(
                    f"{path}: the row after {read} rows of data is longer than 256 MB; is a quote "
                    "never closed?"
                ) from error
            raise InputError(f"{path}: {str(error).splitlines()[0]}") from error


def read_csv_names(
    path: str, column_names: Sequence[str], skip_rows: int, delimiter: str
) -> list[str]:
    """Return the names of the columns of a CSV file; nothing reads ahead where a process may end next."""
    with open_bytes(path, open_stored) as stream:
        return _begin(stream, path, column_names or None, skip_rows, delimiter)[0]


def _arrow_blocks(
    body: _Body, names: list[str], block_bytes: int, delimiter: str
) -> Iterator[pa.Table]:
    from pyarrow import csv as arrow_csv

    reader = arrow_csv.open_csv(
        body,
        # Row numbers of errors are known in a serial read only.
        read_options=arrow_csv.ReadOptions(
            column_names=names, block_size=block_bytes, use_threads=False
        ),
        parse_options=arrow_csv.ParseOptions(delimiter=delimiter, newlines_in_values=True),
        convert_options=arrow_csv.ConvertOptions(
            column_types=dict.fromkeys(names, pa.string()),
            null_values=[""],
            strings_can_be_null=True,
            quoted_strings_can_be_null=False,
        ),
    )
    with reader:
        for batch in reader:
            yield pa.Table.from_batches([batch])


def _length_error(
    wrong: re.Match[str], header: Sequence[str] | None, delimiter: str, line: int
) -> str:
    """Say what is wrong with the length of a row, from what Arrow says, where a header (or none) has others."""
    number, expected, found = map(int, wrong.groups()[:3])
    text = wrong[4]
    if expected == 1 and header is not None:
        first = "the first line may not be a header: --skip-rows or --column-names"
        remedy = delimiter_hint(header) or first
    elif "\n" in text:
        remedy = "is a quote never closed?"
    elif header is None and found < expected and number == 1:
        remedy = f"the first line may not be data: --skip-rows {line}"
    else:
        what = "commas" if delimiter == "," else repr(delimiter)
        remedy = f"put a value that contains {what} in quotes, or correct the row"
    source = "--column-names" if header is None else "the header"
    return (
        f"{found} field{'s' * (found != 1)} where {source} has {expected}: "
        f"{beginning(text)!r}; {remedy}"
    )


def _line_of(stream: BinaryIO, skip_rows: int, delimiter: str, expected: int) -> int | None:
    """Return the number of the first line whose row has another length, if csv finds it."""
    text = io.TextIOWrapper(stream, "utf-8-sig", errors="replace", newline="")
    rows = csv.reader(islice(text, skip_rows, None), delimiter=delimiter)
    before, line = 0, None
    with suppress(csv.Error):
        for row in rows:
            if row and len(row) != expected:
                line = skip_rows + before + 1
                break
            before = rows.line_num
    text.detach()
    return line
