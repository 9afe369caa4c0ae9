"""Every command in the documentation works as it stands, or is listed as not run, with the reason."""

from __future__ import annotations

import html
import json
import re
import runpy
import shlex
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from slicebeam.pipelines.cli import run

ROOT = Path(__file__).parent.parent
README = "README.md"
TUTORIAL = "docs/tutorial.md"
PAGES = tuple(
    path.relative_to(ROOT).as_posix()
    for path in (
        *sorted(ROOT.glob("*.md")),
        *sorted((ROOT / "docs").rglob("*.md")),
        *sorted((ROOT / "examples").rglob("*.md")),
    )
)
# Pages whose blocks go on with what earlier ones wrote.
TRAINING = "docs/how-to/train-on-tests.md"
ONE_AFTER_ANOTHER = (
    *("README.md", "docs/how-to/discover.md", "docs/how-to/report.md", TRAINING),
    TUTORIAL,
)

# Commands that the tests do not run: how they begin, and why.
INSTALLS = "installs packages, as .ci/run does in environments of its own"
CLOUD = "needs an account and a bucket of a cloud; the tests use stand-ins of it"
CLUSTER = "starts a cluster, or sends jobs to one; the tests marked `engine` do"
TFMA = "needs the extra [tfma]; the tests marked `tfma` do what it does"
FOREIGN = "needs an endpoint and its key; the tests use servers on this machine"
ELSEWHERE = "needs files or packages that are the user's own"
NOT_RUN = {
    "python3 -m venv": INSTALLS,
    "pip install": INSTALLS,
    "slicebeam search --data 's3://bucket/": CLOUD,
    "slicebeam search --data 'gs://bucket/": CLOUD,
    "gcloud dataflow jobs run": CLOUD,
    "python -m slicebeam.runner_configs.local_cluster": CLUSTER,
    "slicebeam search … --runner-config flink": CLUSTER,
    "slicebeam search --data pipelines/demo_data/adult_scored.parquet --label income "
    "--prediction prediction --exclude-features row_id,fnlwgt,score,score_old,prediction_old "
    "--output out/flink": CLUSTER,
    "slicebeam discover … --text text --encoder 'openai:": FOREIGN,
    'slicebeam define --changelist out/sentences --name "about a film" --llm': FOREIGN,
    'slicebeam attribute run --changelist out/sentences --slice "well done" --budget 200': FOREIGN,
    'slicebeam attribute run --changelist out/sentences --slice "well done" --budget 60': (
        "asks a person in the terminal"
    ),
    "slicebeam attribute estimate": "needs labels that a person has filled in",
    "slicebeam search --data pipelines/demo_data/adult_scored.parquet --label income --score score "
    "--features age,sex,race --metric accuracy --metric tfma:AUC": TFMA,
    "slicebeam search --data ranked.parquet": TFMA,
    "slicebeam export tfma": TFMA,
    "PYTHONPATH=. slicebeam discover": ELSEWHERE,
    "PYTHONPATH=. slicebeam adapt suggest": ELSEWHERE,
    "PYTHONPATH=. slicebeam adapt run found.csv": ELSEWHERE,
    "slicebeam adapt from out/found --to found.csv --append": "goes on with what the page wrote before",
    "slicebeam serve": "runs until it is ended; the tests of `pipelines/serve` start and end it",
    "ssh -N": ELSEWHERE,
    "slicebeam search --data electricity.parquet": ELSEWHERE,
    "slicebeam search --data compas.parquet": ELSEWHERE,
    "slicebeam search --data features.parquet": ELSEWHERE,
    "slicebeam check --data pipelines/demo_data/adult_scored.parquet --eval-config "
    "examples/tfma/eval_config.pbtxt": "needs the extra [tfma]; the tests marked `tfma` run it",
    "slicebeam discover --data examples/sentences/sentences.parquet --text text --encoder minilm": (
        "needs PyTorch and takes four CPU minutes"
    ),
}
PROGRAMS = ("slicebeam", "python", "python3", "pip", "gcloud", "export", "printf", "pytest")
_FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.DOTALL | re.MULTILINE)


class Block(NamedTuple):
    """A fenced block of a page; ``language`` is empty where it names none."""

    page: str
    language: str
    text: str

    def commands(self) -> list[str]:
        """Return its lines, those that go on in the next line joined."""
        joined = re.sub(r"\s*\\\n\s*", " ", self.text)
        return [line for line in joined.splitlines() if line.strip()]


def _text(page: str) -> str:
    return (ROOT / page).read_text("utf-8")


def _blocks(*languages: str) -> list[Block]:
    found = [Block(page, *one) for page in PAGES for one in _FENCE.findall(_text(page))]
    return [one for one in found if one.language in languages]


def _reason(command: str) -> str | None:
    return next((why for begin, why in NOT_RUN.items() if command.startswith(begin)), None)


def _runnable() -> list[tuple[str, list[str]]]:
    """The commands that go together, with their page."""
    found: list[tuple[str, list[str]]] = []
    for block in _blocks("bash"):
        commands = [one for one in block.commands() if _reason(one) is None]
        if not commands:
            continue
        if found and block.page in ONE_AFTER_ANOTHER and found[-1][0] == block.page:
            found[-1][1].extend(commands)
        else:
            found.append((block.page, commands))
    return found


def _is_quick(page: str, commands: list[str]) -> bool:
    return page == README and not any("slicebeam discover" in one for one in commands)


@pytest.mark.parametrize(
    ("page", "commands"),
    [
        # What is behind the first page takes longer, and so does what reads texts.
        pytest.param(*one, marks=[] if _is_quick(*one) else pytest.mark.slow)
        for one in _runnable()
    ],
)
def test_commands_work_as_pasted(
    page: str,
    commands: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
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
        shown = {
            one for block in _blocks("text") if block.page == page for one in _topics(block.text)
        }
        assert len(shown) > 10
        assert shown <= _topics(capsys.readouterr().out)


def _topics(text: str) -> set[str]:
    """What becomes of topics, in the lines of a table."""
    found = re.findall(r"((?:fixed|broken|failing|passing)\*? +/.*)", text)
    return {" ".join(one.split()) for one in found}


def _run(command: str, stack: ExitStack, monkeypatch: pytest.MonkeyPatch) -> None:
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
        assert program == "slicebeam", f"no test knows how to run {command!r}: see NOT_RUN"
        code = re.search(r"# exit code (\d)", command)
        assert run(arguments) == (int(code.group(1)) if code else 0)
        # What only looks ahead publishes nothing.
        looks = {"--dry-run", "--plan", "--repeat"} & set(arguments)
        if "--output" in arguments and not looks:
            output = Path(arguments[arguments.index("--output") + 1])
            assert (output / "changelist.json").exists()


def test_every_command_is_run_or_listed() -> None:
    """Blocks without a language hold commands that are not run; each has a reason, none is stale."""
    skipped = [one for block in _blocks("", "sh", "console", "shell") for one in block.commands()]
    unlisted = [
        one
        for one in skipped
        if one.removeprefix("PYTHONPATH=. ").split()[0] in PROGRAMS and _reason(one) is None
    ]
    assert unlisted == [], "mark the block as bash, or add the command to NOT_RUN with its reason"
    commands = [one for block in _blocks("bash") for one in block.commands()] + skipped
    stale = [begin for begin in NOT_RUN if not any(one.startswith(begin) for one in commands)]
    assert stale == []


def test_every_page_begins_with_what_it_gives() -> None:
    """A title and a sentence, before any section, table or command."""
    for page in (one for one in PAGES if one.startswith("docs/")):
        title, _, rest = _text(page).partition("\n")
        assert title.startswith("# "), page
        assert re.match(r"\n[A-Za-z`][^|#]{40,}", rest), f"{page} does not begin with a sentence"


def test_what_pages_name_is_there() -> None:
    """Files of the checkout in code spans and commands, and the files that links lead to."""
    named = re.compile(
        r"(?<![\w/.-])(?:tests|examples|docs|metrics|transforms|pipelines|runner_configs)/[\w/.-]*[\w/]"
    )
    missing = []
    for page in PAGES:
        text = re.sub(r"<!--.*?-->", "", _text(page), flags=re.DOTALL)
        spans = re.findall(r"`([^`\n]+)`", text)
        blocks = [block for language, block in _FENCE.findall(text) if language != "text"]
        names = set(named.findall("\n".join([*spans, *blocks])))
        # SECURITY.md names tests by their place in tests/.
        places = (ROOT, ROOT / "tests") if page == "SECURITY.md" else (ROOT,)
        missing += [
            f"{page}: {name}"
            for name in names
            if not any((place / name).exists() for place in places)
        ]
        links = re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", text)
        folder = (ROOT / page).parent
        missing += [f"{page}: {link}" for link in links if not (folder / link).exists()]
    assert missing == []


def test_the_calls_that_the_page_reports(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As few as its own command takes."""
    monkeypatch.chdir(ROOT)
    page = "docs/how-to/shift.md"
    shown = re.search(r"([\d,]+) of 15,339 faces", _text(page))
    assert shown is not None
    command = next(
        one
        for block in _blocks("bash")
        if block.page == page
        for one in block.commands()
        if "--target-error" in one
    )
    arguments = shlex.split(command)[1:]
    arguments[arguments.index("--output") + 1] = str(tmp_path)
    assert run([*arguments, "--quiet"]) == 0
    calls = json.loads((tmp_path / "changelist.json").read_text())["shift"]["cost"]["calls"]
    assert shown[1] == f"{calls:,}"


def _python(page: str) -> str:
    (block,) = (one.text for one in _blocks("python") if one.page == page)
    return block


@pytest.mark.slow
def test_discovery_from_python_works_as_pasted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    monkeypatch.chdir(tmp_path)
    exec(_python("docs/how-to/discover.md"), {})
    assert "What they are like" in capsys.readouterr().out


def test_python_works_as_pasted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "pipelines").symlink_to(ROOT / "pipelines")
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {}
    exec(_python("docs/how-to/python.md"), names)
    assert len(names["slices"]) > 20
    assert list(names["findings"]["rank"]) == list(range(1, len(names["findings"]) + 1))
    counts = f"{len(names['findings'])} findings"
    assert names["found"].changelist.summary.endswith(f"{counts}.")
    assert counts in " ".join(capsys.readouterr().out.split())


def test_no_python_is_left_unread() -> None:
    pages = {one.page for one in _blocks("python")}
    # What docs/develop.md shows is tried in tests/pipelines/test_develop_page.py, and what needs
    # TFMA in tests/transforms/test_tfma_extractor.py.
    elsewhere = {"docs/develop.md", "docs/how-to/tfma.md"}
    assert pages == {*elsewhere, "docs/how-to/discover.md", "docs/how-to/python.md"}


def test_there_are_commands() -> None:
    readme = [one for page, block in _runnable() if page == README for one in block]
    for begin in ("demo", "search", "run", "shift", "discover"):
        assert any(one.startswith(f"slicebeam {begin}") for one in readme)
    commands = [line for _, block in _runnable() for line in block]
    assert sum(line.startswith("slicebeam search") for line in commands) >= 20
    assert sum(line.startswith("slicebeam run") for line in commands) >= 9


def test_ci_runs_the_command_of_the_readme() -> None:
    block = re.search(r"<!-- the tests -->\n```bash\n(.*?)\n```", _text(README))
    assert block is not None
    assert block.group(1).startswith("pip install")
    assert "<!-- the tests -->" in (ROOT / ".ci" / "run").read_text("utf-8")


def _words(lines: list[str]) -> list[str]:
    return [" ".join(line.split()) for line in lines if line.strip()]


@pytest.mark.slow
def test_the_tutorial_shows_what_the_demo_prints(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "160")
    assert run(["demo", "--output", str(tmp_path / "demo")]) == 0
    printed = set(_words(capsys.readouterr().out.splitlines()))
    shown = _blocks("text")
    lines = _words(next(one.text for one in shown if one.page == TUTORIAL).splitlines())
    assert len(lines) > 4
    assert not [line for line in lines if "──" not in line and line not in printed]


@pytest.mark.slow
def test_the_tutorial_shows_what_explain_prints(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    commands = (
        one for block in _blocks("bash") if block.page == TUTORIAL for one in block.commands()
    )
    command = next(one for one in commands if "--explain" in one)
    monkeypatch.setenv("COLUMNS", "160")
    arguments = shlex.split(command)[1:]
    arguments[arguments.index("--output") + 1] = str(tmp_path)
    monkeypatch.chdir(ROOT)
    assert run(arguments) == 0
    printed = set(_words(capsys.readouterr().out.splitlines()))
    (block,) = (one for one in _blocks("text") if one.page == TUTORIAL and "lower tail" in one.text)
    assert [line for line in _words(block.text.splitlines()) if line not in printed] == []


@pytest.mark.slow
def test_the_picture_is_what_the_demo_prints() -> None:
    """Line by line; run ``python docs/pictures/demo.py`` where the output has changed."""
    script = runpy.run_path(str(ROOT / "docs" / "pictures" / "demo.py"))
    rows: dict[float, str] = {}
    svg = script["PICTURE"].read_text("utf-8")
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
