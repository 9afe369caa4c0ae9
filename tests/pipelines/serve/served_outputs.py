"""Servers of outputs, in processes of their own, and pages of them in a browser."""

from __future__ import annotations

import subprocess
import sys
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import httpx2 as httpx

from slicebeam.pipelines.serve.protection import HEADER

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from playwright.sync_api import Browser, Page


@dataclass(frozen=True)
class Served:
    """A server.

    Attributes
    ----------
    process : that it is
    address : with the token
    """

    process: subprocess.Popen[str]
    address: str

    @contextmanager
    def client(self) -> Iterator[httpx.Client]:
        """Yield what asks it as its page does."""
        origin, _, token = self.address.partition("/#token=")
        with httpx.Client(base_url=origin, headers={"origin": origin}, timeout=120) as client:
            answer = client.post("/api/session", json={"token": token}).raise_for_status()
            client.headers[HEADER] = answer.json()["header"]
            yield client


@contextmanager
def serving(result: Path, *more: str) -> Iterator[Served]:
    """Start ``slicebeam serve``, and end it."""
    command = [sys.executable, "-m", "slicebeam.pipelines.cli", "serve", str(result), "--quiet"]
    process = subprocess.Popen([*command, *more], stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        address = process.stdout.readline().strip()
        assert address.startswith("http://127.0.0.1:"), address
        yield Served(process, address)
    finally:
        process.terminate()
        process.wait(20)


@contextmanager
def shown(
    browser: Browser, served: Served, width: int = 1280, scheme: str = "light"
) -> Iterator[Page]:
    """Open the page; a request elsewhere, a dialog, an error or a violation of its policy fails."""
    how: Any = {"viewport": {"width": width, "height": 900}, "color_scheme": scheme}
    context = browser.new_context(**how)
    page = context.new_page()
    wrong: list[str] = []
    origin = served.address.partition("/#")[0]
    page.on(
        "request",
        lambda one: None if one.url.startswith((origin, "blob:")) else wrong.append(one.url),
    )
    # What the program refuses, or is not ready for, is said in the page, and by the browser too.
    refusals = ("status of 4", "status of 503")
    page.on(
        "console",
        lambda one: None if any(map(one.text.__contains__, refusals)) else wrong.append(one.text),
    )
    page.on("pageerror", lambda one: wrong.append(str(one)))

    def refuse(dialog: Any) -> None:
        wrong.append(f"dialog {dialog}")
        dialog.dismiss()

    page.on("dialog", refuse)
    page.goto(served.address)
    page.wait_for_selector("[data-ready=yes]")
    yield page
    context.close()
    assert wrong == [], wrong
