import numpy as np

from slicebeam.metrics.arrays import Ragged
from slicebeam.metrics.counting.counting import ROWS_AT_A_TIME
from slicebeam.transforms.encode.shards import Shard, read_all_facts, rows_in, write_shard
from slicebeam.transforms.storage.work_files import DamagedFileError
from tests.refusals import refuses


def test_what_is_written_is_read_in_blocks(tmp_path):
    rows, path = ROWS_AT_A_TIME + 7, tmp_path / "000000-000000.arrow"
    rng = np.random.default_rng(0)
    codes, lengths = rng.integers(0, 300, rows), rng.integers(0, 3, rows)
    tags = Ragged(np.append(0, np.cumsum(lengths)), rng.integers(0, 4, lengths.sum()))
    measured = {"cell": rng.integers(0, 4, rows), "id": rng.integers(0, 99, rows).astype(np.uint64)}
    facts = {"start_row": 1000, "rows": rows, "pairs": {}}
    write_shard(path, [codes, tags], [300, 4], measured, facts)
    assert read_all_facts([path]) == [facts]
    assert rows_in([path, path]) == 2 * rows
    blocks = [*Shard(path).blocks()]
    assert [block.rows for block in blocks] == [ROWS_AT_A_TIME, 7]
    np.testing.assert_array_equal(np.concatenate([one.column(0) for one in blocks]), codes)
    np.testing.assert_array_equal(np.concatenate([one.cells for one in blocks]), measured["cell"])
    np.testing.assert_array_equal(np.concatenate([one.ids for one in blocks]), measured["id"])
    assert [one.positions[0] for one in blocks] == [1000, 1000 + ROWS_AT_A_TIME]
    lists = blocks[1].column(1)
    np.testing.assert_array_equal(np.diff(lists.offsets), lengths[-7:])
    content = bytearray(path.read_bytes())
    content[content.rindex(b"start_row") + 2] ^= 4
    path.write_bytes(content)
    refuses(DamagedFileError, "is damaged", read_all_facts, [path])
