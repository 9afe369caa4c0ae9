"""What the tests of Dataflow share: a stand-in of the service and a bucket, and commands for them."""

import time

import pytest

from slicebeam.pipelines.commands.cli import run
from slicebeam.transforms.storage import storage
from tests.dataflow_service import Workers, dataflow_service

SEARCH = ["--label=income", "--prediction=prediction", "--features=age,education,occupation,sex"]
# Every job goes to the service, however small.
ALL_JOBS = "smallest_job_seconds=0"


@pytest.fixture
def bucket(gcs_server, monkeypatch):
    """A bucket of the stand-in of Cloud Storage, which the environment leads to."""
    for name, value in gcs_server.environment().items():
        monkeypatch.setenv(name, value)
    storage._store.cache_clear()
    yield gcs_server.new_bucket()
    storage._store.cache_clear()


@pytest.fixture(scope="session")
def workers(gcs_server):
    with Workers(gcs_server.environment()) as started:
        yield started


@pytest.fixture
def service(workers, bucket):
    with dataflow_service(workers) as running:
        yield running


@pytest.fixture(scope="module")
def expected(tmp_path_factory, adult_path):
    output = tmp_path_factory.mktemp("direct")
    assert run(["search", f"--data={adult_path}", f"--output={output}", *SEARCH, "--quiet"]) == 0
    return (output / "slices.parquet").read_bytes()


def beam_options(bucket, service):
    return [
        *("project=tests-project", "region=europe-west1", f"temp_location={bucket.uri}/temp"),
        "sdk_container_image=example.org/slicebeam:1",
        *(f"dataflow_endpoint={service.endpoint}", "no_auth=true", "num_workers=2"),
    ]


def engine_options(bucket, service, *more, beam=()):
    given = [f"--beam={option}" for option in (*beam_options(bucket, service), *beam)]
    return ["--runner-config=dataflow", *given, *(f"--runner-option={option}" for option in more)]


def command(bucket, service, data, *more, beam=()):
    """A search whose data and results are in a bucket."""
    arguments = ["search", f"--data={data}", f"--output={bucket.uri}/out", *SEARCH, "--quiet"]
    return [*arguments, *engine_options(bucket, service, *more, beam=beam)]


def wait_for(service, stage, driver):
    """Wait until a job of a stage runs, and return it."""
    while True:
        found = [job for job in service.named(stage) if job.state == "JOB_STATE_RUNNING"]
        if found:
            return found[-1]
        assert driver.runs(), driver.ended()
        time.sleep(0.02)
