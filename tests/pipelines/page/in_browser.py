"""A page opened in a browser, where any request, dialog, error or violation of its policy fails."""

from __future__ import annotations

from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

    from playwright.sync_api import Browser, Page

AXE = Path(__file__).parents[3] / "pipelines" / "page" / "node_modules" / "axe-core" / "axe.min.js"


@contextmanager
def opened(
    browser: Browser, result: Path, width: int = 1280, scheme: str = "light", view: str = ""
) -> Iterator[Page]:
    """Open the page of a result at one of its views, such as ``#slices``."""
    context = browser.new_context(
        viewport={"width": width, "height": 800},
        color_scheme=scheme,  # type: ignore[arg-type]
    )
    page = context.new_page()
    wrong: list[str] = []
    address = (result / "report.html").as_uri()
    page.on(
        "request",
        lambda one: None if one.url.startswith((address, "blob:")) else wrong.append(one.url),
    )
    page.on("console", lambda one: wrong.append(one.text))
    page.on("pageerror", lambda one: wrong.append(str(one)))

    def refuse(dialog: object) -> None:
        wrong.append(f"dialog {dialog}")
        dialog.dismiss()  # type: ignore[attr-defined]

    page.on("dialog", refuse)
    page.goto(f"{address}{view}")
    page.wait_for_selector("main")
    page.wait_for_selector("[data-ready=yes]")
    yield page
    context.close()
    assert wrong == []


def violations(page: Page) -> list[tuple[str, str]]:
    """Return what axe finds, with the place of the first of each."""
    # Evaluated from outside, which the page's own policy has no say in.
    page.evaluate(AXE.read_text("utf-8"))
    found = page.evaluate("axe.run().then(one => one.violations)")
    return [(one["id"], one["nodes"][0]["html"]) for one in found]
