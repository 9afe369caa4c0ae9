"""Reading the rows that are in at least one slice."""

from dataclasses import replace

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from slicebeam.transforms.encode.conditions import SliceMembership
from slicebeam.transforms.encode.predicates import Singleton
from slicebeam.transforms.encode.sources import StoredFile, open_parquet, read_split


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
    assert (
        np.concatenate([chunk.table["row"].to_numpy() for chunk in chunks]).tolist()
        == wanted.tolist()
    )
    assert [chunk.row_number(0) - 1 for chunk in chunks] == [
        chunk.table["row"][0].as_py() for chunk in chunks
    ]
    sizes = [chunk.table.num_rows for chunk in chunks]
    assert [chunk.start_row for chunk in chunks] == [0, *np.cumsum(sizes)[:-1]]
