"""The columns of a file, from its footer or its first block, without Beam."""

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from slicebeam.metrics.errors import InputError
from slicebeam.transforms.encode.file_blocks import CsvLayout, file_blocks, first_columns
from tests.refusals import refuses


@pytest.mark.parametrize(("name", "text", "layout", "names"), [
    ("a.csv", "x,y\n1,2\n", CsvLayout(), ["x", "y"]),
    ("a.csv", "note\nx;y\n1;2\n", CsvLayout(skip_rows=1, delimiter=";"), ["x", "y"]),
    ("a.csv", "1,2\n", CsvLayout(("p", "q")), ["p", "q"]),
    ("a.jsonl", '{"x": 1}\n{"y": 2}\n', CsvLayout(), ["x", "y"]),
])  # fmt: skip
def test_columns_and_blocks_of_text(name, text, layout, names, tmp_path):
    path = tmp_path / name
    path.write_text(text)
    assert first_columns(str(path), None, layout) == names
    (block,) = file_blocks(str(path), path.suffix[1:], layout, 1 << 16)
    assert block.column_names == names


def test_columns_of_parquet(tmp_path):
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({"x": [1], "y": [2]}), path)
    assert first_columns(str(path), None, CsvLayout()) == ["x", "y"]
    path.write_bytes(path.read_bytes()[:-6])
    refuses(InputError, "a.parquet", first_columns, str(path), None, CsvLayout())
