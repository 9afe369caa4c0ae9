"""The results that pages are made of, once for all tests of the page."""

import pytest

from slicebeam.pipelines.cli import run
from tests.pipelines.page.results import (
    discovery_result,
    hostile_data,
    hostile_document,
    next_night,
    nothing_found,
    search_result,
    shift_result,
)


@pytest.fixture(scope="session")
def results(tmp_path_factory, days):
    folder = tmp_path_factory.mktemp("results")
    found = {
        "overall": search_result(folder),
        "baseline": search_result(folder, baseline=True),
        "since": next_night(folder, days),
        "hostile": search_result(folder / "hostile"),
        "hostile data": hostile_data(folder),
        "discovery": discovery_result(folder),
        "precision": search_result(folder / "precision", metric="precision"),
        "shift": shift_result(folder),
        "nothing": nothing_found(folder),
    }
    hostile_document(found["hostile"])
    for name, one in found.items():
        examples = ["--examples", "3"] if name in ("baseline", "hostile data", "discovery") else []
        assert run(["report", str(one), "--quiet", *examples]) == 0
    return found
