"""Slices that are defined by a list of ids: ``define --ids``, and the ids that labels are given to."""

from __future__ import annotations

import csv
import io
import re
from collections import Counter
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from slicebeam.metrics.errors import FileError, InputError, OptionError, shortened
from slicebeam.transforms.encode.definitions import Id, MembershipDefinition
from slicebeam.transforms.storage.storage import named_content, storage_path
from slicebeam.transforms.storage.strict_text import parse_json

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence


_SHOWN = 5
_WHOLE = re.compile(r"-?[0-9]{1,19}")


def id_list(
    uri: str, known: pa.Array, id_field: str
) -> tuple[MembershipDefinition, tuple[str, ...]]:
    """Return the definition of the examples whose ids a file (lines, CSV or JSON Lines) lists, and notes for the user."""
    ids = as_ids(_listed(uri, id_field), known.type, f"--ids {uri}")
    if not ids:
        raise OptionError(f"--ids {uri} contains no ids; write one per line")
    check_known(ids, known, f"--ids {uri}")
    repeated = sum(times > 1 for times in Counter(ids).values())
    are = "ids are" if repeated > 1 else "id is"
    note = f"{repeated:,} {are} listed more than once and counted once"
    return MembershipDefinition(ids=tuple(dict.fromkeys(ids))), (note,) if repeated else ()


def check_known(ids: Sequence[Id], known: pa.Array, where: str) -> None:
    """Refuse ids that are not in the data, naming the first few."""
    found = pc.is_in(pa.array(ids, known.type), value_set=known)
    lost = pa.array(ids, known.type).filter(pc.invert(found)).unique().to_pylist()
    if lost:
        shown = ", ".join(shortened(repr(one)) for one in lost[:_SHOWN])
        more = f" and {len(lost) - _SHOWN:,} more" if len(lost) > _SHOWN else ""
        raise InputError(f"{where}: {shown}{more}: not in the data; correct or leave them out")


def as_ids(values: Iterable[Any], kind: pa.DataType, where: str) -> list[Id]:
    """Return ids of the data's type: a text that spells a number is one where ids are numbers."""
    is_text = not pa.types.is_integer(kind)
    ids: list[Id] = []
    for number, value in enumerate(values, 1):
        found = value
        if not is_text and isinstance(value, str) and _WHOLE.fullmatch(value):
            found = int(value)
        is_number = isinstance(found, int) and not isinstance(found, bool)
        is_id = isinstance(found, str) and found if is_text else is_number
        if not is_id or (is_number and isinstance(value, str) and not -(2**63) <= found < 2**63):
            raise InputError(
                f"{where}, id {number}: {shortened(repr(value))} is not an id; ids of the data "
                f"are {'texts' if is_text else 'whole numbers'}"
            )
        ids.append(found)
    return ids


def _listed(uri: str, id_field: str) -> Iterator[Any]:
    text, name, where = read_text(uri, "--ids"), uri.casefold(), f"--ids {uri}"
    if name.endswith(".csv"):
        header, rows = read_csv(text, where)
        if id_field not in header and len(header) > 1:
            columns = ", ".join(map(shortened, header))
            raise InputError(f"{where}: there is no column {id_field!r}; columns: {columns}")
        at = header.index(id_field) if id_field in header else 0
        yield from (row[at] for row in rows)
        return
    is_json = name.endswith((".jsonl", ".ndjson"))
    for number, line in enumerate(text.splitlines(), 1):
        if line.strip() and not is_json:
            yield line.strip()
        elif line.strip():
            where = f"--ids {uri}, line {number}"
            try:
                record = parse_json(line)
            except ValueError as error:
                raise InputError(f"{where}: not JSON ({error})") from error
            if isinstance(record, dict) and id_field not in record:
                raise InputError(f"{where}: there is no {id_field!r}; give each id under this key")
            yield record[id_field] if isinstance(record, dict) else record


def read_text(uri: str, option: str) -> str:
    """Return the content of a file that an option names; InputError where there is none."""
    try:
        return named_content(storage_path(uri, option), f"{option} {uri}").decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise InputError(f"{option} {uri}: not UTF-8 text; save it as UTF-8") from error


def read_csv(text: str, where: str) -> tuple[list[str], list[list[str]]]:
    """Return the header and the rows of a CSV text, without empty lines and blanks around cells."""
    try:
        rows = [
            [cell.strip() for cell in row] for row in csv.reader(io.StringIO(text), strict=True)
        ]
    except csv.Error as error:
        raise InputError(f"{where}: not readable as CSV ({error})") from error
    rows = [row for row in rows if any(row)]
    if not rows:
        raise FileError(f"{where} is empty; start with a header line")
    for number, row in enumerate(rows[1:], 1):
        if len(row) != len(rows[0]):
            raise InputError(
                f"{where}, row {number}: {len(row)} cells under a header of {len(rows[0])}; correct it"
            )
    return rows[0], rows[1:]
