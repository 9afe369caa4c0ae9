"""The commands in the documentation work as they stand."""

from __future__ import annotations

import json
import re
import runpy
import shlex
import subprocess
import sys
from contextlib import ExitStack
from itertools import chain
from pathlib import Path
from typing import Any

import pytest

from slicebeam.pipelines.cli import run

ROOT = Path(__file__).parent.parent
PAGES = (
    *("README.md", "docs/scheduled.md", "docs/shift.md", "docs/discover.md"),
    *("examples/README.md", "examples/scheduled/README.md"),
)


# Pages whose blocks go on with what earlier ones wrote.
ONE_AFTER_ANOTHER = ("docs/discover.md",)


def _blocks(page: str) -> list[list[str]]:
    """The commands of each block of a page, those of the shell left out."""
    text = (ROOT / page).read_text("utf-8").replace("\\\n", " ")
    blocks = re.findall(r"```bash\n(.*?)```", text, re.DOTALL)
    kept = ("slicebeam ", "export ", "python examples/", "printf ")
    lines = [[line for line in block.splitlines() if line.startswith(kept)] for block in blocks]
    return [list(chain.from_iterable(lines))] if page in ONE_AFTER_ANOTHER else lines


def _runnable() -> list[tuple[str, list[str]]]:
    found = [(page, block) for page in PAGES for block in _blocks(page)]
    return [(page, block) for page, block in found if any("slicebeam" in line for line in block)]


def _is_quick(page: str, commands: list[str]) -> bool:
    return page == "README.md" and not any("slicebeam discover" in one for one in commands)


@pytest.mark.parametrize(
    ("page", "commands"),
    [
        # What is behind the first page takes longer, and so does what reads texts.
        pytest.param(*one, marks=[] if _is_quick(*one) else pytest.mark.slow)
        for one in _runnable()
    ],
)
def test_commands_work_as_pasted(
    page: str, commands: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The commands of a block, one after another; a comment tells an exit code that is not 0."""
    for name in ("examples", "pipelines"):
        (tmp_path / name).symlink_to(ROOT / name)
    monkeypatch.chdir(tmp_path)
    with ExitStack() as stack:
        _run_all(commands, stack, monkeypatch)


def _run_all(commands: list[str], stack: ExitStack, monkeypatch: pytest.MonkeyPatch) -> None:
    for command in commands:
        program, *arguments = shlex.split(command, comments=True)
        if arguments[-1] == "&":
            process = stack.enter_context(subprocess.Popen([sys.executable, *arguments[:-1]]))
            stack.callback(process.kill)
        elif program == "export":
            for pair in arguments:
                monkeypatch.setenv(*pair.split("="))
        elif program == "printf":
            subprocess.run(command, shell=True, check=True)
        elif program == "python":
            monkeypatch.setattr("sys.argv", arguments)
            runpy.run_path(arguments[0], run_name="__main__")
        else:
            told = re.search(r"# exit code (\d)", command)
            assert run(arguments) == (int(told.group(1)) if told else 0)
    # What only looks ahead publishes nothing.
    looks = {"--dry-run", "--plan", "--repeat"} & set(arguments)
    if "--output" in arguments and not looks:
        output = Path(arguments[arguments.index("--output") + 1])
        assert (output / "changelist.json").exists()


def test_the_calls_that_the_readme_tells(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As few as its own command takes."""
    monkeypatch.chdir(ROOT)
    (command,) = (one for block in _blocks("README.md") for one in block if "--target-error" in one)
    arguments = shlex.split(command)[1:]
    arguments[arguments.index("--output") + 1] = str(tmp_path)
    assert run([*arguments, "--quiet"]) == 0
    calls = json.loads((tmp_path / "changelist.json").read_text())["shift"]["cost"]["calls"]
    assert f"until the error is small enough: {calls:,} of" in (ROOT / "README.md").read_text()


@pytest.mark.slow
def test_discovery_from_python_works_as_pasted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    monkeypatch.chdir(tmp_path)
    page = (ROOT / "docs" / "discover.md").read_text("utf-8")
    (block,) = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    exec(block, {})
    assert "What they are like" in capsys.readouterr().out


def test_python_works_as_pasted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "pipelines").symlink_to(ROOT / "pipelines")
    monkeypatch.chdir(tmp_path)
    (block,) = re.findall(
        r"```python\n(.*?)```", (ROOT / "README.md").read_text("utf-8"), re.DOTALL
    )
    names: dict[str, Any] = {}
    exec(block, names)
    assert len(names["slices"]) > 20
    assert names["found"].changelist.summary in " ".join(capsys.readouterr().out.split())


def test_there_are_commands() -> None:
    commands = [line for _, block in _runnable() for line in block]
    assert sum(line.startswith("slicebeam search") for line in commands) >= 6
    assert sum(line.startswith("slicebeam run") for line in commands) >= 3


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
