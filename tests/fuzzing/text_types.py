"""What type a column of text has, and its values: the documented rules, read value by value."""

import datetime as dt
import math
import re

import pandas as pd

from tests.fuzzing.case import UnjudgedError

MISSING = {"", "NA", "N/A", "NaN", "nan", "null", "NULL", "None", "#N/A"}
_BLANKS = " \t\n\r\v\f"
_INTEGER = re.compile(r"-?(0|[1-9][0-9]*)")
_NUMBER = re.compile(r"-?((0|[1-9][0-9]*)(\.[0-9]*)?|\.[0-9]+)([eE][+-]?[0-9]+)?")
_INFINITE = re.compile(r"-?(inf|infinity)", re.IGNORECASE)
_DATE = re.compile(r"\d{4}-\d\d-\d\d", re.ASCII)
_TIME = re.compile(
    r"(\d{4}-\d\d-\d\d)(?:[T ](\d\d)(?::(\d\d)(?::(\d\d)(?:\.(\d{1,6}))?)?)?)?"
    r"(Z|[+-]\d\d(?::?\d\d)?)?",
    re.ASCII,
)


def _bool(text):
    return {"true": True, "false": False}.get(text.lower() if text in _BOOLS else "")


_BOOLS = {"true", "True", "TRUE", "false", "False", "FALSE"}


def _integer(text):
    if not _INTEGER.fullmatch(text) or len(text) > 20:
        return None
    return number if -(2**63) <= (number := int(text)) < 2**63 else None


def _number(text):
    if _INFINITE.fullmatch(text):
        return float(text)
    if not _NUMBER.fullmatch(text):
        return None
    if _INTEGER.fullmatch(text) and _integer(text) is None:
        return None
    return number if math.isfinite(number := float(text)) else None


def _date(text):
    if not _DATE.fullmatch(text):
        return None
    if text.startswith("0000"):
        raise UnjudgedError("the year 0")
    try:
        return dt.date.fromisoformat(text)
    except ValueError:
        return None


def _moment(text, *, zoned):
    found = _TIME.fullmatch(text)
    if not found or bool(found[6]) != zoned:
        return None
    day = _date(found[1])
    if day is None:
        return None
    hour, minute, second = (int(part or 0) for part in found.group(2, 3, 4))
    if hour > 23 or minute > 59 or second > 59:
        return None
    fraction = int((found[5] or "").ljust(6, "0"))
    moment = dt.datetime(day.year, day.month, day.day, hour, minute, second, fraction)  # noqa: DTZ001
    if zoned:
        if found[2] is None:
            return None
        digits = found[6].lstrip("Z+-").replace(":", "").ljust(4, "0")
        offset = dt.timedelta(hours=int(digits[:2]), minutes=int(digits[2:]))
        if int(digits[:2]) > 23 or int(digits[2:]) > 59:
            return None
        try:
            moment += offset if found[6].startswith("-") else -offset
        except OverflowError as error:
            raise UnjudgedError("beyond the years 1 to 9999") from error
        moment = moment.replace(tzinfo=dt.timezone.utc)
    return pd.Timestamp(moment)


PARSERS = {"bool": _bool, "int64": _integer, "double": _number, "date32[day]": _date}
PARSERS |= {
    "timestamp[us]": lambda text: _moment(text, zoned=False),
    "timestamp[us, tz=UTC]": lambda text: _moment(text, zoned=True),
}


def infer(values):
    """Return the type of a column of a CSV file and its values, None for a missing one."""
    trimmed = [None if value is None else value.strip(_BLANKS) for value in values]
    present = [value for value in trimmed if value is not None and value not in MISSING]
    if not present:
        return "null", [None] * len(values)
    for name, parse in PARSERS.items():
        parsed = {value: parse(value) for value in dict.fromkeys(present)}
        if all(value is not None for value in parsed.values()):
            return name, [parsed.get(value) if value is not None else None for value in trimmed]
    return "string", list(values)


def infer_dates(values):
    """Return whether texts of a format that has numbers of its own are dates or times."""
    present = [value for value in values if value is not None]
    if present and not MISSING.intersection(present):
        name, parsed = infer(values)
        if name.startswith(("date", "timestamp")):
            return name, parsed
    return "string", list(values)
