"""Every command in the documentation works as it stands, or is listed as not run, with the reason."""

import html
import json
import re
import runpy
import shlex
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path

import pytest

from slicebeam.pipelines.commands.cli import run
from tests import page_commands as pc
from tests.page_commands import PAGES, README, ROOT, TRAINING, TUTORIAL, blocks, runnable, text_of

# `python tests/page_commands.py` runs those of the first two pages, with what a user installs.
OF_OTHER_PAGES = [one for one in runnable() if one[0] not in (README, TUTORIAL)]


@pytest.mark.slow
@pytest.mark.parametrize(("page", "commands"), OF_OTHER_PAGES)
def test_commands_work_as_pasted(page, commands, tmp_path, monkeypatch, capsys):
    """The commands of a block, one after another; a comment gives an exit code that is not 0."""
    monkeypatch.setenv("COLUMNS", "118")
    for name in ("examples", "pipelines"):
        (tmp_path / name).symlink_to(ROOT / name)
    monkeypatch.chdir(tmp_path)
    with ExitStack() as stack:
        for command in commands:
            _run(command, stack, monkeypatch)
    if page == TRAINING:
        # The shares depend on the version of scikit-learn, what is fixed and broken does not.
        texts = [block.text for block in blocks("text") if block.page == page]
        shown = set().union(*map(_topics, texts))
        assert len(shown) > 10
        assert shown <= _topics(capsys.readouterr().out)


def _topics(text):
    found = re.findall(r"((?:fixed|broken|failing|passing)\*? +/.*)", text)
    return {" ".join(one.split()) for one in found}


def _run(command, stack, monkeypatch):
    program, *arguments = shlex.split(command, comments=True)
    if program.startswith("PYTHONPATH="):
        monkeypatch.syspath_prepend(Path(program.partition("=")[2]).absolute())
        program, *arguments = arguments
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
        assert program == "slicebeam", f"no test knows how to run {command!r}: see NOT_RUN"
        assert run(arguments) == pc.exit_code(command)
        # What only looks ahead publishes nothing.
        looks = {"--dry-run", "--plan", "--repeat"} & set(arguments)
        if "--output" in arguments and not looks and pc.exit_code(command) < 2:
            assert (Path(arguments[arguments.index("--output") + 1]) / "changelist.json").exists()


def test_every_command_is_run_or_listed():
    """Blocks without a language hold commands that are not run; each has a reason, none is stale."""
    skipped = [one for block in blocks("", "sh", "console", "shell") for one in block.commands()]
    ours = [one for one in skipped if one.removeprefix("PYTHONPATH=. ").split()[0] in pc.PROGRAMS]
    unlisted = [one for one in ours if pc.reason(one) is None]
    assert unlisted == [], "mark the block as bash, or add the command to NOT_RUN with its reason"
    commands = [one for block in blocks("bash") for one in block.commands()] + skipped
    assert [
        begin for begin in pc.NOT_RUN if not any(one.startswith(begin) for one in commands)
    ] == []


def test_every_page_begins_with_what_it_gives():
    """A title and a sentence, before any section, table or command."""
    for page in (one for one in PAGES if one.startswith("docs/")):
        title, _, rest = text_of(page).partition("\n")
        assert title.startswith("# "), page
        assert re.match(r"\n[A-Za-z`][^|#]{40,}", rest), f"{page} does not begin with a sentence"


def test_what_pages_name_is_there():
    """Files of the checkout in code spans and commands, and the files that links lead to."""
    named = re.compile(
        r"(?<![\w/.-])(?:tests|examples|docs|metrics|transforms|pipelines|runner_configs)/[\w/.-]*[\w/]"
    )
    missing = []
    for page in PAGES:
        text = re.sub(r"<!--.*?-->", "", text_of(page), flags=re.DOTALL)
        spans = re.findall(r"`([^`\n]+)`", text)
        blocks = [block for language, block in pc.FENCE.findall(text) if language != "text"]
        names = set(named.findall("\n".join([*spans, *blocks])))
        # SECURITY.md names tests by their place in tests/.
        places = (ROOT, ROOT / "tests") if page == "SECURITY.md" else (ROOT,)
        gone = [one for one in names if not any((place / one).exists() for place in places)]
        missing += [f"{page}: {name}" for name in gone]
        links = re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", text)
        folder = (ROOT / page).parent
        missing += [f"{page}: {link}" for link in links if not (folder / link).exists()]
    assert missing == []


def _arguments(page, flag, output):
    """Those of the first command of a page that has a flag, with another output."""
    commands = (one for block in blocks("bash") if block.page == page for one in block.commands())
    arguments = shlex.split(next(one for one in commands if flag in one))[1:]
    arguments[arguments.index("--output") + 1] = str(output)
    return arguments


def test_the_calls_that_the_page_reports(tmp_path, monkeypatch):
    """As few as its own command takes."""
    monkeypatch.chdir(ROOT)
    page = "docs/how-to/shift.md"
    shown = re.search(r"([\d,]+) of 15,339 faces", text_of(page))
    assert shown is not None
    assert run([*_arguments(page, "--target-error", tmp_path), "--quiet"]) == 0
    calls = json.loads((tmp_path / "changelist.json").read_text())["shift"]["cost"]["calls"]
    assert shown[1] == f"{calls:,}"


def _python(page):
    return [one.text for one in blocks("python") if one.page == page]


@pytest.mark.slow
def test_discovery_from_python_works_as_pasted(tmp_path, monkeypatch, capsys):
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    monkeypatch.chdir(tmp_path)
    (block,) = _python("docs/how-to/discover.md")
    exec(block, {})
    assert "What they are like" in capsys.readouterr().out


def test_python_works_as_pasted(tmp_path, monkeypatch, capsys):
    (tmp_path / "pipelines").symlink_to(ROOT / "pipelines")
    monkeypatch.chdir(tmp_path)
    names = {}
    in_memory, pipeline = _python("docs/how-to/python.md")
    exec(in_memory, names)
    assert len(names["slices"]) > 20
    assert list(names["findings"]["rank"]) == list(range(1, len(names["findings"]) + 1))
    counts = f"{len(names['findings'])} findings"
    assert f" {counts} hold " in names["found"].changelist.summary
    assert counts in " ".join(capsys.readouterr().out.split())
    exec(pipeline, {})
    assert len(capsys.readouterr().out.splitlines()) > 5


def test_no_python_is_left_unread():
    pages = {one.page for one in blocks("python")}
    # What docs/develop.md shows is tried in tests/pipelines/config/test_options.py, and what needs
    # TFMA in tests/transforms/tfma/test_extractor.py; the metric in tests/metrics/measures/test_user_metrics.py,
    # and the table of CheckList in tests/pipelines/adaptive/test_adapt_run.py.
    elsewhere = {"docs/develop.md", "docs/how-to/own-metric.md", "docs/how-to/tfma.md"}
    elsewhere.add("docs/how-to/test-trees.md")
    assert pages == {*elsewhere, "docs/how-to/discover.md", "docs/how-to/python.md"}


def test_git_ignores_where_the_commands_write():
    written = {
        output.partition("/")[0]
        for block in blocks("bash")
        for output in re.findall(r"--(?:output|work-dir) ([\w-]+[\w/-]*)(?!\S)", block.text)
    }
    assert {"out"} < written
    ignored = (ROOT / ".gitignore").read_text("utf-8").split()
    assert {folder for folder in written if f"/{folder}/" not in ignored} == set()


def test_there_are_commands():
    readme = [one for page, block in runnable() if page == README for one in block]
    for begin in ("demo", "search", "run", "shift", "discover"):
        assert any(one.startswith(f"slicebeam {begin}") for one in readme)
    commands = [line for _, block in runnable() for line in block]
    assert sum(line.startswith("slicebeam search") for line in commands) >= 20
    assert sum(line.startswith("slicebeam run") for line in commands) >= 9


def test_ci_runs_the_command_of_the_readme():
    block = re.search(r"<!-- the tests -->\n```bash\n(.*?)\n```", text_of(README))
    assert block.group(1).startswith("pip install")
    assert "<!-- the tests -->" in (ROOT / ".ci" / "run").read_text("utf-8")


def _words(lines):
    return [" ".join(line.split()) for line in lines if line.strip()]


@pytest.mark.slow
def test_the_tutorial_shows_what_the_demo_prints(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", "160")
    assert run(["demo", "--output", str(tmp_path / "demo")]) == 0
    printed = set(_words(capsys.readouterr().out.splitlines()))
    lines = _words(next(one.text for one in blocks("text") if one.page == TUTORIAL).splitlines())
    assert len(lines) > 4
    assert not [line for line in lines if "──" not in line and line not in printed]


@pytest.mark.slow
def test_the_tutorial_shows_what_explain_prints(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", "160")
    monkeypatch.chdir(ROOT)
    assert run(_arguments(TUTORIAL, "--explain", tmp_path)) == 0
    printed = set(_words(capsys.readouterr().out.splitlines()))
    (block,) = (one for one in blocks("text") if one.page == TUTORIAL and "lower tail" in one.text)
    assert [line for line in _words(block.text.splitlines()) if line not in printed] == []


@pytest.mark.slow
def test_the_picture_is_what_the_demo_prints():
    """Line by line; run ``python docs/pictures/demo.py`` where the output has changed."""
    script = runpy.run_path(str(ROOT / "docs" / "pictures" / "demo.py"))
    rows, svg = {}, script["PICTURE"].read_text("utf-8")
    matrix = svg[svg.rindex('<g class="demo-matrix">') :]
    for y, text in re.findall(r'<text [^>]*y="([\d.]+)"[^>]*>(.*?)</text>', matrix, re.DOTALL):
        rows[float(y)] = rows.get(float(y), "") + " " + html.unescape(text)
    drawn = _words([rows[y] for y in sorted(rows)])
    codes = re.compile(r"\x1b\[[\d;]*m")
    printed = _words([codes.sub("", line) for line in script["shown"](script["printed"]())])
    assert len(printed) > 8
    assert drawn == [f"$ {script['COMMAND']}", *printed]
    # The reader's machine asks nobody for a font.
    assert re.findall(r"(?:url\(|href=)[\"']?https?:", svg) == []
