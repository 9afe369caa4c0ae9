"""What is wrong with a discovery, or with what is done with one, is said in a line or two."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.discover_runs import embeddings, examples
from tests.running import refused

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from collections.abc import Set as AbstractSet
    from pathlib import Path

    # What a run wrote on stderr, after its exit code was checked.
    Refuse = Callable[..., str]

ROWS = 120
TABLE = examples(0, n=ROWS, dimensions=4, groups=3, apart=6.0)
TEXTS = [
    f"{'film' if row % 2 else 'news'} number {'good' if row % 3 else 'bad'}" for row in range(ROWS)
]
TABLE = TABLE.append_column("text", pa.array(TEXTS)).append_column("row", pa.array(range(ROWS)))
OLD = '{"old": "document"}'
DOUBLES = pa.list_(pa.float64())
LOSSES = {"loss": "loss_new", "baseline_loss": "loss_old"}
CLASSES = {"label": "label", "prediction": "new", "baseline_prediction": "old"}


def changed(**columns: Any) -> pa.Table:
    """Return the examples with other columns, or without those that are None."""
    table = TABLE
    for name, values in columns.items():
        known = name in table.schema.names
        if values is None:
            table = table.drop_columns([name])
        elif known:
            table = table.set_column(table.schema.get_field_index(name), name, [pa.array(values)])
        else:
            table = table.append_column(name, [pa.array(values)])
    return table


def with_vector(row: int, vector: Any, kind: pa.DataType = DOUBLES) -> pa.Table:
    """Return the examples, of which one has another embedding."""
    vectors: list[Any] = embeddings(TABLE).tolist()
    vectors[row] = vector
    return changed(z=pa.array(vectors, kind))


@pytest.fixture
def refuse(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Refuse:
    """Run a discovery that must fail: check exit code and shape of the message, and return it."""
    out = tmp_path / "out"
    out.mkdir()
    (out / "changelist.json").write_text(OLD)

    def run_it(*flags: Any, data: pa.Table | str = TABLE, code: int = 2, **options: Any) -> str:
        path = tmp_path / "e.parquet"
        if isinstance(data, pa.Table):
            pq.write_table(data, path)
        named = {"embedding": "z", "components": 3, "output": out, **LOSSES, **options}
        where = path if isinstance(data, pa.Table) else tmp_path / data
        arguments = ["discover", "--data", str(where)]
        for name, value in named.items():
            if value is not None:
                arguments += ["--" + name.replace("_", "-"), str(value)]
        said = refused([*arguments, *map(str, flags)], capsys, folder=tmp_path, code=code)
        assert (out / "changelist.json").read_text() == OLD
        assert not (out / "slices.parquet").exists()
        return said

    return run_it


ONE_LENGTH = "all embeddings must have the same length"
FINITE = "embeddings must be finite numbers whose squares are too: leave the example out, or embed it again"
NUMBERS = "an embedding is a list of numbers, the same number for every example"
FLOATS = pa.list_(pa.float32())

# Most of what these run through, others do.
SELDOM = {
    *("all are empty", "infinity", "null element of whole numbers", "too large to be squared"),
    *("all are null", "no type", "lists of booleans", "nested lists", "structs"),
    *("losses that weigh, infinite", "id with fractions", "text empty"),
}


def slow_where(cases: Iterable[str], seldom: AbstractSet[str]) -> list[Any]:
    """Return the names of cases, of which some are for the longer run."""
    return [
        pytest.param(name, marks=pytest.mark.slow) if name in seldom else name for name in cases
    ]


VECTORS: dict[str, tuple[pa.Table, str]] = {
    "short": (
        with_vector(7, [1.0, 2.0]),
        f"column 'z' has 2 numbers in row 8 of DIR/e.parquet and 4 in row 1; {ONE_LENGTH}",
    ),
    "first is empty": (
        with_vector(0, []),
        f"column 'z' has 4 numbers in row 2 of DIR/e.parquet and 0 in row 1; {ONE_LENGTH}",
    ),
    "all are empty": (
        changed(z=pa.array([[]] * ROWS, DOUBLES)),
        "column 'z' of DIR/e.parquet contains vectors without numbers",
    ),
    "nan": (
        with_vector(7, [1.0, np.nan, 0, 0]),
        f"DIR/e.parquet: the embedding of row 8 has nan in dimension 1; {FINITE}",
    ),
    "infinity": (
        with_vector(119, [1.0, 0, 0, -np.inf]),
        f"DIR/e.parquet: the embedding of row 120 has -inf in dimension 3; {FINITE}",
    ),
    "null element": (
        with_vector(7, [1.0, None, 0, 0]),
        f"DIR/e.parquet: the embedding of row 8 has nan in dimension 1; {FINITE}",
    ),
    "null element of whole numbers": (
        changed(z=pa.array([[1, 2], [3, None]] * 60, pa.list_(pa.int64()))),
        f"DIR/e.parquet: the embedding of row 2 has nan in dimension 1; {FINITE}",
    ),
    "too large for single precision": (
        with_vector(7, [0, 0, -1e39, 0]),
        "DIR/e.parquet: the embedding of row 8 has -1e+39 in dimension 2, too large for single",
    ),
    "too large to be squared": (
        with_vector(7, [1.7e308, 0, 0, 0]),
        "DIR/e.parquet: the embedding of row 8 has 1.7e+308 in dimension 0, too large for",
    ),
    "null": (
        with_vector(7, None),
        "column 'z' has no value in row 8 of DIR/e.parquet; drop such examples",
    ),
    "null of fixed length": (
        with_vector(7, None, pa.list_(pa.float32(), 4)),
        "DIR/e.parquet: a list of a column of fixed length has no value (Expected all lists to be of",
    ),
    "all are null": (
        changed(z=pa.array([None] * ROWS, DOUBLES)),
        "column 'z' has no value in row 1 of DIR/e.parquet; drop such examples",
    ),
    "no type": (changed(z=pa.nulls(ROWS)), f"--embedding: column 'z' is null; {NUMBERS}"),
    "text": (
        changed(z=TABLE["text"].combine_chunks()),
        f"--embedding: column 'z' is text; {NUMBERS}: write Parquet or JSON Lines, or name a column",
    ),
    "numbers": (
        changed(z=TABLE["row"].combine_chunks()),
        f"--embedding: column 'z' is int64; {NUMBERS}",
    ),
    "lists of text": (
        changed(z=pa.array([["0.1"]] * ROWS)),
        f"--embedding: column 'z' is list<element: string>; {NUMBERS}",
    ),
    "lists of booleans": (
        changed(z=pa.array([[True]] * ROWS)),
        f"--embedding: column 'z' is list<element: bool>; {NUMBERS}",
    ),
    "nested lists": (
        changed(z=pa.array([[[0.5]]] * ROWS)),
        f"--embedding: column 'z' is list<element: list<element: double>>; {NUMBERS}",
    ),
    "structs": (
        changed(z=pa.array([{"a": 0.5}] * ROWS)),
        f"--embedding: column 'z' is struct<a: double>; {NUMBERS}",
    ),
}


@pytest.mark.parametrize("what", slow_where(VECTORS, SELDOM))
def test_vectors_that_are_none(what: str, refuse: Refuse) -> None:
    table, message = VECTORS[what]
    assert refuse(data=table).startswith(message)


def test_the_row_is_that_of_the_file(tmp_path: Path, refuse: Refuse) -> None:
    """Whatever chunks and row groups it is read by."""
    said = refuse("--chunk-rows", 4, data=with_vector(102, [1.0, 2.0]))
    assert said.startswith("column 'z' has 2 numbers in row 103 of DIR/e.parquet and 4 in row 101;")
    pq.write_table(TABLE, tmp_path / "a.parquet", row_group_size=50)
    pq.write_table(with_vector(70, [np.nan] * 4), tmp_path / "b.parquet", row_group_size=50)
    said = refuse(data="[ab].parquet")
    assert said.startswith("DIR/b.parquet: the embedding of row 71 has nan in dimension 0")


def test_lengths_that_differ_between_chunks_and_files(tmp_path: Path, refuse: Refuse) -> None:
    vectors = embeddings(TABLE).tolist()
    half = [vector if row < 60 else vector[:3] for row, vector in enumerate(vectors)]
    said = refuse("--chunk-rows", 60, data=changed(z=pa.array(half, DOUBLES)))
    assert said == (
        "'z' has 3 dimensions in DIR/e.parquet (from row 61 of all) and 4 in DIR/e.parquet (from row "
        f"1); {ONE_LENGTH}"
    )
    pq.write_table(TABLE, tmp_path / "a.parquet")
    short = changed(z=pa.array([vector[:3] for vector in vectors], DOUBLES))
    pq.write_table(short, tmp_path / "b.parquet")
    assert refuse(data="[ab].parquet") == (
        "'z' has 3 dimensions in DIR/b.parquet (from row 121 of all) and 4 in DIR/a.parquet (from row "
        f"1); {ONE_LENGTH}"
    )


def test_vectors_in_text_files(tmp_path: Path, refuse: Refuse) -> None:
    lines = ["z,loss_new,loss_old", *['"[0.1, 0.2]",0.5,0.4'] * 30]
    (tmp_path / "e.csv").write_text("\n".join(lines))
    assert refuse(data="e.csv").startswith(
        f"--embedding: column 'z' is text; {NUMBERS}: write Parquet"
    )
    good = {"z": [0.5, 1], "loss_new": 0.5, "loss_old": 0.4}
    for vector, message in {
        "[1]": f"column 'z' has 1 numbers in row 21 of DIR/e.jsonl and 2 in row 1; {ONE_LENGTH}",
        "null": "column 'z' has no value in row 21 of DIR/e.jsonl; drop such examples",
        '[1, "x"]': "DIR/e.jsonl, line 21: column 'z[]' holds the string \"x\", but a number in line 1",
        "[1, null]": "DIR/e.jsonl: the embedding of row 21 has nan in dimension 1",
    }.items():
        one = json.dumps({**good, "z": None}).replace('"z": null', f'"z": {vector}')
        (tmp_path / "e.jsonl").write_text("\n".join([*[json.dumps(good)] * 20, one]) + "\n")
        assert refuse(data="e.jsonl").startswith(message)


NO_EXAMPLES = "there are no examples in it"


COLUMNS: dict[str, tuple[pa.Table, dict[str, Any], str]] = {
    "column of components": (
        changed(**{"cluster@3": ["x"] * ROWS}),
        {},
        "the data has a column 'cluster@3', the name of the components; rename it",
    ),
    "no example": (TABLE.slice(0, 0), {}, f"--data DIR/e.parquet: {NO_EXAMPLES}"),
    "one example": (
        TABLE.slice(0, 1),
        {"components": 2},
        "--components 2 cannot be initialised from 1 examples; give fewer components or more data",
    ),
    "loss nan": (
        changed(loss_new=[np.nan if row == 33 else 0.5 for row in range(ROWS)]),
        {},
        "column 'loss_new' has no value in row 34 of DIR/e.parquet; drop such examples or fill the",
    ),
    "loss infinite": (
        changed(loss_old=[np.inf if row == 33 else 0.5 for row in range(ROWS)]),
        {},
        "column 'loss_old' holds inf in row 34 of DIR/e.parquet, which cannot be summed; drop such",
    ),
    "losses that weigh, infinite": (
        changed(loss_old=[np.inf if row == 33 else 0.5 for row in range(ROWS)]),
        {"loss_weight": 1},
        "column 'loss_old' holds inf in row 34 of DIR/e.parquet",
    ),
    "loss as text": (
        changed(loss_new=["0.5"] * ROWS),
        {},
        "column 'loss_new' is string, but a loss is a number; name a numeric column",
    ),
    "id null": (
        changed(id=pa.array([None if row == 5 else row for row in range(ROWS)])),
        {"example_id": "id"},
        "--example-id has no value in row 6 of DIR/e.parquet",
    ),
    "id null, of a split": (
        changed(id=pa.array([None if row == 5 else row for row in range(ROWS)])),
        {"example_id": "id", "loss_weight": 1},
        "--example-id has no value in row 6 of DIR/e.parquet",
    ),
    "id with fractions": (
        changed(id=[row / 2 for row in range(ROWS)]),
        {"example_id": "id"},
        "--example-id column is double; an id is text or an integer",
    ),
    "id true or false": (
        changed(id=[row % 2 == 0 for row in range(ROWS)]),
        {"example_id": "id"},
        "--example-id column is bool; an id is text or an integer",
    ),
    "text null": (
        changed(text=pa.array([None if row == 7 else "a film" for row in range(ROWS)])),
        {"embedding": None, "text": "text"},
        "column 'text' has no text in row 8 of DIR/e.parquet; drop such examples",
    ),
    "text without words": (
        changed(text=["!" * (row % 5 + 1) for row in range(ROWS)]),
        {"embedding": None, "text": "text"},
        "--encoder lsa: none of the 120 texts has a word of two letters or more; is --text the right",
    ),
    "text empty": (
        changed(text=[""] * ROWS),
        {"embedding": None, "text": "text"},
        "--encoder lsa: none of the 120 texts has a word of two letters or more",
    ),
    "text all equal": (
        changed(text=["a film"] * ROWS),
        {"embedding": None, "text": "text"},
        "--encoder lsa: the 120 texts have the same words, so nothing distinguishes them",
    ),
}


@pytest.mark.parametrize("what", slow_where(COLUMNS, SELDOM))
def test_columns(what: str, refuse: Refuse) -> None:
    table, options, message = COLUMNS[what]
    assert refuse(data=table, **options).startswith(message)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "--phrases DIR/phrases.txt: no such file"),
        (b"", "--phrases DIR/phrases.txt: no phrases; write one per line"),
        (b"\n  \n", "--phrases DIR/phrases.txt: no phrases; write one per line"),
        (
            bytes(range(256)),
            "--phrases DIR/phrases.txt: cannot be read; write one phrase per line, as UTF-8",
        ),
    ],
)
def test_phrases(content: bytes | None, message: str, tmp_path: Path, refuse: Refuse) -> None:
    """What is wrong with them is said before a text is embedded, which may be paid for."""
    if content is not None:
        (tmp_path / "phrases.txt").write_bytes(content)
    options = {"embedding": None, "text": "text", "phrases": tmp_path / "phrases.txt"}
    # Nobody listens there.
    assert refuse(encoder="openai:http://127.0.0.1:9/v1", **options) == message
