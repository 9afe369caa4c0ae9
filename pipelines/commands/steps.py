"""The steps of a run file: commands in order, with one date, one exit code and one summary."""

from __future__ import annotations

import re
import sys
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from slicebeam.metrics.errors import (
    FileError,
    InputError,
    NoFindingsError,
    OptionError,
    flag,
    printable,
)
from slicebeam.pipelines.commands.command import print_json
from slicebeam.pipelines.commands.signals import interrupted
from slicebeam.pipelines.commands.table import data_command
from slicebeam.pipelines.config.common import validated
from slicebeam.pipelines.config.option_fields import declared
from slicebeam.pipelines.config.run_options import RunOptions
from slicebeam.pipelines.config.shift import ShiftConfig
from slicebeam.pipelines.run.work_folder import OtherRunError
from slicebeam.transforms.storage.secrets import redacted
from slicebeam.transforms.storage.storage import storage_path

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from slicebeam.pipelines.commands.command import Invocation
    from slicebeam.pipelines.config.common import Command

_FLAG = re.compile(r"--([a-z-]+)")


@dataclass(frozen=True)
class RunSpec:
    """What a run file, or the document of an earlier run, says of a run.

    ``run_options``: options outside the configuration, by the names of `RunOptions`. ``steps``: the
    runs of a file with several, in order; the command and the options are then nobody's.
    """

    command: Command
    options: dict[str, Any]
    run_options: dict[str, Any]
    steps: tuple[RunSpec, ...] = ()

    @property
    def output(self) -> str | None:
        """The folder of its result."""
        return self.options.get("output")


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
    """Return the run options of a step, after checking all its options."""
    step, place = steps[at], f"{file}, steps[{at}]"
    _check_output(place, step, steps[:at])
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
        if not any(_read_of(step, [earlier.output for earlier in steps[:at]])):
            raise FileError(f"{place}: {error}") from error
    except InputError as error:
        flag_of = _FLAG.match(str(error))
        key = "" if flag_of is None else "." + flag_of[1].replace("-", "_")
        raise OptionError(f"{place}{key}: {error}") from error
    return options


def _check_documents(step: RunSpec) -> None:
    """Refuse a document that is missing, which the command would read after the earlier steps."""
    for name in ("changelist", "within_findings"):
        document = step.options.get(name)
        if document is not None:
            path = storage_path(document)
            if not path.is_file() and not (path / "changelist.json").is_file():
                raise FileError(f"{flag(name)} {document}: no such file")


def _check_output(place: str, step: RunSpec, earlier: Sequence[RunSpec]) -> None:
    """Refuse the output of an earlier step."""
    for at, other in enumerate(earlier):
        if step.output and other.output and _folder(other.output) == _folder(step.output):
            raise OptionError(
                f"{place}.output: {step.output!r} is the output of steps[{at}] too; name "
                "another folder"
            )


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
    """Run a step, and note how it ended.

    ``reads_earlier``: whether it reads what an earlier step wrote: its result of another run is
    then not continued but replaced.
    """
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
    """Print how the steps ended."""
    if common.as_json:
        print_json({"exit_code": _worst(outcomes), "steps": list(map(asdict, outcomes))})
    elif not common.quiet:
        for at, outcome in enumerate(outcomes):
            code = "" if outcome.exit_code is None else f" (exit code {outcome.exit_code})"
            why = outcome.reason or outcome.output or ""
            line = f"steps[{at}] {outcome.command}: {outcome.status}{code}  {why}"
            sys.stdout.write(printable(line).rstrip() + "\n")
