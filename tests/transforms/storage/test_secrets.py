import base64
import json
import logging
import shutil
from pathlib import Path
from unittest.mock import Mock

import pytest
import yaml

from slicebeam.metrics.errors import EngineError, InputError
from slicebeam.pipelines.commands.api import search
from slicebeam.pipelines.commands.cli import run
from slicebeam.pipelines.commands.run_file import read_run
from slicebeam.pipelines.config.search import search_config
from slicebeam.pipelines.run.engine import Engine
from slicebeam.runner_configs.dataflow import Dataflow
from slicebeam.runner_configs.in_process import InProcess
from slicebeam.runner_configs.job_log import for_user
from slicebeam.runner_configs.options import DirectOptions, runner_config
from slicebeam.transforms.storage import secrets
from tests.refusals import refusal
from tests.running import refused

SECRET = "s3cr/et+of mine"
BY_NAME = "s3_secret_access_key=${SLICEBEAM_TEST_KEY}"
DATAFLOW = ("project=tests-project", "region=europe-west1", "temp_location=gs://b/temp")


@pytest.fixture(autouse=True)
def _environment(monkeypatch):
    monkeypatch.setenv("SLICEBEAM_TEST_KEY", SECRET)
    monkeypatch.setenv("SLICEBEAM_TEST_WORKERS", "1")
    monkeypatch.delenv("SLICEBEAM_NO_SUCH", raising=False)
    yield
    secrets.forget()


@pytest.fixture
def data(tmp_path, adult_path):
    return Path(shutil.copy(adult_path, tmp_path / "adult.parquet"))


def run_file(folder, data, **more):
    roles = {"label": "income", "prediction": "prediction", "features": "sex,race"}
    paths = {"data": str(data), "output": str(folder / "out")}
    content = {"command": "search", "max_cross_size": 1, **roles, **paths}
    (folder / "run.yaml").write_text(yaml.safe_dump({**content, **more}))
    return str(folder / "run.yaml")


def prism_file(folder):
    """The engine Prism with a secret, all of whose work is small enough to stay in this process."""
    (folder / "engine.yaml").write_text(
        "runner: PrismRunner\nsmallest_job_seconds: 1000000\n"
        "beam: {s3_secret_access_key: '${SLICEBEAM_TEST_KEY}'}\n"
    )
    return folder / "engine.yaml"


def everything_in(*folders):
    files = [path for folder in folders for path in folder.rglob("*") if path.is_file()]
    return "\n".join(path.read_bytes().decode("utf-8", "replace") for path in files)


def assert_hidden(text):
    for form in (SECRET, json.dumps(SECRET), base64.b64encode(SECRET.encode()).decode()):
        assert form not in text


def test_a_document_has_the_name_and_a_run_the_value(data, tmp_path, monkeypatch):
    made = []
    monkeypatch.setattr(
        "slicebeam.runner_configs.in_process.InProcess",
        lambda options: made.append(options.workers) or InProcess(DirectOptions()),
    )
    option = "workers=${SLICEBEAM_TEST_WORKERS}"
    file = run_file(tmp_path, data, runner_option={"workers": "${SLICEBEAM_TEST_WORKERS}"})
    assert run(["run", file, "--quiet"]) == 0
    document = tmp_path / "out" / "changelist.json"
    assert json.loads(document.read_text())["provenance"]["config"]["runner_option"] == [option]
    # The name is resolved again, by what it stands for then.
    monkeypatch.setenv("SLICEBEAM_TEST_WORKERS", "2")
    made.clear()
    again = ["run", str(document), "--output", str(tmp_path / "again"), "--quiet"]
    assert run([*again, "--runner-option", option]) == 0
    assert made[0] == 2
    document = tmp_path / "again" / "changelist.json"
    assert json.loads(document.read_text())["provenance"]["config"]["runner_option"] == [option]


def test_a_missing_variable_is_named_with_its_place(data, tmp_path, capsys):
    option = "workers=${SLICEBEAM_NO_SUCH}"
    arguments = ["search", f"--data={data}", "--label=income", f"--output={tmp_path}/o"]
    said = refused([*arguments, f"--runner-option={option}"], capsys, folder=tmp_path)
    assert f"--runner-option {option}" in said
    assert "the environment variable SLICEBEAM_NO_SUCH is not set" in said
    engine = tmp_path / "engine.yaml"
    engine.write_text("runner: direct\nworkers: ${SLICEBEAM_NO_SUCH}\n")
    said = refused([*arguments, f"--runner-config={engine}"], capsys, folder=tmp_path)
    variable = "the environment variable SLICEBEAM_NO_SUCH"
    assert f"DIR/engine.yaml, line 2: workers: {variable}" in said
    file = run_file(tmp_path, data, runner_option={"workers": "${SLICEBEAM_NO_SUCH}"})
    said = refused(["run", file], capsys, folder=tmp_path)
    assert "run.yaml, runner_option: the environment variable SLICEBEAM_NO_SUCH" in said


def test_an_engines_file_has_variables_and_defaults(tmp_path):
    path = tmp_path / "engine.yaml"
    path.write_text(
        "runner: SparkRunner\nworkers: ${SLICEBEAM_NO_SUCH:-3}\n"
        'beam:\n  job_server_jvm_properties: ["-Dpassword=${SLICEBEAM_TEST_KEY}", "${env:A}"]\n'
    )
    config = runner_config(str(path), [], ["artifacts_dir=${SLICEBEAM_TEST_KEY}"])
    assert config.options.workers == 3
    # What is not of the form ${NAME} is Spark's.
    properties = [f"-Dpassword={SECRET}", "${env:A}"]
    beam = {"job_server_jvm_properties": properties, "artifacts_dir": SECRET}
    assert config.options.beam == beam
    assert_hidden(repr(config))


def test_a_dry_run_shows_names(data, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(Dataflow, "runs_on_other_machines", lambda _: None)
    options = dict(one.split("=") for one in DATAFLOW) | {"sdk_container_image": "image"}
    options |= dict([BY_NAME.split("=")])
    file = run_file(tmp_path, data, runner_config="dataflow", beam=options)
    for more in (["--json"], []):
        assert run(["run", file, "--dry-run", *more]) == 0
        said = capsys.readouterr()
        assert "--s3_secret_access_key=${SLICEBEAM_TEST_KEY}" in said.out
        assert_hidden(said.out + said.err)
    # What the service gets is the value.
    engine = Engine(runner_config("dataflow", [], [*DATAFLOW, BY_NAME]))
    assert f"--s3_secret_access_key={SECRET}" in engine._backend.sent_options("x")


@pytest.mark.parametrize("log_format", ["text", "json"])
def test_what_an_engine_says_of_secrets_is_redacted(log_format, data, tmp_path, capfd, monkeypatch):
    """An engine that repeats the key fails; neither terminal, log nor work folder shows it."""

    def fail(*_):
        logging.getLogger("apache_beam").error("options: %s", SECRET)
        # As a program of the engine would.
        with (tmp_path / "out" / "_work" / "workers.log").open("a") as log:
            log.write(f"java says {SECRET}\n")
        raise RuntimeError(f"AccessDenied: no such key: {SECRET}")

    monkeypatch.setattr(InProcess, "run", fail)
    engine = prism_file(tmp_path)
    monkeypatch.setattr("slicebeam.runner_configs.job_service.Prism.check", lambda _: None)
    file = run_file(tmp_path, data, runner_config=str(engine), log_format=log_format)
    assert run(["run", file]) == 3
    said = capfd.readouterr()
    engine.unlink()
    assert "no such key: ${SLICEBEAM_TEST_KEY}" in said.err
    assert_hidden(said.out + said.err)
    kept = everything_in(tmp_path)
    assert "options: ${SLICEBEAM_TEST_KEY}" in kept
    assert "java says ${SLICEBEAM_TEST_KEY}" in kept
    assert_hidden(kept)


def test_the_name_of_a_job_is_no_hash_of_a_secret(tmp_path, monkeypatch):
    names = []
    for secret in (SECRET, "another secret"):
        monkeypatch.setenv("SLICEBEAM_TEST_KEY", secret)
        with Engine(runner_config("spark", [], ["artifacts_dir=${SLICEBEAM_TEST_KEY}"])) as engine:
            engine.log_to(tmp_path / "workers.log", "run")
            names.append(engine.job_name("count"))
    for secret in (SECRET, "another secret"):
        options = [f"job_server_jvm_properties=-Dspark.hadoop.fs.s3a.secret.key={secret}"]
        with Engine(runner_config("spark", [], options)) as engine:
            engine.log_to(tmp_path / "workers.log", "run")
            names.append(engine.job_name("count"))
    assert names == ["slicebeam-run-count"] * 4


@pytest.mark.slow
def test_resume_goes_on_with_another_value(data, tmp_path, monkeypatch, capsys):
    engine = prism_file(tmp_path)
    monkeypatch.setattr("slicebeam.runner_configs.job_service.Prism.check", lambda _: None)
    file = run_file(tmp_path, data, runner_config=str(engine), work_dir=str(tmp_path / "work"))
    first = InProcess.run

    def stop(self, build, name):
        if "iteration" in name:
            raise RuntimeError("the disk is full")
        return first(self, build, name)

    monkeypatch.setattr(InProcess, "run", stop)
    assert run(["run", file, "--quiet"]) == 3
    assert_hidden(everything_in(tmp_path / "work"))
    monkeypatch.setattr(InProcess, "run", first)
    monkeypatch.setenv("SLICEBEAM_TEST_KEY", "renewed since then")
    assert run(["run", file, "--quiet", "--resume"]) == 0, capsys.readouterr().err


@pytest.mark.parametrize(("option", "shown"), [
    ("s3_secret_access_key=LITERALsecret", "s3_secret_access_key=***"),
    ('environment_config={"command": "w", "env": {"s3_secret_access_key": "LITERALsecret"}}', None),
    ("job_server_jvm_properties=-Dspark.hadoop.fs.s3a.secret.key=LITERALsecret", None),
    ("job_server_jvm_properties=-Djavax.net.ssl.keyStorePassword=LITERALsecret", None),
    ("azure_connection_string=a=b;LITERALsecret c", None),
    (BY_NAME, BY_NAME),
    ("workers=2", "workers=2"),
    ("labels=team=quality", "labels=team=quality"),
])  # fmt: skip
def test_secrets_that_are_spelt_out_are_not_written_down(option, shown, tmp_path):
    options = {"data": ("x",), "output": str(tmp_path), "label": "y", "prediction": "p"}
    (kept,) = search_config({**options, "beam": (option,)}).beam
    assert "LITERALsecret" not in kept
    assert kept == shown or (shown is None and "***" in kept)
    if kept != option:
        # And an error that repeats it does not show it either.
        value = "a=b;LITERALsecret c" if "azure" in option else "LITERALsecret"
        assert value not in secrets.redacted(f"refused: {value}")


def test_a_document_with_a_hidden_secret_is_not_run_with_stars(data, tmp_path, capsys):
    given = ["search", f"--data={data}", "--label=income", f"--output={tmp_path}/o"]
    given += ["--runner-config=spark", "--beam=s3_secret_access_key=***"]
    said = refused(given, capsys, folder=tmp_path)
    assert "give it again, preferably as ${NAME} of an environment variable" in said


def test_errors_of_options_do_not_show_values(monkeypatch, tmp_path):
    monkeypatch.setenv("SLICEBEAM_TEST_KEY", "hidden-value")
    with pytest.raises(InputError) as error:
        Engine(runner_config("spark", [], ["spark_master_url=${SLICEBEAM_TEST_KEY}"]))
    assert "hidden-value" not in str(error.value)
    assert error.value.__cause__ is None
    assert "--beam spark_master_url=${SLICEBEAM_TEST_KEY}" in str(error.value)
    # Whatever signs are in a secret, it is no YAML.
    config = runner_config("spark", [], ["my_password=a: 'b"])
    assert config.options.beam == {"my_password": "a: 'b"}
    assert "a: 'b" not in repr(config)


def test_python_has_errors_without_values(monkeypatch, tmp_path, data):
    monkeypatch.setattr(InProcess, "run", Mock(side_effect=RuntimeError(f"no such key: {SECRET}")))
    monkeypatch.setattr("slicebeam.runner_configs.job_service.Prism.check", lambda _: None)
    options = {"runner_option": ["smallest_job_seconds=1000000"], "beam": [BY_NAME]}
    roles = {"label": "income", "prediction": "prediction"}
    with pytest.raises(EngineError) as error:
        search(str(data), runner_config="prism", output=tmp_path / "out", **options, **roles)
    assert "${SLICEBEAM_TEST_KEY}" in str(error.value)
    assert_hidden(str(error.value))


def test_forms_and_short_values():
    secrets.remember(SECRET, "${A}")
    secrets.remember("abc", "${SHORT}")
    secrets.remember("name", "${B}")
    encoded = base64.b64encode(SECRET.encode()).decode()
    assert secrets.redacted(f"x {SECRET} y") == "x ${A} y"
    assert encoded not in secrets.redacted(f"Basic {encoded}")
    assert secrets.redacted("s3cr%2Fet%2Bof%20mine") == "${A}"
    assert secrets.redacted("abc name names") == "abc ${B} names"
    message = str(for_user(RuntimeError(f"ValueError: {SECRET}")))
    assert "${A}" in message
    assert_hidden(message)


def test_a_path_with_a_secret_is_refused(tmp_path, data, capsys):
    """Paths are written into the result, since it has to say what was read."""
    for name in ("API_TOKEN", "DB_PASSWORD", "AWS_SECRET_ACCESS_KEY"):
        file = run_file(tmp_path, data, output=f"out/${{{name}}}")
        error = refusal(InputError, read_run, file, None, {name: "hidden-value"})
        assert f"run.yaml, output: ${{{name}}} has the name of a secret" in error
        assert "hidden-value" not in error


@pytest.mark.slow
def test_a_document_reads_no_variable(data, tmp_path, capsys):
    """A path with a secret in it, asked for in somebody's bucket, would tell them the secret."""
    assert run(["run", run_file(tmp_path, data), "--quiet"]) == 0
    content = json.loads((tmp_path / "out" / "changelist.json").read_text())
    config = content["provenance"]["config"]
    capsys.readouterr()
    for option in ("data", "since", "work_dir", "beam"):
        value = f"{tmp_path}/${{SLICEBEAM_TEST_KEY}}"
        value = [value] if option == "data" else value
        value = [BY_NAME] if option == "beam" else value
        theirs = tmp_path / "theirs.json"
        content["provenance"]["config"] = config | {option: value}
        theirs.write_text(json.dumps(content))
        code = run(["run", str(theirs), "--output", str(tmp_path / "next"), "--quiet"])
        said = capsys.readouterr()
        assert code == (0 if option == "work_dir" else 2)
        if option == "beam":
            assert f"if you trust it, confirm it with --beam {BY_NAME}" in said.err
        assert_hidden(said.out + said.err + everything_in(tmp_path))


def test_the_trace_of_a_fault_is_the_users_and_has_no_value(data, tmp_path, monkeypatch, capsys):
    fault = Mock(side_effect=KeyError(SECRET))
    monkeypatch.setattr("slicebeam.pipelines.search.search.run_search", fault)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "temporary"))
    (tmp_path / "temporary").mkdir()
    engine = ["--runner-config=prism", f"--beam={BY_NAME}"]
    roles = [f"--data={data}", "--label=income", "--prediction=prediction", "--output=o"]
    assert run(["search", *roles, *engine]) == 3
    assert_hidden(capsys.readouterr().err)
    (trace,) = (tmp_path / "temporary").glob("slicebeam-*.log")
    assert trace.stat().st_mode & 0o077 == 0
    assert "Traceback" in trace.read_text()
    assert_hidden(trace.read_text())
