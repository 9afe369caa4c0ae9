"""Columns and texts that the page unpacks when it is open: compact, and text to the browser's parser."""

from __future__ import annotations

import base64
import json
import zlib
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

# The types that ``store.ts`` reads, by the kind and width of numpy's.
_TYPES = {"u1": "u8", "u2": "u16", "u4": "u32", "i4": "i32", "f4": "f32", "f8": "f64"}


class Payload:
    """What is put into the page besides its first view.

    The bytes are the length of a JSON text in four bytes, the text, and the columns one after the other;
    all of it is deflated, and written in base64. Of a column the first bytes of all numbers come first,
    then the second ones and so on, which deflates to about two thirds.
    """

    def __init__(self) -> None:
        self._bytes: list[bytes] = []
        self._size = 0

    def column(self, values: NDArray[Any]) -> dict[str, Any]:
        """Add a column of numbers, and return what says in the JSON text where it is."""
        kind = f"{values.dtype.kind}{values.dtype.itemsize}"
        little = np.ascontiguousarray(values, values.dtype.newbyteorder("<"))
        planes = little.view(np.uint8).reshape(values.size, values.dtype.itemsize)
        found = {"type": _TYPES[kind], "at": self._size, "length": values.size}
        self._bytes.append(np.ascontiguousarray(planes.T).tobytes())
        self._size += little.nbytes
        return found

    def packed(self, content: Any) -> str:
        """Return the base64 text of the JSON values ``content``, which refer to columns, and of these."""
        text = json.dumps(content, allow_nan=False, separators=(",", ":")).encode()
        deflate = zlib.compressobj(9, zlib.DEFLATED, -zlib.MAX_WBITS)
        whole = b"".join([len(text).to_bytes(4, "little"), text, *self._bytes])
        return base64.b64encode(deflate.compress(whole) + deflate.flush()).decode()
