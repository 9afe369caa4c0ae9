import json
import tracemalloc

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slicebeam.metrics.errors import InputError
from slicebeam.transforms.encode.column import Chunk, arrow_type, id_hashes
from slicebeam.transforms.encode.predicates import arrow_values, json_values
from tests.transforms.encode.test_domains import KINDS

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
    hashes, peak = id_hashes(ids, CHUNK), tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert len(np.unique(hashes)) == len(ids)
    assert peak < 10 << 20


@settings(max_examples=25, deadline=None, derandomize=True)
@pytest.mark.parametrize("kind", KINDS)
@given(data=st.data())
def test_predicates_survive_json(kind, data):
    data_type, value = KINDS[kind]
    values = pa.array(data.draw(st.lists(value, max_size=5)), data_type)
    text = json.dumps(json_values(values), allow_nan=False)
    back = arrow_values(json.loads(text), arrow_type(str(data_type)))
    assert back.type == data_type
    assert back.equals(values)


@pytest.mark.parametrize(("values", "kind"), [
    ([9.8], pa.int64()),
    ([0.1 + 1e-12], pa.float32()),
    ([2**53 + 1], pa.float64()),
    (["1.5"], pa.float64()),
    ([-1], pa.uint64()),
    (["1.25"], pa.decimal128(9, 1)),
    (["2024-01-01T00:00:00.5"], pa.timestamp("s")),
    (["10:00:00.5"], pa.time32("s")),
    (["2024-01-01T10:00:00"], pa.date32()),
], ids=str)  # fmt: skip
def test_values_that_a_type_does_not_hold(values, kind):
    with pytest.raises(InputError, match="do not fit a column of"):
        arrow_values(values, kind)
