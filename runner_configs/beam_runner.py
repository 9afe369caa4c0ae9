"""A runner of Beam's, of any class: it is sent jobs with Beam's own options, which are checked first."""

from __future__ import annotations

import argparse
import json
from typing import TYPE_CHECKING, Any

from slicebeam.metrics.errors import InputError, unknown_name
from slicebeam.runner_configs.backend import Backend, counts_of, run_aside

if TYPE_CHECKING:
    from collections import Counter
    from collections.abc import Collection, Mapping, Sequence

    from slicebeam.runner_configs.backend import Build
    from slicebeam.runner_configs.options import RunnerOptions

_WORKERS = 2


def flags(options: Mapping[str, Any]) -> list[str]:
    """Return options as flags; None is left out.

    A switch that is on is its name alone, one that is off ``--no_name``; a list is one flag an
    entry, a mapping is JSON.
    """
    arguments: list[str] = []
    for name, value in options.items():
        if isinstance(value, bool):
            arguments.append(f"--{name}" if value else f"--no_{name}")
        elif isinstance(value, (list, tuple)):
            arguments += [f"--{name}={entry}" for entry in value]
        elif isinstance(value, dict):
            arguments.append(f"--{name}={json.dumps(value)}")
        elif value is not None:
            arguments.append(f"--{name}={value}")
    return arguments


class _Parser(argparse.ArgumentParser):
    """Raises what is wrong with a value, where the usual one would end the process."""

    def error(self, message: str) -> Any:
        raise InputError(message)

    def add_value_provider_argument(self, *names: str, **details: Any) -> None:
        """Add an argument as any other: only its name and type are of interest."""
        self.add_argument(*names, **{**details, "type": details.get("type") or str})


def check_beam_options(
    options: Mapping[str, Any],
    *,
    engine_options: Collection[str] = (),
    reserved: Collection[str] = (),
) -> None:
    """Refuse options that Beam does not know, or not with these values."""
    from apache_beam.options.pipeline_options import PipelineOptions

    parser = _Parser(allow_abbrev=False, add_help=False, conflict_handler="resolve")
    groups: list[Any] = PipelineOptions.__subclasses__()
    for group in groups:
        group._add_argparse_args(parser)  # noqa: SLF001  (Beam has no other list of its options)
    beams = {name.removeprefix("--") for name in parser._option_string_actions}  # noqa: SLF001
    for name, value in options.items():
        if name in reserved:
            raise InputError(f"--beam {name}: slicebeam sets it; leave it out")
        if name not in beams:
            if name in engine_options:
                continue
            raise InputError(
                f"--beam: {unknown_name('option', name, sorted({*beams, *engine_options}))}"
            )
        try:
            _, unread = parser.parse_known_args(flags({name: value}))
        except InputError as error:
            raise InputError(f"--beam {name} {value!r}: {error}") from error
        if unread:
            raise InputError(f"--beam {name} {value!r}: Beam does not take this value")


class BeamRunner(Backend):
    """Runs jobs on a runner of Beam's."""

    least_seconds = 0.0
    # Beam's option that says how many workers there are, if the runner has one.
    workers_option = ""
    # Beam's options that a job is sent with by slicebeam alone.
    reserved_options: Sequence[str] = ("runner", "job_name", "streaming", "save_main_session")

    def __init__(self, options: RunnerOptions, runner: str) -> None:
        self.options, self.runner, self.name = options, runner, runner
        self.beam = options.beam
        self.workers = options.workers or self.number(self.workers_option) or _WORKERS
        seconds = options.smallest_job_seconds
        self.smallest_job_seconds = self.least_seconds if seconds is None else seconds

    def text(self, name: str) -> str:
        """Return an option of Beam, "" where it is not given; of several values Beam takes the last."""
        value = self.beam.get(name)
        if isinstance(value, list):
            value = value[-1] if value else None
        return "" if value is None else str(value)

    def number(self, name: str) -> int | None:
        """Return an option of Beam that is a whole number, None where it is not given."""
        value = self.text(name)
        try:
            return int(value) if value else None
        except ValueError:
            raise InputError(f"--beam {name}={value}: it must be a whole number") from None

    def check(self) -> None:
        """Refuse a runner that Beam cannot load, and options that it does not know."""
        from apache_beam.options.pipeline_options import StandardOptions

        names = StandardOptions.KNOWN_RUNNER_NAMES
        if "." not in self.runner and self.runner not in names:
            raise unknown_name("runner", self.runner, names)
        try:
            self.beam_runner()
        except (ImportError, AttributeError, ValueError, TypeError) as error:
            raise InputError(f"--runner-config {self.runner}: {error}") from error
        check_beam_options(self.beam, reserved=self.reserved_options)

    def runs_on_other_machines(self) -> str | None:
        """Return where workers may be that do not see this machine's files."""
        return None if self.options.shared_folder else self.runner

    def beam_runner(self) -> Any:
        """Return Beam's object that sends jobs."""
        from apache_beam.runners.runner import create_runner

        return create_runner(self.runner)

    def sent_options(self, name: str) -> list[str]:
        """Return the options that a job is sent with, as flags."""
        return flags({"runner": self.runner, "job_name": name, **self.beam})

    def job_flags(self, name: str) -> list[str]:
        """Return also the options that a job gets from services of the run, which are started."""
        return self.sent_options(name)

    def watch(self, name: str) -> None:
        """Raise where waiting for a job is in vain."""

    def end(self, name: str, result: Any) -> None:  # noqa: ARG002
        """End a job that failed, or that nobody waits for any more; no result: before Beam had one."""
        if result is not None:
            result.cancel()

    def pipeline(self, build: Build, name: str) -> Any:
        """Return the pipeline that a function puts together, to be sent with the options of a job."""
        import apache_beam as beam
        from apache_beam.options.pipeline_options import PipelineOptions

        options = PipelineOptions(self.job_flags(name))
        pipeline = beam.Pipeline(runner=self.beam_runner(), options=options)
        build(pipeline)
        return pipeline

    def run(self, build: Build, name: str) -> Counter[str]:
        """Run a pipeline: send it, wait, and return its counts."""
        pipeline = self.pipeline(build, name)
        result: Any = None

        def submit() -> Any:
            nonlocal result
            result = pipeline.run()
            result.wait_until_finish()

        try:
            run_aside(submit, lambda: self.watch(name), self.options.job_timeout)
        except BaseException:
            self.end(name, result)
            raise
        return counts_of(result)
