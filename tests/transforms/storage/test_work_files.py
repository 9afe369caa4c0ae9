import pickle

import numpy as np
import pyarrow as pa
import pytest

from slicebeam.metrics.errors import EngineError
from slicebeam.transforms.storage.work_files import (
    DamagedFileError,
    checksum_of,
    open_arrow,
    open_checked,
    read_facts,
    read_metadata,
    write_arrow,
    write_facts,
)
from tests.refusals import refuses


def _batches(rows):
    values = np.random.default_rng(3).integers(0, 1 << 40, (2, rows))
    return [pa.record_batch([pa.array(some)], names=["x"]) for some in values]


def _write(path, rows=100):
    batches = _batches(rows)
    write_arrow(path, batches[0].schema.with_metadata({"facts": "{}"}), batches)
    return batches


def test_what_is_written_is_read(path):
    written, opened = _write(path), open_arrow(path)
    assert [opened.get_batch(i).to_pydict() for i in range(opened.num_record_batches)] == [
        batch.to_pydict() for batch in written
    ]
    assert read_metadata(path) == {b"facts": b"{}"}


def test_every_flipped_byte_is_noticed(path):
    _write(path, rows=5)
    whole = path.read_bytes()
    for position in range(len(whole)):
        damaged = bytearray(whole)
        damaged[position] ^= 1 << (position % 8)
        path.write_bytes(damaged)
        refuses(EngineError, r"part\.arrow is damaged", open_arrow, path)


def test_metadata_that_cannot_be_read_are_called_damaged(path):
    """Arrow says of some broken footers that the file system failed, of others that they are invalid."""
    _write(path)
    whole = path.read_bytes()
    messages = []
    for at in range(len(whole)):
        path.write_bytes(whole[:at] + bytes([whole[at] ^ 0x80]) + whole[at + 1 :])
        try:
            read_metadata(path)
        except EngineError as error:
            messages.append(str(error))
    assert len(messages) > 100
    assert all(f"{path} is damaged" in message for message in messages)


def test_damage_after_the_first_reading_is_noticed(path):
    _write(path)
    open_arrow(path)
    damaged = bytearray(path.read_bytes())
    damaged[len(damaged) // 2] ^= 1
    path.unlink()
    path.write_bytes(damaged)
    refuses(EngineError, "is damaged", open_arrow, path)


@pytest.mark.parametrize("kept", [0, 1, 7, 8, 9, 200])
def test_a_file_that_was_cut_off_is_noticed(path, kept):
    _write(path)
    path.write_bytes(path.read_bytes()[:kept])
    for read in (open_arrow, read_metadata):
        refuses(EngineError, r"part\.arrow", read, path)


def test_a_file_that_is_gone_is_named(path):
    for read in (open_arrow, read_metadata):
        refuses(EngineError, r"cannot read .*part\.arrow: No such file", read, path)


def test_a_failure_while_writing_leaves_the_old_file(path):
    _write(path)
    before = path.read_bytes()

    def failing():
        yield _batches(10)[0]
        raise KeyError

    with pytest.raises(KeyError):
        write_arrow(path, _batches(1)[0].schema, failing())  # type: ignore[arg-type]
    assert path.read_bytes() == before
    assert [one.name for one in path.parent.iterdir()] == ["part.arrow"]


def test_the_mapping_outlives_the_file(path):
    written, batch = _write(path), open_arrow(path).get_batch(0)
    path.unlink()
    assert pickle.loads(pickle.dumps(batch)).equals(written[0])


FACTS = {"kinds": {"Größe": 3}, "edges": [0.1, -1e300, 7], "none": None, "many": [{"a": True}]}


def test_facts_come_back(tmp_path):
    write_facts(tmp_path / "facts.json", FACTS)
    assert read_facts(tmp_path / "facts.json") == FACTS
    with pytest.raises(FileNotFoundError):
        read_facts(tmp_path / "missing.json")
    (tmp_path / "folder").mkdir()
    refuses(EngineError, r"cannot read .*folder", read_facts, tmp_path / "folder")


def test_no_bit_of_facts_is_turned_unnoticed(tmp_path):
    path = tmp_path / "facts.json"
    write_facts(path, FACTS)
    whole = path.read_bytes()
    for position in range(len(whole)):
        for bit in range(8):
            turned = bytearray(whole)
            turned[position] ^= 1 << bit
            path.write_bytes(turned)
            try:
                found = read_facts(path)
            except DamagedFileError:
                continue
            # A blank between the parts of the JSON may be another kind of blank.
            assert found == FACTS
    for length in range(len(whole)):
        path.write_bytes(whole[:length])
        refuses(DamagedFileError, r"facts\.json is damaged", read_facts, path)


def test_a_file_is_checked_when_it_is_opened(tmp_path):
    path = tmp_path / "part"
    path.write_bytes(bytes(range(256)) * 9)
    with path.open("rb") as stream:
        checksum = checksum_of(stream)
    for _ in range(2):
        assert open_checked(path, checksum).read() == path.read_bytes()
    content = bytearray(path.read_bytes())
    content[100] ^= 4
    for damaged in (bytes(content), content[:-1], b""):
        path.unlink()
        path.write_bytes(damaged)
        refuses(DamagedFileError, "part is damaged", open_checked, path, checksum)
    path.unlink()
    refuses(EngineError, r"cannot read .*part", open_checked, path, checksum)


@pytest.fixture
def path(tmp_path):
    return tmp_path / "part.arrow"
