"""Makes ``page.png``, the picture of the page in the docs: that of the first search of ``slicebeam demo``.

Run it with ``python docs/pictures/page.py`` where the page has changed. It needs playwright, pillow and
chromium.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

PICTURE = Path(__file__).with_name("page.png")
COLOURS = 32
SIZE = {"width": 1100, "height": 760}


def main() -> None:
    """Write the picture."""
    from PIL import Image
    from playwright.sync_api import sync_playwright

    with tempfile.TemporaryDirectory() as folder, sync_playwright() as play:
        for words in (("demo", "--output", folder), ("report", f"{folder}/overall")):
            command = [sys.executable, "-m", "slicebeam.pipelines.cli", *words]
            subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        browser = play.chromium.launch(
            executable_path=shutil.which("chromium"), args=["--no-sandbox"]
        )
        page = browser.new_page(viewport=SIZE, color_scheme="light")  # type: ignore[arg-type]
        page.goto((Path(folder) / "overall" / "report.html").as_uri())
        page.wait_for_selector(".bars")
        page.screenshot(path=PICTURE)
        browser.close()
    # A palette is enough for text and bars, and a third of the size.
    Image.open(PICTURE).convert("RGB").quantize(COLOURS, dither=Image.Dither.NONE).save(
        PICTURE, optimize=True
    )


if __name__ == "__main__":
    main()
