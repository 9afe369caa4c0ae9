"""Signatures of the Python functions, generated from the fields of the options.

``python -m slicebeam.pipelines.python.signatures`` writes them into ``api.pyi``, from which editors and mypy
know the keywords, their types and what they mean. Run it after an option was changed.
"""

from __future__ import annotations

import inspect
import keyword
import re
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

from slicebeam.pipelines.commands.table import COMMANDS, SUBCOMMANDS, command_spec
from slicebeam.pipelines.config.option_fields import (
    FILE,
    FOLDER,
    PATH,
    by_panel,
    declared,
    flagged,
    with_keywords,
)

if TYPE_CHECKING:
    from slicebeam.pipelines.config.option_fields import OptionField

STUB = Path(__file__).parents[1] / "api.pyi"
# How a flag is given several times.
_REPEATED = re.compile("Repeatable(, or separated by commas)?")
_PROGRESS = "print progress and notes on stderr"
_DATA = "a table of pandas, polars or Arrow, or paths or globs of files"
_HEADER = """\
# Written by `python -m slicebeam.pipelines.python.signatures` from the options; do not edit.
# ruff: noqa: A002, N801, PYI021
import os
from collections.abc import Mapping, Sequence
from typing import Any, Literal, TypeAlias

from slicebeam.pipelines.adaptive.checklist import ImportedSuite
from slicebeam.pipelines.adaptive.from_slices.make_tests import SliceTests
from slicebeam.pipelines.adaptive.suggestions.suggest import Suggestions
from slicebeam.pipelines.adaptive.training import TrainingExport
from slicebeam.pipelines.attribution.session import Finished, Sampled, Stopped
from slicebeam.pipelines.changelist.discovered import Edit
from slicebeam.pipelines.define.new_slices import Revision
from slicebeam.pipelines.python.find_slices import FindSlices as FindSlices
from slicebeam.pipelines.python.python_runs import Report as Report
from slicebeam.pipelines.run.published import Published
from slicebeam.pipelines.tfma.export import Exported

StrPath: TypeAlias = str | os.PathLike[str]
"""


def function_name(name: str) -> str:
    """Return what the function of a command is called, of one within a command in its class.

    >>> function_name("adapt import-checklist"), function_name("adapt from")
    ('import_checklist', 'from_')
    """
    own = name.rsplit(maxsplit=1)[-1].replace("-", "_")
    return f"{own}_" if keyword.iskeyword(own) else own


def keywords(name: str) -> list[OptionField]:
    """Return the options of a command that are keywords of its function, required ones first.

    Parameters
    ----------
    name : of the command, such as ``search`` or ``edit rename``
    """
    first = first_argument(name)
    found = [one for model in command_spec(name).options for one in flagged(model).values()]
    chosen = [one for one in found if one.option.in_python and one.name != first]
    ordered = [one for panel in by_panel(chosen).values() for one in panel]
    return sorted(ordered, key=lambda one: not _is_required(one))


def first_argument(name: str) -> str:
    """Return the argument of a function that stands before its keywords."""
    fields = declared(command_spec(name).options[0])
    argument = next((one.name for one in fields.values() if one.option.is_argument), None)
    if argument is not None:
        return argument
    data = fields.get("data")
    return "data" if data is not None and data.is_required else "changelist"


def signature(name: str) -> inspect.Signature:
    """Return the signature of a command's function, for `help` and notebooks."""
    first = inspect.Parameter(first_argument(name), inspect.Parameter.POSITIONAL_ONLY)
    chosen = [
        inspect.Parameter(
            one.name,
            inspect.Parameter.KEYWORD_ONLY,
            default=inspect.Parameter.empty if _is_required(one) else _default(one),
            annotation=annotation(one),
        )
        for one in keywords(name)
    ]
    progress = inspect.Parameter(
        "progress", inspect.Parameter.KEYWORD_ONLY, default=False, annotation="bool"
    )
    return inspect.Signature([first, *chosen, progress])


def docstring(name: str) -> str:
    """Return the docstring of a command's function, with its keywords."""
    spec = command_spec(name)
    first = first_argument(name)
    about = _DATA if first == "data" else "a ChangeList, or its folder for the last revision"
    if first not in ("data", "changelist"):
        about = declared(spec.options[0])[first].help
    lines = [_worded(spec.help), "", "Parameters", "----------", f"{first} : {about}"]
    for one in keywords(name):
        help_ = one.help
        if one.option.default:
            help_ += f" By default {one.option.default}."
        lines.append(f"{one.name} : {_worded(help_)}")
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
        kinds = [f"Literal[{', '.join(map(_quoted, field.choices))}]"]
    elif field.kind in (int, float, bool):
        kinds = [field.kind.__name__]
    else:
        kinds = [plain, *(["float"] if field.option.takes_numbers else [])]
    may_be_none = field.is_nullable or field.name == "output"
    return " | ".join([*kinds, *(["None"] if may_be_none else [])])


def stub() -> str:
    """Return the text of ``api.pyi``."""
    names = [name for name, spec in COMMANDS.items() if spec.runs]
    parts = [_HEADER, *(_function(name, "") for name in names)]
    for group, within in SUBCOMMANDS.items():
        help_ = textwrap.indent(f'"""{COMMANDS[group].help}\n"""', "    ")
        methods = "\n".join(_function(f"{group} {name}", "    ") for name in within)
        parts.append(f"class {group}:\n{help_}\n\n{methods}")
    return "\n".join(parts)


def _is_required(field: OptionField) -> bool:
    # Without an output nothing is published.
    return field.is_required and field.name != "output"


def _default(field: OptionField) -> Any:
    return None if field.name == "output" else field.default


def _function(name: str, indent: str) -> str:
    head = f"def {function_name(name)}(\n    {first_argument(name)}: {_first_type(name)},\n    /,\n    *,"
    lines = [head]
    for one in keywords(name):
        default = "" if _is_required(one) else f" = {_default(one)!r}"
        lines.append(f"    {one.name}: {annotation(one)}{default},")
    lines.append(f"    progress: bool = False,\n) -> {_returned(name)}:")
    lines.append(textwrap.indent(f'"""{docstring(name)}\n"""', "    "))
    text = "\n".join(lines) + "\n"
    text = f"@staticmethod\n{text}" if indent else text
    return textwrap.indent(text, indent)


def _first_type(name: str) -> str:
    # A table of any library that gives its columns to Arrow.
    return "Any" if first_argument(name) == "data" else "StrPath"


def _returned(name: str) -> str:
    spec = command_spec(name)
    if spec.configure:
        return "Report"
    returned = spec.function.__annotations__["return"]
    return returned if isinstance(returned, str) else str(returned.__name__)


def _quoted(word: str) -> str:
    return f'"{word}"'


def _worded(text: str) -> str:
    """Return a help text with names of keywords for flags."""
    text = _REPEATED.sub("One or several", text)
    return with_keywords(text, "`")


def formatted(text: str) -> str:
    """Return the text as in the file."""
    # By the rules of the checkout, as the file is checked.
    done = subprocess.run(  # noqa: S603  (no input of a user)
        [sys.executable, "-m", "ruff", "format", "--stdin-filename", str(STUB.resolve()), "-"],
        input=text,
        capture_output=True,
        check=True,
        text=True,
    )
    return done.stdout


if __name__ == "__main__":
    STUB.write_text(formatted(stub()), "utf-8")
