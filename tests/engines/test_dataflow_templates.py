# ruff: noqa: F811  (fixtures are arguments)
"""A whole search as one job: sent by a driver that may vanish, or launched from a template."""

import json
import signal
import time
from pathlib import Path

import pytest

from slicebeam.pipelines.cli import run
from tests.dataflow_runs import bucket, command, driver, expected, service, wait_for  # noqa: F401  (fixtures)
from tests.running import names_of, refused


@pytest.mark.parametrize("where", ["local", "bucket"])
@pytest.mark.slow
def test_template_is_complete(bucket, service, tmp_path, where, capsys):
    """The file says all that the service needs, and what it names was staged."""
    from apache_beam.portability.api import beam_runner_api_pb2
    from google.cloud import dataflow_v1beta3
    from google.protobuf import json_format

    folder = str(tmp_path / "template") if where == "local" else f"{bucket.uri}/templates"
    arguments = command(bucket, service, "gs://evaluation/*.parquet", "labels={team: quality}")
    arguments = [one for one in arguments if one != "--quiet"]
    assert run([*arguments, f"--template={folder}"]) == 0
    said = capsys.readouterr().out
    assert not service.jobs

    def read(path):
        if where == "local":
            return Path(path).read_bytes()
        return bucket.read(path.removeprefix(f"{bucket.uri}/"))

    text = read(f"{folder}/slicebeam-batch")
    job = json_format.Parse(text, dataflow_v1beta3.Job.pb(dataflow_v1beta3.Job()))
    assert job.name == "slicebeam-batch"
    assert job.type_ == dataflow_v1beta3.JobType.JOB_TYPE_BATCH
    assert dict(job.labels) == {"team": "quality"}
    (pool,) = job.environment.worker_pools
    assert pool.num_workers == 2
    assert [one.container_image for one in pool.sdk_harness_container_images] == [
        "example.org/slicebeam:1"
    ]
    options = json_format.MessageToDict(job.environment.sdk_pipeline_options)["options"]
    assert {name: options[name] for name in ("data", "output", "work_dir")} == dict.fromkeys(
        ("data", "output", "work_dir")
    )
    graph = beam_runner_api_pb2.Pipeline.FromString(read(options["pipelineUrl"]))
    names = {one.unique_name for one in graph.components.transforms.values()}
    stages = ["domains", "encode", "totals", "iteration-1"]
    assert {f"Search/{stage}/Plan" for stage in stages} <= names
    assert {"Search/Publish", "Search/Remove work"} <= names
    told = json.loads(read(f"{folder}/slicebeam-batch_metadata"))
    assert [one["name"] for one in told["parameters"]] == ["data", "output", "work_dir"]
    if where == "bucket":
        assert f"--gcs-location={folder}/slicebeam-batch" in said
    else:
        assert said == f"template: {folder}/slicebeam-batch\n"


@pytest.mark.slow
def test_a_launched_template_publishes_the_same(bucket, service, adult_path, expected):
    """One job searches other data than the template was written for, and publishes."""
    arguments = command(bucket, service, "gs://none/*.parquet")
    assert run([*arguments, f"--template={bucket.uri}/templates"]) == 0
    data = bucket.upload(adult_path)
    for parameters in (
        {"data": data, "output": f"{bucket.uri}/first"},
        {"data": data, "output": f"{bucket.uri}/second", "work_dir": f"{bucket.uri}/work"},
    ):
        service.launch(f"{bucket.uri}/templates/slicebeam-batch", "launched", parameters)
        while service.jobs[-1].state not in ("JOB_STATE_DONE", "JOB_STATE_FAILED"):
            time.sleep(0.05)
        assert service.jobs[-1].state == "JOB_STATE_DONE", service.told(service.jobs[-1])
        output = parameters["output"].removeprefix(f"{bucket.uri}/")
        assert bucket.read(f"{output}/slices.parquet") == expected
        document = json.loads(bucket.read(f"{output}/changelist.json"))
        assert bucket.keys(output) == [f"{output}/{name}" for name in names_of(document)]
    assert not bucket.keys("work")


@pytest.mark.slow
def test_a_template_launched_without_data_says_so(bucket, service):
    arguments = command(bucket, service, f"{bucket.uri}/none-*.parquet")
    assert run([*arguments, f"--template={bucket.uri}/templates"]) == 0
    service.launch(f"{bucket.uri}/templates/slicebeam-batch", "launched", {})
    while service.jobs[-1].state not in ("JOB_STATE_DONE", "JOB_STATE_FAILED"):
        time.sleep(0.05)
    told = service.told(service.jobs[-1])
    assert f"FileError: --data {bucket.uri}/none-*.parquet: no object matches" in told


@pytest.mark.parametrize(("more", "message"), [
    (["--strategy=priority"], "a single job needs --strategy batch"),
    (["--strategy=iterative"], "a single job needs --strategy batch"),
    (["--dry-run"], "--dry-run and --template cannot be combined; choose one"),
    (["--runner-config=prism"], "--template is for the engine dataflow, not prism"),
    (["--output=out"], "out is not in gs://, and the workers of dataflow"),
])  # fmt: skip
def test_what_no_template_can_be(bucket, service, tmp_path, capsys, more, message):
    arguments = command(bucket, service, "gs://none/*.parquet")
    if "prism" in more[0]:
        arguments = [one for one in arguments if not one.startswith("--runner")]
    said = refused([*arguments, f"--template={tmp_path}", *more], capsys, folder=tmp_path)
    assert message in said
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
def test_a_single_job_goes_on_without_its_driver(bucket, service, adult_path, expected):
    arguments = [*command(bucket, service, bucket.upload(adult_path)), "--single-job"]
    service.held = "search"
    process = driver(arguments)
    job = wait_for(service, "search", process)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    service.held = ""
    while job.state == "JOB_STATE_RUNNING":
        time.sleep(0.05)
    assert job.state == "JOB_STATE_DONE", service.told(job)
    assert bucket.read("out/slices.parquet") == expected
    # What is left is to take note of it.
    assert run([*arguments, "--resume"]) == 0
    assert len(service.jobs) == 1
    document = json.loads(bucket.read("out/changelist.json"))
    assert bucket.keys("out") == [f"out/{name}" for name in names_of(document)]
