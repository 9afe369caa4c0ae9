"""Options of a run besides its configuration: they do not change the result."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

from pydantic import Field

from slicebeam.pipelines.config.option_fields import (
    Excludes,
    Option,
    OptionalFile,
    Options,
    Rule,
    SliceName,
    default,
)

# What is printed of the slices.
Report = Literal["findings", "all"]


# Of every command that may call an endpoint.
AllowHttp = Annotated[
    bool, Option("Engine", "Send keys over http:// to other machines, where others can read them.")
]


class Display(Options):
    """What a command prints."""

    if TYPE_CHECKING:
        # A keyword of Python, which has no field.
        progress: bool = False

    as_json: Annotated[bool, Option("Output", flags=("--json",))] = Field(default=False, init=False)
    """Print the result as JSON on stdout."""
    quiet: Annotated[bool, Option("Output")] = Field(default=False, init=False)
    """Print nothing but errors, the failure of a gate, and what --json prints."""


class RunOptions(Display):
    """Options of a run besides its configuration."""

    rules: ClassVar[tuple[Rule, ...]] = (
        Excludes("dry_run", "resume explain page"),
        Excludes("known", "tolerance"),
    )

    explain: Annotated[SliceName | None, Option("Output")] = None
    """Slice (id or text) whose test to explain, with all numbers."""
    fail_on: Annotated[Literal["worse", "drift", "any"] | None, Option("Output")] = Field(
        default=None, init=False
    )
    """worse: exit with 1 if any metric is significantly worse on a slice, or over all examples than
    before or with --since; with 2 if some metric could not be tested. drift, with --baseline-data: if
    a feature is distributed differently by a population stability index of 0.1 or more. any: if
    either is so."""
    tolerance: Annotated[
        tuple[str, ...], Option("Output", metavar="[NAME=]NUMBER", takes_numbers=True)
    ] = Field(default=(), init=False)
    """With --fail-on worse: fail only where a metric is significantly worse by more than this, in its own unit: .005
    for all metrics, accuracy=.005 for one; repeatable."""
    known: Annotated[OptionalFile, Option("Output")] = default(None)
    """YAML or JSON file of slices that are known to be worse: they are listed as known, and fail no
    --fail-on. An overall fall still does."""
    report: Annotated[Report, Option("Output")] = Field(default="findings", init=False)
    """What to print: findings, or all for the table of the worst slices."""
    page: Annotated[bool, Option("Output")] = Field(default=False, init=False)
    """Write report.html too, the page that shows the result."""
    log_format: Annotated[Literal["text", "json"], Option("Output")] = Field(
        default="text", init=False
    )
    """Format of the messages on stderr: text, or json (one object per line, for schedulers)."""
    resume: Annotated[bool, Option("Engine", comes_first=True)] = False
    """Continue a stopped run. Start it if there is none; do nothing if it has published its
    result."""
    dry_run: Annotated[bool, Option("Engine")] = Field(default=False, init=False)
    """Run nothing: print the jobs, their options and what they would cost."""
    allow_http: AllowHttp = False


# The fields without an `Option` take those of a base class away.
class SearchRunOptions(RunOptions):
    """Those of ``slicebeam search``."""

    allow_http: bool = Field(default=False, init=False, exclude=True)


class DiscoverRunOptions(RunOptions):
    """Those of ``slicebeam discover``."""

    dry_run: bool = Field(default=False, init=False, exclude=True)
    tolerance: tuple[str, ...] = Field(default=(), init=False, exclude=True)
    known: None = Field(default=None, init=False, exclude=True)
    fail_on: Annotated[Literal["worse"] | None, Option("Output")] = Field(default=None, init=False)
    """worse: exit with 1 if any metric is significantly worse on a slice, or over all examples than
    before; with 2 if some metric could not be tested."""


class ShiftRunOptions(RunOptions):
    """Those of ``slicebeam shift``."""

    explain: str | None = Field(default=None, init=False, exclude=True)
    dry_run: bool = Field(default=False, init=False, exclude=True)
    tolerance: tuple[str, ...] = Field(default=(), init=False, exclude=True)
    known: None = Field(default=None, init=False, exclude=True)
    fail_on: Annotated[Literal["worse"] | None, Option("Output")] = Field(default=None, init=False)
    """worse: exit with 1 if the accuracy fell significantly, overall or on a slice of --by or
    --changelist."""
    resume: Annotated[bool, Option("Engine", comes_first=True)] = False
    """Continue a stopped run without reading its pool again. Start it if there is none; do nothing
    if it has published its result. Answers in the ledger are always used."""


class FileRunOptions(RunOptions):
    """Those of ``slicebeam run``."""

    explain: str | None = Field(default=None, init=False, exclude=True)
    fail_on: None = Field(default=None, init=False, exclude=True)
    tolerance: tuple[str, ...] = Field(default=(), init=False, exclude=True)
    known: None = Field(default=None, init=False, exclude=True)
