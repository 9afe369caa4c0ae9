"""Options of a run besides its configuration: they do not change the result."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from slicebeam.pipelines.config.option_fields import Option, Options

LOG_FORMATS = ("text", "json")
# What is printed of the slices.
Report = Literal["findings", "all"]


# Of every command that may call an endpoint.
AllowHttp = Annotated[
    bool, Option("Send keys over http:// to other machines, where others can read them.", "Engine")
]


class Display(Options):
    """What a command prints."""

    as_json: Annotated[
        bool,
        Option(
            "Print the summary as JSON on stdout.", "Output", flags=("--json",), in_python=False
        ),
    ] = False
    quiet: Annotated[
        bool,
        Option(
            "Print nothing but errors, the failure of a gate, and what --json prints.",
            "Output",
            in_python=False,
        ),
    ] = False


class RunOptions(Display):
    """Options of a run besides its configuration.

    Attributes
    ----------
    resume : continue a stopped run; start one if there is none, do nothing if it has published
    explain : id or text of the slice whose test to explain
    fail_on : ``worse`` or None
    report : ``findings`` or ``all``
    page : whether the page of the result is written, too
    log_format : ``text`` or ``json``
    """

    explain: Annotated[
        str | None,
        Option(
            "Slice (id or text) whose test to explain, with all numbers.",
            "Output",
            metavar="<slice>",
        ),
    ] = None
    fail_on: Annotated[
        str | None,
        Option(
            "worse: exit with 1 if any metric is significantly worse on a slice, or over all "
            "examples than before or with --since; with 2 if some metric could not be tested.",
            "Output",
            in_python=False,
        ),
    ] = None
    report: Annotated[
        Report,
        Option(
            "What to print: findings, or all for the table of the worst slices.",
            "Output",
            in_python=False,
        ),
    ] = "findings"
    page: Annotated[
        bool,
        Option("Write report.html too, the page that shows the result.", "Output", in_python=False),
    ] = False
    log_format: Annotated[
        str,
        Option(
            "Format of the messages on stderr: text, or json (one object per line, for schedulers).",
            "Output",
            in_python=False,
        ),
    ] = "text"
    resume: Annotated[
        bool,
        Option(
            "Continue a stopped run. Start it if there is none; do nothing if it has published its result.",
            "Engine",
            comes_first=True,
        ),
    ] = False
    dry_run: Annotated[
        bool,
        Option(
            "Run nothing: print the jobs, their options and what they would cost.",
            "Engine",
            in_python=False,
        ),
    ] = False
    allow_http: AllowHttp = False


class SearchRunOptions(RunOptions):
    """Those of ``slicebeam search``."""

    without_flag: ClassVar[frozenset[str]] = frozenset({"allow_http"})


class CheckRunOptions(RunOptions):
    """Those of ``slicebeam check``."""


class DiscoverRunOptions(RunOptions):
    """Those of ``slicebeam discover``."""

    without_flag: ClassVar[frozenset[str]] = frozenset({"dry_run"})

    fail_on: Annotated[
        str | None,
        Option(
            "worse: exit with 1 if any metric is significantly worse on a slice, or over all "
            "examples than before; with 2 if some metric could not be tested.",
            "Output",
            in_python=False,
        ),
    ] = None


class ShiftRunOptions(RunOptions):
    """Those of ``slicebeam shift``."""

    without_flag: ClassVar[frozenset[str]] = frozenset({"explain", "dry_run"})

    as_json: Annotated[
        bool,
        Option(
            "Print the summary, plan or measurement as JSON on stdout.",
            "Output",
            flags=("--json",),
            in_python=False,
        ),
    ] = False
    fail_on: Annotated[
        str | None,
        Option(
            "worse: exit with 1 if the accuracy fell significantly, overall or on a slice of --by or "
            "--changelist.",
            "Output",
            in_python=False,
        ),
    ] = None
    resume: Annotated[
        bool,
        Option(
            "Continue a stopped run without reading its pool again. Start it if there is none; "
            "do nothing if it has published its result. Answers in the ledger are always used.",
            "Engine",
            comes_first=True,
        ),
    ] = False


class FileRunOptions(RunOptions):
    """Those of ``slicebeam run``."""

    without_flag: ClassVar[frozenset[str]] = frozenset({"explain", "fail_on"})
