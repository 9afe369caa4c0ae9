"""A browser and a paid API, started once for all tests of a process."""

import pytest


@pytest.fixture(scope="session")
def browser():
    """Debian's chromium: a process has one Playwright."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as play:
        browser = play.chromium.launch(executable_path="/usr/bin/chromium", args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.fixture(scope="session")
def paid_server(tmp_path_factory):
    """A paid API; its `anew` lets it begin again by the plan of a test."""
    from tests.paid_api import paid_api

    with paid_api(tmp_path_factory.mktemp("paid_server")) as server:
        yield server


@pytest.fixture
def quick_calls(monkeypatch):
    """Let this process wait for a moment only before it makes a call again, and have a key."""
    monkeypatch.setattr("slicebeam.transforms.http.calls._FIRST_WAIT", 0.01)
    monkeypatch.setenv("API_KEY", "swordfish/+ 17")
