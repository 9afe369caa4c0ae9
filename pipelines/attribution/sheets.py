"""The sheet of a round to label, as CSV, and reading it back."""

from __future__ import annotations

import csv
import io
import json
import re
from typing import TYPE_CHECKING, Any

from slicebeam.metrics.errors import ColumnError, FileError, InputError
from slicebeam.pipelines.attribution.labels import CHOICES, label_of
from slicebeam.pipelines.attribution.population import positions_of
from slicebeam.pipelines.attribution.spreadsheet_cells import quoted, unquoted
from slicebeam.transforms.encode.column import python_rows
from slicebeam.transforms.storage.storage import storage_errors, written_whole

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from slicebeam.pipelines.attribution.population import SlicePopulation
    from slicebeam.pipelines.attribution.state import Drawn
    from slicebeam.transforms.encode.definitions import Id
    from slicebeam.transforms.storage.storage import StoragePath

_COLUMNS = ("item", "label")
# Spreadsheets cut longer cells, or refuse them.
_LONGEST_CELL = 32_000
_LARGEST_EXACT = 2**53
_LINE_END = re.compile(r"\r\n|\r|\n")


def sheet_of(folder: StoragePath, number: int) -> StoragePath:
    """Return where the sheet of a round is."""
    return folder / f"round-{number:03d}.csv"


def rows_of(population: SlicePopulation, items: Sequence[Id]) -> list[dict[str, Any]]:
    """Return the fields that show items, one mapping for each."""
    if not items:
        return []
    rows = python_rows(population.data.rows(positions_of(population.data.ids, items)))
    return [
        {"item": item}
        | {f"data.{name}" if name in _COLUMNS else name: value for name, value in row.items()}
        for item, row in zip(items, rows, strict=True)
    ]


def write_sheet(folder: StoragePath, drawn: Drawn, population: SlicePopulation) -> None:
    """Write the items of a round that are to be labelled.

    Whether an item is of the slice is not said: who labels should not know.
    """
    rows = rows_of(population, drawn.asked)
    fields = [*dict.fromkeys([*_COLUMNS, *(name for row in rows for name in row)])]
    text = io.StringIO(newline="")
    # Quotes around every cell keep separators inside it with readers that know them.
    writer = csv.writer(text, lineterminator="\r\n", quoting=csv.QUOTE_ALL)
    writer.writerow([_cell(name) for name in fields])
    for row in rows:
        writer.writerow([_cell(row.get(name)) for name in fields])
    with written_whole(sheet_of(folder, drawn.number)) as stream:
        stream.write(text.getvalue().encode("utf-8-sig", "replace"))


def _cell(value: Any) -> Any:
    """Return a value as text that a spreadsheet shows but does not execute."""
    if value is None or isinstance(value, (bool, int, float)):
        return value
    if isinstance(value, (dict, list)):
        value = json.dumps(value, ensure_ascii=False, default=str)
    text = quoted(str(value).replace("\0", ""))
    return text if len(text) <= _LONGEST_CELL else text[: _LONGEST_CELL - 1] + "…"


def read_sheet(folder: StoragePath, drawn: Drawn) -> dict[Id, int]:
    """Return the labels that the sheet of a round holds; none where it was removed."""
    path = sheet_of(folder, drawn.number)
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        return {}
    except OSError:
        with storage_errors(path, "read"):
            raise
    by_text = {str(item): item for item in drawn.asked}
    seen: dict[Id, int] = {}
    labels: dict[Id, int] = {}
    for line, cells in _csv_rows(path.name, content):
        place, written = f"{path.name}, line {line}", cells.get("item", "")
        item = by_text.get(_id_text(written))
        if item is None:
            raise InputError(
                f"{place}: item {written!r} does not belong to this round; keep the items as they "
                "were written (a spreadsheet may reformat them: import that column as text)"
            )
        if item in seen:
            raise InputError(
                f"{place}: item {item!r} is already in line {seen[item]}; keep one of the two rows"
            )
        seen[item] = line
        word = cells.get("label", "")
        if not word.strip():
            continue
        label = label_of(word)
        if label is None:
            raise InputError(f"{place}: label {word!r} of item {item!r}; write {CHOICES}")
        labels[item] = label
    lost = [item for item in drawn.asked if item not in seen]
    if lost:
        raise InputError(
            f"{path.name}: item {lost[0]!r} is missing"
            + (f", and {len(lost) - 1:,} more" if len(lost) > 1 else "")
            + "; restore the row; leave its label empty if there is none"
        )
    return labels


def _id_text(written: str) -> str:
    """Return an item's id as it was written, where a spreadsheet made 17.0 of 17."""
    text = written.strip()
    whole, point, rest = text.partition(".")
    is_whole = point and not rest.strip("0") and whole.lstrip("-").isdigit()
    return whole if is_whole and abs(int(whole)) < _LARGEST_EXACT else text


def _csv_rows(name: str, content: bytes) -> Iterator[tuple[int, dict[str, str]]]:
    """Yield the line of each row, and its cells by column."""
    text = _decoded(name, content)
    first, *rest = _LINE_END.split(text, maxsplit=1)
    if first.strip().casefold().startswith("sep="):
        text = "".join(rest)
        first = _LINE_END.split(text, maxsplit=1)[0]
    delimiter = max(",;\t", key=first.count)
    reader = csv.reader(io.StringIO(text, newline=""), delimiter=delimiter)
    before = csv.field_size_limit(max(len(text), 1))
    try:
        header: list[str] | None = None
        for cells in reader:
            if not any(cell.strip() for cell in cells):
                continue
            if header is None:
                header = [unquoted(cell).strip().casefold() for cell in cells]
                _check_header(f"{name}, line {reader.line_num}", header)
                continue
            # Some programs leave out empty cells at the end.
            yield reader.line_num, dict(zip(header, map(unquoted, cells), strict=False))
        if header is None:
            raise FileError(
                f"{name} is empty; restore it, or remove it so that it is written again"
            )
    except csv.Error as error:
        raise InputError(
            f"{name}, line {reader.line_num}: not readable as CSV ({error}); save it as CSV UTF-8"
        ) from error
    finally:
        csv.field_size_limit(before)


def _check_header(place: str, header: list[str]) -> None:
    for column in _COLUMNS:
        if header.count(column) != 1:
            often = "is missing" if column not in header else "occurs twice"
            raise ColumnError(
                f"{place}: column {column!r} {often} in the header {', '.join(header)[:100]!r}; "
                "restore it"
            )


def _decoded(name: str, content: bytes) -> str:
    encoding = "utf-16" if content[:2] in (b"\xff\xfe", b"\xfe\xff") else "utf-8-sig"
    try:
        return content.decode(encoding)
    except UnicodeDecodeError as error:
        line = content[: error.start].count(b"\n") + 1
        raise InputError(f"{name}, line {line} is not UTF-8 text; save it as CSV UTF-8") from error
