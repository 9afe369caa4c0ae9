"""Run files with several steps: search, discovery in the rows of the findings, shift, check."""

import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
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


def read_shift(placed):
    return json.loads((placed / DAYS[1] / "shift" / "changelist.json").read_text())["shift"]


def statuses(capsys):
    shown = json.loads(capsys.readouterr().out)
    return shown, [one["status"] for one in shown["steps"]]


@pytest.mark.slow
def test_the_night_with_findings(placed, days, capsys):
    arguments = ["run", str(FILE), "--date", DAYS[1], "--json"]
    assert run(arguments) == 1
    shown, ended = statuses(capsys)
    assert ended == ["failed", "passed", "passed", "failed"]
    assert (shown["exit_code"], shown["steps"][1]["result"]["examples"]) == (1, 280)
    document = read(placed / DAYS[1] / "discover").document
    frame = pd.read_parquet(days / f"date={DAYS[1]}" / "eval.parquet")
    husbands = (frame["occupation"] == "Sales") & (frame["relationship"] == "Husband")
    within = document["dataset"]["within"]
    assert (within["n"], within["of"]) == (husbands.sum(), len(frame))
    shift = read_shift(placed)
    cells = [pd.crosstab(frame["income"], frame[name]) for name in ("prediction", "prediction_old")]
    change = ((cells[0] - cells[1]) / len(frame)).to_numpy()
    assert shift["cost"]["calls"] == 600
    assert (np.array(shift["shift_lo"])[:, :2] <= change).all()
    assert (change <= np.array(shift["shift_hi"])[:, :2]).all()
    names = ["search", "discover", "shift", "check"]
    paths = [placed / DAYS[1] / name / "changelist.json" for name in names]
    before = [path.stat().st_mtime_ns for path in paths]
    assert run([*arguments, "--resume"]) == 1
    assert [path.stat().st_mtime_ns for path in paths] == before


@pytest.mark.slow
def test_a_night_without_findings(placed, capsys):
    assert run(["run", str(FILE), "--date", DAYS[0], "--json"]) == 0
    shown, ended = statuses(capsys)
    assert ended == ["passed", "skipped", "passed", "passed"]
    assert "no findings" in shown["steps"][1]["reason"]


@pytest.mark.parametrize(
    ("codes", "code", "ended"),
    [
        ([1, 0, 0, 2], 2, ["failed", "passed", "passed", "failed"]),
        ([0, InputError("bad"), 0, 0], 2, ["passed", "error", "not run", "not run"]),
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
        (3, {"command": "chek"}, "steps[3]: unknown command 'chek'; did you mean 'check'?"),
        (3, {"fail_on": "worst"}, "steps[3].fail_on: --fail-on 'worst': only 'worse' is known"),
        (2, {"resume": True}, "steps[2].resume: it holds for all steps; write it above 'steps'"),
        (2, {"output": "${RESULTS}/{date}/search"}, "is the output of steps[0] too"),
        (2, {"output": "${RESULTS}/./{date}/search/"}, "is the output of steps[0] too"),
        (2, {"output": None}, "steps[2].output: "),
        (2, {"output": "${RESULTS}/{dat}"}, "steps[2].output: {dat} is not a placeholder"),
        (1, {"within_findings": "absent.json"}, "steps[1]: --within-findings absent.json: no such file"),
        (2, {"repeat": 3}, "--plan and --repeat only print, and are not for a step of shift"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_said_before_anything_runs(at, more, message, placed, capsys):
    content = yaml.safe_load(FILE.read_text())
    content["steps"][3]["slices"] = str(FILE.parent / "watched.yaml")
    content["steps"][at] |= more
    (placed / "run.yaml").write_text(yaml.safe_dump(content))
    assert run(["run", str(placed / "run.yaml"), "--date", DAYS[0]]) == 2
    assert message in capsys.readouterr().err
    assert [path.name for path in placed.iterdir()] == ["run.yaml"]


def test_what_is_common_holds_for_each_step(placed):
    spec = read_run(str(FILE), DAYS[0], {"DATA": "d", "RESULTS": "r"})
    assert {one.options["data"] for one in spec.steps} == {(f"d/date={DAYS[0]}/*.parquet",)}


@pytest.mark.slow
@pytest.mark.parametrize("seen", ["search/changelist.json", "discover/_work/run.json", "shift"])
def test_a_killed_run_continues(seen, placed, capsys):
    """Killed between the steps, or within one: what is finished is kept."""
    search = placed / DAYS[1] / "search"
    words = ["run", str(FILE), "--date", DAYS[1], "--quiet"]
    code = f"import slicebeam.pipelines.cli as cli; cli.run({words!r})"
    with subprocess.Popen([sys.executable, "-c", code]) as process:
        while process.poll() is None and (
            not (placed / DAYS[1] / seen).exists() or (search / "_work").exists()
        ):
            time.sleep(0.005)
        process.kill()
    assert process.returncode == -signal.SIGKILL
    before = (search / "changelist.json").stat().st_mtime_ns
    assert run([*words, "--resume"]) == 1
    assert (search / "changelist.json").stat().st_mtime_ns == before
    assert read_shift(placed)["cost"]["calls"] == 600
    assert read(placed / DAYS[1] / "discover").document["dataset"]["within"]["n"] == 280
    capsys.readouterr()
