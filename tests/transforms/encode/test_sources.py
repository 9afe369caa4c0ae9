"""Chunks of Parquet: whole row groups where they fit, none cut for what comes after it."""

from dataclasses import replace

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from slicebeam.transforms.encode.conditions import SliceMembership
from slicebeam.transforms.encode.predicates import Singleton
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


def test_rows_of_any_slice_with_their_places(tmp_path):
    rng = np.random.default_rng(7)
    number, word = rng.integers(0, 50, 1000), rng.choice(["a", "b", "c"], 1000)
    path = str(tmp_path / "x.parquet")
    table = pa.table({"number": number, "word": word, "row": np.arange(1000)})
    pq.write_table(table, path, row_group_size=300)
    slices = (
        (Singleton("number", "<", 5), Singleton("word", "==", "a")),
        (Singleton("number", "==", 9),),
    )
    wanted = np.flatnonzero(((number < 5) & (word == "a")) | (number == 9))
    source = replace(open_parquet([StoredFile(path, path)]), within=SliceMembership(slices))
    (split,) = source.splits
    split = replace(split, rows=wanted.size, left_out=1000 - wanted.size)
    chunks = list(read_split(source.in_chunks(100), split, ["row"]))
    rows = [chunk.table["row"].to_pylist() for chunk in chunks]
    assert [row for own in rows for row in own] == wanted.tolist()
    assert [chunk.row_number(0) - 1 for chunk in chunks] == [own[0] for own in rows]
    sizes = list(map(len, rows))
    assert [chunk.start_row for chunk in chunks] == [0, *np.cumsum(sizes)[:-1]]
