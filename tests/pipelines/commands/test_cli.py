"""How a command begins and ends: options, signals, and streams that are gone."""

import errno
import io
import json
import logging
import math
import os
import resource
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path
from unittest.mock import Mock

import apache_beam as beam
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyarrow import csv

from slicebeam.metrics.errors import EngineError
from slicebeam.pipelines.commands import cli
from slicebeam.pipelines.commands.cli import run
from slicebeam.pipelines.commands.table import COMMANDS
from slicebeam.pipelines.config.run_options import RunOptions
from slicebeam.pipelines.config.shift import ShiftConfig
from slicebeam.pipelines.run.engine import Engine, runner_config
from slicebeam.pipelines.shift.simulated import CHURNS, BudgetPlan, better_methods
from slicebeam.pipelines.show.shift import show_plan
from tests.refusals import refuses


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
    code = "import sys; from slicebeam.pipelines.commands.cli import main; sys.argv[1:] = ['--help']; main()"
    # Import paths as here, in a bare checkout too.
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, env=environment)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    assert after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime <= 0.3


def loaded(*words):
    """The code of a command in a process of its own, the modules that it loaded, and what it printed."""
    code = (
        "import sys; from slicebeam.pipelines.commands import cli; code = cli.run(sys.argv[1:])\n"
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
    assert len(own) <= 155
    # By option: --explain, --since, --tolerance, --parity, --domains, --model; metrics of TFMA; several workers.
    rooms = {"pipelines.tfma", "pipelines.shift", "pipelines.discovery", "pipelines.adaptive"}
    assert not {name for name in own for room in rooms if name.startswith(room)}
    assert own.isdisjoint(
        {f"pipelines.search.{one}" for one in ("explain", "since", "tolerance", "parity", "sensitivity")}
        | {"pipelines.prepare.inherited", "metrics.discovery.mixture"}
        | {"transforms.encode.models", "runner_configs.local_processes", "pipelines.config.shift"}
    )  # fmt: skip


@pytest.mark.parametrize(("given", "message"), [
    (["serch"], "no such command: serch; did you mean search?"),
    (["adapt", "x"], "no such command: x; see slicebeam adapt --help"),
    (["report"], "missing argument '<folder>'; see slicebeam report --help"),
    (["search"], "no data; write slicebeam search data.parquet, and see its --help"),
    (["search", "--bins", "x"], "invalid value for '--bins': 'x' is not a valid integer"),
    (["search", "--alpha"], "option '--alpha' requires an argument"),
    (["search", "more"], "--data more: no such file"),
])  # fmt: skip
def test_wrong_usage(given, message, capsys):
    assert run(given) == 2
    printed = capsys.readouterr()
    assert printed.err.startswith(f"slicebeam: {message}")
    assert (printed.err.count("\n"), printed.out) == (1, "")


@pytest.mark.parametrize(("words", "completions"), [
    ("slicebeam sea", ["plain,search"]),
    ("slicebeam edit ren", ["plain,rename"]),
    ("slicebeam search --baseline-p", ["plain,--baseline-prediction"]),
    ("slicebeam search --strategy p", ["plain,priority"]),
    ("slicebeam search --data da", ["file,da"]),
    ("slicebeam search da", ["file,da"]),
    ("slicebeam search --output o", ["dir,o"]),
])  # fmt: skip
def test_a_shell_completes_commands_options_and_values(words, completions, monkeypatch, capsys):
    monkeypatch.setenv("_SLICEBEAM_COMPLETE", "bash_complete")
    monkeypatch.setenv("COMP_WORDS", words)
    monkeypatch.setenv("COMP_CWORD", str(words.count(" ")))
    assert run([]) == 0
    assert capsys.readouterr().out.split() == completions


@pytest.mark.parametrize("name", ["adapt", "attribute", "edit", "export"])
def test_a_group_alone_shows_its_help(name, capsys):
    assert run([name]) == 0
    assert capsys.readouterr().out.startswith(f"Usage: slicebeam {name} ")


def test_what_goes_where(data, capsys):
    assert run(arguments(data)) == 0
    printed = capsys.readouterr()
    assert "400 examples, 1 feature," in printed.err
    assert "group = bad" in printed.out
    assert str(data.parent / "out" / "changelist.json") in printed.out
    assert not (data.parent / "out" / "_work").exists()
    assert run(arguments(data, "--json")) == 0
    summary = json.loads(capsys.readouterr().out)
    document = json.loads((data.parent / "out" / "changelist.json").read_text())
    assert (summary["slices"][0]["name"], summary["dataset"]["n"]) == ("group = bad", 400)
    assert summary["table"] == str(data.parent / "out" / "slices.parquet")
    for name in ("global", "findings", "testing", "metrics", "comparison"):
        assert summary[name] == document[name]
    assert not {"provenance", "files"} & set(summary)
    assert run(arguments(data, "--quiet")) == 0
    assert capsys.readouterr() == ("", "")
    assert run(arguments(data, "--fail-on", "worse", "--quiet")) == 1


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
    (["--strategy=batch", "--iterations=2"], "--iterations has no effect with --strategy batch"),
    (["--strategy=iterative", "--max-candidates=9"], "--max-candidates has no effect with --strategy iterative"),
    (["--baseline-data=x", "--compare=overall"], "--baseline-data has no effect with --compare overall"),
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


BEGIN = """
import os, signal, sys
from slicebeam.pipelines.commands.signals import *
"""


def ran(program):
    command = [sys.executable, "-c", BEGIN + program]
    return subprocess.run(command, capture_output=True, text=True, check=False)


TOLD = {"INT": (130, "interrupted"), "TERM": (143, "terminated"), "HUP": (129, "hung up")}


@pytest.mark.parametrize(("name", "told"), TOLD.items())
def test_a_signal_is_an_interrupt_and_is_remembered(name, told):
    ended = ran(f"""
install_handlers()
assert not interrupted()
try:
    os.kill(os.getpid(), signal.SIG{name})
    raise SystemExit("not interrupted")
except KeyboardInterrupt:
    print(ending(), interrupted())
""")
    assert ended.stdout == f"{told} True\n", ended.stderr


def test_what_is_sent_again_does_not_disturb_the_tidying_up():
    ended = ran("""
install_handlers()
try:
    os.kill(os.getpid(), signal.SIGTERM)
except KeyboardInterrupt:
    os.kill(os.getpid(), signal.SIGTERM)
    print("tidied up")
""")
    assert ended.stdout == "tidied up\n", ended.stderr


def test_nohup_is_heeded():
    ended = ran("""
signal.signal(signal.SIGHUP, signal.SIG_IGN)
install_handlers()
os.kill(os.getpid(), signal.SIGHUP)
print("goes on")
""")
    assert ended.stdout == "goes on\n", ended.stderr


def test_a_closed_pipe_is_not_noticed_and_a_full_disk_is():
    ended = ran("""
reading, writing = os.pipe()
os.close(reading)
os.dup2(writing, 1)
guard_streams()
print("to nobody")
sys.stdout.flush()
os.dup2(os.open("/dev/full", os.O_WRONLY), 1)
try:
    print("too much")
    sys.stdout.flush()
except OSError as error:
    sys.stderr.write(error.strerror)
sys.stderr.flush()
os.dup2(os.open("/dev/full", os.O_WRONLY), 2)
sys.stderr.write("to nobody")
sys.stderr.flush()
os._exit(0)
""")
    assert (ended.returncode, ended.stderr) == (0, "No space left on device")


def test_no_file_takes_the_place_of_a_stream_that_is_closed(tmp_path):
    result = tmp_path / "result"

    def close():
        for number in range(3):
            os.close(number)

    program = f"""
guard_streams()
file = os.open({str(result)!r}, os.O_WRONLY | os.O_CREAT)
sys.stderr.write("not into the result")
print("nor this", flush=True)
os.write(file, b"whole")
"""
    subprocess.run([sys.executable, "-c", BEGIN + program], preexec_fn=close, check=True)
    assert result.read_bytes() == b"whole"


class Logging(beam.DoFn):
    def process(self, element):
        logging.getLogger("test").error("%d", element)


class Failing(beam.DoFn):
    def __init__(self, kind, text):
        self.kind, self.text = kind, text

    def process(self, _):
        raise self.kind(*filter(None, [self.text]))


def do(function, log="/dev/null"):
    with Engine(runner_config("direct", ())) as engine:
        engine.log_to(Path(log))
        engine.run(lambda pipeline: pipeline | beam.Create([1]) | beam.ParDo(function), "test")


def test_a_log_that_can_t_be_written_fails_no_job():
    do(Logging(), "/dev/full")


@pytest.mark.parametrize("kind", [MemoryError, pa.ArrowMemoryError])
def test_too_little_memory_of_a_worker_is_a_line(kind):
    message = "^a worker is out of memory; lower --memory-budget"
    refuses(EngineError, message, do, Failing(kind, ""))


@pytest.mark.parametrize("error", [
    *(MemoryError(), RuntimeError("can't start new thread")),
    ImportError("libscipy.so: failed to map segment from shared object"),
    OSError(errno.ENOMEM, "Cannot allocate memory"),
])  # fmt: skip
def test_too_little_memory_of_a_command_is_a_line(error):
    message, code = cli._message_of(error)
    assert code == 3
    assert message.startswith("out of memory or threads (")
    assert message.endswith("); allow more (ulimit -v), or lower --memory-budget")


@pytest.mark.parametrize("megabytes", [100, 300, 600, 900, 1400])
def test_a_limit_of_memory_that_the_libraries_would_not_survive_is_a_line(tmp_path, megabytes):
    def limited():
        resource.setrlimit(resource.RLIMIT_AS, (megabytes << 20, megabytes << 20))

    command = [
        sys.executable,
        "-m",
        "slicebeam.pipelines.commands.cli",
        "search",
        "--data",
        "x.csv",
    ]
    command += ["--label", "y", "--output", str(tmp_path / "out")]
    how = {"capture_output": True, "text": True, "timeout": 60}
    ended = subprocess.run(command, preexec_fn=limited, check=False, **how)
    said = f"the limit on virtual memory is {megabytes:,} MB, and the libraries alone need 1,500 MB"
    assert ended.stderr == f"slicebeam: {said}; allow more (ulimit -v)\n"
    assert ended.returncode == 3
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(("kind", "text", "raised"), [
    (KeyboardInterrupt, "stopped", KeyboardInterrupt),
    (ValueError, "no such column: KeyboardInterrupt", EngineError),
])  # fmt: skip
def test_an_interrupt_is_one_by_its_type_and_not_by_what_a_text_says(kind, text, raised):
    refuses(raised, text, do, Failing(kind, text))
