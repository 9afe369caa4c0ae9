"""The formats of files, and how much of one is read at a time."""

from __future__ import annotations

from typing import Literal, get_args

Format = Literal["parquet", "csv", "jsonl", "tfrecord"]

FORMATS: tuple[Format, ...] = get_args(Format)

# Examples that are read at a time, unless the user says otherwise.
CHUNK_ROWS = 1 << 18
