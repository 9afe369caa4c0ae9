# ruff: noqa: F811  (fixtures are arguments)
"""Dataflow without a cloud: the whole way of a run, over a stand-in of the service and of storage."""

import os
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
import zipfile

import apache_beam as beam
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from apache_beam.utils import retry

from slicebeam.metrics.counting import counting_plan
from slicebeam.metrics.errors import EngineError, InputError
from slicebeam.pipelines.commands.cli import run
from slicebeam.pipelines.run.engine import Engine, runner_config
from slicebeam.runner_configs import dataflow as dataflow_engine
from slicebeam.runner_configs.dataflow import Dataflow, is_job_of_stage
from slicebeam.runner_configs.options import RunnerOptions
from tests.dataflow_runs import (  # noqa: F401  (fixtures)
    ALL_JOBS,
    SEARCH,
    beam_options,
    bucket,
    command,
    expected,
    service,
    wait_for,
    workers,
)
from tests.dataflow_service import Fault
from tests.object_stores import ROOT, free_port
from tests.refusals import refusal, refuses
from tests.running import refused


@pytest.mark.slow
def test_search_is_the_same(bucket, service, adult_path, expected):
    """All jobs of a search are sent, and what is published does not tell who worked."""
    more = ["labels=team=quality", "machine_type=n2-standard-2"]
    more += ["experiments=use_a", "experiments=use_b"]
    assert run(command(bucket, service, bucket.upload(adult_path), ALL_JOBS, beam=more)) == 0
    assert bucket.read("out/slices.parquet") == expected
    assert not bucket.keys("out/_work")
    names = [re.fullmatch(r"slicebeam-([0-9a-f]{10})-(.+)", job.name) for job in service.jobs]
    assert len({name.group(1) for name in names if name}) == 1
    stages = [re.sub(r"-[0-9a-f]{8}$", "", name.group(2)) for name in names if name]
    assert stages[:3] == ["domains", "encode", "iteration-1"]
    assert len(stages) == len(service.jobs)
    for job in service.jobs:
        where = (job.project, job.region, job.state)
        assert where == ("tests-project", "europe-west1", "JOB_STATE_DONE")
        told = job.told["environment"]
        pool = told["workerPools"][0]
        assert (pool["machineType"], pool["numWorkers"]) == ("n2-standard-2", 2)
        images = pool["sdkHarnessContainerImages"]
        assert [one["containerImage"] for one in images] == ["example.org/slicebeam:1"]
        assert {"use_a", "use_b"} <= set(told["experiments"])
        assert job.options["sdk_location"] == "container"
        assert job.told["labels"] == {"team": "quality"}


@pytest.mark.slow
def test_a_service_that_is_overloaded_is_asked_again(bucket, service, adult_path, monkeypatch):
    # Beam's own pauses before it sends a job again take five seconds.
    monkeypatch.setattr(retry.Clock, "sleep", lambda *_: None)
    one_job = command(bucket, service, bucket.upload(adult_path), ALL_JOBS)
    # The answer to the first job is lost, and so is that to asking for it.
    service.add(Fault("POST", "/jobs", 503, 1, is_answer_lost=True))
    service.add(Fault("POST", "/jobs", 429, 2))
    service.add(Fault("GET", "/jobs", 503, 2))
    service.add(Fault("GET", "/metrics", 429, 1))
    assert run(one_job) == 0
    assert all(job.state == "JOB_STATE_DONE" for job in service.jobs)
    assert len({job.name for job in service.jobs}) == len(service.jobs)
    # The two that the faults struck: the third was not sent, since its job was there already.
    assert len([one for one in service.requests if one.startswith("POST")]) == len(service.jobs) + 2


@pytest.mark.slow
def test_what_a_worker_says_of_data_is_told_in_words(bucket, service, adult_path, tmp_path, capsys):
    table = pq.read_table(adult_path)
    ids = pa.array([None if row == 70 else row for row in range(table.num_rows)])
    pq.write_table(table.append_column("id", ids), tmp_path / "ids.parquet")
    data = bucket.upload(tmp_path / "ids.parquet")
    arguments = [*command(bucket, service, data, ALL_JOBS), "--example-id=id"]
    message = refused(arguments, capsys, folder=tmp_path, code=2)
    assert message == f"--example-id has no value in row 71 of {data}"
    assert [job.state for job in service.jobs] == ["JOB_STATE_DONE", "JOB_STATE_FAILED"]


@pytest.mark.slow
@pytest.mark.parametrize("stage", ["encode", "iteration-1"])
@pytest.mark.parametrize("meanwhile", ["running", "finished", "failed"])
def test_a_killed_driver_finds_a_job_again(
    bucket, service, adult_path, expected, stage, meanwhile, commands
):
    """What runs is waited for, what is finished is taken, and what failed is sent anew."""
    arguments = command(bucket, service, bucket.upload(adult_path), ALL_JOBS)
    service.held = stage
    driver = commands.start(arguments, environment=os.environ)
    job = wait_for(service, stage, driver)
    driver.send(signal.SIGKILL)
    assert driver.ended().code == -signal.SIGKILL
    if meanwhile == "failed":
        service.fail(job, "Workflow failed. Causes: quota exceeded.")
    if meanwhile == "finished":
        service.held = ""
        while job.state == "JOB_STATE_RUNNING":
            time.sleep(0.05)
    seen, codes = len(service.requests), []
    again = threading.Thread(target=lambda: codes.append(run([*arguments, "--resume"])))
    again.start()
    while meanwhile == "running" and again.is_alive():
        # It waits for the job, which has not begun: only then the job may.
        if any(f"/jobs/{job.id}" in one for one in service.requests[seen:]):
            break
        assert len(service.named(stage)) == 1
        time.sleep(0.02)
    service.held = ""
    again.join()
    assert codes == [0]
    assert bucket.read("out/slices.parquet") == expected
    same = [one for one in service.named(stage) if "resampled" not in one.name]
    assert [one.name for one in same] == [job.name, *[f"{job.name}-2"] * (meanwhile == "failed")]
    assert same[-1].state == "JOB_STATE_DONE"


@pytest.mark.parametrize("end", ["", "-2", "-0a1b2c3d", "-0a1b2c3d-12"])
def test_jobs_of_a_stage(end):
    assert is_job_of_stage(f"run-iteration-1{end}", "run-iteration-1")
    assert not is_job_of_stage(f"run-iteration-1-resampled{end}", "run-iteration-1")
    assert not is_job_of_stage(f"run-iteration-11{end}", "run-iteration-1")
    assert not is_job_of_stage(f"other-run-iteration-1{end}", "run-iteration-1")


@pytest.mark.slow
def test_a_job_of_another_plan_is_ended_first(
    bucket, service, adult_path, tmp_path, monkeypatch, commands
):
    """Other workers make other blocks: a job that counts the earlier ones is of no use."""
    # Too many features for one table.
    more = ["--features=race,relationship,workclass,marital-status,native-country"]
    more += ["--top-values=50"]
    direct = ["search", f"--data={adult_path}", f"--output={tmp_path}", *SEARCH, "--quiet", *more]
    assert run(direct) == 0
    arguments = [*command(bucket, service, bucket.upload(adult_path), ALL_JOBS), *more]
    service.held = "iteration-1"
    driver = commands.start(arguments, environment=os.environ)
    job = wait_for(service, "iteration-1", driver)
    driver.send(signal.SIGKILL)
    assert driver.ended().code == -signal.SIGKILL
    # So little work is else one block, however many workers there are.
    monkeypatch.setattr(counting_plan, "BLOCK_SECONDS", 0.001)
    resumed = [*arguments, "--beam=num_workers=7", "--resume"]
    again = threading.Thread(target=lambda: codes.append(run(resumed)))
    codes = []
    again.start()
    end = time.monotonic() + 60
    while job.state == "JOB_STATE_RUNNING" and again.is_alive() and time.monotonic() < end:
        time.sleep(0.02)
    assert job.state == "JOB_STATE_CANCELLED"
    service.held = ""
    again.join()
    assert codes == [0]
    assert bucket.read("out/slices.parquet") == (tmp_path / "slices.parquet").read_bytes()
    other = [one for one in service.named("iteration-1") if one is not job]
    assert [one.state for one in other] == ["JOB_STATE_DONE"]
    assert other[0].name[:-8] == job.name[:-8]


@pytest.mark.slow
def test_interrupt_cancels_the_job(bucket, service, adult_path, commands):
    service.held = "domains"
    arguments = command(bucket, service, bucket.upload(adult_path), ALL_JOBS)
    driver = commands.start(arguments, environment=os.environ)
    job = wait_for(service, "domains", driver)
    driver.send(signal.SIGINT)
    ended = driver.ended(60)
    assert ended.code == 130, ended
    assert ended.said.startswith("slicebeam: interrupted")
    assert job.state == "JOB_STATE_CANCELLED"


@pytest.fixture
def engine(bucket, service, tmp_path, monkeypatch):
    monkeypatch.setattr(dataflow_engine, "_SERVICE_TIMEOUT", 1.0)
    config = runner_config("dataflow", ["job_timeout=1"], beam_options(bucket, service))
    with Engine(config) as made:
        made.log_to(tmp_path / "log", "tests")
        yield made


def _nothing(pipeline):
    return pipeline | beam.Create([1])


def test_a_job_that_takes_too_long_is_cancelled(engine, service):
    service.held = "slow"
    message = r"not finished after 1 seconds and was cancelled.*console"
    refuses(EngineError, message, engine.run, _nothing, "slow")
    assert [job.state for job in service.jobs] == ["JOB_STATE_CANCELLED"]


@pytest.mark.parametrize("what", ["cancelled", "lost"])
def test_a_job_that_ends_badly_is_named(engine, service, what):
    service.held = "unlucky"

    def strike():
        while not service.jobs:
            time.sleep(0.01)
        if what == "lost":
            service.fail(service.jobs[0], "The worker lost contact with the service.")
        else:
            service.fail(service.jobs[0], "", state="JOB_STATE_CANCELLED")

    striking = threading.Thread(target=strike)
    striking.start()
    raised = refusal(EngineError, engine.run, _nothing, "unlucky")
    striking.join()
    job, said = service.jobs[0], raised
    reason = "failed: The worker lost contact with the service." if what == "lost" else "cancelled"
    assert reason in said
    assert f"dataflow job {job.id} (slicebeam-tests-unlucky)" in said
    page = "https://console.cloud.google.com/dataflow/jobs/europe-west1"
    assert f"{page}/{job.id}?project=tests-project" in said


@pytest.mark.parametrize(("status", "message"), [
    (403, r"dataflow refused to list its jobs: the service is tried; check the credentials"),
    (404, r"dataflow refused to list its jobs: .*check the options project and region"),
    (503, r"dataflow did not answer a request to list its jobs \(.*tried\); running jobs continue"),
])  # fmt: skip
def test_a_service_that_refuses(engine, service, status, message):
    service.add(Fault("GET", "/jobs", status, 1000))
    refuses(EngineError, message, engine.run, _nothing, "refused")
    assert not service.jobs


def test_a_job_that_is_not_accepted(engine, service):
    service.add(Fault("POST", "/jobs", 400, 1))
    with pytest.raises(EngineError, match=r"refused to take job slicebeam-tests-odd: the service"):
        engine.run(_nothing, "odd")


PLACE = {"project": "tests-project", "region": "europe-west1", "temp_location": "gs://bucket/temp"}
IMAGE = {"sdk_container_image": "example.org/slicebeam:1"}


def dataflow(beam):
    return Dataflow(RunnerOptions(beam=beam), "DataflowRunner")


def test_nobody_listens(monkeypatch):
    monkeypatch.setattr(dataflow_engine, "_SERVICE_TIMEOUT", 1.0)
    service = {"dataflow_endpoint": f"http://localhost:{free_port()}", "no_auth": True}
    with pytest.raises(EngineError, match=r"dataflow did not answer .*--resume"):
        dataflow({**PLACE, **IMAGE, **service}).run(_nothing, "unheard")


@pytest.mark.parametrize(("changes", "message"), [
    ({"sdk_container_image": None}, r"workers need slicebeam: give .*setup_file=./setup.py"),
    ({"setup_file": "missing/setup.py"}, r"missing/setup.py: no such file"),
    ({"machin_type": "x"}, r"did you mean 'machine_type'"),
    ({"template_location": "gs://x/y"}, r"slicebeam sets it"),
])  # fmt: skip
def test_what_could_not_work_is_refused_before_anything_is_sent(changes, message):
    refuses(InputError, message, dataflow({**PLACE, **IMAGE, **changes}).check)


def test_without_the_client_libraries(monkeypatch):
    monkeypatch.setitem(sys.modules, "apache_beam.runners.dataflow.internal.apiclient", None)
    with pytest.raises(EngineError, match=r"client libraries .*pip install '\.\[dataflow\]'"):
        dataflow(PLACE).check()


@pytest.mark.parametrize(
    ("path", "where"), [("out", "on this machine"), ("s3://bucket/out", "elsewhere")]
)
def test_paths_that_workers_do_not_see(engine, path, where):
    with pytest.raises(InputError, match=f"^{path} is {where}, .*europe-west1.*use gs:// paths$"):
        engine.check_storage(["gs://bucket/in.parquet", path])


def test_options_as_they_are_sent():
    beam = {
        **PLACE,
        **IMAGE,
        "use_public_ips": False,
        "max_num_workers": "5",
        "experiments": "use_a",
        "dataflow_service_options": ["enable_prime"],
    }
    engine = dataflow(beam)
    assert engine.workers == 5
    assert engine.sent_options("slicebeam-1-encode") == [
        *("--runner=DataflowRunner", "--job_name=slicebeam-1-encode", "--sdk_location=container"),
        *("--project=tests-project", "--region=europe-west1", "--temp_location=gs://bucket/temp"),
        *("--sdk_container_image=example.org/slicebeam:1", "--no_use_public_ips"),
        *("--max_num_workers=5", "--experiments=disable_logging_submission_environment"),
        *("--experiments=use_a", "--dataflow_service_options=enable_prime"),
    ]


@pytest.mark.parametrize(("changes", "message"), [
    ({"region": None}, "DataflowRunner needs --beam region="),
    ({"max_num_workers": "many"}, "--beam max_num_workers=many: it must be a whole number"),
])  # fmt: skip
def test_what_is_missing_or_no_number_is_refused_at_once(changes, message):
    refuses(InputError, message, dataflow, {**PLACE, **changes})


@pytest.mark.slow
def test_the_package_that_setup_py_makes_is_whole(tmp_path, monkeypatch):
    """What Beam stages of --setup_file=./setup.py, installed, is the package with all its data."""
    from apache_beam.options.pipeline_options import PipelineOptions
    from apache_beam.runners.portability.stager import Stager

    # A copy, since a build leaves its traces beside the sources.
    packages = ("metrics", "transforms", "pipelines", "runner_configs")
    for folder in packages:
        ignored = shutil.ignore_patterns("__pycache__")
        shutil.copytree(ROOT / folder, tmp_path / "source" / folder, ignore=ignored)
    root = ".typing/slicebeam/__init__.py"
    (tmp_path / "source" / root).parent.mkdir(parents=True)
    for file in ("setup.py", "pyproject.toml", "README.md", "LICENSE", root):
        shutil.copy(ROOT / file, tmp_path / "source" / file)
    monkeypatch.chdir(tmp_path / "source")
    options = PipelineOptions(["--setup_file=./setup.py", "--sdk_location=container"])
    staged = tmp_path / "staged"
    staged.mkdir()
    Stager.create_job_resources(options, str(staged))
    wheels = tmp_path / "wheels"
    build = [sys.executable, "-m", "pip", "wheel", "--no-deps", "--no-build-isolation", "-q"]
    (tarball,) = staged.rglob("*.tar.gz")
    subprocess.run([*build, "-w", str(wheels), str(tarball)], check=True)
    with zipfile.ZipFile(next(wheels.iterdir())) as wheel:
        names = set(wheel.namelist())
    wanted = {
        f"slicebeam/{path.relative_to(ROOT)}"
        for folder in packages
        for path in (ROOT / folder).rglob("*")
        if path.suffix in (".py", ".yaml", ".typed", ".parquet")
    }
    assert wanted | {"slicebeam/__init__.py"} <= names
