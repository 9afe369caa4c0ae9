"""``slicebeam run FILE``: a command from a file, the form that a scheduler starts."""

from __future__ import annotations

import datetime as dt
import os
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Any, Literal, get_args

from slicebeam.metrics.errors import (
    FileError,
    InputError,
    NoFindingsError,
    OptionError,
    flag,
    printable,
    unknown_name,
)
from slicebeam.pipelines.changelist.reading import read_changelist
from slicebeam.pipelines.commands.command import Invocation, print_json
from slicebeam.pipelines.commands.signals import interrupted
from slicebeam.pipelines.commands.table import data_command
from slicebeam.pipelines.config.common import Command, DataConfig, validated
from slicebeam.pipelines.config.confirmation import refuse_unconfirmed
from slicebeam.pipelines.config.option_fields import (
    FILE,
    Option,
    OptionField,
    Options,
    as_flag,
    declared,
    listed,
)
from slicebeam.pipelines.config.placeholders import split_placeholders
from slicebeam.pipelines.config.run_options import FileRunOptions, RunOptions
from slicebeam.pipelines.config.shift import ShiftConfig
from slicebeam.pipelines.run.work_folder import OtherRunError
from slicebeam.transforms.storage.secrets import check_place, redacted, value_of
from slicebeam.transforms.storage.storage import named_content, storage_path
from slicebeam.transforms.storage.strict_text import parse_json, parse_yaml

_COMMANDS = "'command: search', 'check', 'shift' or 'discover'"
_FLAG = re.compile(r"--([a-z-]+)")
_DATE = re.compile(r"date(?P<days>[+-]\d{1,5})?(?::(?P<format>.+))?")


class FileConfig(Options):
    """Options of ``slicebeam run``, besides those that replace the file's."""

    file: Annotated[str, Option("Data", metavar=FILE, is_argument=True)]
    """YAML or JSON file, or the changelist.json of a run."""
    date: Annotated[str | None, Option("Data", metavar="<date>")] = None
    """Date that {date} stands for, such as 2026-11-20. [default: today in UTC]"""


@dataclass(frozen=True)
class RunSpec:
    """What a run file, or the document of an earlier run, says of a run."""

    command: Command
    options: dict[str, Any]
    # Options outside the configuration, by the names of `RunOptions`.
    run_options: dict[str, Any]
    # The runs of a file with several, which has no options but these.
    steps: tuple[RunSpec, ...] = ()

    @property
    def output(self) -> str | None:
        """The folder of its result."""
        return self.options.get("output")


def _config(command: Command) -> type[DataConfig]:
    model: type[DataConfig] = data_command(command).models[0]
    return model


def override_fields() -> list[OptionField]:
    """Return the options that may replace those of a file."""
    fields: dict[str, OptionField] = {}
    for config in map(_config, get_args(Command)):
        for name, field in declared(config).items():
            if field.option.is_overridable:
                option = replace(field.option, help=f"Replace {name!r} of the file.")
                fields.setdefault(
                    name, replace(field, option=option, is_required=False, default=None)
                )
    return list(fields.values())


def run_file(flags: Mapping[str, Any], invocation: Invocation) -> int:
    """Run the command in a file, and return the exit code."""
    wanted = {field: flags[field] for field in declared(FileRunOptions) if field in flags}
    if "log_format" in wanted:
        invocation.log(validated(RunOptions, wanted))
    overrides = {
        field.name: listed(flags[field.name]) if field.option.by_commas else flags[field.name]
        for field in override_fields()
        if field.name in flags
    }
    spec = read_run(flags["file"], flags.get("date"), os.environ, overrides)
    run_options = validated(RunOptions, {**spec.run_options, **wanted})
    if spec.steps:
        return run_steps(flags["file"], spec.steps, run_options, wanted, invocation)
    return data_command(spec.command).launch(spec.options, run_options, invocation)


def read_run(
    file: str,
    date: str | None,
    environment: Mapping[str, str],
    overrides: Mapping[str, Any] = MappingProxyType({}),
) -> RunSpec:
    """Return the run that a file, or the document of an earlier run, describes; ``date`` is today in UTC for None."""
    content = _content(file)
    if "schema_version" in content and "provenance" in content:
        if date is not None:
            raise OptionError(
                f"--date {date}: {file} is the document of a run, whose paths have no {{date}}"
            )
        provenance = read_changelist(file, "run").provenance
        fields = declared(_config(provenance.command))
        # Unknown keys are refused with the other options.
        recorded = {
            key: as_flag(f"{file}, {key}", fields[key], value) if key in fields else value
            for key, value in provenance.config.items()
        }
        kept = {key: value for key, value in recorded.items() if key not in overrides}
        refuse_unconfirmed(file, kept, {})
        return RunSpec(provenance.command, kept | dict(overrides), {})
    placeholders = _Placeholders(file, _day(date), environment)
    if "steps" in content:
        return _run_of_steps(file, content, placeholders, overrides)
    return _single(file, content, placeholders, overrides)


def _run_of_steps(
    file: str, content: Mapping[Any, Any], placeholders: _Placeholders, overrides: Mapping[str, Any]
) -> RunSpec:
    """Return the run of a file with ``steps``; what stands above them holds for each that has it."""
    steps = content["steps"]
    if not isinstance(steps, list) or not steps:
        raise InputError(
            f"{file}, steps: {steps!r} is not a list of steps; write '- command: search'"
        )
    if "output" in overrides:
        raise OptionError(
            f"--output {overrides['output']}: each step of {file} has an output; change it in the file"
        )
    if "command" in content:
        raise InputError(f"{file}: 'command' and 'steps' exclude each other; leave one out")
    common = {key: value for key, value in content.items() if key != "steps"}
    specs = []
    keys: dict[str, None] = {}
    for at, step in enumerate(steps):
        where = f"{file}, steps[{at}]"
        if not isinstance(step, dict):
            raise InputError(
                f"{where}: {step!r} is not a step; write 'command: search' and its options"
            )
        fields = declared(_config(_command(where, step)))
        for name in _OF_ALL & step.keys():
            raise OptionError(f"{where}.{name}: it holds for all steps; write it above 'steps'")
        mine = {key: value for key, value in common.items() if key in fields}
        keys |= dict.fromkeys([*fields, *_RUN_FIELDS])
        replaced = {key: value for key, value in overrides.items() if key in fields}
        specs.append(_single(where, {**mine, **step}, placeholders, replaced, "."))
    for key in common:
        if key not in keys:
            raise InputError(f"{file}: {unknown_name('key', str(key), ['steps', *keys])}")
    run_options = {
        field.name: as_flag(f"{file}, {key}", field, common[key])
        for key, field in _RUN_FIELDS.items()
        if key in common
    }
    return RunSpec(specs[0].command, {}, run_options, tuple(specs))


def _single(
    file: str,
    content: Mapping[Any, Any],
    placeholders: _Placeholders,
    overrides: Mapping[str, Any],
    separator: str = ", ",
) -> RunSpec:
    """Return the run of a command's options; ``file`` and ``separator`` are for the errors."""
    placeholders = replace(placeholders, place=f"{file}{separator}")
    command = _command(file, content)
    fields = declared(_config(command))
    options: dict[str, Any] = {}
    run_options: dict[str, Any] = {}
    for key, value in content.items():
        if key == "command":
            continue
        if (field := fields.get(key) or _RUN_FIELDS.get(key)) is None:
            keys = ["command", *fields, *_RUN_FIELDS]
            place = f"{file}.{key}" if separator == "." else file
            raise InputError(f"{place}: {unknown_name('key', str(key), keys)}")
        typed = as_flag(f"{file}{separator}{key}", field, value)
        if key not in fields:
            run_options[field.name] = typed
        else:
            options[key] = placeholders.expand(field, typed)
    return RunSpec(command, options | dict(overrides), run_options)


# By their keys: the flags, with ``_`` for ``-``.
_RUN_FIELDS = {
    field.flags[0].removeprefix("--").replace("-", "_"): field
    for field in declared(RunOptions).values()
}
# What is printed and resumed is that of the file, not of a step.
_OF_ALL = frozenset({"json", "quiet", "log_format", "resume"})


def _content(file: str) -> dict[Any, Any]:
    try:
        text = named_content(storage_path(file), file).decode()
        content = parse_json(text) if file.endswith(".json") else parse_yaml(text)[0]
    except ValueError as error:
        raise FileError(f"{file}: cannot be read ({' '.join(str(error).split())})") from error
    if not isinstance(content, dict):
        raise InputError(f"{file}: {_COMMANDS} is expected, and its options")
    return content


def _command(file: str, content: Mapping[Any, Any]) -> Command:
    name: Any = content.get("command")
    if name is None:
        raise InputError(f"{file}: key 'command' is missing; add {_COMMANDS}")
    if name not in get_args(Command):
        raise InputError(f"{file}: {unknown_name('command', str(name), get_args(Command))}")
    command: Command = name
    return command


def _day(date: str | None) -> dt.date:
    if date is None:
        return dt.datetime.now(dt.timezone.utc).date()
    try:
        return dt.date.fromisoformat(date)
    except ValueError as error:
        raise OptionError(f"--date {date!r} is not a date; write it as 2026-11-20") from error


@dataclass(frozen=True)
class _Placeholders:
    file: str
    day: dt.date
    environment: Mapping[str, str]
    place: str = ""

    def expand(self, field: OptionField, value: Any) -> Any:
        """Return a value with what its placeholders stand for, if the option may have any."""
        if not field.option.has_placeholders:
            return value
        if isinstance(value, tuple):
            return tuple(self._text(field, text) for text in value)
        return self._text(field, value)

    def _text(self, field: OptionField, text: str) -> str:
        where = f"{self.place}{field.name}"

        def value(variable: re.Match[str]) -> str:
            text_of = value_of(variable, where, self.environment)
            if field.option.keeps_variables:
                return f"${{{variable[0]}}}"
            check_place(variable["name"], where)
            return text_of

        parts = split_placeholders(text, where, value)
        return "".join(
            part if isinstance(part, str) else self._expanded(where, part) for part in parts
        )

    def _expanded(self, where: str, placeholder: re.Match[str]) -> str:
        written, name = placeholder[0], placeholder["name"] or ""
        date = _DATE.fullmatch(name)
        if name == "here":
            return str(storage_path(self.file).parent)
        if date is None:
            raise InputError(
                f"{where}: {written} is not a placeholder; write {{date}}, {{date-1}}, "
                "{date:%Y%m%d} or {here}, and {{ for a brace"
            )
        try:
            day = self.day + dt.timedelta(days=int(date["days"] or 0))
        except OverflowError as error:
            raise InputError(
                f"{where}: {written} of {self.day} is not a date in the years 1 to 9999"
            ) from error
        return day.strftime(date["format"]) if date["format"] else day.isoformat()


@dataclass
class _Outcome:
    """How a step ended; ``result`` is what --json prints of the command alone."""

    command: str
    output: str | None
    status: Literal["passed", "failed", "skipped", "error", "not run"] = "not run"
    exit_code: int | None = None
    reason: str = ""
    result: Any = None


def run_steps(
    file: str,
    steps: Sequence[RunSpec],
    common: RunOptions,
    wanted: Mapping[str, Any],
    invocation: Invocation,
) -> int:
    """Run the steps of a file until one ends with an error, and return the largest of their exit codes.

    ``common``: run options above the steps. ``wanted``: those of the command line, which replace a step's.
    """
    run_options = [_checked(file, at, steps, common, wanted) for at in range(len(steps))]
    outcomes = [_Outcome(step.command, step.output) for step in steps]
    try:
        for at, (step, options, outcome) in enumerate(
            zip(steps, run_options, outcomes, strict=True)
        ):
            if not common.quiet and not common.as_json and invocation.events is None:
                sys.stderr.write(f"steps[{at}]: {step.command}\n")
            skipped = [each.output for each in outcomes[:at] if each.status == "skipped"]
            if source := next(_read_of(step, skipped), None):
                outcome.status, outcome.exit_code = "skipped", 0
                outcome.reason = f"it reads {source} of a step that was skipped"
                continue
            invocation.emit = partial(setattr, outcome, "result")
            earlier = _read_of(step, [each.output for each in steps[:at]])
            _run(step, options, outcome, invocation, reads_earlier=any(earlier))
    finally:
        if not interrupted():
            _summarize(outcomes, common)
    return _worst(outcomes)


def _checked(
    file: str, at: int, steps: Sequence[RunSpec], common: RunOptions, wanted: Mapping[str, Any]
) -> RunOptions:
    step, place = steps[at], f"{file}, steps[{at}]"
    for earlier, other in enumerate(steps[:at]):
        if step.output and other.output and _folder(other.output) == _folder(step.output):
            raise OptionError(
                f"{place}.output: {step.output!r} is the output of steps[{earlier}] too; name "
                "another folder"
            )
    command = data_command(step.command)
    fields = declared(command.models[1])
    above = {name: getattr(common, name) for name in common.model_fields_set if name in fields}
    try:
        chosen = {**above, **step.run_options, **wanted}
        refused = [name for name in step.run_options if name not in fields]
        for name in ["dry_run", *refused] if chosen.get("dry_run") else refused:
            raise OptionError(f"{flag(name)} is not for a step of {step.command}; leave it out")
        options = validated(RunOptions, chosen)
        command.check_run_options(options)
        config = command.configured(step.options)
        if isinstance(config, ShiftConfig) and config.simulates:
            raise OptionError(
                "--plan and --repeat only print, and are not for a step of shift; leave them out"
            )
        _check_documents(step)
    except FileError as error:
        # What an earlier step writes is not there yet.
        if not any(_read_of(step, [other.output for other in steps[:at]])):
            raise FileError(f"{place}: {error}") from error
    except InputError as error:
        flag_of = _FLAG.match(str(error))
        key = "" if flag_of is None else "." + flag_of[1].replace("-", "_")
        raise OptionError(f"{place}{key}: {error}") from error
    return options


def _check_documents(step: RunSpec) -> None:
    """Refuse a document that is missing, which the command would read after the earlier steps."""
    for name in ("changelist", "within_findings"):
        if (document := step.options.get(name)) is not None:
            path = storage_path(document)
            if not path.is_file() and not (path / "changelist.json").is_file():
                raise FileError(f"{flag(name)} {document}: no such file")


def _folder(output: str) -> str:
    """Return an output as it is compared: two spellings may name a folder."""
    path = storage_path(output, "--output")
    return str(path.absolute() if isinstance(path, Path) else path).rstrip("/")


def _read_of(step: RunSpec, outputs: Sequence[str | None]) -> Iterator[str]:
    """Yield the values of a step's options that lie in one of some folders."""
    inside = tuple(f"{folder.rstrip('/')}/" for folder in outputs if folder)
    for name, value in step.options.items():
        for text in map(str, value if isinstance(value, tuple) else (value,)):
            if name not in ("output", "work_dir") and text.startswith(inside):
                yield text


def _run(
    step: RunSpec,
    options: RunOptions,
    outcome: _Outcome,
    invocation: Invocation,
    *,
    reads_earlier: bool,
) -> None:
    """Run a step, and note how it ended; what reads the result of an earlier step replaces its own of another run."""
    command = data_command(step.command)
    try:
        try:
            outcome.exit_code = command.launch(step.options, options, invocation)
        except OtherRunError:
            if not reads_earlier:
                raise
            anew = options.model_copy(update={"resume": False})
            outcome.exit_code = command.launch(step.options, anew, invocation)
    except NoFindingsError as error:
        outcome.status, outcome.exit_code, outcome.reason = "skipped", 0, str(error)
    except Exception as error:
        outcome.status, outcome.reason = "error", redacted(str(error))
        outcome.exit_code = getattr(error, "exit_code", 3)
        raise
    else:
        outcome.status = "failed" if outcome.exit_code else "passed"


def _worst(outcomes: Sequence[_Outcome]) -> int:
    return max(outcome.exit_code or 0 for outcome in outcomes)


def _summarize(outcomes: Sequence[_Outcome], common: RunOptions) -> None:
    if common.as_json:
        print_json({"exit_code": _worst(outcomes), "steps": list(map(asdict, outcomes))})
    elif not common.quiet:
        for at, outcome in enumerate(outcomes):
            code = "" if outcome.exit_code is None else f" (exit code {outcome.exit_code})"
            why = outcome.reason or outcome.output or ""
            line = f"steps[{at}] {outcome.command}: {outcome.status}{code}  {why}"
            sys.stdout.write(printable(line).rstrip() + "\n")
