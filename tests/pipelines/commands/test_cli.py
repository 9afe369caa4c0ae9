"""The command line: help, exit codes and what goes where."""

import io
import json
import math
import os
import resource
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path
from unittest.mock import Mock

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyarrow import csv

from slicebeam.pipelines.changelist.reading import read_search
from slicebeam.pipelines.cli import run
from slicebeam.pipelines.commands.table import COMMANDS
from slicebeam.pipelines.config.run_options import RunOptions
from slicebeam.pipelines.config.shift import ShiftConfig
from slicebeam.pipelines.run.published import Published
from slicebeam.pipelines.shift.simulated import CHURNS, BudgetPlan, better_methods
from slicebeam.pipelines.show.shift import show_plan
from slicebeam.pipelines.show.summary_json import summary_json


@pytest.fixture
def data(tmp_path):
    group = np.arange(400) % 2
    table = pa.table(
        {
            "group": pa.array(["good", "bad"]).take(pa.array(group)),
            "label": pa.array(np.ones(400, np.int64)),
            "pred": pa.array(np.where((group == 1) & (np.arange(400) % 3 == 0), 0, 1)),
        }
    )
    pq.write_table(table, tmp_path / "data.parquet")
    return tmp_path / "data.parquet"


def arguments(data, *more):
    roles = ["--label", "label", "--prediction", "pred", "--output", str(data.parent / "out")]
    return ["search", "--data", str(data), *roles, *more]


@pytest.mark.parametrize("given", [[], ["--help"], ["-h"], ["search", "--help"], ["demo", "-h"]])
def test_help_is_plain(given, capsys):
    assert run(given) == 0
    printed = capsys.readouterr()
    assert printed.err == ""
    assert printed.out.startswith("Usage: slicebeam")
    assert printed.out.isascii()
    assert "..." not in printed.out.replace("]...", "")
    assert max(map(len, printed.out.splitlines())) <= 100
    if not given:
        assert "Find the slices where a model is worse" in printed.out
    if "search" in given:
        said = "Loading one runs the code in it: name only what you trust."
        assert said in " ".join(printed.out.split())


@pytest.mark.parametrize("name", ["report", "run", "adapt run", "export tfma"])
def test_usage_names_arguments_as_the_help_does(name, capsys):
    assert run([*name.split(), "--help"]) == 0
    usage = capsys.readouterr().out.splitlines()[0]
    assert usage.startswith(f"Usage: slicebeam {name} [OPTIONS] <")
    assert usage.endswith(">")


def test_help_is_quick():
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    code = "import sys; from slicebeam.pipelines.cli import main; sys.argv[1:] = ['--help']; main()"
    # Import paths as here, in a bare checkout too.
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, env=environment)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    assert after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime <= 0.3


def loaded(*words):
    """The code of a command in a process of its own, the modules that it loaded, and what it printed."""
    code = (
        "import sys; from slicebeam.pipelines import cli; code = cli.run(sys.argv[1:])\n"
        "print('\\n--', code, *sys.modules)"
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    how = {"capture_output": True, "text": True, "env": environment}
    ended = subprocess.run([sys.executable, "-c", code, *map(str, words)], check=True, **how)
    printed, _, told = ended.stdout.rpartition("\n--")
    code, *modules = told.split()
    return int(code), set(modules), printed + ended.stderr


def test_version_is_printed_without_the_libraries():
    code, modules, printed = loaded("--version")
    assert (code, printed) == (0, f"slicebeam {version('slicebeam')}\n")
    assert modules.isdisjoint({"apache_beam", "numpy", "pyarrow", "pydantic", "scipy"})


@pytest.mark.parametrize("words", [
    ["data.parquet", "--label=lab", "--prediction=pred"],
    ["data.csv", "--label=label", "--prediction=pred", "--parity=grou"],
    ["dat.csv", "--label=label", "--prediction=pred"],
    ["data.csv", "--lable=label", "--prediction=pred"],
])  # fmt: skip
def test_wrong_names_are_refused_without_beam(data, words, monkeypatch):
    monkeypatch.chdir(data.parent)
    csv.write_csv(pq.read_table(data), "data.csv")
    code, modules, printed = loaded("search", *words)
    assert (code, printed.count("\n")) == (2, 1), printed
    assert "did you mean" in printed
    assert modules.isdisjoint({"apache_beam", "scipy", "pandas"})
    assert sum(name.startswith("slicebeam.") for name in modules) <= 50


def test_a_search_loads_what_it_uses(data, tmp_path):
    csv.write_csv(pq.read_table(data), tmp_path / "data.csv")
    command = ["search", tmp_path / "data.csv", "--label=label", "--prediction=pred", "--quiet"]
    code, modules, printed = loaded(*command, f"--output={tmp_path}")
    assert (code, printed) == (0, "")
    own = {name.removeprefix("slicebeam.") for name in modules if name.startswith("slicebeam.")}
    assert len(own) <= 200
    # By option: --explain, --since, --tolerance, --parity, --domains, --model; metrics of TFMA; several workers.
    rooms = {"pipelines.tfma", "pipelines.shift", "pipelines.discovery", "pipelines.adaptive"}
    assert not {name for name in own for room in rooms if name.startswith(room)}
    assert own.isdisjoint(
        {f"pipelines.search.{one}" for one in ("explain", "since", "tolerance", "parity")}
        | {"pipelines.prepare.given_domains", "metrics.discovery.mixture"}
        | {"transforms.encode.models", "runner_configs.local_processes", "pipelines.config.shift"}
    )  # fmt: skip


@pytest.mark.parametrize(("given", "message"), [
    (["serch"], "no such command 'serch'. Did you mean 'search', 'serve'?"),
    (["search"], "no data; write slicebeam search data.parquet, and see its --help"),
    (["search", "--bins", "x"], "invalid value for '--bins': 'x': it must be a valid integer"),
    (["search", "--alpha"], "option '--alpha' requires an argument"),
    (["search", "more"], "--data more: no such file"),
])  # fmt: skip
def test_wrong_usage(given, message, capsys):
    assert run(given) == 2
    printed = capsys.readouterr()
    assert printed.err.startswith(f"slicebeam: {message}")
    assert (printed.err.count("\n"), printed.out) == (1, "")


def test_what_goes_where(data, capsys):
    assert run(arguments(data)) == 0
    printed = capsys.readouterr()
    assert "400 examples, 1 feature," in printed.err
    assert "group = bad" in printed.out
    assert str(data.parent / "out" / "changelist.json") in printed.out
    assert not (data.parent / "out" / "_work").exists()
    assert run(arguments(data, "--json")) == 0
    summary = json.loads(capsys.readouterr().out)
    assert (summary["worst"][0]["slice"], summary["examples"]) == ("group = bad", 400)
    assert run(arguments(data, "--quiet")) == 0
    assert capsys.readouterr() == ("", "")
    assert run(arguments(data, "--fail-on", "worse", "--quiet")) == 1


def test_the_summary_finds_metrics_by_their_names(data):
    assert run(arguments(data, "--metric=accuracy,prediction_rate,label_rate", "--quiet")) == 0
    path = data.parent / "out" / "changelist.json"
    document = read_search(str(path), "--changelist")
    # As a document is where somebody left a metric out of the tests, or ordered them anew.
    testing = document.testing.model_copy(update={"metrics": document.testing.metrics[:0:-1]})
    changed = document.model_copy(update={"testing": testing})
    found = summary_json(Published(changed, path, path.with_name("slices.parquet")))
    values = {one.metric: one.after.value for one in document.global_}
    assert [one["metric"] for one in found["metrics"]] == ["label_rate", "prediction_rate"]
    assert all(one["value"] == values[one["metric"]] for one in found["metrics"])


def test_what_the_user_gave_is_what_the_document_holds(data):
    assert run(arguments(data, "--features", "group", "--bins", "5", "--quiet")) == 0
    document = json.loads((data.parent / "out" / "changelist.json").read_text())
    config = document["provenance"]["config"]
    assert (config["features"], config["bins"]) == (["group"], 5)
    # Defaults stand there too, so that another version's defaults do not change a repeated run.
    assert (config["top_values"], config["alpha"], config["strategy"]) == (100, 0.05, "batch")
    assert "max_candidates" not in config


def test_output_that_cannot_be_written(data, capsys, monkeypatch):
    """A result that cannot be shown is no traceback, and not the exit code of a found slice."""

    class Full(io.StringIO):
        def write(self, text):
            raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr("sys.stdout", Full())
        assert run(["schema"]) == 3
    assert capsys.readouterr().err == "slicebeam: output: No space left on device\n"


def test_a_fault_of_ours_is_a_line_and_a_log(data, capsys, monkeypatch):
    def fail(*_, **__):
        raise KeyError("inside")

    monkeypatch.setattr("slicebeam.pipelines.search.search.run_search", fail)
    assert run(arguments(data)) == 3
    message = capsys.readouterr().err.splitlines()[-1]
    assert message.startswith("slicebeam: unforeseen KeyError: 'inside'; please report it with ")
    log = Path(message.split(" with ")[1])
    assert "in fail" in log.read_text()
    log.unlink()


@pytest.mark.parametrize(("more", "message"), [
    (["--iterations", "2"], "--iterations has no effect on --strategy batch"),
    (["--prune-significant"], "--prune-significant has no effect on --strategy batch"),
    (["--threshold", "nan", "--score", "pred"], "--threshold"),
    (["--bins", "5", "--domains", "x.json"], "--bins has no effect with --domains"),
    (["--compare", "overall", "--baseline-model", "m.pkl"], "--baseline-model is for"),
    # A gate that can never fire.
    (["--alternative", "better", "--fail-on", "worse"], "with better, no slice is worse"),
])  # fmt: skip
def test_flags_without_effect_are_refused(data, capsys, more, message):
    assert run(arguments(data, *more)) == 2
    assert message in capsys.readouterr().err


def test_interrupted(data, capsys, monkeypatch):
    fault = Mock(side_effect=KeyboardInterrupt)
    monkeypatch.setattr("slicebeam.pipelines.search.search.run_search", fault)
    assert run(arguments(data)) == 130
    assert capsys.readouterr().err.splitlines()[-1].startswith("slicebeam: interrupted; a search")


def test_help_has_nothing_of_other_commands(capsys):
    assert run(["shift", "--help-all"]) == 0
    text = " ".join(capsys.readouterr().out.split())
    # Options of search that shift lacks, what it does not write, and what it does not do.
    for strange in ("--loss", "slices.parquet", "resampled", "tables", "pays for none twice"):
        assert strange not in text
    assert "Required, except with --plan and --repeat" in text
    assert "--label <column> Column of the true classes. [required]" in text
    assert "'lost_calls' in the --api file decides whether its item is sent again" in text


def planned(method, churn, budget, error):
    return BudgetPlan(method, churn, budget, None, error, 0.1, 0.1)  # type: ignore[arg-type]


def test_a_plan_says_where_another_method_errs_less(capsys):
    rows = [
        planned("plus", 0.02, 250, 0.01),
        planned("masa", 0.02, 250, 0.03),
        *(planned("plus", None, budget, error) for budget, error in ((250, 0.04), (500, 0.03))),
        # 20 and 10 % less.
        *(planned("masa", None, budget, error) for budget, error in ((250, 0.032), (500, 0.027))),
        *(planned("proportional", None, budget, 0.1) for budget in (250, 500)),
        # Within chance.
        planned("plus", 0.1, 250, 0.02),
        planned("masa", 0.1, 250, 0.0195),
    ]
    (found,) = better_methods(rows)
    assert (found.churn, found.method) == (None, "masa")
    assert found.ratio == pytest.approx(math.sqrt(0.8 * 0.9))
    show_plan(rows, None, [found])
    shown = " ".join(capsys.readouterr().out.split())
    error = "--method masa has an error 15% smaller than plus for the same calls."
    assert f"With a completely new API, {error}" in shown
    assert better_methods([one for one in rows if one.method == "plus"]) == []
    assert None in CHURNS


def test_every_option_has_an_effect_and_help_that_names_only_flags_of_shift():
    helps = {one.name: one.help for one in COMMANDS["shift"].fields()}
    # The files are data without their flag.
    known = {"files", *ShiftConfig.model_fields, *RunOptions.model_fields}
    flags = {"--" + name.replace("_", "-") for name in helps} | {"--json"}
    for name, text in helps.items():
        assert name in known
        assert text.endswith((".", "]")), name
        for word in text.replace("(", " ").replace(")", " ").split():
            if word.startswith("--"):
                assert word.strip(".,:;") in flags, (name, word)
