"""What was damaged is told as such, whichever byte it is."""

import pytest

from slicebeam.metrics.errors import EngineError
from slicebeam.transforms.storage.checked_files import (
    DamagedFileError,
    checksum_of,
    open_checked,
    read_facts,
    write_facts,
)

FACTS = {"kinds": {"Größe": 3}, "edges": [0.1, -1e300, 7], "none": None, "many": [{"a": True}]}


def test_facts_come_back(tmp_path):
    write_facts(tmp_path / "facts.json", FACTS)
    assert read_facts(tmp_path / "facts.json") == FACTS
    with pytest.raises(FileNotFoundError):
        read_facts(tmp_path / "missing.json")
    (tmp_path / "folder").mkdir()
    with pytest.raises(EngineError, match=r"cannot read .*folder"):
        read_facts(tmp_path / "folder")


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
        with pytest.raises(DamagedFileError, match=r"facts\.json is damaged"):
            read_facts(path)


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
        with pytest.raises(DamagedFileError, match="part is damaged"):
            open_checked(path, checksum)
    path.unlink()
    with pytest.raises(EngineError, match=r"cannot read .*part"):
        open_checked(path, checksum)
