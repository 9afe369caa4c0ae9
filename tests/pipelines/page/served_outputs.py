"""Servers of outputs, in processes of their own, and pages of them in a browser."""

import subprocess
import sys
from contextlib import contextmanager
from dataclasses import dataclass

import httpx2 as httpx

from slicebeam.pipelines.page.protection import HEADER
from tests.pipelines.page.in_browser import watched


def logged_in(address):
    """Return the origin of an address, and the headers of a page that was opened at it."""
    origin, _, code = address.partition("/#code=")
    answer = httpx.post(f"{origin}/api/session", json={"code": code}, headers={"origin": origin})
    assert answer.status_code == 200, answer.text
    return origin, {"origin": origin, HEADER: answer.json()["token"]}


@dataclass(frozen=True)
class Served:
    """A server: its process, and its address with the token."""

    process: subprocess.Popen[str]
    address: str

    @contextmanager
    def client(self):
        origin, headers = logged_in(self.address)
        with httpx.Client(base_url=origin, headers=headers, timeout=120) as client:
            yield client


@contextmanager
def serving(result, *more):
    command = [
        sys.executable,
        "-m",
        "slicebeam.pipelines.commands.cli",
        "serve",
        str(result),
        "--quiet",
    ]
    process = subprocess.Popen([*command, *more], stdout=subprocess.PIPE, text=True)
    try:
        address = process.stdout.readline().strip()
        assert address.startswith("http://127.0.0.1:"), address
        yield Served(process, address)
    finally:
        process.terminate()
        process.wait(20)


@contextmanager
def shown(browser, served, width=1280, scheme="light"):
    """Open the page; a request elsewhere, a dialog, an error or a violation of its policy fails."""
    # What the program refuses, or is not ready for, is said in the page, and by the browser too.
    refusals = ("status of 4", "status of 503")
    with watched(browser, served.address.partition("/#")[0], width, 900, scheme, refusals) as page:
        page.goto(served.address)
        page.wait_for_selector("[data-ready=yes]")
        yield page
