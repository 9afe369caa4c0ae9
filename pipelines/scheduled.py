"""``slicebeam run FILE``: a command from a file, the form that a scheduler starts."""

from __future__ import annotations

import datetime as dt
import re
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from slicebeam.metrics.errors import InputError, unknown_name
from slicebeam.pipelines.changelist_files import read_changelist
from slicebeam.pipelines.confirmation import refuse_unconfirmed
from slicebeam.pipelines.option_values import CONFIGS, as_flag
from slicebeam.pipelines.placeholders import parts_of
from slicebeam.pipelines.run_options import ASKED, Asked
from slicebeam.pipelines.strict_text import parse_json, parse_yaml
from slicebeam.pipelines.variables import check_place, value_of
from slicebeam.transforms.storage import storage_path

if TYPE_CHECKING:
    from collections.abc import Mapping

    from slicebeam.pipelines.data_config import Command
    from slicebeam.pipelines.placeholders import Placeholder

# Keys in whose texts placeholders stand for a date or for something of the environment.
_FILLED = frozenset(
    {"data", "output", "work_dir", "model", "baseline_model", "domains", "changelist", "slices"}
    | {"since", "since_if_exists", "runner_config", "runner_option"}
    | {"old_matrix", "api", "ledger"}
)
# Options that keep the variable's name; its value is looked up where the engine is made.
_KEPT_BY_NAME = frozenset({"runner_option"})
# What may be given beside the file, in place of what it says.
INSTEAD = (
    *("output", "model", "baseline_model", "encoder", "api", "phrases"),
    *("runner_config", "runner_option"),
)
_DATE = re.compile(r"date(?P<days>[+-]\d{1,5})?(?::(?P<format>.+))?")


@dataclass(frozen=True)
class Described:
    """What a file says.

    Attributes
    ----------
    command : to run
    options : of its configuration
    asked : what is no part of the configuration, by the names of `Asked`
    """

    command: Command
    options: dict[str, Any]
    asked: dict[str, Any]


def read_run(
    file: str,
    date: str | None,
    environment: Mapping[str, str],
    instead: Mapping[str, Any] = MappingProxyType({}),
) -> Described:
    """Return what a configuration file, or the document of an earlier run, tells to run.

    Parameters
    ----------
    file : YAML or JSON
    date : what ``{date}`` stands for, as an ISO date; None for today in UTC
    environment : the variables that ``${NAME}`` stands for
    instead : options in place of the file's

    Raises
    ------
    InputError
        The file is missing or unreadable, a key is unknown, a value has the wrong type, a
        placeholder stands for nothing, or a document names code, a program or an endpoint that
        the user does not name.
    """
    content = _content(file)
    if "schema_version" in content and "provenance" in content:
        if date is not None:
            raise InputError(
                f"--date {date}: {file} is the document of a run, whose paths are spelt out"
            )
        made_by = read_changelist(file, "run").provenance
        fields = CONFIGS[made_by.command].model_fields
        # Unknown keys are refused with the other options.
        recorded = {
            key: as_flag(f"{file}, {key}", key, value, fields[key].annotation)
            if key in fields
            else value
            for key, value in made_by.config.items()
        }
        kept = {key: value for key, value in recorded.items() if key not in instead}
        refuse_unconfirmed(file, kept, {})
        return Described(made_by.command, kept | dict(instead), {})
    filling = _Filling(file, _day(date), environment)
    command = _command(file, content)
    fields = CONFIGS[command].model_fields
    known = ["command", *fields, "since_if_exists", *ASKED]
    options: dict[str, Any] = {}
    asked: dict[str, Any] = {}
    for key, value in content.items():
        if key not in known:
            raise InputError(f"{file}: {unknown_name('key', str(key), known)}")
        if key in ASKED:
            kind = Asked.__annotations__[ASKED[key]]
            asked[ASKED[key]] = as_flag(
                f"{file}, {key}", key, value, bool if kind == "bool" else str
            )
        elif key != "command":
            kind = fields[key].annotation if key in fields else str
            typed = as_flag(f"{file}, {key}", key, value, kind)
            options[key] = filling.filled(key, typed) if key in _FILLED else typed
    return Described(command, options | dict(instead), asked)


def _content(file: str) -> dict[Any, Any]:
    path = storage_path(file)
    try:
        text = path.read_text("utf-8")
        content = parse_json(text) if file.endswith(".json") else parse_yaml(text)[0]
    except FileNotFoundError as error:
        raise InputError(f"{file}: no such file") from error
    except IsADirectoryError as error:
        raise InputError(f"{file} is a folder; name a file") from error
    except ValueError as error:
        raise InputError(f"{file}: it can't be read ({' '.join(str(error).split())})") from error
    if not isinstance(content, dict):
        raise InputError(
            f"{file}: 'command: search', 'check', 'shift' or 'discover' is expected, and the options"
        )
    return content


def _command(file: str, content: Mapping[Any, Any]) -> Command:
    name = content.get("command")
    if name is None:
        raise InputError(
            f"{file}: key 'command' is missing; add 'command: search', 'check', 'shift' or 'discover'"
        )
    for command in CONFIGS:
        if name == command:
            return command
    raise InputError(f"{file}: {unknown_name('command', str(name), CONFIGS)}")


def _day(date: str | None) -> dt.date:
    if date is None:
        return dt.datetime.now(dt.timezone.utc).date()
    try:
        return dt.date.fromisoformat(date)
    except ValueError as error:
        raise InputError(f"--date {date!r} is no date; write it as 2026-11-20") from error


@dataclass(frozen=True)
class _Filling:
    """What the placeholders of a file stand for."""

    file: str
    day: dt.date
    environment: Mapping[str, str]

    def filled(self, key: str, value: str | tuple[str, ...]) -> str | tuple[str, ...]:
        """Return a value with what its placeholders stand for."""
        if isinstance(value, tuple):
            return tuple(self._text(key, one) for one in value)
        return self._text(key, value)

    def _text(self, key: str, text: str) -> str:
        where = f"{self.file}, {key}"

        def value(variable: re.Match[str]) -> str:
            found = value_of(variable, where, self.environment)
            if key in _KEPT_BY_NAME:
                return f"${{{variable[0]}}}"
            check_place(variable["name"], where)
            return found

        parts = parts_of(text, where, value)
        return "".join(
            part if isinstance(part, str) else self._filled(where, part) for part in parts
        )

    def _filled(self, where: str, placeholder: Placeholder) -> str:
        found = _DATE.fullmatch(placeholder.name)
        written = placeholder.written
        if placeholder.name == "here":
            return str(storage_path(self.file).parent)
        if found is None:
            raise InputError(
                f"{where}: {written} stands for nothing; write {{date}}, {{date-1}}, "
                "{date:%Y%m%d} or {here}, and {{ for a brace"
            )
        try:
            day = self.day + dt.timedelta(days=int(found["days"] or 0))
        except OverflowError as error:
            raise InputError(
                f"{where}: {written} of {self.day} is no date of the years 1 to 9999"
            ) from error
        return day.strftime(found["format"]) if found["format"] else day.isoformat()
