"""Files that readers of text formats are tried on, and what they say of those that they refuse."""

import gzip

import pytest

from slicebeam.metrics.errors import InputError


def write(path, data):
    path.write_bytes(data.encode() if isinstance(data, str) else data)
    return str(path)


def refused(read_blocks, path, **options):
    """Return why a file is refused, in a line or two."""
    with pytest.raises(InputError) as caught:
        list(read_blocks(path, **options))
    message = str(caught.value)
    assert len(message.splitlines()) <= 2
    assert len(message) < 400 + len(path)
    return message


def assert_damage_of_gzip_is_told(read_blocks, path, plain):
    """A file that was cut off, one with other bytes amid it, and one that is not gzip."""
    data, middle = gzip.compress(plain), len(plain) // 20
    for damaged in (data[:-1000], data[:middle] + bytes(50) + data[middle + 50 :], plain):
        path.write_bytes(damaged)
        assert "the gzip is corrupt" in refused(read_blocks, str(path), block_bytes=1 << 15)
