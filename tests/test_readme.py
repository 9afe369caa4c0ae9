"""The commands in the documentation work as they stand."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from slicebeam.pipelines.cli import run

ROOT = Path(__file__).parent.parent
PAGES = ("README.md", "examples/README.md")


def _commands() -> list[tuple[str, str]]:
    found = []
    for page in PAGES:
        text = (ROOT / page).read_text("utf-8").replace("\\\n", " ")
        for block in re.findall(r"```bash\n(.*?)```", text, re.DOTALL):
            found += [(page, line) for line in block.splitlines() if line.startswith("slicebeam ")]
    return found


@pytest.mark.parametrize(("page", "command"), _commands())
def test_command_works_as_pasted(
    page: str, command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("examples", "pipelines"):
        (tmp_path / name).symlink_to(ROOT / name)
    monkeypatch.chdir(tmp_path)
    arguments = shlex.split(command)[1:]
    assert run(arguments) == 0
    output = Path(arguments[arguments.index("--output") + 1])
    assert (output / "changelist.json").exists()


def test_there_are_commands() -> None:
    assert len(_commands()) >= 6


def test_ci_runs_the_command_of_the_readme() -> None:
    text = (ROOT / "README.md").read_text("utf-8")
    block = re.search(r"<!-- the tests -->\n```bash\n(.*?)\n```", text)
    assert block is not None
    assert block.group(1).startswith("pip install")
    assert "<!-- the tests -->" in (ROOT / ".ci" / "run").read_text("utf-8")


def test_the_picture_is_what_the_demo_prints(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "160")
    assert run(["demo", "--output", str(tmp_path / "demo")]) == 0
    printed = {" ".join(line.split()) for line in capsys.readouterr().out.splitlines()}
    text = (ROOT / "README.md").read_text("utf-8")
    picture = re.search(r"```text\n(.*?)```", text, re.DOTALL)
    assert picture is not None
    lines = [" ".join(line.split()) for line in picture.group(1).splitlines() if line.strip()]
    assert len(lines) > 4
    assert not [line for line in lines if "──" not in line and line not in printed]
