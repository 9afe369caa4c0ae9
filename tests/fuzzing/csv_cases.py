"""Mutated CSV files, plain and gzip."""

from __future__ import annotations

import gzip
import random
from typing import TYPE_CHECKING

from slicebeam.transforms.formats.csv_columns import read_csv_blocks
from tests.fuzzing import csv_reading, examples
from tests.fuzzing.byte_mutations import damage
from tests.fuzzing.case import Case, Reading, UnreadableError

if TYPE_CHECKING:
    from pathlib import Path

COLUMNS = ("age", "hours", "job", "night", "day", "tags", "label", "pred")
ODD_CELLS = (
    *("", '""', " ", "NA", "nan", "NaN", "None", "null", "-", "+7", "007", "-0", "0x10", "1_000"),
    *("1,5", "1.", ".5", "-.5", "5e3", "1e999", "1e-999", "inf", "-Infinity", "INF", "nan(1)"),
    *("9223372036854775807", "9223372036854775808", "-9223372036854775809", "9007199254740993"),
    *("0.1e", "--1", "1 000", "١٢", "TRUE", "tRue", "yes", "2024-02-29", "2023-02-29"),
    *("2024-01-01T00:00:00Z", "2024-01-01 10:11:12.123456", "2024-01-01T10:11+01:00", "0000-01-01"),
    *("2024-01-01 24:00:00", "2024-01-01T10", "2024-01-01 10:11:12.1234567", "24-01-01"),
    *(
        " 5 ",
        "\t5",
        "5\v",
        "\u00a05",
        "\ufeff5",
        "é",
        "\u2028",
        "\x1b[31m",
        '"a"b',
        'a"b',
        '"a""b"',
    ),
    *("'", "\\", "\\N", "#N/A", "=1+1", "\x00", "\x7f", '"', '"a\nb"', '"a\r\nb"', '"a,b"'),
)


def _cell(value: str, rng: random.Random, *, always: bool) -> str:
    if always or any(sign in value for sign in ',"\r\n') or rng.random() < 0.02:
        return '"' + value.replace('"', '""') + '"'
    return value


def make(rng: random.Random) -> Case:
    """Return a case: a CSV file with odd cells, rows and line ends, and damaged bytes."""
    rows = examples.rows(rng)
    always = rng.random() < 0.2
    cells = [list(COLUMNS)]
    cells += [[_cell(examples.text(row[c]), rng, always=always) for c in COLUMNS] for row in rows]
    whole = _encoded(cells, [",".join(row) for row in cells], "\n")
    mutations: list[str] = []
    for _ in range(rng.choice((0, 0, 0, 1, 1, 2))):
        mutation = rng.choice(_OF_CELLS)
        mutation(rng, cells)
        mutations.append(mutation.__name__.strip("_"))
    delimiter = rng.choice((",",) * 60 + (";", "\t", "|"))
    lines = [delimiter.join(row) for row in cells]
    data = _encoded(cells, lines, rng.choice(("\n", "\n", "\n", "\r\n", "\r")))
    for _ in range(rng.choice((0, 0, 0, 0, 1, 2))):
        mutation_of_text = rng.choice(_OF_TEXT)
        data = mutation_of_text(rng, data)
        mutations.append(mutation_of_text.__name__.strip("_"))
    if rng.random() < 0.22:
        data, names = damage(rng, data, others=[whole])
        mutations += names
    name = "data.csv"
    if rng.random() < 0.3:
        name = "data.csv.gz"
        data, names = _packed(rng, data)
        mutations += names
    options = []
    given = None
    skip = 0
    if rng.random() < 0.06:
        skip = rng.choice((1, 2, 500))
        options += ["--skip-rows", str(skip)]
    if rng.random() < 0.08:
        given = [f"c{place}" for place in range(len(COLUMNS) - 2)] + ["label", "pred"]
        given = given[: rng.choice((8, 8, 8, 7))]
        options += ["--column-names", ",".join(given)]
    block_bytes = rng.choice((64, 256, 1024, 16 << 20))

    def plain(path: Path) -> bytes:
        stored = path.read_bytes()
        return csv_reading.unpacked(stored) if path.suffix == ".gz" else stored

    def reading(folder: Path) -> Reading:
        return csv_reading.read(plain(folder / name), names=given, skip_rows=skip)

    def direct(folder: Path) -> str:
        blocks = list(
            read_csv_blocks(
                str(folder / name), column_names=given, skip_rows=skip, block_bytes=block_bytes
            )
        )
        try:
            names, found = csv_reading.rows(plain(folder / name), names=given, skip_rows=skip)
        except UnreadableError as error:
            return f"blocks of {block_bytes} were read, but: {error}"
        if blocks[0].column_names != names:
            return f"names {blocks[0].column_names}, but {names} in the file"
        have = [
            list(row) for block in blocks for row in zip(*block.to_pydict().values(), strict=True)
        ]
        if have != found:
            row = next((i for i, (a, b) in enumerate(zip(have, found, strict=False)) if a != b), -1)
            shown = (have[row], found[row]) if row >= 0 else (len(have), len(found))
            return f"blocks of {block_bytes}: {shown[0]!r}, but {shown[1]!r} in the file"
        return ""

    return Case(
        ["search", "--data", "{folder}/" + name, *options, *examples.flags(rng)],
        {name: data},
        name,
        mutations,
        reading,
        direct,
        whole=csv_reading.read(whole).frame,
    )


def _encoded(cells: list[list[str]], lines: list[str], end: str) -> bytes:
    return "".join(line + end for line in lines).encode("utf-8", "surrogatepass")


# ------------------------------------------------------------------------------------ mutations


def _odd_cell(rng: random.Random, cells: list[list[str]]) -> None:
    row = rng.choice(cells)
    if row:
        row[rng.randrange(len(row))] = rng.choice(ODD_CELLS)


def _odd_column(rng: random.Random, cells: list[list[str]]) -> None:
    """Make the odd value that of a whole column, which then may have another type."""
    place = rng.randrange(len(COLUMNS))
    odd = rng.sample(ODD_CELLS, 2)
    for row in cells[1:]:
        if place < len(row):
            row[place] = rng.choice(odd)


def _drop_field(rng: random.Random, cells: list[list[str]]) -> None:
    row = rng.choice(cells)
    if row:
        del row[rng.randrange(len(row))]


def _add_field(rng: random.Random, cells: list[list[str]]) -> None:
    row = rng.choice(cells)
    row.insert(rng.randrange(len(row) + 1), rng.choice(ODD_CELLS))


def _drop_column(rng: random.Random, cells: list[list[str]]) -> None:
    place = rng.randrange(len(COLUMNS))
    for row in cells:
        del row[place : place + 1]


def _header(rng: random.Random, cells: list[list[str]]) -> None:
    if cells[0]:
        odd = ("", " ", "age", "label", "Label", "é", '"a,b"', '"a\nb"', "a\x00", "7", "\x1b[2J")
        cells[0][rng.randrange(len(cells[0]))] = rng.choice(odd)


def _long_field(rng: random.Random, cells: list[list[str]]) -> None:
    row = rng.choice(cells)
    if row:
        value = rng.choice(("x", "9", "0", "é", '""')) * rng.choice((1_000, 200_000))
        row[rng.randrange(len(row))] = f'"{value}"' if rng.random() < 0.7 else value


def _empty_lines(rng: random.Random, cells: list[list[str]]) -> None:
    for _ in range(rng.randint(1, 3)):
        cells.insert(rng.randrange(len(cells) + 1), rng.choice(([], [""], [" "])))


def _many_values(rng: random.Random, cells: list[list[str]]) -> None:
    """Give a column a value of its own in each row."""
    place = rng.randrange(len(COLUMNS))
    for number, row in enumerate(cells[1:]):
        if place < len(row):
            row[place] = f"v{number}"


def _no_rows(rng: random.Random, cells: list[list[str]]) -> None:
    del cells[rng.choice((0, 1, 1, 2)) :]
    if not cells:
        cells.append([])


_OF_CELLS = (
    *(_odd_cell, _odd_cell, _odd_cell, _odd_column, _odd_column),
    *(_drop_field, _add_field, _drop_column, _header, _long_field),
    *(_empty_lines, _many_values, _no_rows),
)


def _mixed_line_ends(rng: random.Random, data: bytes) -> bytes:
    return b"".join(
        line + rng.choice((b"\n", b"\n", b"\r\n", b"\r", b"\n\n"))
        for line in data.replace(b"\r\n", b"\n").split(b"\n")
    )


def _byte_order_mark(rng: random.Random, data: bytes) -> bytes:
    return b"\xef\xbb\xbf" * rng.choice((1, 1, 2)) + data


def _utf_16(rng: random.Random, data: bytes) -> bytes:
    text = data.decode("utf-8", "replace")
    return text.encode(rng.choice(("utf-16", "utf-16-le", "utf-16-be", "utf-32")))


def _latin_1(rng: random.Random, data: bytes) -> bytes:
    return data.decode("utf-8", "replace").encode("latin-1", "replace")


def _no_last_line_end(rng: random.Random, data: bytes) -> bytes:
    return data.rstrip(b"\r\n")


def _open_quote(rng: random.Random, data: bytes) -> bytes:
    commas = [at for at, byte in enumerate(data) if byte in b",\n"]
    at = rng.choice(commas) + 1 if commas else 0
    return data[:at] + b'"' + data[at:]


def _null_byte(rng: random.Random, data: bytes) -> bytes:
    at = rng.randrange(len(data) + 1)
    return data[:at] + b"\x00" + data[at:]


_OF_TEXT = (
    *(_mixed_line_ends, _mixed_line_ends, _byte_order_mark, _utf_16, _latin_1),
    *(_no_last_line_end, _open_quote, _open_quote, _null_byte),
)


def _packed(rng: random.Random, data: bytes) -> tuple[bytes, list[str]]:
    """Return the bytes as gzip: whole, in members, or damaged."""
    cut = rng.randrange(len(data) + 1)
    members = [data] if rng.random() < 0.6 else [data[:cut], data[cut:]]
    packed = b"".join(gzip.compress(part, rng.choice((0, 1, 9)), mtime=0) for part in members)
    names = ["gzip"] if len(members) == 1 else ["gzip members"]
    fate = rng.random()
    if fate < 0.35:
        packed, damaged = damage(rng, packed)
        names += damaged
    elif fate < 0.45:
        packed += rng.choice((b"\0" * 9, b"\0" * 9 + b"x", b"\x1f\x8b", b"garbage", packed[:11]))
        names.append("gzip tail")
    elif fate < 0.5:
        packed = gzip.compress(packed)
        names.append("gzip twice")
    elif fate < 0.55:
        packed = data
        names.append("no gzip")
    return packed, names
