"""Reads which engine a run uses: a file of ``runner_configs/`` and command-line options."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml
from pydantic import ValidationError

from slicebeam.metrics.errors import InputError, OptionError, unknown_name
from slicebeam.runner_configs.options import MODELS, DirectOptions, Options
from slicebeam.transforms.formats.strict_text import parse_yaml
from slicebeam.transforms.secrets.variables import (
    HIDDEN,
    is_secret,
    redacted,
    remember_literals,
    resolved,
    without_literals,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

_KEYS = ("runner", "options")


@dataclass(frozen=True)
class RunnerConfig:
    """The engine and its options; `written` has variables by name, and no secret spelt out."""

    runner: str = "direct"
    options: Options = field(default_factory=DirectOptions, repr=False)
    written: str = field(default="", compare=False)


def configs_folder() -> Path:
    """Return the folder of the files that come with the package."""
    from slicebeam import runner_configs

    return Path(next(iter(runner_configs.__path__)))


def shipped_configs() -> list[str]:
    """Return the names of the engines that come with the package."""
    return sorted(path.stem for path in configs_folder().glob("*.yaml"))


def runner_config(name: str, overrides: Sequence[str]) -> RunnerConfig:
    """Return the engine of a file, or of one that comes with the package."""
    where = f"--runner-config {name}"
    path = configs_folder() / f"{name}.yaml" if name in shipped_configs() else Path(name)
    try:
        content, node = parse_yaml(path.read_text("utf-8"))
        lines = _lines(node)
    except FileNotFoundError as error:
        raise unknown_name("runner-config", name, shipped_configs()) from error
    except (OSError, ValueError) as error:
        reason = " ".join(str(error).split())
        raise InputError(f"{where}: not readable as YAML ({reason})") from error
    if not isinstance(content, dict):
        raise InputError(f"{where}: a mapping of 'runner' and 'options' is expected")
    for key in content:
        if key not in _KEYS:
            place = _place(where, lines, (str(key),))
            raise InputError(f"{place}: {unknown_name('key', str(key), _KEYS)}")
    runner = content.get("runner")
    if not isinstance(runner, str) or runner not in MODELS:
        place = _place(where, lines, ("runner",))
        raise InputError(f"{place}: {unknown_name('runner', str(runner), MODELS)}")
    options = {} if content.get("options") is None else content["options"]
    if not isinstance(options, dict):
        place = _place(where, lines, ("options",))
        raise InputError(f"{place}: options {options!r} are not a mapping of names to values")
    return _validated(where, runner, dict(options), overrides, lines)


def _validated(
    where: str,
    runner: str,
    options: dict[str, Any],
    overrides: Sequence[str],
    lines: dict[tuple[str, ...], int],
) -> RunnerConfig:
    """Return the options, overridden by the command line."""
    model = MODELS[runner]
    given: dict[str, str] = {}
    for override in overrides:
        key, equals, value = override.partition("=")
        shown = without_literals(override)
        if not equals:
            raise OptionError(f"--runner-option {shown!r}: write it as key=value")
        if HIDDEN in value:
            raise OptionError(
                f"--runner-option {shown}: secrets are not stored, and {HIDDEN} stands for one; "
                "give it again, preferably as ${NAME} of an environment variable"
            )
        name, dot, entry = key.partition(".")
        try:
            if dot and isinstance(options.get(name, {}), dict):
                # A secret is no YAML, whatever signs are in it.
                read = value if is_secret(entry) else parse_yaml(value)[0]
                options[name] = {**options.get(name, {}), entry: read}
            elif "${" in value and value.lstrip()[:1] in ("{", "["):
                options[key] = parse_yaml(value)[0]
            else:
                # As in a file. All else is text, which the option reads as what it needs.
                options[key] = None if value == "null" else value
        except ValueError as error:
            reason = " ".join(redacted(str(error)).split())
            raise OptionError(f"--runner-option {shown!r}: not YAML ({reason})") from None
        given[name] = f"--runner-option {shown}"
    for key in options:
        if key not in model.model_fields:
            place = given.get(str(key)) or _place(where, lines, ("options", str(key)))
            raise InputError(
                f"{place}: runner {runner}: {unknown_name('option', str(key), model.model_fields)}"
            )
    remember_literals(options)
    written = without_literals(redacted(json.dumps(options, sort_keys=True, default=str)))
    for key, value in options.items():
        place = given.get(str(key)) or _place(where, lines, ("options", str(key)))
        options[key] = resolved(value, f"{place}: options.{key}")
    try:
        return RunnerConfig(runner, model.model_validate(options), written)
    except ValidationError as error:
        first = error.errors()[0]
        keys = tuple(map(str, first["loc"]))
        place = given.get(keys[0] if keys else "") or _place(where, lines, ("options", *keys))
        named = ".".join(("options", *keys))
        if first["type"] == "missing":
            raise InputError(
                f"{place}: {named} is missing; add it, or give --runner-option {keys[0]}=…"
            ) from None
        reason = first["msg"].removeprefix("Value error, ").replace("Input should", "it must")
        shown = f" {first['input']!r}" if keys else ""
        # What pydantic says has the value in it.
        raise InputError(redacted(f"{place}: {named}{shown}: {reason}")) from None


def _lines(node: yaml.Node | None, path: tuple[str, ...] = ()) -> dict[tuple[str, ...], int]:
    """Return the line of each key, by the keys that lead to it."""
    lines: dict[tuple[str, ...], int] = {}
    if isinstance(node, yaml.MappingNode):
        for key, value in node.value:
            own = (*path, str(key.value))
            lines[own] = key.start_mark.line + 1
            lines |= _lines(value, own)
    return lines


def _place(where: str, lines: dict[tuple[str, ...], int], keys: tuple[str, ...]) -> str:
    """Return the file and the line of a key, or of the nearest one above it."""
    while keys and keys not in lines:
        keys = keys[:-1]
    return f"{where}, line {lines[keys]}" if keys else where
