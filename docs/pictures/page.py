"""Makes the pictures of the page in the docs: the first search of ``slicebeam demo``, as a file and served.

Run it with ``python docs/pictures/page.py`` where the page has changed. It needs playwright, pillow and
chromium.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from playwright.sync_api import Page

FOLDER = Path(__file__).parent
COLOURS = 64
SIZE = {"width": 1280, "height": 800}


def main() -> None:
    """Write the pictures."""
    from playwright.sync_api import sync_playwright

    program = [sys.executable, "-m", "slicebeam.pipelines.commands.cli"]
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as play:
        for words in (("demo", "--output", folder), ("report", f"{folder}/overall")):
            subprocess.run([*program, *words], check=True, stdout=subprocess.DEVNULL)
        serve = [*program, "serve", f"{folder}/overall", "--quiet"]
        server = subprocess.Popen(serve, stdout=subprocess.PIPE, text=True)
        address = server.stdout.readline().strip() if server.stdout else ""
        browser = play.chromium.launch(
            executable_path=shutil.which("chromium"), args=["--no-sandbox"]
        )
        try:
            page = browser.new_page(viewport=SIZE, color_scheme="light")  # type: ignore[arg-type]
            page.goto((Path(folder) / "overall" / "report.html").as_uri())
            page.wait_for_selector("[data-ready=yes] .tiles")
            save(page, "page.png")
            page.goto(address)
            page.wait_for_selector("nav")
            page.evaluate("location.hash = 'slices'")
            page.wait_for_selector(".density .cell")
            page.wait_for_selector(".row .what")
            save(page, "served.png")
        finally:
            browser.close()
            server.terminate()
            server.wait()


def save(page: Page, name: str) -> None:
    """Write a picture of what is seen."""
    from PIL import Image

    path = FOLDER / name
    page.screenshot(path=path)
    # A palette is enough for text and bars, and a third of the size.
    Image.open(path).convert("RGB").quantize(COLOURS, dither=Image.Dither.NONE).save(
        path, optimize=True
    )


if __name__ == "__main__":
    main()
