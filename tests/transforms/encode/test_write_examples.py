import pyarrow as pa
import pyarrow.parquet as pq
from apache_beam.utils.timestamp import Timestamp

from slicebeam.transforms.encode import write_examples


def test_values_of_beam_and_missing_keys():
    made = write_examples.table_of([{"a": Timestamp(1.5)}, {"b": 1, "a": None}])
    assert made.schema == pa.schema([("a", pa.timestamp("us", "UTC")), ("b", pa.int64())])
    assert made["b"].to_pylist() == [None, 1]
    assert made["a"].cast(pa.int64()).to_pylist() == [1_500_000, None]


def test_files_hold_about_a_chunk(adult_path, tmp_path, monkeypatch):
    table = pq.read_table(adult_path, columns=["age", "sex", "income"])
    monkeypatch.setattr(write_examples, "CHUNK_ROWS", 1000)
    whole = table.set_column(0, "age", table["age"].cast(pa.int64()))
    parts = [table.slice(0, 600), whole.slice(600, 600), whole.slice(1200, 100)]
    files = [*write_examples.write_tables(tmp_path, (3, parts))]
    assert files == sorted(map(str, tmp_path.iterdir()))
    assert [pq.read_metadata(file).num_rows for file in files] == [1200, 100]
    read = pa.concat_tables([pq.read_table(one) for one in files])
    assert read.equals(table.slice(0, 1300).cast(read.schema))
