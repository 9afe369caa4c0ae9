"""The steps of a run file: commands in order, with one date, one exit code and one summary."""

from __future__ import annotations

import io
import json
import re
import sys
from contextlib import redirect_stdout
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from slicebeam.metrics.errors import FileError, InputError, NoFindingsError, OptionError, printable
from slicebeam.pipelines.commands.launch import check_run_options, configuration, launch
from slicebeam.pipelines.commands.signals import interrupted
from slicebeam.pipelines.commands.table import COMMANDS
from slicebeam.pipelines.config.common import validated
from slicebeam.pipelines.config.option_fields import declared
from slicebeam.pipelines.config.run_options import RunOptions
from slicebeam.pipelines.config.shift import ShiftConfig
from slicebeam.pipelines.run.work_folder import OtherRunError
from slicebeam.pipelines.show.terminal_text import json_line
from slicebeam.transforms.secrets.variables import redacted
from slicebeam.transforms.storage.storage import storage_path

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from slicebeam.pipelines.commands.launch import Invocation
    from slicebeam.pipelines.commands.run_spec import RunSpec
    from slicebeam.pipelines.config.common import DataConfig

_FLAG = re.compile(r"--([a-z-]+)")


@dataclass
class _Outcome:
    """How a step ended.

    ``status``: ``passed``, ``failed`` (the gate), ``skipped``, ``error`` or ``not run``.
    ``reason``: why it was skipped or ended with an error. ``result``: what --json prints of the
    command alone.
    """

    command: str
    output: str | None
    status: str = "not run"
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
    """Run the steps of a file, and return the largest of their exit codes.

    A step whose gate fails does not keep the later ones from running; an error does.

    ``common``: run options above the steps. ``wanted``: those of the command line, which replace a
    step's.
    """
    run_options = [_checked(file, at, steps, common, wanted) for at in range(len(steps))]
    outcomes = [_Outcome(one.command, one.options.get("output")) for one in steps]
    try:
        for at, (step, options, outcome) in enumerate(
            zip(steps, run_options, outcomes, strict=True)
        ):
            if not common.quiet and not common.as_json and invocation.events is None:
                sys.stderr.write(f"steps[{at}]: {step.command}\n")
            before = outcomes[:at]
            skipped = [each.output for each in before if each.status == "skipped" and each.output]
            if source := next(_read_of(step, skipped), None):
                _skip(outcome, f"it reads {source} of a step that was skipped")
                continue
            earlier = [each.output for each in before if each.output]
            _run(step, options, outcome, invocation, reads_earlier=any(_read_of(step, earlier)))
    finally:
        if not interrupted():
            _summarize(outcomes, common)
    return _worst(outcomes)


def _checked(
    file: str, at: int, steps: Sequence[RunSpec], common: RunOptions, wanted: Mapping[str, Any]
) -> RunOptions:
    """Return the run options of a step, after checking all its options."""
    step, place = steps[at], f"{file}, steps[{at}]"
    outputs = [one.options.get("output") for one in steps[:at]]
    _check_output(place, at, steps)
    kind = COMMANDS[step.command].options[1]
    known = declared(kind)
    above = {name: getattr(common, name) for name in common.model_fields_set if name in known}
    try:
        given = {**above, **step.run_options, **wanted}
        for name in ["dry_run", *step.run_options]:
            if (name == "dry_run" and given.get(name)) or (
                name in step.run_options and name not in known
            ):
                flag = f"--{name.replace('_', '-')}"
                raise OptionError(f"{flag} is not for a step of {step.command}; leave it out")
        options = validated(RunOptions, given)
        check_run_options(step.command, options)
        config: DataConfig = configuration(step.command, step.options)
        if isinstance(config, ShiftConfig) and config.simulates:
            raise OptionError(
                "--plan and --repeat only print, and are not for a step of shift; leave them out"
            )
        _check_documents(step)
    except FileError as error:
        # What an earlier step writes is not there yet.
        if not any(_read_of(step, [one for one in outputs if one])):
            raise FileError(f"{place}: {error}") from error
    except InputError as error:
        flag_of = _FLAG.match(str(error))
        key = "" if flag_of is None else "." + flag_of[1].replace("-", "_")
        raise OptionError(f"{place}{key}: {error}") from error
    return options


def _check_documents(step: RunSpec) -> None:
    """Refuse a document that is missing, which the command would read after the earlier steps."""
    for name in ("changelist", "within_findings"):
        named = step.options.get(name)
        if named is not None:
            path = storage_path(named)
            if not path.is_file() and not (path / "changelist.json").is_file():
                raise FileError(f"--{name.replace('_', '-')} {named}: no such file")


def _check_output(place: str, at: int, steps: Sequence[RunSpec]) -> None:
    """Refuse the output of an earlier step."""
    output = steps[at].options.get("output")
    for earlier, other in enumerate(one.options.get("output") for one in steps[:at]):
        if output is not None and other is not None and _folder(other) == _folder(output):
            raise OptionError(
                f"{place}.output: {output!r} is the output of steps[{earlier}] too; name "
                "another folder"
            )


def _folder(output: str) -> str:
    """Return an output as it is compared: two spellings may name a folder."""
    path = storage_path(output, "--output")
    return str(path.absolute() if isinstance(path, Path) else path).rstrip("/")


def _read_of(step: RunSpec, outputs: Sequence[str]) -> Iterator[str]:
    """Yield the values of a step's options that lie in one of some folders."""
    for name, value in step.options.items():
        for text in value if isinstance(value, tuple) else (value,):
            inside = (f"{one.rstrip('/')}/" for one in outputs)
            if name not in ("output", "work_dir") and str(text).startswith(tuple(inside)):
                yield str(text)


def _run(
    step: RunSpec,
    options: RunOptions,
    outcome: _Outcome,
    invocation: Invocation,
    *,
    reads_earlier: bool,
) -> None:
    """Run a step, and note how it ended.

    ``reads_earlier``: whether it reads what an earlier step wrote: its result of another run is
    then not continued but replaced.
    """
    printed = io.StringIO() if options.as_json else sys.stdout
    try:
        with redirect_stdout(printed):
            try:
                outcome.exit_code = launch(step.command, step.options, options, invocation)
            except OtherRunError:
                if not reads_earlier:
                    raise
                anew = options.model_copy(update={"resume": False})
                outcome.exit_code = launch(step.command, step.options, anew, invocation)
    except NoFindingsError as error:
        _skip(outcome, str(error))
        return
    except Exception as error:
        outcome.status, outcome.reason = "error", redacted(str(error))
        outcome.exit_code = getattr(error, "exit_code", 3)
        raise
    outcome.status = "failed" if outcome.exit_code else "passed"
    if isinstance(printed, io.StringIO):
        outcome.result = json.loads(printed.getvalue())


def _skip(outcome: _Outcome, reason: str) -> None:
    outcome.status, outcome.exit_code, outcome.reason = "skipped", 0, reason


def _worst(outcomes: Sequence[_Outcome]) -> int:
    return max(one.exit_code or 0 for one in outcomes)


def _summarize(outcomes: Sequence[_Outcome], common: RunOptions) -> None:
    """Print how the steps ended."""
    if common.as_json:
        steps = [asdict(one) for one in outcomes]
        sys.stdout.write(json_line({"exit_code": _worst(outcomes), "steps": steps}) + "\n")
    elif not common.quiet:
        for at, one in enumerate(outcomes):
            code = "" if one.exit_code is None else f" (exit code {one.exit_code})"
            line = (
                f"steps[{at}] {one.command}: {one.status}{code}  {one.reason or one.output or ''}"
            )
            sys.stdout.write(printable(line).rstrip() + "\n")
