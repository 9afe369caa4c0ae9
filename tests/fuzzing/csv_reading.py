"""CSV as Python's csv module reads it, with what it does not tell: which fields had quotes."""

import csv
import io
import re
import zlib

import pandas as pd

from tests.fuzzing import text_types
from tests.fuzzing.case import Reading, UnjudgedError, UnreadableError

# No character of any text.
_NUL = "\ufdd0"


def unpacked(data):
    out = b""
    while data:
        member = zlib.decompressobj(wbits=31)
        try:
            out += member.decompress(data)
        except zlib.error as error:
            # What follows the last member may be zeros, as on a tape.
            if out and not data.strip(b"\0"):
                return out
            if "unknown header flags" in str(error):
                # Of no consequence: the content has a checksum.
                raise UnjudgedError from error
            raise UnreadableError(f"gzip: {error}") from error
        if not member.eof:
            raise UnreadableError("gzip: the end is missing")
        data = member.unused_data
        if data and not data.strip(b"\0"):
            break
    return out


def decoded(data):
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise UnreadableError(str(error)) from error


def stored(path):
    """Return the content of a file; one whose name ends in ``.gz`` is gzip."""
    return unpacked(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()


# A value with a quote in front and what follows the quote that closes it, or one without, and its end.
_FIELD = re.compile(r'(?:"((?:[^"]|"")*)"(?!")([^,\r\n]*)|(?!")([^,\r\n]*))(,|\r\n|\r|\n|\Z)')


def _fields(text):
    """Return for each row that is not empty its fields, and whether they begin with a quote."""
    found, row, at = [], [], 0
    while at < len(text) or row:
        field = _FIELD.match(text, at)
        if field is None:
            raise UnreadableError("a quote is not closed")
        quoted, rest, plain, end = field.groups()
        is_quoted = quoted is not None
        row.append((quoted.replace('""', '"') + rest if is_quoted else plain, is_quoted))
        at = field.end()
        if end != ",":
            found += [row] if row != [("", False)] else []
            row = []
    return found


def rows(data, *, names=None, skip_rows=0):
    text = "".join(io.StringIO(decoded(data), newline="").readlines()[skip_rows:])
    before = csv.field_size_limit(1 << 30)
    try:
        # The reader of Python 3.10 refuses a NUL.
        read = csv.reader(io.StringIO(text.replace("\0", _NUL), newline=""))
        read_rows = [[cell.replace(_NUL, "\0") for cell in row] for row in read if row]
    finally:
        csv.field_size_limit(before)
    fields = _fields(text)
    if [[value for value, _ in row] for row in fields] != read_rows:
        raise AssertionError("csv and this module do not read the same")
    found = [[value if value or quoted else None for value, quoted in row] for row in fields]
    if names is None:
        if not found:
            raise UnreadableError("no header")
        names = [field or "" for field in found.pop(0)]
    if len(set(names)) < len(names) or not all(name.strip() for name in names):
        raise UnreadableError("names that are empty or occur twice")
    if any(len(row) != len(names) for row in found):
        raise UnreadableError("rows of different lengths")
    return names, found


def read(data, *, names=None, skip_rows=0):
    header, found = rows(data, names=names, skip_rows=skip_rows)
    columns, types = {}, {}
    for place, name in enumerate(header):
        types[name], values = text_types.infer([row[place] for row in found])
        columns[name] = pd.Series(values, dtype=object)
    return Reading(pd.DataFrame(columns), types)
