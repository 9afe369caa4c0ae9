"""Writes TFRecord files of tf.Example, frame by frame and byte by byte, by their published formats alone."""

import struct
from functools import cache


@cache
def _table():
    table = []
    for byte in range(256):
        register = byte
        for _ in range(8):
            register = register >> 1 ^ (0x82F63B78 if register & 1 else 0)
        table.append(register)
    return tuple(table)


def masked_crc(data):
    register, table = 0xFFFFFFFF, _table()
    for byte in data:
        register = register >> 8 ^ table[(register ^ byte) & 0xFF]
    register ^= 0xFFFFFFFF
    return ((register >> 15 | register << 17) + 0xA282EAD8) & 0xFFFFFFFF


def frame(record):
    length = struct.pack("<Q", len(record))
    sums = [struct.pack("<I", masked_crc(part)) for part in (length, record)]
    return length + sums[0] + record + sums[1]


def varint(number):
    number %= 1 << 64
    out = bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*out, number])


def field(number, content):
    return varint(number << 3 | 2) + varint(len(content)) + content


def feature(values, *, packed=True):
    if not values:
        return b""
    if isinstance(values[0], str | bytes):
        texts = [one.encode() if isinstance(one, str) else one for one in values]
        return field(1, b"".join(field(1, one) for one in texts))
    if isinstance(values[0], float):
        key, tag, parts = 2, b"\x0d", [struct.pack("<f", one) for one in values]
    else:
        key, tag, parts = 3, b"\x08", [varint(one) for one in values]
    return field(key, field(1, b"".join(parts)) if packed else b"".join(tag + one for one in parts))


def message(entries):
    return field(1, b"".join(field(1, field(1, name) + field(2, one)) for name, one in entries))


def example(features, *, packed=True):
    return message((name.encode(), feature(features[name], packed=packed)) for name in features)
