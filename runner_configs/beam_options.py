"""Options for Beam itself, which silently ignores unknown options."""

from __future__ import annotations

import argparse
import json
from typing import TYPE_CHECKING, Any

from slicebeam.metrics.errors import InputError, unknown_name

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence


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
    options: Mapping[str, Any], *, engine_options: Collection[str] = (), own: Collection[str] = ()
) -> None:
    """Refuse options that Beam does not know, or not with these values."""
    from apache_beam.options.pipeline_options import PipelineOptions

    parser = _Parser(allow_abbrev=False, add_help=False, conflict_handler="resolve")
    for group in _subclasses(PipelineOptions):
        group._add_argparse_args(parser)  # noqa: SLF001  (Beam has no other list of its options)
    known = {name.removeprefix("--") for name in parser._option_string_actions}  # noqa: SLF001
    for name, value in options.items():
        if name in own:
            raise InputError(f"--beam {name}: slicebeam sets it; leave it out")
        if name not in known:
            if name in engine_options:
                continue
            raise InputError(
                f"--beam: {unknown_name('option', name, sorted({*known, *engine_options}))}"
            )
        try:
            _, unread = parser.parse_known_args(flags({name: value}))
        except InputError as error:
            raise InputError(f"--beam {name} {value!r}: {error}") from error
        if unread:
            raise InputError(f"--beam {name} {value!r}: Beam does not take this value")


def _subclasses(kind: type) -> Sequence[Any]:
    """Return the groups of options that Beam looks through."""
    return kind.__subclasses__()
