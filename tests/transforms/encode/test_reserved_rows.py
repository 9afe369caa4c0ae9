"""The examples that are reserved for measuring: a share, in whole groups, of any chunks."""

import numpy as np
import pyarrow as pa

from slicebeam.transforms.encode.column import Chunk
from slicebeam.transforms.encode.reserved_rows import ReservedRows


def held(first, values, column=None, *, seed=0, is_reserved=True):
    table = pa.table({"id": values})
    rows = ReservedRows(0.3, seed, column, "--group", is_reserved)
    return rows.holds(Chunk(0, 0, "", first, first, table))


def test_a_share_of_the_positions_in_any_chunks():
    whole = held(0, np.zeros(20_000))
    assert abs(whole.mean() - 0.3) < 0.012
    assert np.array_equal(whole[5_000:6_000], held(5_000, np.zeros(1_000)))
    assert np.array_equal(whole, ~held(0, np.zeros(20_000), is_reserved=False))
    assert 0.3 < (whole != held(0, np.zeros(20_000), seed=1)).mean() < 0.54


def test_whole_groups_wherever_they_are():
    ids = np.random.default_rng(0).integers(0, 500, 20_000)
    for values in (ids, pa.array(ids).cast(pa.string())):
        reserved = held(0, values, "id")
        shares = np.bincount(ids, reserved) / np.bincount(ids)
        assert set(shares) == {0.0, 1.0}
        assert abs(shares.mean() - 0.3) < 0.08
        assert np.array_equal(reserved[7_000:], held(7_000, values[7_000:], "id"))
