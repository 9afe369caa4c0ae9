"""The examples of scheduled runs: the nightly end to end, and what starts it."""

import ast
import json
import re
import runpy
import shlex
from pathlib import Path

import pyarrow.parquet as pq
import pytest
import yaml

from slicebeam.pipelines.cli import run
from tests.conftest import slow
from tests.pipelines.search.test_since import DAYS, oracle
from tests.running import read

FOLDER = Path(__file__).parents[2] / "examples" / "scheduled"
PLANTED = "occupation = Sales & relationship = Husband"


@pytest.fixture(scope="module")
def nights(days, tmp_path_factory):
    """Exit codes and results of the three nights."""
    results = tmp_path_factory.mktemp("results")
    codes = []
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("DATA", str(days))
        patched.setenv("RESULTS", str(results))
        codes = [
            run(["run", str(FOLDER / "nightly.yaml"), "--date", date, "--quiet"]) for date in DAYS
        ]
    return codes, [read(results / date) for date in DAYS]


def test_the_planted_regression_is_found_in_its_night(nights):
    codes, found = nights
    assert codes == [0, 1, 0]
    degraded = [one.document["testing"]["degraded"] for one in found]
    assert degraded[0] == degraded[2] == 0
    worst = found[1].document["slices"][0]
    assert worst["name"] == PLANTED
    assert worst["changes"][0]["direction"] == "degraded"
    (finding,) = found[1].document["findings"]
    assert finding["slice_id"] == worst["slice_id"]
    assert "since" not in found[0].document
    second, third = (one.document["since"] for one in found[1:])
    assert second["changelist_id"] == found[0].document["changelist_id"]
    assert third["changelist_id"] == found[1].document["changelist_id"]
    assert (second["slices"][0]["name"], second["slices"][0]["status"]) == (PLANTED, "new")
    assert (second["new"], second["gone"], second["better"]) == (6, 0, 0)
    assert (third["new"], third["gone"], third["worse"]) == (0, 6, 0)
    assert {one["status"] for one in third["slices"] if one["name"] == PLANTED} == {"gone"}
    assert third["better"] == (oracle(found[2].table, found[1].table)["q"] <= 0.05).sum()


def test_the_days_are_the_examples_of_the_package(days, adult):
    tables = [pq.read_table(days / f"date={date}" / "eval.parquet").to_pandas() for date in DAYS]
    assert sum(map(len, tables)) == len(adult)
    right = [(table["income"] == table["prediction"]).mean() for table in tables]
    assert right[1] < 0.85 < min(right[0], right[2])
    planted = tables[1].query("occupation == 'Sales' and relationship == 'Husband'")
    assert len(planted) == 280


@pytest.mark.slow
def test_checks_of_the_watched_slices(days, tmp_path, monkeypatch):
    monkeypatch.setenv("DATA", str(days))
    monkeypatch.setenv("RESULTS", str(tmp_path))
    file = str(FOLDER / "check.yaml")
    codes = [run(["run", file, "--date", date, "--quiet"]) for date in DAYS]
    assert codes == [0, 1, 0]
    second = read(tmp_path / DAYS[1]).document
    assert second["slices"][0]["name"] == "husbands in sales"
    assert [one["status"] for one in second["since"]["slices"]].count("new") == 1


@pytest.mark.parametrize("bucket", ["gcs_server", slow("moto")], indirect=True)
@pytest.mark.slow
def test_everything_may_be_in_a_bucket(bucket, days, tmp_path, monkeypatch):
    """The data, the file that is run, the slices, the earlier run and the result."""
    for date in DAYS[:2]:
        file = days / f"date={date}" / "eval.parquet"
        bucket.upload(file, f"days/date={date}/eval.parquet")
    for name in ("check.yaml", "watched.yaml"):
        uri = bucket.upload(FOLDER / name, f"config/{name}")
    monkeypatch.setenv("DATA", f"{bucket.uri}/days")
    monkeypatch.setenv("RESULTS", f"{bucket.uri}/results")
    file = uri.replace("watched", "check")
    assert [run(["run", file, "--date", date, "--quiet"]) for date in DAYS[:2]] == [0, 1]
    found = json.loads(bucket.read(f"results/{DAYS[1]}/changelist.json"))
    assert found["check"]["uri"] == f"{bucket.uri}/config/watched.yaml"
    assert found["since"]["read_from"] == "slices.parquet"
    assert found["since"]["new"] == 1
    # A document in a bucket repeats its run.
    repeated = f"{bucket.uri}/results/{DAYS[1]}/changelist.json"
    assert run(["run", repeated, "--quiet", "--output", str(tmp_path / "again")]) == 0
    again = bucket.read(f"results/{DAYS[1]}/slices.parquet")
    assert read(tmp_path / "again").slices_bytes == again


def parsed(command, environment):
    """Parse a command line of ``slicebeam run`` with the program's own parser."""
    words = shlex.split(command)
    assert words[:2] == ["slicebeam", "run"]
    # The file is where its user put it; here it is beside the one that starts it.
    words = [str(FOLDER / Path(word).name) if word.endswith(".yaml") else word for word in words]
    seen = {}

    def launched(command, options, run_options, invocation):
        seen.update(command=command, options=options, run_options=run_options)
        return 0

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("slicebeam.pipelines.commands.run_file.launch", launched)
        for name, value in environment.items():
            patched.setenv(name, value)
        assert run(words[1:]) == 0
    return seen


def test_the_command_of_the_airflow_dag():
    tree = ast.parse((FOLDER / "airflow_dag.py").read_text("utf-8"))
    compile(tree, "airflow_dag.py", "exec")
    values = {
        node.targets[0].id: ast.literal_eval(node.value)
        for node in tree.body
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name)
    }
    (operator,) = [
        node
        for node in ast.walk(tree)
        if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "BashOperator"
    ]
    arguments = {keyword.arg: keyword.value for keyword in operator.keywords}
    assert isinstance(arguments["bash_command"], ast.Name)
    command = values[arguments["bash_command"].id].replace("{{ ds }}", "2026-11-19")
    seen = parsed(command, ast.literal_eval(arguments["env"]))
    assert seen["command"] == "search"
    assert seen["run_options"].log_format == "json"
    assert seen["options"]["data"] == ("gs://example-evaluation/eval/date=2026-11-19/*.parquet",)
    assert seen["options"]["since_if_exists"].endswith("/results/2026-11-18/changelist.json")


def test_the_command_of_the_crontab():
    lines = (FOLDER / "crontab").read_text("utf-8").splitlines()
    environment = dict(re.findall(r"^([A-Z_]+)=(.+)$", "\n".join(lines), re.MULTILINE))
    (line,) = [one for one in lines if one and one[0].isdigit()]
    minute, hour, *_, command = line.split(maxsplit=5)
    assert (minute, hour) == ("15", "5")
    # A bare % would end the command.
    assert "%" not in command.replace(r"\%", "")
    command = command.replace(r"\%", "%").partition(" || ")[0]
    seen = parsed(command.replace('"$(date -u -d yesterday +%F)"', "2026-11-19"), environment)
    assert seen["options"]["output"] == f"{environment['RESULTS']}/2026-11-19"
    assert (seen["run_options"].quiet, seen["run_options"].fail_on) == (True, "worse")


def test_the_commands_of_the_workflow():
    workflow = yaml.safe_load((FOLDER / "github_actions.yaml").read_text("utf-8"))
    steps = workflow["jobs"]["slices"]["steps"]
    (command,) = [step["run"] for step in steps if "slicebeam run" in step.get("run", "")]
    assert "$(date -u -d yesterday +%F)" in command
    command = command.replace("$(date -u -d yesterday +%F)", "2026-11-19")
    seen = parsed(command, {"DATA": "days", "RESULTS": "results"})
    assert seen["command"] == "check"
    (kept,) = [step for step in steps if "upload-artifact" in step.get("uses", "")]
    assert kept["if"] == "always()"


def test_the_page_of_the_examples_names_every_file():
    page = (FOLDER / "README.md").read_text("utf-8")
    files = {path.name for path in FOLDER.iterdir() if path.is_file()} - {"README.md"}
    assert [name for name in files if name not in page] == []
    dates = re.findall(r"nightly.yaml --date (\S+)\s+# exit code (\d)", page)
    assert dates == [(DAYS[0], "0"), (DAYS[1], "1"), (DAYS[2], "0")]
    assert json.dumps(DAYS) == json.dumps([date for date, _ in dates])


def test_the_night_on_which_the_model_fell_everywhere(tmp_path, monkeypatch, capsys):
    """The terminal shows what the page says of it."""
    monkeypatch.chdir(tmp_path)
    runpy.run_path(str(FOLDER / "make_falls.py"))["main"]("falls")
    nights = [f"--data=falls/everywhere/2026-11-{day}.parquet" for day in (18, 19)]
    flags = ["--label=label", "--prediction=prediction", "--fail-on=worse"]
    assert run(["search", nights[0], "--output=falls/first", *flags, "--quiet"]) == 0
    capsys.readouterr()
    since = "--since=falls/first/changelist.json"
    assert run(["search", nights[1], "--output=falls/second", since, *flags]) == 1
    shown = {line.strip() for line in capsys.readouterr().out.splitlines()}
    page = (FOLDER.parents[1] / "docs" / "how-to" / "scheduled.md").read_text("utf-8")
    picture = re.search(r"the terminal shows:\n\n```text\n(.*?)```", page, re.DOTALL)
    lines = picture[1].strip().splitlines()
    assert len(lines) == 2
    assert set(lines) <= shown
    assert read(tmp_path / "falls" / "second").document["testing"]["degraded"] == 0
