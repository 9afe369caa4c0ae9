"""The command line. Imports of weight are inside the commands, so that ``--help`` is quick."""

from __future__ import annotations

import io
import logging
import os
import re
import sys
import tempfile
import traceback
from contextlib import suppress
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from slicebeam.metrics.errors import SlicebeamError, nearest, printable
from slicebeam.pipelines import options as opt
from slicebeam.pipelines.attribution.commands import app as attribute_app
from slicebeam.pipelines.define.commands import define
from slicebeam.pipelines.edit_commands import app as edit_app
from slicebeam.pipelines.endings import ending, heed_signals, hold_streams, was_told_to_end
from slicebeam.pipelines.launch import Invocation, launch, run_config
from slicebeam.pipelines.option_lists import LISTS, listed
from slicebeam.pipelines.run_options import ASKED, Asked
from slicebeam.pipelines.variables import forget, redacted
from slicebeam.transforms.plain_http import allow

if TYPE_CHECKING:
    from slicebeam.pipelines.data_config import Command

INTERRUPTED = 130
# What the system says where it refuses memory for a thread or a library.
_REFUSED = re.compile("can't start new thread|failed to map segment|[Cc]annot allocate memory")
_JSON_LOG = "--log-format=json"

app = typer.Typer(
    name="slicebeam",
    help="Finds the slices of evaluation data where a model is worse, or where an update changed it.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)


@app.command()
def search(
    context: typer.Context,
    data: opt.Data,
    output: opt.Output,
    label: opt.Label = None,
    prediction: opt.Prediction = None,
    score: opt.Score = None,
    model: opt.Model = None,
    baseline_prediction: opt.BaselinePrediction = None,
    baseline_score: opt.BaselineScore = None,
    baseline_model: opt.BaselineModel = None,
    loss: opt.Loss = None,
    baseline_loss: opt.BaselineLoss = None,
    positive_class: opt.PositiveClass = None,
    threshold: opt.Threshold = 0.5,
    format: opt.Format = None,  # noqa: A002  (the flag's name)
    column_names: opt.ColumnNames = None,
    skip_rows: opt.SkipRows = 0,
    delimiter: opt.Delimiter = ",",
    features: opt.Features = None,
    exclude_features: opt.ExcludeFeatures = None,
    example_id: opt.ExampleId = None,
    weight: opt.Weight = None,
    group: opt.Group = None,
    bins: opt.Bins = 10,
    top_values: opt.TopValues = 100,
    domains: opt.Domains = None,
    metric: opt.Metric = None,
    compare: opt.Compare = None,
    alternative: opt.Alternative = "worse",
    test: opt.Test = "auto",
    replicates: opt.Replicates = None,
    correction: opt.Correction = None,
    alpha: opt.Alpha = None,
    min_slice_size: opt.MinSliceSize = None,
    max_cross_size: opt.MaxCrossSize = 3,
    strategy: opt.Strategy = None,
    iterations: opt.Iterations = 5,
    max_candidates: opt.MaxCandidates = 50_000,
    keep_refining: opt.KeepRefining = False,
    save_slices: opt.SaveSlices = None,
    since: opt.Since = None,
    since_if_exists: opt.SinceIfExists = None,
    fail_on: opt.FailOn = None,
    explain: opt.Explain = None,
    seed: opt.Seed = 0,
    work_dir: opt.WorkDir = None,
    resume: opt.Resume = False,
    dry_run: opt.DryRun = False,
    single_job: opt.SingleJob = False,
    template: opt.Template = None,
    memory_budget: opt.MemoryBudget = "512MB",
    chunk_rows: opt.ChunkRows = 1 << 18,
    runner_config: opt.RunnerConfig = "direct",
    runner_option: opt.RunnerOption = None,
    as_json: opt.AsJson = False,
    quiet: opt.Quiet = False,
    log_format: opt.LogFormat = "text",
) -> None:
    """Find the slices where a model is worse, or became so."""
    _launch("search", context)


@app.command()
def check(
    context: typer.Context,
    data: opt.Data,
    output: opt.Output,
    changelist: opt.Changelist = None,
    slices: opt.Slices = None,
    encoder: opt.ConfirmedEncoder = None,
    label: opt.LabelOfCheck = None,
    prediction: opt.Prediction = None,
    score: opt.Score = None,
    model: opt.Model = None,
    baseline_prediction: opt.BaselinePrediction = None,
    baseline_score: opt.BaselineScore = None,
    baseline_model: opt.BaselineModel = None,
    loss: opt.Loss = None,
    baseline_loss: opt.BaselineLoss = None,
    positive_class: opt.PositiveClass = None,
    threshold: opt.Threshold = 0.5,
    format: opt.Format = None,  # noqa: A002  (the flag's name)
    column_names: opt.ColumnNames = None,
    skip_rows: opt.SkipRows = 0,
    delimiter: opt.Delimiter = ",",
    features: opt.FeaturesOfModel = None,
    exclude_features: opt.ExcludeFeaturesOfModel = None,
    example_id: opt.ExampleId = None,
    weight: opt.Weight = None,
    group: opt.Group = None,
    metric: opt.Metric = None,
    compare: opt.Compare = None,
    alternative: opt.Alternative = "worse",
    test: opt.Test = "auto",
    replicates: opt.Replicates = None,
    correction: opt.Correction = None,
    alpha: opt.Alpha = None,
    min_slice_size: opt.MinSliceSize = None,
    since: opt.Since = None,
    since_if_exists: opt.SinceIfExists = None,
    fail_on: opt.FailOn = None,
    explain: opt.Explain = None,
    seed: opt.Seed = 0,
    work_dir: opt.WorkDir = None,
    resume: opt.Resume = False,
    dry_run: opt.DryRun = False,
    memory_budget: opt.MemoryBudget = "512MB",
    chunk_rows: opt.ChunkRows = 1 << 18,
    runner_config: opt.RunnerConfig = "direct",
    runner_option: opt.RunnerOption = None,
    allow_http: opt.AllowHttp = False,
    as_json: opt.AsJson = False,
    quiet: opt.Quiet = False,
    log_format: opt.LogFormat = "text",
) -> None:
    """Test known slices on new data, without a search.

    The slices of an earlier run (--changelist), or predicates from a file (--slices).

    With --changelist what is left out is as in that run: label, prediction, metric, test and so on.
    """
    _launch("check", context)


@app.command()
def discover(
    context: typer.Context,
    data: opt.Data,
    output: opt.Output,
    embedding: opt.Embedding = None,
    text: opt.Text = None,
    encoder: opt.Encoder = None,
    label: opt.Label = None,
    prediction: opt.Prediction = None,
    score: opt.Score = None,
    model: opt.Model = None,
    baseline_prediction: opt.BaselinePrediction = None,
    baseline_score: opt.BaselineScore = None,
    baseline_model: opt.BaselineModel = None,
    loss: opt.Loss = None,
    baseline_loss: opt.BaselineLoss = None,
    positive_class: opt.PositiveClass = None,
    threshold: opt.Threshold = 0.5,
    components: opt.Components = None,
    dimensions: opt.Dimensions = 128,
    loss_weight: opt.LossWeight = 0.0,
    discovery_share: opt.DiscoveryShare = 0.7,
    slices: opt.DescribedSlices = 10,
    phrases: opt.Phrases = None,
    format: opt.Format = None,  # noqa: A002  (the flag's name)
    column_names: opt.ColumnNames = None,
    skip_rows: opt.SkipRows = 0,
    delimiter: opt.Delimiter = ",",
    features: opt.FeaturesOfDiscovery = None,
    example_id: opt.IdOfDiscovery = None,
    weight: opt.Weight = None,
    group: opt.Group = None,
    bins: opt.Bins = 10,
    top_values: opt.TopValues = 100,
    metric: opt.Metric = None,
    compare: opt.Compare = None,
    alternative: opt.Alternative = "both",
    test: opt.Test = "auto",
    replicates: opt.Replicates = None,
    correction: opt.Correction = None,
    alpha: opt.Alpha = None,
    min_slice_size: opt.MinSliceSize = None,
    max_cross_size: opt.MaxCrossSize = 1,
    strategy: opt.Strategy = None,
    iterations: opt.Iterations = 5,
    max_candidates: opt.MaxCandidates = 50_000,
    keep_refining: opt.KeepRefining = False,
    save_slices: opt.SaveSlices = None,
    fail_on: opt.FailOn = None,
    explain: opt.Explain = None,
    seed: opt.Seed = 0,
    work_dir: opt.WorkDir = None,
    resume: opt.Resume = False,
    memory_budget: opt.MemoryBudget = "512MB",
    chunk_rows: opt.ChunkRows = 1 << 18,
    runner_config: opt.RunnerConfig = "direct",
    runner_option: opt.RunnerOption = None,
    allow_http: opt.AllowHttp = False,
    as_json: opt.AsJson = False,
    quiet: opt.Quiet = False,
    log_format: opt.LogFormat = "text",
) -> None:
    """Find the groups of texts or images where a model changed.

    Or of anything else that has embeddings; or, of one model, where it is worse than elsewhere.

    A mixture over the embeddings gives every example a component; components are then searched, tested
    and corrected for as any other feature is.
    """
    _launch("discover", context)


app.command()(define)
app.add_typer(edit_app, name="edit")
app.add_typer(attribute_app, name="attribute")


@app.command()
def shift(
    context: typer.Context,
    data: opt.Data,
    label: opt.LabelOfShift,
    output: opt.OutputOfShift = None,
    old_prediction: opt.OldPrediction = None,
    old_matrix: opt.OldMatrix = None,
    difficulty: opt.Difficulty = None,
    bins: opt.DifficultyBins = 3,
    api: opt.Api = None,
    model: opt.ModelOfShift = None,
    features: opt.FeaturesOfShift = None,
    replay_prediction: opt.ReplayPrediction = None,
    method: opt.Method = None,
    budget: opt.Budget = None,
    target_error: opt.TargetError = None,
    confidence: opt.Confidence = 0.95,
    price: opt.Price = None,
    by: opt.By = None,
    changelist: opt.SlicesOfShift = None,
    ledger: opt.LedgerFolder = None,
    plan: opt.Plan = False,
    repeat: opt.Repeat = None,
    replacement: opt.Replacement = False,
    format: opt.Format = None,  # noqa: A002  (the flag's name)
    column_names: opt.ColumnNames = None,
    skip_rows: opt.SkipRows = 0,
    delimiter: opt.Delimiter = ",",
    example_id: opt.IdOfShift = None,
    fail_on: opt.FailOnShift = None,
    seed: opt.SeedOfShift = 0,
    work_dir: opt.WorkDirOfShift = None,
    resume: opt.ResumeOfShift = False,
    memory_budget: opt.MemoryBudgetOfShift = "512MB",
    chunk_rows: opt.ChunkRows = 1 << 18,
    runner_config: opt.RunnerConfig = "direct",
    runner_option: opt.RunnerOption = None,
    allow_http: opt.AllowHttp = False,
    as_json: opt.AsJsonOfShift = False,
    quiet: opt.Quiet = False,
    log_format: opt.LogFormat = "text",
) -> None:
    """Estimate how a paid prediction API changed, from few calls.

    Each answer is written to the ledger before it is used. Run again, the command asks only what is
    missing. A call that got no answer may have been charged: 'lost_calls' in the --api file says
    whether its item is sent again.
    """
    _launch("shift", context)


def _launch(command: Command, context: typer.Context) -> None:
    """Run a command with what the user gave, and exit with its code."""
    # What the user left out keeps the default of the configuration, which knows that it was.
    given = {name: value for name, value in context.params.items() if _was_given(context, name)}
    for name in LISTS:
        if name in given:
            given[name] = listed(given[name])
    asked = {name: given.pop(name) for name in ASKED.values() if name in given}
    code = launch(command, given, Asked(**asked), context.obj)
    if code:
        raise typer.Exit(code)


def _was_given(context: typer.Context, name: str) -> bool:
    source = context.get_parameter_source(name)
    return source is not None and source.name == "COMMANDLINE"


@app.command(name="run")
def run_file(
    context: typer.Context,
    file: Annotated[
        str,
        typer.Argument(
            metavar="<file>", help="YAML or JSON file, or the changelist.json of a run."
        ),
    ],
    output: Annotated[
        str | None, typer.Option(help="Folder for the result, instead of the file's.")
    ] = None,
    date: Annotated[
        str | None,
        typer.Option(help="What {date} stands for, such as 2026-11-20.  [default: today in UTC]"),
    ] = None,
    model: opt.GivenModel = None,
    baseline_model: opt.GivenBaselineModel = None,
    encoder: opt.GivenEncoder = None,
    api: opt.GivenApi = None,
    phrases: opt.GivenPhrases = None,
    runner_config: opt.GivenRunnerConfig = None,
    runner_option: opt.RunnerOption = None,
    allow_http: opt.AllowHttp = False,
    resume: opt.Resume = False,
    dry_run: opt.DryRun = False,
    as_json: opt.AsJson = False,
    quiet: opt.Quiet = False,
    log_format: opt.LogFormat = "text",
) -> None:
    """Run what a file describes, or repeat an earlier run.

    Models, encoders, APIs and engines that the changelist.json of a run names are not used unless you
    name them again: they run code or send data. In place of your own file's they are used as given.
    """
    from slicebeam.pipelines.scheduled import INSTEAD, read_run

    invocation: Invocation = context.obj
    given = {name: context.params[name] for name in ASKED.values() if _was_given(context, name)}
    if "log_format" in given:
        invocation.log(Asked(**given))
    instead = {name: context.params[name] for name in INSTEAD if _was_given(context, name)}
    described = read_run(file, date, os.environ, instead)
    code = launch(
        described.command, described.options, Asked(**{**described.asked, **given}), invocation
    )
    if code:
        raise typer.Exit(code)


@app.command()
def schema() -> None:
    """Print the JSON Schema of the ChangeList."""
    import json

    from slicebeam.pipelines.changelist import json_schema

    sys.stdout.write(json.dumps(json_schema(), indent=1) + "\n")


@app.command()
def demo(
    output: Annotated[str, typer.Option(help="Folder for the two results.")] = "slicebeam-demo",
) -> None:
    """Show what comes out, on census data that is in the package."""
    from slicebeam.pipelines.demo import demo_runs
    from slicebeam.pipelines.runner import start_engine
    from slicebeam.pipelines.terminal import Terminal

    for title, config in demo_runs(Path(output)):
        typer.secho(f"\n{title}", bold=True)
        with start_engine(config.runner_config, config.runner_option) as engine:
            run_config(config, engine, Terminal(), Asked())


def _one_line(error: typer.TyperException) -> str:
    """Return a usage error as the rest of the errors are: what, the value, the nearest name."""
    message = error.format_message().rstrip(".")
    name = getattr(error, "option_name", "")
    known = getattr(error, "possibilities", None) or []
    if known:
        message = f"No such option: {name}; did you mean {nearest(name, known) or known[0]}?"
    elif message.startswith("Missing option"):
        path = getattr(getattr(error, "ctx", None), "command_path", "slicebeam")
        message += f"; see {path} --help"
    # The value that could not be read is known to the cause only.
    for one in getattr(error.__cause__, "errors", list)():
        message = message.replace("Input should be", f"{one['input']!r}: it must be")
    return message[0].lower() + message[1:] if message else type(error).__name__


def main() -> None:
    """Run the command line and exit with its code."""
    hold_streams()
    heed_signals()
    # What the network library has to say of a failure is no line for a user, who can ask for it.
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")
    code = run(sys.argv[1:])
    # All files are written and closed. Taking down what Beam imported and started would take a third
    # of a second, and for ever where threads of an interrupted engine wait for what was ended.
    with suppress(OSError):
        sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def run(arguments: list[str]) -> int:
    """Run a command and return its exit code; errors are a line or two on stderr."""
    # Beam warns on import of client libraries that only other engines need.
    logging.getLogger().setLevel(logging.ERROR)
    for stream in (sys.stdout, sys.stderr):
        # Signs that the terminal's encoding lacks are shown as question marks.
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")
    forget()
    allow(False)
    invocation = Invocation()
    if _JSON_LOG in (*arguments, *map("=".join, pairwise(arguments))):
        # Errors of usage, too, are told as events.
        invocation.log(Asked(log_format="json"))
    try:
        code = app(
            arguments or ["--help"], prog_name="slicebeam", standalone_mode=False, obj=invocation
        )
        sys.stdout.flush()
    except KeyboardInterrupt:
        code = INTERRUPTED
    except Exception as error:  # noqa: BLE001  (a user sees a line, never a traceback)
        # An engine makes an error of its own of an interrupt.
        if not was_told_to_end():
            message, code = _told(error)
            _say(invocation, message, code)
            return code
        code = INTERRUPTED
    if code == INTERRUPTED:
        code, how = ending()
        again = "the same command goes on where it was"
        if invocation.command is not None:
            again = f"a {invocation.command} goes on with the same options and --resume"
        _say(invocation, f"{how}; {again}", code)
    return code if isinstance(code, int) else 0


def _say(invocation: Invocation, message: str, code: int) -> None:
    message = redacted(message)
    if invocation.events is not None:
        invocation.events.error(message, code)
    else:
        sys.stderr.write(f"slicebeam: {printable(message)}\n")


def _told(error: Exception) -> tuple[str, int]:
    """Return what a user is told of an error, and the exit code."""
    if isinstance(error, typer.TyperException):
        return _one_line(error), 2
    if isinstance(error, SlicebeamError):
        return str(error), error.exit_code
    if isinstance(error, MemoryError) or _REFUSED.search(str(error)):
        what = str(error) or "refused"
        return (
            f"out of memory or threads ({what}); allow more (ulimit -v), or lower --memory-budget",
            3,
        )
    if isinstance(error, OSError):
        return f"{error.filename or 'output'}: {error.strerror or error}", 3
    return _unforeseen(error), 3


def _unforeseen(error: Exception) -> str:
    """Return a line about a fault of ours, and keep its traceback in a file."""
    try:
        with tempfile.NamedTemporaryFile(
            "w", prefix="slicebeam-", suffix=".log", delete=False, encoding="utf-8"
        ) as log:
            log.write(redacted("".join(traceback.format_exception(error))))
        where = log.name
    except OSError:
        # No folder for it, or no room.
        where = "its place: " + str(traceback.extract_tb(error.__traceback__)[-1])
    reason = (str(error).splitlines() or ["no message"])[0]
    return f"unforeseen {type(error).__name__}: {reason}; please report it with {where}"


if __name__ == "__main__":
    main()
