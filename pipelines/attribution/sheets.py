"""The sheets to label, as CSV and JSON Lines, and reading them back."""

from __future__ import annotations

import csv
import io
import json
import math
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from slicebeam.metrics.errors import ColumnError, FileError, InputError
from slicebeam.pipelines.attribution.labels import CHOICES, label_of
from slicebeam.pipelines.attribution.population import positions_of
from slicebeam.pipelines.attribution.spreadsheet_cells import quoted, unquoted
from slicebeam.transforms.encode.column_values import python_rows
from slicebeam.transforms.formats.strict_text import parse_json
from slicebeam.transforms.storage.storage import storage_errors, written_whole

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from slicebeam.pipelines.attribution.population import SlicePopulation
    from slicebeam.pipelines.attribution.state import Drawn
    from slicebeam.pipelines.changelist.discovered import Id
    from slicebeam.transforms.storage.storage import StoragePath

_BEFORE, _AFTER = ("item", "label"), ("phase", "round", "weight")
# Spreadsheets cut longer cells, or refuse them.
_LONGEST_CELL = 32_000
# Spreadsheets round numbers.
_ROUNDING = 1e-4
_LARGEST_EXACT = 2**53
_LINE_END = re.compile(r"\r\n|\r|\n")


def paths(folder: StoragePath, number: int) -> tuple[StoragePath, StoragePath]:
    """Return where the two sheets of a round are."""
    name = f"round-{number:03d}"
    return folder / f"{name}.csv", folder / f"{name}.jsonl"


def rows_of(population: SlicePopulation, items: Sequence[Id]) -> list[dict[str, Any]]:
    """Return the fields that show items, one mapping for each."""
    if not items:
        return []
    table = population.rows(positions_of(population, items))
    rows = _renamed(python_rows(table))
    return [{"item": item, **row} for item, row in zip(items, rows, strict=True)]


def _renamed(rows: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """Yield rows whose names are none of the sheets' own."""
    own = {*_BEFORE, *_AFTER}
    for row in rows:
        yield {f"data.{name}" if name in own else name: value for name, value in row.items()}


def write_sheets(folder: StoragePath, drawn: Drawn, population: SlicePopulation) -> None:
    """Write the items of a round that are to be labelled.

    The JSON Lines come first: the CSV, which is what people open, shows that both are there.
    """
    facts = _facts(drawn)
    shown = rows_of(population, drawn.asked)
    rows = [
        {
            "item": row["item"],
            "label": "",
            **{name: value for name, value in row.items() if name != "item"},
            **facts[row["item"]],
        }
        for row in shown
    ]
    as_csv, as_lines = paths(folder, drawn.number)
    with written_whole(as_lines) as stream:
        for row in rows:
            stream.write(
                json.dumps(row, ensure_ascii=False, default=str).encode("utf-8", "replace")
            )
            stream.write(b"\n")
    fields = list(dict.fromkeys(name for row in rows for name in row)) or [*_BEFORE, *_AFTER]
    text = io.StringIO(newline="")
    # Quotes around every cell keep separators inside it with readers that know them.
    writer = csv.writer(text, lineterminator="\r\n", quoting=csv.QUOTE_ALL)
    writer.writerow([_cell(name) for name in fields])
    for row in rows:
        writer.writerow([_cell(row.get(name)) for name in fields])
    with written_whole(as_csv) as stream:
        stream.write(text.getvalue().encode("utf-8-sig", "replace"))


def _facts(drawn: Drawn) -> dict[Id, dict[str, Any]]:
    """Return the phase, the round and the weight of each item."""
    facts: dict[Id, dict[str, Any]] = {}
    for phase, items in (("precision", drawn.precision), ("train", drawn.train)):
        for item in items:
            facts[item] = {"phase": phase, "round": drawn.number, "weight": ""}
    for item, weight in zip(drawn.recall, drawn.weights, strict=True):
        facts[item] = {"phase": "recall", "round": drawn.number, "weight": float(f"{weight:.6g}")}
    return facts


def _cell(value: Any) -> Any:
    """Return a value as text that a spreadsheet shows but does not execute."""
    if value is None or isinstance(value, (bool, int, float)):
        return value
    if isinstance(value, (dict, list)):
        value = json.dumps(value, ensure_ascii=False, default=str)
    text = quoted(str(value).replace("\0", ""))
    return text if len(text) <= _LONGEST_CELL else text[: _LONGEST_CELL - 1] + "…"


@dataclass(frozen=True)
class _SheetRow:
    """A row of a sheet: where it is, and its cells by the names of their columns."""

    place: str
    cells: Mapping[str, Any]


def read_sheets(folder: StoragePath, drawn: Drawn) -> dict[Id, int]:
    """Return the labels that the sheets of a round hold, those of the CSV and of the JSON Lines.

    Of a sheet that was removed nothing is read.

    Raises
    ------
    InputError
        A label is none, items were changed, removed, added or repeated, a weight was changed, the
        two sheets contradict each other, or a file can't be read.
    """
    labels: dict[Id, int] = {}
    for path, read in zip(paths(folder, drawn.number), (_csv_rows, _json_rows), strict=True):
        try:
            content = path.read_bytes()
        except FileNotFoundError:
            continue
        except OSError:
            with storage_errors(path, "read"):
                raise
        for item, (label, place) in _labels_in(path.name, read(path.name, content), drawn).items():
            if labels.setdefault(item, label) != label:
                raise InputError(
                    f"{place}: item {item!r} has a different label in the .csv of this round; "
                    "make them the same, or clear one of them"
                )
    return labels


def _labels_in(name: str, rows: Iterator[_SheetRow], drawn: Drawn) -> dict[Id, tuple[int, str]]:
    """Return the labels of a sheet, each with its place."""
    by_text = {str(item): item for item in drawn.asked}
    facts = _facts(drawn)
    seen: dict[Id, str] = {}
    labels: dict[Id, tuple[int, str]] = {}
    for row in rows:
        item = by_text.get(_id_text(row.cells.get("item")))
        if item is None:
            raise InputError(
                f"{row.place}: item {row.cells.get('item')!r} does not belong to this round; keep "
                "the items as they were written (a spreadsheet may reformat them: import that "
                "column as text, or fill the .jsonl)"
            )
        if item in seen:
            raise InputError(
                f"{row.place}: item {item!r} is already in {seen[item]}; keep one of the two rows"
            )
        seen[item] = row.place.rpartition(", ")[2]
        _check_facts(row, item, facts[item])
        given = row.cells.get("label")
        if given is None or not str(given).strip():
            continue
        label = label_of(given)
        if label is None:
            raise InputError(f"{row.place}: label {given!r} of item {item!r}; write {CHOICES}")
        labels[item] = label, row.place
    lost = [item for item in drawn.asked if item not in seen]
    if lost:
        raise InputError(
            f"{name}: item {lost[0]!r} is missing"
            + (f", and {len(lost) - 1:,} more" if len(lost) > 1 else "")
            + "; restore the row; leave its label empty if there is none"
        )
    return labels


def _id_text(value: Any) -> str:
    """Return an item's id as it was written, where a spreadsheet made 17.0 of 17."""
    if isinstance(value, bool):
        return ""
    text = str(value)
    whole, point, rest = text.strip().partition(".")
    if (
        point
        and not rest.strip("0")
        and whole.lstrip("-").isdigit()
        and abs(int(whole)) < _LARGEST_EXACT
    ):
        return whole
    return text if text.strip() == text else text.strip()


def _check_facts(row: _SheetRow, item: Id, facts: Mapping[str, Any]) -> None:
    """Refuse changes of other columns than the label."""
    for name, drawn_value in facts.items():
        value = row.cells.get(name)
        text = "" if value is None else str(value).strip()
        if not text or drawn_value == "":
            continue
        if isinstance(drawn_value, str):
            is_same = text.casefold() == drawn_value
        else:
            number = _number(text)
            is_same = number is not None and math.isclose(number, drawn_value, rel_tol=_ROUNDING)
        if not is_same:
            raise InputError(
                f"{row.place}: {name} {value!r} of item {item!r}, which was drawn with "
                f"{drawn_value}; restore it; fill in only the label"
            )


def _number(text: str) -> float | None:
    try:
        # Some countries write 0,5.
        return float(text.replace(",", "."))
    except ValueError:
        return None


def _csv_rows(name: str, content: bytes) -> Iterator[_SheetRow]:
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
            place = f"{name}, line {reader.line_num}"
            if header is None:
                header = [unquoted(cell).strip().casefold() for cell in cells]
                _check_header(place, header)
                continue
            # Some programs leave out empty cells at the end.
            yield _SheetRow(place, dict(zip(header, map(unquoted, cells), strict=False)))
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
    for column in _BEFORE:
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


def _json_rows(name: str, content: bytes) -> Iterator[_SheetRow]:
    for number, line in enumerate(_decoded(name, content).split("\n"), 1):
        if not line.strip():
            continue
        place = f"{name}, line {number}"
        try:
            record = parse_json(line)
        except ValueError as error:
            raise InputError(f"{place}: not readable as JSON ({error}); correct it") from error
        if not isinstance(record, dict) or "item" not in record:
            raise InputError(f"{place}: an object with 'item' and 'label' is expected")
        yield _SheetRow(place, record)
