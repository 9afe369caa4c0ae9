"""The pool: texts without labels, from a file of any kind."""

from __future__ import annotations

import csv
import io
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow.parquet as pq

from slicebeam.metrics.errors import ColumnError, FileError, unknown_name
from slicebeam.transforms.formats.raw_text import open_bytes
from slicebeam.transforms.storage.strict_text import parse_json

if TYPE_CHECKING:
    from collections.abc import Callable

# Texts that are drawn where the file has more.
_MOST_TEXTS = 50_000
_TEXT = "text"


def read_pool(path: str, column: str | None, seed: int, note: Callable[[str], None]) -> list[str]:
    """Return the texts of a file, each once; of a very large file a random part."""
    try:
        with open_bytes(path) as stream:
            data = stream.read()
        values = _values(path, data, column)
    except FileNotFoundError as error:
        raise FileError(f"--pool {path}: no such file") from error
    except (OSError, ValueError, csv.Error) as error:
        raise FileError(
            f"--pool {path}: it can't be read ({' '.join(str(error).split())})"
        ) from error
    texts = list(dict.fromkeys(text for one in values if (text := _cleaned(one))))
    if not texts:
        raise FileError(f"--pool {path} holds no text")
    if len(texts) > _MOST_TEXTS:
        note(f"--pool {path}: {_MOST_TEXTS:,} of {len(texts):,} texts are drawn")
        rows = np.random.default_rng(seed).choice(len(texts), _MOST_TEXTS, replace=False)
        texts = [texts[row] for row in np.sort(rows).tolist()]
    return texts


def _values(path: str, data: bytes, column: str | None) -> list[Any]:
    kind = path.lower().removesuffix(".gz").rpartition(".")[2]
    name = column or _TEXT
    where = f"--pool {path}" if column is None else f"--pool {path}, --text {column}"
    if kind == "parquet":
        file = pq.ParquetFile(io.BytesIO(data))
        _check(name, file.schema_arrow.names, where)
        values: list[Any] = file.read([name])[name].to_pylist()
        return values
    text = data.decode("utf-8-sig")
    if kind == "csv":
        reader = csv.DictReader(io.StringIO(text, newline=""))
        _check(name, list(reader.fieldnames or ()), where)
        return [row[name] for row in reader]
    if kind in ("jsonl", "ndjson"):
        rows = [parse_json(line) for line in text.splitlines() if line.strip()]
        names = list(dict.fromkeys(key for row in rows if isinstance(row, dict) for key in row))
        _check(name, names, where)
        return [row.get(name) if isinstance(row, dict) else None for row in rows]
    if column is not None:
        raise ColumnError(
            f"--text {column}: {path} has a text a line, and no columns; leave --text out, or name a "
            ".csv, .jsonl or .parquet file"
        )
    return list(text.splitlines())


def _check(name: str, names: list[str], where: str) -> None:
    if name not in names:
        raise ColumnError(f"{where}: {unknown_name('column', name, names)}")


def _cleaned(value: Any) -> str:
    return value.strip() if isinstance(value, str) else ""
