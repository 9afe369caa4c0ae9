"""What runs the jobs: a runner of Beam's with its options, read from a file and from flags."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, get_args

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError, ValidationInfo, field_validator

from slicebeam.metrics.errors import InputError, OptionError, unknown_name
from slicebeam.transforms.storage.secrets import (
    HIDDEN,
    redacted,
    remember_literals,
    resolved,
    without_literals,
)
from slicebeam.transforms.storage.strict_text import parse_yaml

if TYPE_CHECKING:
    from collections.abc import Iterable

# Of the files that come with the package.
CONFIGS = Path(__file__).parent
# What runs the jobs of a runner; all other runners of Beam are sent them as they are.
_BACKENDS = {
    "direct": "slicebeam.runner_configs.in_process:InProcess",
    "PrismRunner": "slicebeam.runner_configs.job_service:Prism",
    "FlinkRunner": "slicebeam.runner_configs.flink:Flink",
    "SparkRunner": "slicebeam.runner_configs.job_service:Spark",
    "DataflowRunner": "slicebeam.runner_configs.dataflow:Dataflow",
}
_ANY_RUNNER = "slicebeam.runner_configs.beam_runner:BeamRunner"
_CLASS = re.compile(r"([A-Za-z_]\w*\.)*[A-Z]\w*Runner")
_WORDS = {"true": True, "false": False, "null": None}


class _Options(BaseModel):
    """Options by name, in which true is not 1."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    @field_validator("*", mode="before")
    @classmethod
    def _no_truth_value(cls, value: Any, info: ValidationInfo) -> Any:
        kind = cls.model_fields[str(info.field_name)].annotation
        if isinstance(value, bool) and bool not in {kind, *get_args(kind)}:
            raise ValueError("Input should be a value, not true or false")
        return value


class DirectOptions(_Options):
    """Options of the engine inside the process of the run."""

    workers: Annotated[int, Field(ge=1, le=256)] = 1


class RunnerOptions(_Options):
    """Options of a runner of Beam's: few of slicebeam's, and Beam's in ``beam``."""

    workers: Annotated[int, Field(ge=1, le=100_000)] | None = None
    smallest_job_seconds: Annotated[float, Field(ge=0)] | None = None
    job_timeout: Annotated[float, Field(gt=0)] = 86400.0
    shared_folder: bool = False
    private_network: bool = True
    beam: dict[str, Any] = {}


@dataclass(frozen=True)
class RunnerConfig:
    """A runner and its options."""

    runner: str = "direct"
    options: DirectOptions | RunnerOptions = field(default_factory=DirectOptions, repr=False)

    @property
    def backend(self) -> str:
        """The class that runs the jobs."""
        return _BACKENDS.get(self.runner, _ANY_RUNNER)


def shipped_configs() -> list[str]:
    """Return the names of the files that come with the package."""
    return sorted(path.stem for path in CONFIGS.glob("*.yaml"))


def runner_config(name: str, overrides: Iterable[str], beam: Iterable[str] = ()) -> RunnerConfig:
    """Return the runner that a name, a file or a class of Beam's stands for.

    ``overrides``, ``beam``: ``name=value``, of slicebeam's options and of Beam's.
    """
    where = f"--runner-config {name}"
    runner, options, lines = _read(where, name)
    beams = dict(options.pop("beam", None) or {})
    model = DirectOptions if runner == "direct" else RunnerOptions
    places: dict[tuple[str, ...], str] = {}
    for text in overrides:
        key, value, place = _override("--runner-option", text)
        options[key], places[key,] = value, place
    for text in beam:
        key, value, place = _override("--beam", text)
        if ("beam", key) in places:
            # As Beam has it, a name that is repeated makes a list.
            before = beams[key]
            value = [*(before if isinstance(before, list) else [before]), value]
        beams[key], places["beam", key] = value, place

    def place_of(*keys: str) -> str:
        return places.get(keys) or _place(where, lines, keys)

    names = [option for option in model.model_fields if option != "beam"]
    for key in options:
        if key not in names:
            raise InputError(
                f"{place_of(str(key))}: runner {runner}: {unknown_name('option', str(key), names)}"
            )
    if beams and model is DirectOptions:
        raise InputError(
            f"{place_of('beam', next(iter(beams)))}: runner direct takes no options of Beam; leave it "
            "out, or name another runner"
        )
    if beams:
        options["beam"] = beams
    remember_literals(options)
    for values, above in ((beams, ("beam",)), (options, ())):
        for key in values.keys() - {"beam"}:
            keys = (*above, str(key))
            values[key] = resolved(values[key], f"{place_of(*keys)}: {'.'.join(keys)}")
    try:
        return RunnerConfig(runner, model.model_validate(options))
    except ValidationError as error:
        first = error.errors()[0]
        keys = tuple(map(str, first["loc"]))
        reason = first["msg"].removeprefix("Value error, ").replace("Input should", "it must")
        # What pydantic says has the value in it.
        text = f"{place_of(*keys)}: {'.'.join(keys)} {first['input']!r}: {reason}"
        raise InputError(redacted(text)) from None


def _read(where: str, name: str) -> tuple[str, dict[Any, Any], dict[tuple[str, ...], int]]:
    """Return the runner of a name, the options of its file, and the lines of these."""
    path = CONFIGS / f"{name}.yaml" if name in shipped_configs() else Path(name)
    if _CLASS.fullmatch(name) and not path.exists():
        return name, {}, {}
    try:
        content, node = parse_yaml(path.read_text("utf-8"))
        lines = _lines(node)
    except FileNotFoundError as error:
        names = dict.fromkeys([*shipped_configs(), *_BACKENDS])
        raise unknown_name("runner-config", name, names) from error
    except (OSError, ValueError) as error:
        reason = " ".join(str(error).split())
        raise InputError(f"{where}: not readable as YAML ({reason})") from error
    if not isinstance(content, dict):
        raise InputError(f"{where}: a mapping of 'runner' and its options is expected")
    runner = content.pop("runner", None)
    if not isinstance(runner, str) or not (runner in _BACKENDS or _CLASS.fullmatch(runner)):
        place = _place(where, lines, ("runner",))
        raise InputError(f"{place}: {unknown_name('runner', str(runner), _BACKENDS)}")
    if not isinstance(content.get("beam"), (dict, type(None))):
        place = _place(where, lines, ("beam",))
        raise InputError(f"{place}: beam {content['beam']!r} is not a mapping of names to values")
    return runner, content, lines


def _override(flag: str, text: str) -> tuple[str, Any, str]:
    """Return name and value of an option of the command line, and what to call it."""
    name, equals, value = text.partition("=")
    if not equals:
        raise OptionError(f"{flag} {without_literals(text)!r}: write it as key=value")
    place = f"{flag} {without_literals(text)}"
    if HIDDEN in value:
        raise OptionError(
            f"{place}: secrets are not stored, and {HIDDEN} stands for one; "
            "give it again, preferably as ${NAME} of an environment variable"
        )
    return name, _WORDS.get(value, value), place


def _lines(node: yaml.Node | None, path: tuple[str, ...] = ()) -> dict[tuple[str, ...], int]:
    """Return the line of each key, by the keys that lead to it."""
    lines: dict[tuple[str, ...], int] = {}
    if isinstance(node, yaml.MappingNode):
        for key, value in node.value:
            keys = (*path, str(key.value))
            lines[keys] = key.start_mark.line + 1
            lines |= _lines(value, keys)
    return lines


def _place(where: str, lines: dict[tuple[str, ...], int], keys: tuple[str, ...]) -> str:
    """Return the file and the line of a key, or of the nearest one above it."""
    while keys and keys not in lines:
        keys = keys[:-1]
    return f"{where}, line {lines[keys]}" if keys else where
