"""Makes ``demo.svg``, the picture in the README: the findings that ``slicebeam demo`` prints first.

Run it with ``python docs/pictures/demo.py`` where the output of the command has changed.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from io import StringIO
from pathlib import Path

PICTURE = Path(__file__).with_name("demo.svg")
WIDTH = 100
COMMAND = "slicebeam demo"

# Rich's own frame loads a font from another host: this one takes the reader's.
FRAME = """\
<svg class="rich-terminal" viewBox="0 0 {width} {height}" xmlns="http://www.w3.org/2000/svg">
<style>
.{unique_id}-matrix {{
  font-family: ui-monospace, Menlo, Consolas, "DejaVu Sans Mono", monospace;
  font-size: {char_height}px;
  line-height: {line_height}px;
}}
.{unique_id}-title {{ font-size: 18px; font-family: sans-serif; }}
{styles}
</style>
<defs>
<clipPath id="{unique_id}-clip-terminal">
<rect x="0" y="0" width="{terminal_width}" height="{terminal_height}"/>
</clipPath>
{lines}
</defs>
{chrome}
<g transform="translate({terminal_x}, {terminal_y})" clip-path="url(#{unique_id}-clip-terminal)">
{backgrounds}
<g class="{unique_id}-matrix">
{matrix}
</g>
</g>
</svg>
"""


def printed(width: int = WIDTH) -> list[str]:
    """Return the lines that the command prints, with the terminal's codes for bold and dim text."""
    with tempfile.TemporaryDirectory() as folder:
        environment = os.environ | {"COLUMNS": str(width), "FORCE_COLOR": "1"}
        command = [
            sys.executable,
            "-m",
            "slicebeam.pipelines.commands.cli",
            "demo",
            "--output",
            folder,
        ]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    return done.stdout.splitlines()


def shown(lines: list[str]) -> list[str]:
    """Return the first part of the output: the question, its answer, and how many findings there are."""
    from rich.text import Text

    plain = [Text.from_ansi(line).plain for line in lines]
    begin = next(at for at, line in enumerate(plain) if line.strip())
    table = next(at for at, line in enumerate(plain) if line.lstrip().startswith("──"))
    last = next(at for at in range(table, len(plain)) if "significant slices of" in plain[at])
    return lines[begin : last + 1]


def svg(lines: list[str]) -> str:
    """Return the picture of lines with terminal codes."""
    from rich.console import Console
    from rich.terminal_theme import SVG_EXPORT_THEME
    from rich.text import Text

    console = Console(record=True, width=WIDTH, file=StringIO(), force_terminal=True)
    console.print(Text(f"$ {COMMAND}\n"))
    for line in lines:
        text = Text.from_ansi(line)
        text.rstrip()
        console.print(text)
    picture = console.export_svg(
        title=COMMAND, theme=SVG_EXPORT_THEME, code_format=FRAME, unique_id="demo"
    )
    return "\n".join(line.rstrip() for line in picture.splitlines()) + "\n"


if __name__ == "__main__":
    PICTURE.write_text(svg(shown(printed())), "utf-8")
