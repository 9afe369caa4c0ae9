"""The options of each engine, and how a run reads them: from a file of ``runner_configs/`` and from flags."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, get_args

import yaml
from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationError,
    ValidationInfo,
    field_validator,
    model_validator,
)

from slicebeam.metrics.errors import InputError, OptionError, unknown_name
from slicebeam.transforms.storage.secrets import (
    HIDDEN,
    is_secret,
    redacted,
    remember_literals,
    resolved,
    without_literals,
)
from slicebeam.transforms.storage.strict_text import parse_yaml

if TYPE_CHECKING:
    from collections.abc import Sequence

Environment = Literal["loopback", "external", "process", "docker"]
# Where the engine lives in the process that submits: nothing is reachable over a network.
EMBEDDED = ("[local]", "local")

_ADDRESS = re.compile(r"(?P<host>[A-Za-z0-9_.-]+|\[[0-9A-Fa-f:]+\]):(?P<port>\d{1,5})")
_SPARK_LOCAL = re.compile(r"local(\[(\d+|\*)\])?")
_LOOPBACK = re.compile(r"localhost|127\.\d+\.\d+\.\d+|\[?::1\]?")


def _from_yaml(value: Any) -> Any:
    """Parse text from a command line: ``{a: 1}``, ``[a, b]``."""
    return yaml.safe_load(value) if isinstance(value, str) else value


def split_address(address: str) -> tuple[str, int]:
    """Return host and port of ``host:port``, with or without a scheme before it."""
    bare = re.sub(r"^[a-z]+://", "", address).rstrip("/")
    found = _ADDRESS.fullmatch(bare)
    if not found or not 0 < int(found["port"]) < 1 << 16:
        raise ValueError(f"Input should be host:port, not {address!r}")
    return found["host"].strip("[]"), int(found["port"])


def is_this_machine(host: str) -> bool:
    """Return whether a host name is a loopback address."""
    return bool(_LOOPBACK.fullmatch(host))


def _address(value: str) -> str:
    split_address(value)
    return value


def _flink_master(value: str) -> str:
    if value not in EMBEDDED:
        split_address(value)
    return "[local]" if value == "local" else value


def _spark_master(value: str) -> str:
    if _SPARK_LOCAL.fullmatch(value):
        return value
    if not value.startswith("spark://"):
        raise ValueError("Input should be local[N] or spark://host:port")
    split_address(value)
    return value


Seconds = Annotated[float, Field(ge=0)]
Count = Annotated[int, Field(ge=1, le=100_000)]
Address = Annotated[str, AfterValidator(_address)]
Mapping = Annotated[dict[str, Any], BeforeValidator(_from_yaml)]
Texts = Annotated[dict[str, str], BeforeValidator(_from_yaml)]
Listed = Annotated[tuple[str, ...], BeforeValidator(_from_yaml)]


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


class EngineOptions(_Options):
    """Options of every engine; the YAML files explain all options."""

    backend: ClassVar[str]
    counters: ClassVar[Literal["committed", "attempted"]] = "committed"

    smallest_job_seconds: Seconds = 0.0
    job_timeout: Annotated[float, Field(gt=0)] = 86400.0
    beam_options: Mapping = {}


class DirectOptions(_Options):
    """Options of the in-process engine."""

    backend: ClassVar[str] = "slicebeam.runner_configs.in_process:InProcess"

    workers: Annotated[int, Field(ge=1, le=256)] = 1


class _Portable(EngineOptions):
    """Options of engines that start workers in an environment."""

    environment: Environment = "loopback"
    environment_config: str | None = None
    private_network: bool = True

    @model_validator(mode="after")
    def _configured(self) -> _Portable:
        if self.environment == "docker" and not self.environment_config:
            raise ValueError("environment docker needs an image in environment_config")
        if self.environment == "loopback" and self.environment_config:
            raise ValueError("environment loopback takes no environment_config")
        if self.environment == "external":
            if not self.environment_config:
                raise ValueError(
                    "environment external needs the address of a worker pool in environment_config; "
                    "workers that the engine starts are environment process"
                )
            split_address(self.environment_config)
        return self


class PrismOptions(_Portable):
    """Options of Prism, Beam's portable runner for one machine."""

    backend: ClassVar[str] = "slicebeam.runner_configs.prism:Prism"

    environment: Literal["loopback", "external", "process"] = "loopback"
    binary: Path | None = None
    workers: Annotated[int, Field(ge=1, le=256)] = 2
    start_timeout: Seconds = 60.0


class ClusterOptions(_Portable):
    """Common options of Flink and Spark."""

    master: str
    parallelism: Count = 2
    worker_processes: Annotated[int, Field(ge=1, le=256)] | None = None
    job_server_jar: str | None = None
    job_endpoint: Address | None = None
    java: str = "java"
    java_options: Listed = ("-Xmx1g",)
    artifacts_dir: Path | None = None
    shared_folder: bool = False
    start_timeout: Seconds = 60.0

    @property
    def is_embedded(self) -> bool:
        """Return whether the engine lives in the job server: its master has no port."""
        return ":" not in self.master

    @property
    def host(self) -> str:
        """The master's host."""
        return split_address(self.master)[0]

    @property
    def is_here(self) -> bool:
        """Return whether all of the engine runs on this machine."""
        return self.is_embedded or is_this_machine(self.host)

    @model_validator(mode="after")
    def _reachable(self) -> ClusterOptions:
        if self.is_here:
            return self
        if self.environment == "loopback":
            raise ValueError(
                f"environment loopback works only with an engine on this machine, and the master is "
                f"on {self.host}: use process, docker or external"
            )
        if self.environment == "process" and not self.environment_config:
            raise ValueError(
                f"environment process needs environment_config where the master is on "
                f"another machine ({self.host})"
            )
        return self


class FlinkOptions(ClusterOptions):
    """Options of Flink."""

    backend: ClassVar[str] = "slicebeam.runner_configs.flink:Flink"

    master: Annotated[str, AfterValidator(_flink_master)] = "[local]"
    version: Annotated[str, Field(pattern=r"^\d+\.\d+$")] = "1.19"
    smallest_job_seconds: Seconds = 10.0


class SparkOptions(ClusterOptions):
    """Options of Spark."""

    backend: ClassVar[str] = "slicebeam.runner_configs.spark:Spark"
    counters: ClassVar[Literal["committed", "attempted"]] = "attempted"

    master: Annotated[str, AfterValidator(_spark_master)] = "local[2]"
    version: Annotated[str, Field(pattern=r"^\d+\.\d+\.\d+$")] | None = None
    web_ui: Address | None = None
    spark_conf: Texts = {}
    smallest_job_seconds: Seconds = 10.0

    @model_validator(mode="after")
    def _properties(self) -> SparkOptions:
        for name in self.spark_conf:
            if not name.startswith("spark."):
                raise ValueError(f"spark_conf {name!r}: a property begins with 'spark.'")
        return self


class DataflowOptions(EngineOptions):
    """Options of Google Cloud Dataflow."""

    backend: ClassVar[str] = "slicebeam.runner_configs.dataflow:Dataflow"

    project: Annotated[str, Field(min_length=1)]
    region: Annotated[str, Field(min_length=1)]
    temp_location: Annotated[str, Field(pattern=r"^gs://[^/]+")]
    staging_location: Annotated[str, Field(pattern=r"^gs://[^/]+")] | None = None
    num_workers: Count | None = None
    max_num_workers: Count | None = None
    machine_type: str | None = None
    disk_size_gb: Count | None = None
    service_account: str | None = None
    network: str | None = None
    subnetwork: str | None = None
    use_public_ips: bool | None = None
    setup_file: Path | None = None
    sdk_container_image: str | None = None
    labels: Texts = {}
    experiments: Listed = ()
    endpoint: str | None = None
    no_auth: bool = False
    poll_seconds: Annotated[float, Field(gt=0, le=600)] = 10.0
    service_timeout: Annotated[float, Field(gt=0)] = 300.0
    smallest_job_seconds: Seconds = 300.0

    @model_validator(mode="after")
    def _workers(self) -> DataflowOptions:
        few, many = self.num_workers, self.max_num_workers
        if few is not None and many is not None and few > many:
            raise ValueError(f"num_workers {few} is more than max_num_workers {many}")
        return self


Options = DirectOptions | EngineOptions

MODELS: dict[str, type[Options]] = {
    "direct": DirectOptions,
    "prism": PrismOptions,
    "flink": FlinkOptions,
    "spark": SparkOptions,
    "dataflow": DataflowOptions,
}

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
