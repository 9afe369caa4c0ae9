"""Run files with several steps: search, discovery in the rows of the findings, check."""

import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import pandas as pd
import pytest
import yaml

from slicebeam.metrics.errors import InputError
from slicebeam.pipelines.cli import run
from slicebeam.pipelines.commands import steps
from slicebeam.pipelines.commands.run_file import read_run
from tests.pipelines.search.test_since import DAYS
from tests.running import read

FILE = Path(__file__).parents[2] / "examples" / "scheduled" / "steps.yaml"


@pytest.fixture
def placed(days, tmp_path, monkeypatch):
    monkeypatch.setenv("DATA", str(days))
    monkeypatch.setenv("RESULTS", str(tmp_path))
    return tmp_path


def statuses(capsys):
    shown = json.loads(capsys.readouterr().out)
    return shown, [one["status"] for one in shown["steps"]]


@pytest.mark.slow
def test_the_night_with_findings(placed, days, capsys):
    arguments = ["run", str(FILE), "--date", DAYS[1], "--json"]
    assert run(arguments) == 1
    shown, ended = statuses(capsys)
    assert ended == ["failed", "passed", "failed"]
    assert (shown["exit_code"], shown["steps"][1]["result"]["examples"]) == (1, 280)
    document = read(placed / DAYS[1] / "discover").document
    frame = pd.read_parquet(days / f"date={DAYS[1]}" / "eval.parquet")
    husbands = (frame["occupation"] == "Sales") & (frame["relationship"] == "Husband")
    within = document["dataset"]["within"]
    assert (within["n"], within["of"]) == (husbands.sum(), len(frame))
    names = ["search", "discover", "check"]
    paths = [placed / DAYS[1] / name / "changelist.json" for name in names]
    before = [path.stat().st_mtime_ns for path in paths]
    assert run([*arguments, "--resume"]) == 1
    assert [path.stat().st_mtime_ns for path in paths] == before


@pytest.mark.slow
def test_a_night_without_findings(placed, capsys):
    assert run(["run", str(FILE), "--date", DAYS[0], "--json"]) == 0
    shown, ended = statuses(capsys)
    assert ended == ["passed", "skipped", "passed"]
    assert "no findings" in shown["steps"][1]["reason"]


@pytest.mark.parametrize(
    ("codes", "code", "ended"),
    [
        ([1, 0, 2], 2, ["failed", "passed", "failed"]),
        ([0, InputError("bad"), 0], 2, ["passed", "error", "not run"]),
    ],
)
def test_the_worst_exit_code(codes, code, ended, placed, capsys, monkeypatch):
    left = iter(codes)

    def launched(*_):
        came = next(left)
        if isinstance(came, Exception):
            raise came
        print("{}")
        return came

    monkeypatch.setattr(steps, "launch", launched)
    assert run(["run", str(FILE), "--date", DAYS[0], "--json"]) == code
    shown, found = statuses(capsys)
    assert (shown["exit_code"], found) == (code, ended)


@pytest.mark.parametrize(
    ("at", "more", "message"),
    [
        (1, {"componets": 3}, "steps[1].componets: unknown key 'componets'; did you mean 'components'?"),
        (1, {"components": 1}, "steps[1].components: --components 1 is not between 2"),
        (2, {"command": "chek"}, "steps[2]: unknown command 'chek'; did you mean 'check'?"),
        (2, {"fail_on": "worst"}, "steps[2].fail_on: --fail-on 'worst': only 'worse' is known"),
        (2, {"resume": True}, "steps[2].resume: it holds for all steps; write it above 'steps'"),
        (2, {"output": "${RESULTS}/{date}/search"}, "is the output of steps[0] too"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_said_before_anything_runs(at, more, message, placed, capsys):
    content = yaml.safe_load(FILE.read_text())
    content["steps"][2]["slices"] = str(FILE.parent / "watched.yaml")
    content["steps"][at] |= more
    (placed / "run.yaml").write_text(yaml.safe_dump(content))
    assert run(["run", str(placed / "run.yaml"), "--date", DAYS[0]]) == 2
    assert message in capsys.readouterr().err
    assert [path.name for path in placed.iterdir()] == ["run.yaml"]


def test_what_is_common_holds_for_each_step(placed):
    spec = read_run(str(FILE), DAYS[0], {"DATA": "d", "RESULTS": "r"})
    assert {one.options["data"] for one in spec.steps} == {(f"d/date={DAYS[0]}/*.parquet",)}


@pytest.mark.slow
@pytest.mark.parametrize("seen", ["search/changelist.json", "discover/_work/run.json"])
def test_a_killed_run_continues(seen, placed, capsys):
    """Killed between the steps, or within one: what is finished is kept."""
    words = ["run", str(FILE), "--date", DAYS[1], "--quiet"]
    code = f"import slicebeam.pipelines.cli as cli; cli.run({words!r})"
    with subprocess.Popen([sys.executable, "-c", code]) as process:
        while process.poll() is None and not (placed / DAYS[1] / seen).exists():
            time.sleep(0.005)
        process.kill()
    assert process.returncode == -signal.SIGKILL
    finished = placed / DAYS[1] / "search" / "changelist.json"
    before = finished.stat().st_mtime_ns
    assert run([*words, "--resume"]) == 1
    assert finished.stat().st_mtime_ns == before
    assert read(placed / DAYS[1] / "discover").document["dataset"]["within"]["n"] == 280
    capsys.readouterr()
