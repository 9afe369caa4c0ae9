"""Columns of a chunk: ids as numbers."""

import tracemalloc

import numpy as np
import pyarrow as pa

from slicebeam.transforms.encode.column import id_hashes
from slicebeam.transforms.encode.sources import Chunk

CHUNK = Chunk(0, 0, "data.parquet", 0, 0, pa.table({}))


def test_the_hash_of_an_id_is_of_its_value_alone():
    texts = ["", "a", "b", "a\0", "12345678", "123456789", "x" * 16, "x" * 17, "x" * 24, "x" * 5000]
    together = id_hashes(pa.array(texts), CHUNK)
    assert len(set(together.tolist())) == len(texts)
    alone = [id_hashes(pa.array([text]), CHUNK)[0] for text in texts]
    np.testing.assert_array_equal(together, alone)
    encoded = pa.array(texts[::-1]).dictionary_encode()
    np.testing.assert_array_equal(id_hashes(encoded, CHUNK)[::-1], alone)


def test_one_long_id_does_not_fill_the_memory():
    ids = pa.array(["x" * 40_000, *map(str, range(10_000))])
    tracemalloc.start()
    hashes = id_hashes(ids, CHUNK)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert len(np.unique(hashes)) == len(ids)
    assert peak < 10 << 20
