"""Data and servers that the tests share."""

import gc
import os
import runpy
import signal
import sys
from pathlib import Path

import pandas as pd
import pytest

from slicebeam.transforms.storage import storage
from tests import object_stores
from tests.engines.started import Engines
from tests.storage_faults import faulty, repeat_at_once

ADULT = Path(__file__).parent.parent / "pipelines" / "demo_data" / "adult_scored.parquet"
ADULT_ROLES = ("row_id", "income", "prediction", "score", "prediction_old", "score_old")


def slow(*values, **more):
    """A case of a table that only the longer run has."""
    assert not getattr(values[0], "__name__", "").startswith("test_"), "write @pytest.mark.slow"
    return pytest.param(*values, marks=pytest.mark.slow, **more)


# Servers that start from what `pip install` brings, and those that Go has to build.
OWN_STORES = ["gcs_server", "moto"]
own_stores = pytest.mark.parametrize("bucket", OWN_STORES, indirect=True)
# One of the two in the default run, both in the longer one.
google_first = pytest.mark.parametrize("bucket", ["gcs_server", slow("moto")], indirect=True)
s3_first = pytest.mark.parametrize("bucket", ["moto", slow("gcs_server")], indirect=True)
STORES = [
    *OWN_STORES,
    pytest.param("fake_gcs_server", marks=pytest.mark.engine),
    pytest.param("minio", marks=pytest.mark.engine),
]
# Reasons to skip a test that a run of everything accepts: PyTorch takes 6 GB, and the shared data
# does not lie in the checkout.
_ACCEPTED = ("needs the extra [text]", "the extra [text] is installed", "needs the shared data")


@pytest.fixture(scope="session")
def engines(tmp_path_factory):
    """One cluster of each engine for all tests."""
    with Engines(tmp_path_factory.mktemp("engines")) as started:
        yield started


def pytest_addoption(parser):
    parser.addoption(
        "--everything-runs",
        action="store_true",
        help="A test that is skipped fails, so that what did not run has not passed.",
    )


def pytest_collection_finish():
    """Let the garbage collector look no more at what thousands of tests consist of."""
    gc.collect()
    gc.freeze()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item):
    """Report a skipped test as failed where everything has to run."""
    report = yield
    if report.skipped and item.config.getoption("--everything-runs"):
        assert isinstance(report.longrepr, tuple)
        reason = report.longrepr[2].removeprefix("Skipped: ")
        if reason not in _ACCEPTED:
            report.outcome, report.longrepr = "failed", f"did not run: {reason}"
    return report


@pytest.fixture(scope="session", autouse=True)
def signals():
    """Let the programs that tests start be interrupted, also under nohup or behind an ampersand."""
    for number in (signal.SIGINT, signal.SIGHUP):
        if signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(number, signal.SIG_DFL)


@pytest.fixture(scope="session", autouse=True)
def columns():
    """Let what is printed be as wide as in a pipe: pytest-xdist has its workers think of 80 columns."""
    os.environ.pop("COLUMNS", None)


@pytest.fixture(scope="session", autouse=True)
def quick_beam():
    if "apache_beam" not in sys.modules:
        yield
        return
    from tests.quick_beam import remember_answers

    with pytest.MonkeyPatch.context() as patch:
        remember_answers(patch.setattr)
        yield


@pytest.fixture(scope="session")
def commands():
    """Starts commands as forks of one process, which takes seconds to import what they need."""
    from tests.faults.faults import Commands

    with Commands() as started:
        yield started


@pytest.fixture(scope="session")
def adult_path():
    return ADULT


@pytest.fixture(scope="session")
def adult():
    return pd.read_parquet(ADULT)


def _of_session(start):
    @pytest.fixture(scope="session")
    def store():
        with start() as started:
            yield started

    return store


gcs_server, moto = _of_session(object_stores.gcs_store), _of_session(object_stores.moto_store)
minio = _of_session(object_stores.minio_store)
fake_gcs_server = _of_session(object_stores.fake_gcs_store)


@pytest.fixture(params=STORES)
def bucket(request, monkeypatch):
    """An empty bucket of each store in turn, which the environment leads to."""
    store = request.getfixturevalue(request.param)
    for name, value in store.environment().items():
        monkeypatch.setenv(name, value)
    _forget_clients(monkeypatch)
    yield store.new_bucket()
    storage._store.cache_clear()


@pytest.fixture
def proxy(bucket, monkeypatch):
    """A proxy before the bucket's store, which the environment leads to instead."""
    with faulty(bucket.store.endpoint) as between:
        for name, value in bucket.store.environment(between.endpoint).items():
            monkeypatch.setenv(name, value)
        _forget_clients(monkeypatch)
        yield between


def _forget_clients(monkeypatch):
    """Let the next client be made from what the environment says now."""
    storage._store.cache_clear()
    # boto3 keeps the credentials that it has found.
    monkeypatch.setattr("boto3.DEFAULT_SESSION", None)


@pytest.fixture
def short_waits(monkeypatch):
    """Let the libraries repeat a request at once."""
    repeat_at_once(monkeypatch.setattr)


@pytest.fixture(scope="session")
def days(tmp_path_factory):
    """The three days of evaluation data of the scheduled examples, as folders."""
    folder = tmp_path_factory.mktemp("days")
    script = Path(__file__).parent.parent / "examples" / "scheduled" / "make_days.py"
    runpy.run_path(str(script))["main"](str(folder))
    return folder
