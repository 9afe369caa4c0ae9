import apache_beam as beam
import pyarrow as pa

from slicebeam.transforms.storage.parts import WriteParts


def times(item, shared):
    return pa.record_batch([pa.array([item * number for number in shared["x"].to_pylist()])], ["y"])


def test_each_item_has_a_file_and_nothing_else_is_there(tmp_path):
    parts = WriteParts(times, [2, 3], tmp_path, pa.table({"x": [1, 10]}))
    assert not parts.is_written()
    parts.write_shared()
    with beam.Pipeline() as pipeline:
        pipeline | parts
    assert parts.is_written()
    assert [part["y"].to_pylist() for part in parts.read(2)] == [[2, 20], [3, 30]]
    (tmp_path / "000002.arrow").touch()
    assert not parts.is_written()
