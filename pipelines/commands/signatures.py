"""What `help` and notebooks show of the Python functions: their signatures and docstrings, of the fields of the options."""

from __future__ import annotations

import inspect
import keyword
import re
from itertools import chain
from typing import TYPE_CHECKING, Any, get_args

from slicebeam.pipelines.commands.table import COMMANDS
from slicebeam.pipelines.config.option_fields import (
    FILE,
    FOLDER,
    PATH,
    by_panel,
    declared,
    first_argument,
    with_keywords,
)

if TYPE_CHECKING:
    from slicebeam.pipelines.config.option_fields import OptionField

# How a flag is given several times.
_REPEATED = re.compile("Repeatable(, or separated by commas)?")
_NONE = inspect.Parameter.empty
_PROGRESS = "print progress and notes on stderr"
_DATA = "a table of pandas, polars or Arrow, or paths or globs of files"


def function_name(name: str) -> str:
    """Return what the function of a command is called, of one within a command in its class.

    >>> function_name("adapt import-checklist"), function_name("adapt from")
    ('import_checklist', 'from_')
    """
    word = name.rsplit(maxsplit=1)[-1].replace("-", "_")
    return f"{word}_" if keyword.iskeyword(word) else word


def keywords(name: str) -> list[OptionField]:
    """Return the options of a command that are keywords of its function, required ones first."""
    fields = [field for model in COMMANDS[name].models for field in declared(model).values()]
    panels = by_panel([field for field in fields if field.is_keyword])
    ordered = list(chain.from_iterable(panels.values()))
    return sorted(ordered, key=lambda field: _default(field) is not _NONE)


def signature(name: str) -> inspect.Signature:
    """Return the signature of a command's function, for `help` and notebooks."""
    first = first_argument(COMMANDS[name].models[0])
    positional = inspect.Parameter(first, inspect.Parameter.POSITIONAL_ONLY)
    chosen = [
        inspect.Parameter(
            field.name,
            inspect.Parameter.KEYWORD_ONLY,
            default=_default(field),
            annotation=annotation(field),
        )
        for field in keywords(name)
    ]
    progress = inspect.Parameter(
        "progress", inspect.Parameter.KEYWORD_ONLY, default=False, annotation="bool"
    )
    return inspect.Signature([positional, *chosen, progress])


def docstring(name: str) -> str:
    """Return the docstring of a command's function, with its keywords."""
    spec = COMMANDS[name]
    first = first_argument(spec.models[0])
    about = _DATA if first == "data" else "a ChangeList, or its folder for the last revision"
    if first not in ("data", "changelist"):
        about = declared(spec.models[0])[first].help
    lines = [_worded(spec.help), "", "Parameters", "----------", f"{first} : {about}"]
    for field in keywords(name):
        help_ = field.help
        if field.default_words:
            help_ += f" By default {field.default_words}."
        lines.append(f"{field.name} : {_worded(help_)}")
    lines += [
        f"progress : {_PROGRESS}",
        "",
        "Raises",
        "------",
        "InputError",
        "    An option (`OptionError`), a column (`ColumnError`), a file (`FileError`) or the data is wrong.",
        "EngineError",
        "    The engine, an API or the storage (`StorageError`) failed.",
    ]
    return "\n".join(lines)


def annotation(field: OptionField) -> str:
    """Return the type of a keyword, as Python source."""
    plain = "StrPath" if field.option.metavar in (FILE, FOLDER, PATH) else "str"
    if field.is_list:
        plain = "int" if int in get_args(field.kind) else plain
        kinds = [plain, f"Sequence[{plain}]"]
        if plain == "int":
            kinds.append("str")
        if field.takes_mapping:
            kinds.append("Mapping[str, object]")
    elif field.choices:
        words = ", ".join(f'"{word}"' for word in field.choices)
        kinds = [f"Literal[{words}]"]
    elif field.kind in (int, float, bool):
        kinds = [field.kind.__name__]
    else:
        kinds = [plain, *(["float"] if field.option.takes_numbers else [])]
    may_be_none = field.is_nullable or field.name == "output"
    return " | ".join([*kinds, *(["None"] if may_be_none else [])])


def _default(field: OptionField) -> Any:
    """Return the default of a keyword; without an output nothing is published."""
    if field.name == "output":
        return None
    return _NONE if field.is_required else field.default


def _worded(text: str) -> str:
    """Return a help text with names of keywords for flags."""
    text = _REPEATED.sub("One or several", text)
    return with_keywords(text, "`")
