"""Searches in object storage, undisturbed and disturbed; the examples of scheduled runs, and what starts them."""

import ast
import json
import os
import pickle
import re
import runpy
import shlex
import signal
import time
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow.parquet as pq
import pytest
import yaml
from sklearn.compose import make_column_transformer
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder
from sklearn.tree import DecisionTreeClassifier

from slicebeam.metrics.errors import InputError
from slicebeam.pipelines.commands.cli import run
from slicebeam.pipelines.commands.command import DataCommand
from slicebeam.pipelines.commands.run_file import read_run
from tests.conftest import google_first, own_stores, s3_first, slow
from tests.gcs_server import FORBIDDEN
from tests.pipelines.search.test_since import DAYS, oracle
from tests.running import names_of, read, refused, search
from tests.storage_faults import Fault
from tests.tfrecord_files import example, frame

FEATURES = ("age", "education", "occupation", "sex")
# Several chunks, so that there are several shards.
OPTIONS = {"label": "income", "prediction": "prediction", "chunk_rows": 4000}
SLOW = pytest.mark.slow
ONE = pytest.mark.parametrize("bucket", ["gcs_server"], indirect=True)


def arguments(data, output, **options):
    given = {"data": data, "output": output, "features": ",".join(FEATURES), **OPTIONS, **options}
    return ["search", *(f"--{key.replace('_', '-')}={value}" for key, value in given.items())]


def published(bucket, folder, key="out"):
    """What a run has published in a bucket, as if it were in a folder."""
    folder.mkdir(parents=True, exist_ok=True)
    for name in names_of(json.loads(bucket.read(f"{key}/changelist.json"))):
        (folder / name).write_bytes(bucket.read(f"{key}/{name}"))
    return read(folder)


def keys_of(bucket):
    return [f"out/{name}" for name in names_of(json.loads(bucket.read("out/changelist.json")))]


def equal(one, other):
    """The same result, but for where and when it was found."""
    assert one.slices_bytes == other.slices_bytes
    assert one.timeless() == other.timeless()


@pytest.fixture(scope="module")
def reference(tmp_path_factory, adult_path):
    output = tmp_path_factory.mktemp("reference")
    return search(output, data=adult_path, features=FEATURES, **OPTIONS)


@pytest.fixture
def data(bucket, adult_path):
    return bucket.upload(adult_path, "data/adult.parquet")


@pytest.mark.parametrize("engine", ["direct", slow("direct_multi")])
def test_as_on_a_disk(bucket, data, reference, tmp_path, engine):
    assert run([*arguments(data, f"{bucket.uri}/out", runner_config=engine), "--quiet"]) == 0
    found = published(bucket, tmp_path / "found")
    equal(found, reference)
    assert bucket.keys() == ["data/adult.parquet", *keys_of(bucket)]
    config = found.document["provenance"]["config"]
    assert (config["data"], config["output"]) == ([data], f"{bucket.uri}/out")


@ONE
@pytest.mark.parametrize("in_the_bucket", [slow("data"), slow("output"), "work_dir"])
def test_some_of_it_in_object_storage(bucket, data, reference, tmp_path, adult_path, in_the_bucket):
    output = f"{bucket.uri}/out" if in_the_bucket == "output" else str(tmp_path / "out")
    work = f"{bucket.uri}/work" if in_the_bucket == "work_dir" else str(tmp_path / "work")
    source = data if in_the_bucket == "data" else str(adult_path)
    assert run([*arguments(source, output, work_dir=work), "--quiet"]) == 0
    is_there = in_the_bucket == "output"
    equal(published(bucket, tmp_path / "found") if is_there else read(tmp_path / "out"), reference)
    assert bucket.keys() == ["data/adult.parquet", *(keys_of(bucket) if is_there else [])]
    assert not (tmp_path / "work").exists()


COLUMNS = ["age", "education", "sex", "income", "prediction"]


def written(few, path):
    if path.name.endswith(".parquet"):
        few.to_parquet(path, row_group_size=500)
    elif ".jsonl" in path.name:
        few.to_json(path, orient="records", lines=True)
    elif ".csv" in path.name:
        few.to_csv(path, index=False)
    else:
        few = few.map(lambda value: [value.encode() if isinstance(value, str) else value])
        path.write_bytes(b"".join(frame(example(row)) for row in few.to_dict("records")))


@pytest.mark.parametrize(("names", "pattern"), [
    slow(["a.parquet", "b.parquet"], "*.parquet", id="parquet"),
    slow(["day=1/a b.csv", "day=2/50%+ö#?.csv"], "**/*.csv", id="csv"),
    pytest.param(["a.jsonl", "b.jsonl.gz"], "*.jsonl*", id="jsonl"),
    slow(["x.tfrecord-00000-of-00002", "x.tfrecord-00001-of-00002"], "x.tfrecord-*-of-00002", id="tfrecord"),
])  # fmt: skip
@google_first
def test_every_format_and_globs(bucket, tmp_path, adult, names, pattern):
    local = tmp_path / "data"
    for number, name in enumerate(names):
        (local / name).parent.mkdir(parents=True, exist_ok=True)
        written(adult[COLUMNS].iloc[number * 600 : number * 600 + 600], local / name)
        bucket.upload(local / name, f"data/{name}")
    options = {**OPTIONS, "max_cross_size": 2, "chunk_rows": 400}
    wanted = search(tmp_path / "local", data=f"{local}/{pattern}", **options)
    given = [f"--{key.replace('_', '-')}={value}" for key, value in options.items()]
    given += [f"--data={bucket.uri}/data/{pattern}", f"--output={bucket.uri}/out", "--quiet"]
    assert run(["search", *given]) == 0
    found = published(bucket, tmp_path / "found")
    assert len(found.table) > 30
    equal(found, wanted)


@google_first
@pytest.mark.slow
def test_models_and_domains_from_a_bucket(bucket, tmp_path, adult):
    features = ["age", "sex", "education"]
    encode = make_column_transformer((OneHotEncoder(), features[1:]), remainder="passthrough")
    model = make_pipeline(encode, DecisionTreeClassifier(max_depth=4, random_state=0))
    model.fit(adult[features].iloc[:2000], adult["income"].iloc[:2000])
    few = adult[[*features, "income", "prediction"]].iloc[:4000]
    few.to_parquet(tmp_path / "data.parquet")
    (tmp_path / "model.pkl").write_bytes(pickle.dumps(model))
    options = {"label": "income", "features": features, "max_cross_size": 2}
    few = {"data": tmp_path / "data.parquet", **options}
    first = search(tmp_path / "first", bins=4, prediction="prediction", **few)
    local = {"model": str(tmp_path / "model.pkl"), "domains": str(first.folder / "changelist.json")}
    wanted = search(tmp_path / "local", **few, **local)
    there = {name: bucket.upload(Path(file), f"in put/{name}") for name, file in local.items()}
    # The name tells a model's format.
    there["model"] = bucket.upload(Path(local["model"]), "in put/new model.pkl")
    options["data"] = bucket.upload(tmp_path / "data.parquet")
    found = search(tmp_path / "found", **options, **there)
    assert found.slices_bytes == wanted.slices_bytes
    assert found.document["slices"] == wanted.document["slices"]
    assert found.document["slices"]
    assert {one["model_uri"] for one in found.document["models"]} == {there["model"]}


@google_first
def test_files_that_are_not_there(bucket, data, capsys, tmp_path):
    output = f"{bucket.uri}/out"

    def told(*more, code=2, source=data):
        return refused([*arguments(source, output), *more], capsys, folder=tmp_path, code=code)

    assert "did you mean" in told(source=f"{bucket.uri}/data/adlt.parquet")
    assert "no object matches" in told(source=f"{bucket.uri}/data/*.csv")
    assert "is a folder" in told(source=f"{bucket.uri}/data")
    absent = f"{bucket.uri}/absent.json"
    assert absent in told(f"--domains={absent}")
    assert absent in told(f"--domains={data}", f"--domains={absent}")
    without = [one for one in arguments(data, output) if not one.startswith("--prediction")]
    model = f"{bucket.uri}/absent.pkl"
    assert model in refused([*without, f"--model={model}"], capsys, folder=tmp_path)
    message = told(source=f"{bucket.uri}-absent/data.parquet", code=3)
    assert f"no bucket '{bucket.name}-absent'" in message
    assert bucket.keys("out/changelist") == []


@ONE
def test_an_output_that_may_not_be_written(bucket, data, capsys, tmp_path):
    given = arguments(data, f"gs://{FORBIDDEN}bucket/out", work_dir=str(tmp_path / "work"))
    message = refused([*given, "--quiet"], capsys, folder=tmp_path, code=3)
    assert f"gs://{FORBIDDEN}bucket/out" in message
    assert "credentials" in message
    # It is said before anything is read.
    assert not (tmp_path / "work").exists()


@google_first
def test_a_work_folder_with_other_objects_is_refused(bucket, data, capsys, tmp_path):
    bucket.write("work/precious", b"not a run's")
    given = arguments(data, f"{bucket.uri}/out", work_dir=f"{bucket.uri}/work")
    assert "contains files that no run wrote" in refused(given, capsys, folder=tmp_path)
    assert bucket.read("work/precious") == b"not a run's"
    same = arguments(data, f"{bucket.uri}/out", work_dir=f"{bucket.uri}/out/")
    assert "is the output" in refused(same, capsys, folder=tmp_path)


@pytest.fixture
def stopped(bucket, data, proxy, capsys):
    """The command of a run that failed after it had encoded the examples."""
    given = [*arguments(data, f"{bucket.uri}/out"), "--quiet"]
    fault = proxy.add(Fault("status", method="PUT|POST", path="_work.*iteration-1", status=400))
    assert run(given) == 3
    assert fault.struck >= 1
    proxy.heal()
    assert f"cannot write {bucket.uri}/out/_work/stages/iteration-1" in capsys.readouterr().err
    assert bucket.keys("out/_work/stages/shards/")
    return [*given, "--resume"]


@s3_first
@pytest.mark.parametrize("where", [slow(0.1), 0.5, slow(0.999)])
def test_a_damaged_shard_is_never_counted(bucket, stopped, capsys, tmp_path, where):
    shard = bucket.keys("out/_work/stages/shards/")[1]
    content = bytearray(bucket.read(shard))
    content[int(len(content) * where)] ^= 4
    bucket.write(shard, bytes(content))
    assert f"{bucket.uri}/{shard} is damaged" in refused(stopped, capsys, folder=tmp_path, code=3)
    assert bucket.keys("out/changelist.json") == []


@google_first
def test_data_that_changed_since_the_run_began(bucket, data, stopped, adult, capsys, tmp_path):
    adult.iloc[::-1].to_parquet(tmp_path / "turned.parquet")
    bucket.write("data/adult.parquet", (tmp_path / "turned.parquet").read_bytes())
    message = refused(stopped, capsys, folder=tmp_path)
    assert f"the data has changed since the run began ({data})" in message


@SLOW
@own_stores
@pytest.mark.parametrize(("moment", "prefix", "codes"), [
    ("iteration-1", "out/_work", (3,)),
    ("domains.json", "data/adult.parquet", (2, 3)),
], ids=["work folder", "data"])  # fmt: skip
def test_what_is_deleted_during_a_run_is_named(
    commands, bucket, data, proxy, moment, prefix, codes
):
    gate = proxy.add(Fault("gate", method="PUT|POST", path=f"_work.*{moment}", times=1))
    given = [*arguments(data, f"{bucket.uri}/out"), "--quiet"]
    running = commands.start(given, environment=os.environ)
    proxy.wait_for(gate, 1, running)
    for key in bucket.keys(prefix):
        bucket.delete(key)
    gate.gate.set()
    code, message = (ended := running.ended(120)).code, ended.said
    assert code in codes, message
    assert 1 <= len(message.splitlines()) <= 2
    assert f"{bucket.uri}/{prefix}" in message
    assert "Traceback" not in message
    assert bucket.keys("out/changelist.json") + bucket.keys("out/slices.parquet") == []


FOLDER = Path(__file__).parents[2] / "examples" / "scheduled"
PLANTED = "occupation = Sales & relationship = Husband"


@pytest.fixture(scope="module")
def nights(days, tmp_path_factory):
    results = tmp_path_factory.mktemp("results")
    codes = []
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("DATA", str(days))
        patched.setenv("RESULTS", str(results))
        codes = [run(["run", f"{FOLDER}/nightly.yaml", "--date", date, "--quiet"]) for date in DAYS]
    return codes, [read(results / date) for date in DAYS]


def test_the_planted_regression_is_found_in_its_night(nights):
    codes, found = nights
    assert codes == [0, 1, 0]
    degraded = [one.document["testing"]["degraded"] for one in found]
    assert degraded[0] == degraded[2] == 0
    worst = found[1].document["slices"][0]
    assert (worst["name"], worst["changes"][0]["direction"]) == (PLANTED, "degraded")
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
    assert len(tables[1].query("occupation == 'Sales' and relationship == 'Husband'")) == 280


@pytest.mark.slow
def test_checks_of_the_watched_slices(days, tmp_path, monkeypatch):
    monkeypatch.setenv("DATA", str(days))
    monkeypatch.setenv("RESULTS", str(tmp_path))
    file = str(FOLDER / "check.yaml")
    assert [run(["run", file, "--date", date, "--quiet"]) for date in DAYS] == [0, 1, 0]
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
    assert (found["since"]["read_from"], found["since"]["new"]) == ("slices.parquet", 1)
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
        name = command.models[0].command
        seen.update(command=name, options=options, run_options=run_options)
        return 0

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(DataCommand, "launch", launched)
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
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call)]
    (operator,) = [one for one in calls if getattr(one.func, "id", "") == "BashOperator"]
    arguments = {keyword.arg: keyword.value for keyword in operator.keywords}
    assert isinstance(arguments["bash_command"], ast.Name)
    command = values[arguments["bash_command"].id].replace("{{ ds }}", "2026-11-19")
    seen = parsed(command, ast.literal_eval(arguments["env"]))
    assert (seen["command"], seen["run_options"].log_format) == ("search", "json")
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
    assert parsed(command, {"DATA": "days", "RESULTS": "results"})["command"] == "check"
    (kept,) = [step for step in steps if "upload-artifact" in step.get("uses", "")]
    assert kept["if"] == "always()"


def test_the_page_of_the_examples_names_every_file():
    page = (FOLDER / "README.md").read_text("utf-8")
    files = {path.name for path in FOLDER.iterdir() if path.is_file()} - {"README.md"}
    assert [name for name in files if name not in page] == []
    dates = re.findall(r"nightly.yaml --date (\S+)\s+# exit code (\d)", page)
    assert dates == [(DAYS[0], "0"), (DAYS[1], "1"), (DAYS[2], "0")]


def test_the_night_on_which_the_model_fell_everywhere(tmp_path, monkeypatch, capsys):
    """The terminal shows what the page says of it."""
    monkeypatch.chdir(tmp_path)
    runpy.run_path(str(FOLDER / "make_falls.py"))["main"]("falls")
    nights = [f"--data=falls/everywhere/2026-11-{day}.parquet" for day in (18, 19)]
    flags = ["--label=label", "--prediction=prediction", "--fail-on=worse"]
    assert run(["search", nights[0], "--output=falls/first", *flags, "--quiet"]) == 0
    capsys.readouterr()
    since = "--since=falls/first/changelist.json"
    assert (
        run(["search", nights[1], "--output=falls/second", since, "--compare=overall", *flags]) == 1
    )
    shown = {line.strip() for line in capsys.readouterr().out.splitlines()}
    page = (FOLDER.parents[1] / "docs" / "how-to" / "scheduled.md").read_text("utf-8")
    picture = re.search(r"the terminal shows:\n\n```text\n(.*?)```", page, re.DOTALL)
    lines = picture[1].strip().splitlines()
    assert len(lines) == 2
    assert set(lines) <= shown
    assert read(tmp_path / "falls" / "second").document["testing"]["degraded"] == 0


STEPS = FOLDER / "steps.yaml"


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
    arguments = ["run", str(STEPS), "--date", DAYS[1], "--json"]
    assert run(arguments) == 1
    shown, ended = statuses(capsys)
    assert ended == ["failed", "passed", "passed", "failed"]
    assert (shown["exit_code"], shown["steps"][1]["result"]["dataset"]["n"]) == (1, 280)
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
    assert run(["run", str(STEPS), "--date", DAYS[0], "--json"]) == 0
    shown, ended = statuses(capsys)
    assert ended == ["passed", "skipped", "passed", "passed"]
    assert "no findings" in shown["steps"][1]["reason"]


@pytest.mark.parametrize(("codes", "code", "ended"), [
    ([1, 0, 0, 2], 2, ["failed", "passed", "passed", "failed"]),
    ([0, InputError("bad"), 0, 0], 2, ["passed", "error", "not run", "not run"]),
])  # fmt: skip
def test_the_worst_exit_code(codes, code, ended, placed, capsys, monkeypatch):
    left = iter(codes)

    def launched(*_):
        came = next(left)
        if isinstance(came, Exception):
            raise came
        return came

    monkeypatch.setattr(DataCommand, "launch", launched)
    assert run(["run", str(STEPS), "--date", DAYS[0], "--json"]) == code
    shown, found = statuses(capsys)
    assert (shown["exit_code"], found) == (code, ended)


@pytest.mark.parametrize(("at", "more", "message"), [
    (1, {"componets": 3}, "steps[1].componets: unknown key 'componets'; did you mean 'components'?"),
    (1, {"components": 1}, "steps[1].components: --components 1 is not between 2"),
    (3, {"command": "chek"}, "steps[3]: unknown command 'chek'; did you mean 'check'?"),
    (3, {"fail_on": "worst"}, "steps[3].fail_on: --fail-on 'worst'; did you mean 'worse'? choose from worse, drift, any"),
    (2, {"resume": True}, "steps[2].resume: it holds for all steps; write it above 'steps'"),
    (2, {"output": "${RESULTS}/{date}/search"}, "is the output of steps[0] too"),
    (2, {"output": "${RESULTS}/./{date}/search/"}, "is the output of steps[0] too"),
    (2, {"output": None}, "steps[2].output: "),
    (2, {"output": "${RESULTS}/{dat}"}, "steps[2].output: {dat} is not a placeholder"),
    (1, {"within_findings": "absent.json"}, "steps[1]: --within-findings absent.json: no such file"),
    (2, {"repeat": 3}, "--plan and --repeat only print, and are not for a step of shift"),
])  # fmt: skip
def test_what_is_wrong_is_said_before_anything_runs(at, more, message, placed, capsys):
    content = yaml.safe_load(STEPS.read_text())
    content["steps"][3]["slices"] = str(STEPS.parent / "watched.yaml")
    content["steps"][at] |= more
    (placed / "run.yaml").write_text(yaml.safe_dump(content))
    assert run(["run", str(placed / "run.yaml"), "--date", DAYS[0]]) == 2
    assert message in capsys.readouterr().err
    assert [path.name for path in placed.iterdir()] == ["run.yaml"]


def test_what_is_common_holds_for_each_step(placed):
    spec = read_run(str(STEPS), DAYS[0], {"DATA": "d", "RESULTS": "r"})
    assert {one.options["data"] for one in spec.steps} == {(f"d/date={DAYS[0]}/*.parquet",)}


@pytest.mark.slow
@pytest.mark.parametrize("seen", ["search/changelist.json", "discover/_work/run.json", "shift"])
def test_a_killed_run_continues(seen, commands, placed, capsys):
    """Killed between the steps, or within one: what is finished is kept."""
    search = placed / DAYS[1] / "search"
    words = ["run", str(STEPS), "--date", DAYS[1], "--quiet"]
    running = commands.start(words, environment=os.environ, folder=Path.cwd())
    while running.runs() and (
        not (placed / DAYS[1] / seen).exists() or (search / "_work").exists()
    ):
        time.sleep(0.005)
    running.send(signal.SIGKILL)
    assert running.ended().code == -signal.SIGKILL
    before = (search / "changelist.json").stat().st_mtime_ns
    assert run([*words, "--resume"]) == 1
    assert (search / "changelist.json").stat().st_mtime_ns == before
    assert read_shift(placed)["cost"]["calls"] == 600
    assert read(placed / DAYS[1] / "discover").document["dataset"]["within"]["n"] == 280
    capsys.readouterr()
