"""JSON Lines files with odd values, keys, lines and damaged bytes, plain and gzip."""

import json
import random

from hypothesis import strategies as st

from slicebeam.transforms.formats.json_lines import read_json_blocks
from tests.fuzzing import csv_reading, json_reading, strategies
from tests.fuzzing.case import Case
from tests.fuzzing.strategies import chance, in_column, in_row, insert, pick, replace, words

# Texts of JSON, some of them none.
ODD_VALUES = (
    *words("null true 0 -0 -0.0 1.0 1e3 1E400 -1e400 1e-400 01 +1 1. .5 0x1F NaN Infinity nan"),
    *words("-Infinity None True undefined 9223372036854775807 9223372036854775808 'a' {}"),
    *words("-9223372036854775809 9007199254740993 18446744073709551616 [] [null] [1] [[1]]"),
    *words(r'"" "NA" "2024-01-01" "2024-01-01T00:00:00Z" "2024-13-01" "\ud800" "\udc00" "é" ["a"]'),
    *words(r'"\ud83d\ude00" "\u0000" "\u001b[31m" "\x41"'),
    *words('[{}] {"a":1} {"a":{"b":[1]}} {"a":1,"a":2}'),
    *('"a\tb"', '[1, "a"]', '[["a"], null]', "[1, 2.5]", "1" + "0" * 30, "9" * 400, "9" * 5000),
    *("0." + "1" * 400, "[" * 60 + "]" * 60, "[" * 3000 + "]" * 3000, '"' + "x" * 100_000 + '"'),
    '{"a":' * 200 + "1" + "}" * 200,
)
ODD_KEYS = ("", " ", "label", "a.b", "a\nb", "\0", "é", "age ", "x" * 3000, "\x1b[2J", "age")
ODD_LINES = ("", " ", "\t", "\r", *words('null 1 [] "a" {} //x {,}'), "\0", "\ufeff", "\x1e{}")
# Values that another reader takes for one type.
PAIRS = (
    *(words(one) for one in ("1 2.5", "9007199254740993 1", "9007199254740993 0.5", "NaN 1")),
    *(words(one) for one in ("18446744073709551616 1", "Infinity -Infinity 0", "[1] [2.5]")),
    *(words(one) for one in ('"2024-01-01" "2024-01-01T10:00:00"', '["2024-01-01"] ["a"]')),
    *(words(one) for one in ('"2024-01-01T10:00:00Z" "2024-01-01"', "[] null", '{"a":1} {"b":2}')),
)


def _valued(pair, value):
    return (pair[0], value)


_ODD = pick(*ODD_VALUES)
_ENTRY = st.tuples(pick(*ODD_KEYS), pick(*ODD_VALUES[:12]))


def _new_column(draw, rows):
    key, values = draw(pick(*ODD_KEYS, "new")), draw(pick(*PAIRS))
    for number, row in enumerate(rows):
        row.append((key, values[number % len(values)]))


def _shuffled(draw, rows):
    rng = random.Random(draw(st.integers(0, 99)))
    for row in rows:
        rng.shuffle(row)


ROW_EDITS = (
    *(in_row(replace(_ODD, _valued)),) * 3,
    in_column(st.lists(_ODD, min_size=2, max_size=2), _valued),
    *(in_column(pick(*PAIRS), _valued), in_column(pick(*PAIRS), _valued), _new_column),
    *(in_row(strategies.lose), in_row(strategies.repeat), in_row(insert(_ENTRY)), _shuffled),
    *(strategies.few_rows, in_row(lambda draw, row: row.clear())),
)


def _joined(draw, lines):
    """Put two objects on one line, with or without what an array would have between them."""
    at = strategies.place(draw, lines)
    lines[at : at + 2] = [draw(pick("", " ", ",", "\r", "\t")).join(lines[at : at + 2])]


def _as_array(draw, lines):
    lines[:] = ("[" + ",\n".join(lines) + "]").split("\n")


LINE_EDITS = (
    *(_joined, _as_array, insert(pick(*ODD_LINES)), insert(pick(*ODD_LINES))),
    replace(st.integers(1, 9), lambda line, times: line.replace(", ", ",\n", times)),
    replace(pick(*words(", ,} } x")), lambda line, end: line[:-1] + end if end == ",}" else line + end),
    lambda draw, lines: lines.__setitem__(slice(None), [line + "\r" for line in lines]),
)  # fmt: skip


def _object(pairs):
    return "{" + ", ".join(f"{json.dumps(key)}: {value}" for key, value in pairs) + "}"


def _present(value):
    """Return a value without the keys that are null, and NaN as a text that equals itself."""
    if isinstance(value, dict):
        return {key: _present(part) for key, part in value.items() if part is not None}
    if isinstance(value, list):
        return [_present(part) for part in value]
    return "NaN" if isinstance(value, float) and value != value else value


@st.composite
def cases(draw):
    ascii_only = draw(st.booleans())
    rows = [
        [
            (name, json.dumps(row[name], default=str, ensure_ascii=ascii_only))
            for name in strategies.COLUMNS
        ]
        for row in draw(strategies.tables())
    ]
    whole = "".join(_object(row) + "\n" for row in rows).encode()
    lines = [_object(row) for row in draw(strategies.edited(rows, ROW_EDITS))]
    lines = draw(strategies.edited(lines, LINE_EDITS, (0, 0, 0, 0, 0, 1, 1, 2)))
    data = "".join(line + "\n" for line in lines).encode("utf-8", "surrogatepass")
    if draw(chance(8)):
        data = draw(strategies.recoded(data))
    data, name = draw(strategies.damaged_at_times(data, [whole])), "data.jsonl"
    if draw(chance(10)):
        name, data = "data.jsonl.gz", draw(strategies.packed(data))
    block_bytes = draw(pick(64, 512, 4096, 16 << 20))

    def reading(folder):
        return json_reading.read(csv_reading.stored(folder / name))

    def direct(folder):
        blocks = list(read_json_blocks(str(folder / name), block_bytes=block_bytes))
        found = json_reading.objects(csv_reading.stored(folder / name))
        have = [row for block in blocks for row in block.to_pylist()]
        assert list(map(_present, have)) == list(map(_present, found))

    arguments = ["search", "--data", "{folder}/" + name, *draw(strategies.flags())]
    return Case(arguments, {name: data}, reading, direct)
