"""Text in the cells of a CSV file that no spreadsheet runs as a formula.

A spreadsheet takes a cell for a formula when it begins with one of a few signs. Which text is a cell
depends on the reader: a program that splits lines at semicolons finds cells inside a field that was
written between commas. Text is therefore quoted wherever a cell may begin, with the apostrophe that
marks text in spreadsheets.
"""

from __future__ import annotations

import re

# White space before a sign is skipped by some programs; a tab or a carriage return is a sign itself.
_SIGN = r"[ \u00a0\u3000]*[=+\-@\uff1d\uff0b\uff0d\uff20\u2212\t\r]"
_BEGIN = r"(?:\A|(?<=[,;|\t\r\n\"]))"
_FORMULA = re.compile(rf"{_BEGIN}(?='*{_SIGN})")
_QUOTED = re.compile(rf"{_BEGIN}'(?='*{_SIGN})")


def quoted(text: str) -> str:
    """Return text with an apostrophe before everything that a spreadsheet may run.

    These are the signs ``= + - @``, their full-width forms, the minus sign, a tab and a carriage
    return, at the beginning or after a character that separates cells. `unquoted` undoes it.

    >>> quoted("=1+1"), quoted("a;@b"), quoted("5 - 3")
    ("'=1+1", "a;'@b", '5 - 3')
    """
    return _FORMULA.sub("'", text)


def unquoted(text: str) -> str:
    """Return the text that `quoted` was given.

    >>> unquoted("'=1+1"), unquoted("a;'@b"), unquoted("'tis")
    ('=1+1', 'a;@b', "'tis")
    """
    return _QUOTED.sub("", text)
