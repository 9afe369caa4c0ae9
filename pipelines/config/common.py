"""The common part of every command's configuration: data, output and engine."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, TypeVar

from pydantic import AfterValidator, Field, ValidationError, ValidationInfo, field_validator

from slicebeam.metrics.errors import InputError, OptionError, flag, unknown_name
from slicebeam.pipelines.config.option_fields import (
    FILE,
    PATH,
    REQUIRED,
    Column,
    Columns,
    Count,
    Option,
    OptionalFolder,
    Options,
    Output,
    Pairs,
    Seed,
    checked,
    declared,
    default,
)
from slicebeam.transforms.storage.file_formats import CHUNK_ROWS, Format
from slicebeam.transforms.storage.secrets import without_literals

if TYPE_CHECKING:
    from slicebeam.transforms.encode.convert import CsvLayout

Command = Literal["search", "check", "shift", "discover"]

_UNITS = {"": 1, "B": 1, "KB": 1e3, "MB": 1e6, "GB": 1e9, "KIB": 2**10, "MIB": 2**20, "GIB": 2**30}
_SMALLEST_BUDGET = 16 * 10**6
# Quotes and line ends have a meaning of their own in CSV.
_NO_DELIMITERS = '"\r\n\0'


def memory_bytes(text: str) -> int:
    """Return the number of bytes of a size such as ``512MB``.

    >>> memory_bytes("512MB")
    512000000
    """
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([A-Za-z]*)\s*", text)
    unit = _UNITS.get(match[2].upper()) if match else None
    if match is None or unit is None:
        raise InputError(f"--memory-budget {text!r} is not a size; write it as 512MB or 2GB")
    # No machine has more bytes than 64 bits count.
    size = int(min(float(match[1]) * unit, 2.0**63))
    if size < _SMALLEST_BUDGET:
        raise InputError(f"--memory-budget {text!r} is less than 16MB, the smallest that works")
    return size


def delimiter_character(text: str) -> str:
    r"""Return the character between the values of a CSV file, which ``tab`` and ``\t`` name too.

    >>> delimiter_character("tab")
    '\t'
    """
    if not text:
        raise InputError("--delimiter is empty; give one character, such as ';' or tab")
    character = "\t" if text.casefold() in ("tab", "\\t") else text
    if len(character) != 1:
        raise InputError(
            f"--delimiter {text!r} has {len(character)} characters; give a single one, such as ';', "
            "or tab"
        )
    if not character.isascii() or character.isalnum() or character in _NO_DELIMITERS:
        raise InputError(
            f"--delimiter {text!r} can't separate values; give a character such as ';' or '|', or tab"
        )
    return character


Delimiter = Annotated[str, AfterValidator(delimiter_character), Option(metavar="<character>")]
Size = Annotated[str, checked(memory_bytes), Option(metavar="<size>")]
_OF_ENGINE = Option("Engine", comes_first=True, has_placeholders=True, is_overridable=True)
EngineName = Annotated[
    str,
    _OF_ENGINE,
    Option(
        help="Engine: direct, direct_multi, prism, flink, spark, dataflow, a runner class of Beam's "
        "such as FlinkRunner, or a YAML file.",
        metavar="<engine>",
    ),
]
EngineOptions = Annotated[
    Pairs,
    _OF_ENGINE,
    Option(
        help="Option of slicebeam for the engine: workers, smallest_job_seconds, job_timeout, "
        "shared_folder or private_network. Repeatable.",
        keeps_variables=True,
    ),
]
BeamOptions = Annotated[
    Pairs,
    _OF_ENGINE,
    Option(
        help="Option of Beam or of its runner, by its name, such as flink_master=host:8081. "
        "Repeatable.",
        keeps_variables=True,
    ),
]
# The arguments of `start_engine`: --runner-config, --runner-option and --beam.
EngineChoice = tuple[str, tuple[str, ...], tuple[str, ...]]
IN_PROCESS: EngineChoice = ("direct", (), ())


class DataConfig(Options):
    """Options of every command that reads data."""

    command: ClassVar[Command]

    data: Annotated[tuple[str, ...], Option("Data", metavar=PATH, has_placeholders=True)] = Field(
        REQUIRED, init=False
    )
    """Files or globs: Parquet, CSV (.gz), JSON Lines, TFRecord. Repeatable."""
    output: Annotated[Output, Option("Output")] = REQUIRED
    """Folder for changelist.json and slices.parquet."""
    format: Annotated[Format | None, Option("Data")] = None
    """Format: parquet, csv, jsonl or tfrecord. [default: from the file's name]"""
    column_names: Annotated[Columns, Option("Data")] = ()
    """Columns of a CSV file without a header, separated by commas."""
    skip_rows: Annotated[int, Field(ge=0), Option("Data")] = 0
    """Lines to skip before the header of a CSV file."""
    delimiter: Annotated[Delimiter, Option("Data")] = ","
    """Character between the values of a CSV file, such as ';' or tab."""
    example_id: Annotated[Column | None, Option("Data")] = None
    """Column that identifies an example when examples are resampled. [default: the columns that are
    read]"""
    seed: Annotated[Seed, Option("Statistics")] = 0
    """Random seed."""
    work_dir: Annotated[OptionalFolder, Option("Engine")] = default(None)
    """Folder for unfinished work. [default: OUTPUT/_work]"""
    memory_budget: Annotated[Size, Option("Engine")] = "512MB"
    """Memory that each worker may use for tables."""
    chunk_rows: Annotated[Count, Option("Engine")] = CHUNK_ROWS
    """Maximum number of examples to read at a time."""
    runner_config: EngineName = "direct"
    runner_option: EngineOptions = default(())
    beam: BeamOptions = default(())

    @field_validator("*", mode="before")
    @classmethod
    def _has_names(cls, value: Any, info: ValidationInfo) -> Any:
        name = str(info.field_name)
        is_empty = value == "" or (isinstance(value, (list, tuple)) and "" in value)
        # A delimiter is not a name, and has a check of its own.
        if is_empty and name != "delimiter":
            raise InputError(f"{flag(name)} contains an empty name; give one or leave it out")
        return value

    @field_validator("runner_option", "beam")
    @classmethod
    def _without_secrets(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        # The engine is made of what the user gave; a configuration is written down.
        return tuple(map(without_literals, value))

    @property
    def files_read(self) -> tuple[str, ...]:
        """The files that decide the result, besides the data."""
        files = (
            name for name, field in declared(type(self)).items() if field.option.metavar == FILE
        )
        return tuple(filter(None, (getattr(self, name) for name in files)))

    @property
    def non_identity(self) -> frozenset[str]:
        """The options that do not change the result, so a run may resume with others."""
        return NON_IDENTITY_OPTIONS

    @property
    def memory(self) -> int:
        """Bytes that a worker may use for tables."""
        return memory_bytes(self.memory_budget)

    @property
    def csv_layout(self) -> CsvLayout:
        """How CSV files are laid out."""
        from slicebeam.transforms.encode.convert import CsvLayout

        return CsvLayout(self.column_names, self.skip_rows, self.delimiter)


AnyOptions = TypeVar("AnyOptions", bound=Options)

# What is derived of embeddings or members lies in a file for each chunk, beside those of other stages.
CHUNK_OPTIONS = frozenset({"memory_budget", "chunk_rows"})
NON_IDENTITY_OPTIONS = CHUNK_OPTIONS.union(
    ("work_dir", "output", "runner_config", "runner_option", "beam", "save_slices")
)


def validated(kind: type[AnyOptions], options: Mapping[str, Any]) -> AnyOptions:
    """Return the validated options of a command."""
    fields = declared(kind)
    # What a class excludes without an option is not for its command.
    names = [
        name for name, field in kind.model_fields.items() if name in fields or not field.exclude
    ]
    for name in options:
        if name not in names:
            raise unknown_name("option", name, fields)
    try:
        return kind(**options)
    except ValidationError as error:
        first = error.errors()[0]
        if first["type"] == "missing":
            raise OptionError(f"{flag(str(first['loc'][0]))} is missing") from error
        reason = first["msg"].replace("Input should be", "it must be")
        raise OptionError(f"{flag(str(first['loc'][0]))} {first['input']!r}: {reason}") from error
    except InputError as error:
        if type(error) is not InputError:
            raise
        raise OptionError(str(error)) from error.__cause__
