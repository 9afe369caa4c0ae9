"""Mutated JSON Lines files."""

from __future__ import annotations

import gzip
import json
import random
from typing import TYPE_CHECKING, Any

from slicebeam.transforms.formats.json_lines import read_json_blocks
from tests.fuzzing import csv_reading, examples, json_reading
from tests.fuzzing.byte_mutations import damage
from tests.fuzzing.case import Case, Reading, UnreadableError

if TYPE_CHECKING:
    from pathlib import Path

COLUMNS = ("age", "hours", "job", "night", "day", "tags", "label", "pred")
# Texts of JSON, some of them none.
ODD_VALUES = (
    *(
        "null",
        "true",
        "0",
        "-0",
        "-0.0",
        "1.0",
        "1e3",
        "1E400",
        "-1e400",
        "1e-400",
        "01",
        "+1",
        "1.",
    ),
    *(".5", "0x1F", "NaN", "Infinity", "-Infinity", "nan", "None", "True", "undefined"),
    *("9223372036854775807", "9223372036854775808", "-9223372036854775809", "9007199254740993"),
    *("18446744073709551616", "1" + "0" * 30, "9" * 400, "9" * 5000, "0." + "1" * 400),
    *('""', '"NA"', '"2024-01-01"', '"2024-01-01T00:00:00Z"', '"2024-13-01"', '"\\ud800"'),
    *('"\\udc00"', '"\\ud83d\\ude00"', '"\\u0000"', '"\\u001b[31m"', '"a\tb"', '"\\x41"', '"é"'),
    *("[]", "[null]", "[1]", '[1, "a"]', "[[1]]", '["a"]', '[["a"], null]', "[{}]", "[1, 2.5]"),
    *("{}", '{"a": 1}', '{"a": {"b": [1]}}', '{"a": 1, "a": 2}', "'a'", "[" * 60 + "]" * 60),
    *("[" * 3000 + "]" * 3000, '{"a":' * 200 + "1" + "}" * 200, '"' + "x" * 100_000 + '"'),
)
_ODD_KEYS = ("", " ", "label", "a.b", "a\nb", "\u0000", "é", "age ", "x" * 3000, "\u001b[2J")


def _object(pairs: list[tuple[str, str]]) -> str:
    return "{" + ", ".join(f"{json.dumps(key)}: {value}" for key, value in pairs) + "}"


def make(rng: random.Random) -> Case:
    """Return a case: a JSON Lines file with odd values, keys and lines, and damaged bytes."""
    rows: list[list[tuple[str, str]]] = [
        [
            (name, json.dumps(row[name], default=str, ensure_ascii=rng.random() < 0.5))
            for name in COLUMNS
        ]
        for row in examples.rows(rng)
    ]
    whole = "".join(_object(row) + "\n" for row in rows).encode()
    mutations: list[str] = []
    for _ in range(rng.choice((0, 0, 0, 1, 1, 2))):
        mutation = rng.choice(_OF_ROWS)
        mutation(rng, rows)
        mutations.append(mutation.__name__.strip("_"))
    lines = [_object(row) for row in rows]
    for _ in range(rng.choice((0, 0, 0, 0, 0, 1, 1, 2))):
        mutation_of_lines = rng.choice(_OF_LINES)
        mutation_of_lines(rng, lines)
        mutations.append(mutation_of_lines.__name__.strip("_"))
    data = "".join(line + "\n" for line in lines).encode("utf-8", "surrogatepass")
    if rng.random() < 0.05:
        data = rng.choice(
            (b"\xef\xbb\xbf" + data, data.decode("utf-8", "replace").encode("utf-16"))
        )
        mutations.append("byte order mark")
    if rng.random() < 0.22:
        data, names = damage(rng, data, others=[whole])
        mutations += names
    name = "data.jsonl"
    if rng.random() < 0.1:
        name = "data.jsonl.gz"
        data = gzip.compress(data, mtime=0)
        if rng.random() < 0.5:
            data, names = damage(rng, data)
            mutations += names
    block_bytes = rng.choice((64, 512, 4096, 16 << 20))

    def plain(path: Path) -> bytes:
        stored = path.read_bytes()
        return csv_reading.unpacked(stored) if path.suffix == ".gz" else stored

    def reading(folder: Path) -> Reading:
        return json_reading.read(plain(folder / name))

    def direct(folder: Path) -> str:
        blocks = list(read_json_blocks(str(folder / name), block_bytes=block_bytes))
        try:
            found = json_reading.objects(plain(folder / name))
        except UnreadableError as error:
            return f"blocks of {block_bytes} were read, but: {error}"
        have = [row for block in blocks for row in block.to_pylist()]
        if len(have) != len(found):
            return f"blocks of {block_bytes}: {len(have)} rows, but {len(found)} in the file"
        for number, (one, other) in enumerate(zip(have, found, strict=True), 1):
            if _present(one) != _present(other):
                return f"blocks of {block_bytes}, row {number}: {one!r}, but {other!r} in the file"
        return ""

    return Case(
        ["search", "--data", "{folder}/" + name, *examples.flags(rng)],
        {name: data},
        name,
        mutations,
        reading,
        direct,
        whole=json_reading.read(whole).frame,
    )


def _present(value: Any) -> Any:
    """Return a value without the keys that are null, and NaN as a text that equals itself."""
    if isinstance(value, dict):
        return {key: _present(part) for key, part in value.items() if part is not None}
    if isinstance(value, list):
        return [_present(part) for part in value]
    return "NaN" if isinstance(value, float) and value != value else value


# ------------------------------------------------------------------------------------ mutations


def _odd_value(rng: random.Random, rows: list[list[tuple[str, str]]]) -> None:
    row = rng.choice(rows)
    if row:
        at = rng.randrange(len(row))
        row[at] = (row[at][0], rng.choice(ODD_VALUES))


def _odd_column(rng: random.Random, rows: list[list[tuple[str, str]]]) -> None:
    name, odd = rng.choice(COLUMNS), rng.sample(ODD_VALUES, 2)
    for row in rows:
        row[:] = [(key, rng.choice(odd) if key == name else value) for key, value in row]


def _one_odd_column(rng: random.Random, rows: list[list[tuple[str, str]]]) -> None:
    """Give each row one of two odd values that another reader takes for one type."""
    name = rng.choice((*COLUMNS, "new"))
    odd = rng.choice(
        (
            ("1", "2.5"),
            ("9007199254740993", "1"),
            ("9007199254740993", "0.5"),
            ("18446744073709551616", "1"),
            ("NaN", "1"),
            ("Infinity", "-Infinity", "0"),
            ('"2024-01-01"', '"2024-01-01T10:00:00"'),
            ('"2024-01-01T10:00:00Z"', '"2024-01-01"'),
            ("[1]", "[2.5]"),
            ('["2024-01-01"]', '["a"]'),
            ("[]", "null"),
            ('{"a": 1}', '{"b": 2}'),
        )
    )
    for row in rows:
        row[:] = [pair for pair in row if pair[0] != name] + [(name, rng.choice(odd))]


def _drop_key(rng: random.Random, rows: list[list[tuple[str, str]]]) -> None:
    row = rng.choice(rows)
    if row:
        del row[rng.randrange(len(row))]


def _double_key(rng: random.Random, rows: list[list[tuple[str, str]]]) -> None:
    row = rng.choice(rows)
    if row:
        row.insert(rng.randrange(len(row) + 1), (rng.choice(row)[0], rng.choice(ODD_VALUES)))


def _odd_key(rng: random.Random, rows: list[list[tuple[str, str]]]) -> None:
    key, value = rng.choice(_ODD_KEYS), rng.choice(ODD_VALUES[:12])
    for row in rows if rng.random() < 0.5 else [rng.choice(rows)]:
        row.append((key, value))


def _shuffled_keys(rng: random.Random, rows: list[list[tuple[str, str]]]) -> None:
    for row in rows:
        rng.shuffle(row)


def _no_rows(rng: random.Random, rows: list[list[tuple[str, str]]]) -> None:
    del rows[1:]
    if rng.random() < 0.5:
        rows[0].clear()


_OF_ROWS = (
    *(_odd_value, _odd_value, _odd_value, _odd_column, _one_odd_column, _one_odd_column),
    *(_drop_key, _double_key, _odd_key, _shuffled_keys, _no_rows),
)


def _joined(rng: random.Random, lines: list[str]) -> None:
    """Put two objects on one line, with or without what an array would have between them."""
    at = rng.randrange(len(lines))
    lines[at : at + 2] = [rng.choice(("", " ", ",", "\r", "\t")).join(lines[at : at + 2])]


def _broken(rng: random.Random, lines: list[str]) -> None:
    at = rng.randrange(len(lines))
    lines[at] = lines[at].replace(", ", ",\n", rng.randint(1, 9))


def _odd_line(rng: random.Random, lines: list[str]) -> None:
    odd = (
        "",
        " ",
        "\t",
        "\r",
        "null",
        "1",
        "[]",
        '"a"',
        "{}",
        "//x",
        "{,}",
        "\x00",
        "\ufeff",
        "\x1e{}",
    )
    lines.insert(rng.randrange(len(lines) + 1), rng.choice(odd))


def _as_array(rng: random.Random, lines: list[str]) -> None:
    lines[0] = "[" + lines[0]
    lines[-1] += "]"
    lines[:-1] = [line + "," for line in lines[:-1]]


def _comma(rng: random.Random, lines: list[str]) -> None:
    at = rng.randrange(len(lines))
    lines[at] = rng.choice(
        (lines[at] + ",", lines[at][:-1] + ",}", lines[at] + "}", lines[at] + " x")
    )


def _carriage_returns(rng: random.Random, lines: list[str]) -> None:
    lines[:] = [line + "\r" for line in lines]


_OF_LINES = (_joined, _broken, _odd_line, _odd_line, _as_array, _comma, _carriage_returns)
