"""The errors that reach a user: one or two lines with what, where, the value and the remedy."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from difflib import get_close_matches

_MOST_NAMES = 12
# Signs of a text in a line.
LONGEST_IN_TEXT = 60
# What a file or a command line holds may stand in a message: signs that a terminal obeys, and
# words of a megabyte. Those that turn the direction of writing hide what stands there.
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069]")
_ENDLESS = re.compile(r"\S{401,}")
_KEPT = 150
# What stands between values where it is not a comma.
_SEPARATORS = ";\t"


class SlicebeamError(Exception):
    """Base of all errors whose message is meant for the user; never shown with a traceback."""

    exit_code = 3


class InputError(SlicebeamError):
    """Wrong usage or bad input, which the user can fix."""

    exit_code = 2


class OptionError(InputError):
    """An option is unknown, missing or wrong, or conflicts with another one."""


class NoFindingsError(OptionError):
    """The findings of a document are to be examined, and there are none."""


class ColumnError(InputError):
    """A column is not in the data, or contains invalid values."""


class FileError(InputError):
    """A file or folder that the user names is missing, or can't be read or written."""


class EngineError(SlicebeamError):
    """The engine, an API or the storage failed: the work folder keeps finished work."""


class StorageError(EngineError):
    """The storage failed: a disk is full, a bucket refuses or does not answer."""


class ConflictError(EngineError):
    """Another run published in the same place: nothing of it was replaced."""

    exit_code = 2


def nearest(name: str, known: Iterable[str]) -> str | None:
    """Return the known name that is most like the given one in any case, None if none is."""
    by_case = {name.casefold(): name for name in known}
    near = get_close_matches(name.casefold(), by_case, n=1)
    return by_case[near[0]] if near else None


def nearest_hint(name: str, known: Iterable[str]) -> str:
    """Return what follows a wrong name in an error, before the known ones are listed."""
    near = nearest(name, known)
    return f"; did you mean {near!r}?" if near else ";"


def install_hint(extra: str) -> str:
    """Return the remedy where the packages of an extra are missing."""
    # No registry has this package, so that its name there could be anybody's.
    return f"in the checkout, run pip install '.[{extra}]'"


def delimiter_hint(names: Sequence[str]) -> str:
    """Return the remedy where the only column's name looks like several, empty if it does not."""
    if len(names) != 1:
        return ""
    character = max(_SEPARATORS, key=names[0].count)
    if character not in names[0]:
        return ""
    shown = "tab" if character == "\t" else repr(character)
    return f"are values separated by {shown}? give --delimiter {shown}"


def unknown_name(what: str, name: str, known: Iterable[str]) -> InputError:
    """Return the error for a name that is not among the known ones, the nearest one first."""
    names = list(known)
    kind = {"option": OptionError, "column": ColumnError}.get(what, InputError)
    if what == "column" and (hint := delimiter_hint(names)):
        return ColumnError(f"unknown column {name!r}: the only column is {names[0]!r}; {hint}")
    shown = ", ".join(names[:_MOST_NAMES]) + (", …" if len(names) > _MOST_NAMES else "")
    return kind(f"unknown {what} {name!r}{nearest_hint(name, names)} {what}s: {shown}")


def flag(name: str) -> str:
    """Return the flag of an option, such as ``--max-cross-size`` of ``max_cross_size``."""
    return "--" + name.replace("_", "-")


def counted(number: int, noun: str) -> str:
    """Return a number with its noun, such as ``1,200 slices`` or ``no findings``."""
    return f"{number or 'no':{',' if number else ''}} {noun}{'' if number == 1 else 's'}"


def percent(share: float) -> str:
    """Return a share such that neither none nor all is reached by rounding, such as ``over 99.9%``."""
    text = f"{share:.1%}"
    if text == "100.0%" and share < 1:
        return "over 99.9%"
    return "below 0.1%" if text == "0.0%" and share else text


def shortened(text: str) -> str:
    """Return a text shortened to a line, with ``…`` for the omitted part."""
    return text if len(text) <= LONGEST_IN_TEXT else text[: LONGEST_IN_TEXT - 1] + "…"


def printable(message: str) -> str:
    """Return a message as a terminal can show it: control characters escaped, long words cut."""
    cut = _ENDLESS.sub(lambda word: f"{word[0][:_KEPT]}…{word[0][-_KEPT:]}", message)
    return _CONTROL.sub(lambda sign: sign[0].encode("unicode_escape").decode("ascii"), cut)
