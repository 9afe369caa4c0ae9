import pytest

from slicebeam.transforms.formats.csv_columns import read_csv_blocks
from tests.transforms.formats.reading import assert_damage_of_gzip_is_told, write
from tests.transforms.formats.test_csv_columns import error_of


def test_missing_file(tmp_path):
    assert "cannot be read" in error_of(str(tmp_path / "none.csv"))


@pytest.mark.parametrize("lines", [0, 5, 40000])
def test_not_utf8(tmp_path, lines):
    path = write(tmp_path / "a.csv", b"a,b\n" + b"1,2\n" * lines + b"caf\xe9,3\n" + b"4,5\n" * 9)
    message = error_of(path, block_bytes=1 << 14)
    assert f"line {lines + 2}: not UTF-8 near" in message
    assert "xe9" in message


def test_corrupt_gzip(tmp_path):
    plain = "a,b\n" + "".join(f"{i * 7919 % 10007},{i}\n" for i in range(50000))
    assert_damage_of_gzip_is_told(read_csv_blocks, tmp_path / "a.csv.gz", plain.encode())
