"""Writes docs/reference/options.md from the fields of the options: ``python docs/options_page.py``."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from slicebeam.pipelines.commands.table import COMMANDS, GROUPS
from slicebeam.pipelines.config.option_fields import by_panel

if TYPE_CHECKING:
    from slicebeam.pipelines.config.option_fields import OptionField

PAGE = Path(__file__).parent / "reference" / "options.md"
_BOUNDS = {"ge": "at least", "gt": "above", "le": "at most", "lt": "below"}
_INTRO = """\
# Options

This page lists every option of every command, by the groups of its `--help`. In a run file the key of an option is its
flag, with `_` for `-`: `max_cross_size: 2`. In Python it is the keyword of that name:
`search(data, max_cross_size=2)`. `python docs/options_page.py` writes it from the options.
"""


def page() -> str:
    """Return the page."""
    parts = [_INTRO]
    for name, spec in COMMANDS.items():
        if name in GROUPS:
            parts.append(f"## slicebeam {name}\n\n{spec.help}\n")
        else:
            parts.append(_command(name, "###" if " " in name else "##"))
    return "\n".join(parts)


def _command(name: str, heading: str) -> str:
    spec = COMMANDS[name]
    lines = [f"{heading} slicebeam {name}", "", spec.help, ""]
    for panel, fields in by_panel(spec.fields()).items():
        lines += [
            f"**{panel}**",
            "",
            "| option | value | default | meaning |",
            "|---|---|---|---|",
            *map(_row, fields),
            "",
        ]
    lines += ["```text", spec.example, "```", ""]
    return "\n".join(lines)


def _row(field: OptionField) -> str:
    if field.option.is_argument:
        flags = f"`{field.option.metavar}`"
    else:
        flags = ", ".join(f"`{flag}`" for flag in field.flags)
    cells = (flags, _value(field), _default(field), field.help)
    escaped = (one.replace("|", "\\|") for one in cells)
    return f"| {' | '.join(escaped)} |"


def _value(field: OptionField) -> str:
    if field.kind is bool:
        return ""
    if field.choices:
        return ", ".join(f"`{word}`" for word in field.choices)
    plain = field.kind if isinstance(field.kind, type) else str
    value = f"`{field.option.metavar or f'<{plain.__name__}>'}`"
    return ", ".join(filter(None, [value, " and ".join(_bounds(field.metadata))]))


def _bounds(metadata: list[Any]) -> Iterator[str]:
    """Yield the bounds of a field in words."""
    for bound in metadata:
        # A `Field` in a union keeps its own list.
        yield from _bounds(getattr(bound, "metadata", []))
        for name, words in _BOUNDS.items():
            value = getattr(bound, name, None)
            if value is not None:
                yield f"{words} {value:,}"


def _default(field: OptionField) -> str:
    if field.is_required:
        return "required"
    if field.default_words:
        return field.default_words
    if field.default is None or field.default is False or field.default in ((), ""):
        return ""
    return f"`{field.default}`"


if __name__ == "__main__":
    PAGE.parent.mkdir(exist_ok=True)
    PAGE.write_text(page(), "utf-8")
