"""Texts of data sets and documents, made safe for a terminal: no character in them controls it."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.console import Console
    from rich.segment import Segment
    from rich.table import Table

# Control characters except for line ends, and what changes the direction of a text.
_STEERING = re.compile(r"[\x00-\x09\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069]")
_SHOWN = "\ufffd"
# Intervals are shown from this width; what is not a terminal gets a width of its own.
WIDE = 100
_PIPED_WIDTH = 120


def harmless(text: str) -> str:
    r"""Return a text with its control characters escaped, except for line ends.

    >>> harmless("a\x1b[2J")
    'a\\x1b[2J'
    """
    return _STEERING.sub(lambda sign: sign[0].encode("unicode_escape").decode("ascii"), text)


def json_line(content: Any) -> str:
    r"""Return JSON in a line, with control characters escaped also where JSON would allow them.

    >>> json_line("\u202e\xe9")
    '"\\u202eé"'
    """
    text = json.dumps(content, ensure_ascii=False)
    return _STEERING.sub(lambda sign: f"\\u{ord(sign[0]):04x}", text)


def console_of_stdout() -> Console:
    """Return the console for a result, which is wide if stdout is not a terminal."""
    console = guarded_console(emoji=False)
    if not console.is_terminal and "COLUMNS" not in os.environ:
        console.width = _PIPED_WIDTH
    return console


def guarded_console(**options: Any) -> Console:
    """Return a console that replaces each control character in its output; styles stay."""
    # Not imported for a page of help.
    from rich.console import Console
    from rich.segment import Segment

    class Guarded(Console):
        def render(self, *what: Any) -> Iterator[Segment]:
            for text, style, control in super().render(*what):
                yield Segment(text if control else _STEERING.sub(_SHOWN, text), style, control)

    return Guarded(highlight=False, markup=False, **options)


def table_of(*numbers: str, last: str | None = None) -> Table:
    """Return a table with columns of numbers, and a last one that has all the width they leave."""
    from rich import box
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for header in numbers:
        table.add_column(header, justify="right", no_wrap=True)
    if last is not None:
        table.add_column(last, overflow="fold")
    return table
