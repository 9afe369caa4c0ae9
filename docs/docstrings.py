"""Lets the reference show entries of docstrings that describe a name in a sentence.

numpydoc reads ``name : text`` as a name and its type. Here the text may be a sentence instead, since
the signature has the type: such an entry becomes a name with a description.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from griffe import Extension

if TYPE_CHECKING:
    from griffe import Object

_SECTIONS = ("Parameters", "Attributes", "Other Parameters")
_ENTRY = re.compile(r"^(?P<names>\*{0,2}\w+(?:, \*{0,2}\w+)*) : (?P<text>.+)$")


def _is_entry(line: str) -> bool:
    return bool(line) and not line.startswith(" ")


def with_descriptions(text: str) -> str:
    """Return a docstring with the sentences of its entries moved to lines of their own.

    >>> given = ("Parameters", "----------", "data : a table, or", "    paths", "n : int", "    Size.")
    >>> with_descriptions(chr(10).join(given)).splitlines()[2:]
    ['data', '    a table, or', '    paths', 'n : int', '    Size.']
    """
    lines = text.splitlines()
    found: list[str] = []
    inside = False
    for at, line in enumerate(lines):
        below = lines[at + 1] if at + 1 < len(lines) else ""
        if below.startswith("---"):
            inside = line in _SECTIONS
        entry = _ENTRY.match(line) if inside else None
        # A type has its description below, which begins as a sentence does.
        begun = below.strip()[:1]
        if entry is None or (begun and not _is_entry(below) and not begun.islower()):
            found.append(line)
            continue
        found += [entry["names"], f"    {entry['text']}"]
    return "\n".join(found)


class Descriptions(Extension):
    """Applies `with_descriptions` to every docstring that is read."""

    def on_instance(self, *, obj: Object, **_: Any) -> None:
        """Change the docstring of a module, class, function or attribute."""
        if obj.docstring is not None:
            obj.docstring.value = with_descriptions(obj.docstring.value)
