"""The results that pages are made of, once for all tests of the page; what servers keep is in a folder of these tests."""

import pytest

from slicebeam.pipelines.commands.cli import run
from tests.pipelines.page import results as made


@pytest.fixture(scope="session")
def results(tmp_path_factory, days):
    folder = tmp_path_factory.mktemp("results")
    found = {
        "overall": made.search_result(folder),
        "baseline": made.search_result(folder, baseline=True),
        "since": made.next_night(folder, days),
        "hostile": made.search_result(folder / "hostile"),
        "hostile data": made.hostile_data(folder),
        "discovery": made.discovery_result(folder),
        "precision": made.search_result(
            folder / "precision", "--confirm", "0.3", metric="precision"
        ),
        "shift": made.shift_result(folder),
        "nothing": made.nothing_found(folder),
        "earlier": made.earlier_result(folder / "earlier"),
    }
    made.hostile_document(found["hostile"])
    for name, one in found.items():
        examples = ["--examples", "3"] if name in ("baseline", "hostile data", "discovery") else []
        assert run(["report", str(one), "--quiet", *examples]) == 0
    return found


@pytest.fixture(scope="session", autouse=True)
def _cache(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        yield
