"""The command line. Imports of weight are inside the commands, so that ``--help`` is quick."""

from __future__ import annotations

import csv
import io
import logging
import os
import sys
import tempfile
import traceback
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from slicebeam.metrics.errors import InputError, SlicebeamError, nearest

if TYPE_CHECKING:
    from collections.abc import Sequence

    from slicebeam.pipelines.config import SearchConfig
    from slicebeam.pipelines.runner import Engine
    from slicebeam.pipelines.search import Published

INTERRUPTED = 130

app = typer.Typer(
    name="slicebeam",
    help="Finds the slices of evaluation data where a model is worse, or where an update changed it.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)


def _listed(values: list[str] | None) -> tuple[str, ...]:
    """Return the values of an option that is repeated or separated by commas."""
    # As in CSV, quotes keep a comma that belongs to a name.
    return tuple(part for row in csv.reader(values or ()) for part in row or [""])


@app.command()
def search(
    context: typer.Context,
    data: Annotated[
        list[str],
        typer.Option(
            metavar="<path>",
            help="Files or globs: Parquet, CSV (.gz), JSON Lines, TFRecord. Repeatable.",
        ),
    ],
    label: Annotated[str, typer.Option(help="Column of the true classes.")],
    output: Annotated[str, typer.Option(help="Folder for changelist.json and slices.parquet.")],
    prediction: Annotated[
        str | None, typer.Option(help="Column of predicted classes, of the label's type.")
    ] = None,
    score: Annotated[
        str | None,
        typer.Option(
            help="Column with the probability of --positive-class. Beside --prediction it is only "
            "kept out of the features."
        ),
    ] = None,
    model: Annotated[
        str | None,
        typer.Option(
            help="scikit-learn model (pickle, joblib) to predict with. Loading one runs the code in "
            "it: name only files that you trust."
        ),
    ] = None,
    baseline_prediction: Annotated[
        str | None, typer.Option(help="The same of the old model, to compare two models.")
    ] = None,
    baseline_score: Annotated[str | None, typer.Option(help="Score of the old model.")] = None,
    baseline_model: Annotated[str | None, typer.Option(help="File of the old model.")] = None,
    positive_class: Annotated[
        str | None, typer.Option(help="The class that a score speaks of.  [default: 1 or true]")
    ] = None,
    threshold: Annotated[
        float, typer.Option(help="A score of at least this predicts the positive class.")
    ] = 0.5,
    format: Annotated[  # noqa: A002  (the flag's name)
        str | None, typer.Option(help="parquet, csv, jsonl or tfrecord.  [default: by the name]")
    ] = None,
    column_names: Annotated[
        list[str] | None,
        typer.Option(metavar="<names>", help="Columns of a CSV file without a header, by commas."),
    ] = None,
    skip_rows: Annotated[int, typer.Option(help="Lines before the header of a CSV file.")] = 0,
    features: Annotated[
        list[str] | None,
        typer.Option(
            metavar="<names>",
            help="Columns to slice by; repeatable or by commas.  [default: all others]",
        ),
    ] = None,
    exclude_features: Annotated[
        list[str] | None,
        typer.Option(metavar="<names>", help="Columns not to slice by; repeatable or by commas."),
    ] = None,
    example_id: Annotated[
        str | None, typer.Option(help="Column that identifies an example when it is resampled.")
    ] = None,
    weight: Annotated[
        str | None, typer.Option(help="Column of sampling weights, at least 0.")
    ] = None,
    group: Annotated[
        str | None,
        typer.Option(
            help="Column of groups of examples that go together, such as a user; groups are resampled."
        ),
    ] = None,
    bins: Annotated[int, typer.Option(help="Quantile bins of a numeric column.")] = 10,
    top_values: Annotated[
        int, typer.Option(help="Values of a categorical column with a predicate of their own.")
    ] = 100,
    domains: Annotated[
        str | None, typer.Option(help="ChangeList of an earlier run whose bins and values to use.")
    ] = None,
    metric: Annotated[
        list[str] | None,
        typer.Option(
            metavar="<names>",
            help="accuracy, error_rate, precision, recall, f1, fbeta:2, fpr, fnr, specificity, "
            "balanced_accuracy, mcc, auc, log_loss, brier, mse, mae, bias, prediction_rate, label_rate, "
            "mean:COLUMN, precision_macro, recall_macro, f1_macro (or _micro); repeatable, the first "
            "steers.  [default: accuracy]",
        ),
    ] = None,
    compare: Annotated[
        str | None,
        typer.Option(help="overall or baseline.  [default: baseline if an old model is given]"),
    ] = None,
    alternative: Annotated[str, typer.Option(help="worse, better or both.")] = "worse",
    test: Annotated[
        str,
        typer.Option(
            help="auto: the metric's own, calibrated, also for small slices. bootstrap-rows, "
            "bootstrap-cells: t over Poisson replicates of examples, or of counts. permutation: random "
            "subsets. paper, paper-cells: AutoSlicer's t over 20 replicates, with its settings (alpha "
            "0.01, no correction, size 1)."
        ),
    ] = "auto",
    replicates: Annotated[
        int | None,
        typer.Option(
            help="Bootstrap replicates.  [default: 200 of rows, 1000 of cells, 20 for paper]"
        ),
    ] = None,
    correction: Annotated[
        str | None,
        typer.Option(
            help="fdr-level, fwer-level, fwer-tarone, bh, by, none.  [default: fdr-level]"
        ),
    ] = None,
    alpha: Annotated[float | None, typer.Option(help="Level.  [default: 0.05]")] = None,
    min_slice_size: Annotated[
        int | None, typer.Option(help="Smallest slice that is tested.  [default: 20, 50 for means]")
    ] = None,
    max_cross_size: Annotated[int, typer.Option(help="Most predicates of a slice.")] = 3,
    strategy: Annotated[
        str | None,
        typer.Option(
            help="batch, iterative or priority.  [default: batch, priority above 10 million "
            "conjunctions]"
        ),
    ] = None,
    iterations: Annotated[int, typer.Option(help="Iterations of --strategy priority.")] = 5,
    max_candidates: Annotated[
        int, typer.Option(help="Candidates of an iteration of --strategy priority.")
    ] = 50_000,
    keep_refining: Annotated[
        bool, typer.Option("--keep-refining", help="Also visit slices below significant ones.")
    ] = False,
    save_slices: Annotated[
        str | None,
        typer.Option(help="tested or significant.  [default: tested up to a million slices]"),
    ] = None,
    fail_on: Annotated[
        str | None, typer.Option(help="worse: exit with 1 if a significant worse slice is found.")
    ] = None,
    explain: Annotated[
        str | None,
        typer.Option(
            metavar="<slice>", help="Say how this slice (id or text) was tested, with all numbers."
        ),
    ] = None,
    seed: Annotated[int, typer.Option(help="Of the bootstrap.")] = 0,
    work_dir: Annotated[
        str | None, typer.Option(help="Folder for what is unfinished.  [default: OUTPUT/_work]")
    ] = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Go on where a stopped run was.")
    ] = False,
    memory_budget: Annotated[
        str, typer.Option(help="Memory that a worker may use for tables.")
    ] = "512MB",
    chunk_rows: Annotated[int, typer.Option(help="Most examples that are read at a time.")] = (
        1 << 18
    ),
    runner_config: Annotated[
        str, typer.Option(help="Engine: direct, direct_multi, or a YAML file.")
    ] = "direct",
    runner_option: Annotated[
        list[str] | None,
        typer.Option(metavar="<key=value>", help="Option of the engine. Repeatable."),
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print the summary as JSON on stdout.")
    ] = False,
    quiet: Annotated[bool, typer.Option("--quiet", help="Print nothing but errors.")] = False,
) -> None:
    """Find the slices where a model is worse, or an update made it so."""
    with _engine(runner_config, runner_option or ()) as engine:
        from slicebeam.pipelines.config import search_config

        given: dict[str, Any] = dict(context.params)
        for name in ("fail_on", "resume", "as_json", "quiet", "explain"):
            del given[name]
        for name in ("column_names", "features", "exclude_features", "metric"):
            given[name] = _listed(given[name])
        # What the user left out keeps the default of the configuration, which knows that it was.
        options = {name: value for name, value in given.items() if _was_given(context, name)}
        if fail_on not in (None, "worse"):
            raise InputError(f"--fail-on {fail_on!r}: only 'worse' is known")
        if fail_on == "worse" and alternative == "better":
            raise InputError("--fail-on worse needs --alternative worse or both: better finds none")
        published = _run(
            search_config(options),
            engine,
            resume=resume,
            as_json=as_json,
            quiet=quiet,
            asked=explain,
        )
    if fail_on == "worse" and published.changelist.testing.degraded:
        raise typer.Exit(1)


def _engine(name: str, options: Sequence[str]) -> Engine:
    """Return the engine, whose worker processes start while this one imports what it needs."""
    from slicebeam.pipelines.runner import Engine, runner_config

    return Engine(runner_config(name, options))


def _was_given(context: typer.Context, name: str) -> bool:
    source = context.get_parameter_source(name)
    return source is not None and source.name == "COMMANDLINE"


def _run(
    config: SearchConfig,
    engine: Engine,
    *,
    resume: bool,
    as_json: bool,
    quiet: bool,
    asked: str | None = None,
) -> Published:
    from slicebeam.pipelines.search import run_search
    from slicebeam.pipelines.terminal import Terminal

    terminal = Terminal(quiet=quiet, as_json=as_json)
    try:
        published = run_search(config, engine, terminal, resume=resume, asked=asked)
    finally:
        terminal.stop()
    terminal.result(published)
    return published


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

    for title, config in demo_runs(Path(output)):
        typer.secho(f"\n{title}", bold=True)
        with _engine(config.runner_config, config.runner_option) as engine:
            _run(config, engine, resume=False, as_json=False, quiet=False)


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
    try:
        code = app(arguments or ["--help"], prog_name="slicebeam", standalone_mode=False)
        sys.stdout.flush()
    except typer.TyperException as error:
        sys.stderr.write(f"slicebeam: {_one_line(error)}\n")
        return 2
    except SlicebeamError as error:
        sys.stderr.write(f"slicebeam: {error}\n")
        return error.exit_code
    except BrokenPipeError:
        # The reader of a pipe, such as head, has seen enough. What python still holds is dropped.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except OSError as error:
        sys.stderr.write(f"slicebeam: {error.filename or 'output'}: {error.strerror or error}\n")
        return 3
    except Exception as error:  # noqa: BLE001  (a user sees a line, never a traceback)
        sys.stderr.write(f"slicebeam: {_unforeseen(error)}\n")
        return 3
    if code == INTERRUPTED:
        sys.stderr.write(
            "slicebeam: interrupted; a search goes on with the same options and --resume\n"
        )
    return code if isinstance(code, int) else 0


def _unforeseen(error: Exception) -> str:
    """Return a line about a fault of ours, and keep its traceback in a file."""
    with tempfile.NamedTemporaryFile(
        "w", prefix="slicebeam-", suffix=".log", delete=False, encoding="utf-8"
    ) as log:
        traceback.print_exception(error, file=log)
    reason = (str(error).splitlines() or ["no message"])[0]
    return f"unforeseen {type(error).__name__}: {reason}; please report it with {log.name}"


if __name__ == "__main__":
    main()
