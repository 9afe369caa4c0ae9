"""Chunks of Parquet: whole row groups where they fit, none cut for what comes after it."""

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from slicebeam.transforms.encode.sources import StoredFile, open_parquet, read_split


@pytest.mark.parametrize(("row_group", "chunk_rows", "sizes"), [
    (100, 250, [200, 200, 200, 200, 200]),
    (100, 100, [100] * 10),
    (400, 250, [250, 150, 250, 150, 200]),
    (1000, 2000, [1000]),
])  # fmt: skip
def test_row_groups_that_fit_are_read_together(tmp_path, row_group, chunk_rows, sizes):
    path = str(tmp_path / "data.parquet")
    texts = [f"value {row % 7 + row // 300}" for row in range(1000)]
    table = pa.table({"number": range(1000), "text": texts})
    pq.write_table(table, path, row_group_size=row_group)
    source = open_parquet([StoredFile(path, path)]).in_chunks(chunk_rows)

    def chunks(columns):
        return [chunk for split in source.splits for chunk in read_split(source, split, columns)]

    numbers = chunks(["number"])
    assert [chunk.table.num_rows for chunk in numbers] == sizes
    starts = [sum(sizes[:place]) for place in range(len(sizes))]
    assert [chunk.start_row for chunk in numbers] == starts
    read = pa.concat_tables([chunk.table for chunk in numbers])
    assert read.column("number").to_pylist() == list(range(1000))
    # A chunk of texts may end where a dictionary does, with its row group: none is cut elsewhere.
    of_texts = chunks(["text"])
    if row_group <= chunk_rows:
        assert all(chunk.table.num_rows % row_group == 0 for chunk in of_texts)
    assert [one for c in of_texts for one in c.table.column("text").to_pylist()] == texts
