"""The commands of the pages: which there are, and those of the first two pages run as they stand.

``python tests/page_commands.py FOLDER`` runs the commands of the README and the tutorial in a new
folder, by the Python that it is started with and what is installed there: no test tool is needed.
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple
from urllib.request import urlopen

ROOT, README, TUTORIAL = Path(__file__).parent.parent, "README.md", "docs/tutorial.md"
_FOUND = (ROOT.glob("*.md"), (ROOT / "docs").rglob("*.md"), (ROOT / "examples").rglob("*.md"))
PAGES = tuple(path.relative_to(ROOT).as_posix() for one in _FOUND for path in sorted(one))
# Pages whose blocks go on with what earlier ones wrote.
TRAINING = "docs/how-to/train-on-tests.md"
ONE_AFTER_ANOTHER = ("README.md", "docs/how-to/discover.md", "docs/how-to/report.md")
ONE_AFTER_ANOTHER += (TRAINING, TUTORIAL)
# Commands that the tests do not run: how they begin, and why.
INSTALLS = "installs packages, as .ci/run does in environments of its own"
CLOUD = "needs an account and a bucket of a cloud; the tests use stand-ins of it"
CLUSTER = "starts a cluster, or sends jobs to one; the tests marked `engine` do"
TFMA = "needs the extra [tfma]; the tests marked `tfma` do what it does"
FOREIGN = "needs an endpoint and its key; the tests use servers on this machine"
ELSEWHERE = "needs files or packages that are the user's own"
A_PERSON = "asks a person in the terminal"
NOT_RUN = {
    "python3 -m venv": INSTALLS,
    "pip install": INSTALLS,
    "slicebeam search --data 's3://bucket/": CLOUD,
    "slicebeam search --data 'gs://bucket/": CLOUD,
    "gcloud ": CLOUD,
    "docker compose": CLUSTER,
    "slicebeam search … --runner-config FlinkRunner": CLUSTER,
    "slicebeam search --data /tmp/slicebeam/": CLUSTER,
    "slicebeam discover … --text text --encoder 'openai:": FOREIGN,
    'slicebeam define --changelist out/sentences --name "about a film" --llm': FOREIGN,
    'slicebeam attribute run --changelist out/sentences --slice "well done" --budget 200': FOREIGN,
    'slicebeam attribute run --changelist out/sentences --slice "well done" --budget 60': A_PERSON,
    "slicebeam attribute estimate": "needs labels that a person has filled in",
    "slicebeam search --data pipelines/demo_data/adult_scored.parquet --label income --score score "
    "--features age,sex,race --metric accuracy --metric tfma:AUC": TFMA,
    "slicebeam search --data ranked.parquet": TFMA,
    "slicebeam search --data 'results/*.parquet'": "there is no sample of ranked results; `tests/transforms/encode/test_passes.py` makes tables of them",
    "slicebeam export tfma": TFMA,
    "PYTHONPATH=. slicebeam discover": ELSEWHERE,
    "PYTHONPATH=. slicebeam adapt suggest": ELSEWHERE,
    "PYTHONPATH=. slicebeam adapt run found.csv": ELSEWHERE,
    "slicebeam adapt from out/found --to found.csv --append": "goes on with what the page wrote before",
    "slicebeam serve": "runs until it is ended; the tests of `pipelines/page` start and end it",
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
PROGRAMS = ("slicebeam", "python", "python3", "pip", "gcloud")
PROGRAMS += ("export", "printf", "pytest", "docker")
FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.DOTALL | re.MULTILINE)


class Block(NamedTuple):
    """A fenced block of a page; ``language`` is empty where it names none."""

    page: str
    language: str
    text: str

    def commands(self):
        """Return its lines, those that go on in the next line joined."""
        return [line for line in re.sub(r"\s*\\\n\s*", " ", self.text).splitlines() if line.strip()]


def text_of(page):
    return (ROOT / page).read_text("utf-8")


def blocks(*languages):
    found = [Block(page, *one) for page in PAGES for one in FENCE.findall(text_of(page))]
    return [one for one in found if one.language in languages]


def reason(command):
    return next((why for begin, why in NOT_RUN.items() if command.startswith(begin)), None)


def runnable():
    found = []
    for block in blocks("bash"):
        commands = [one for one in block.commands() if reason(one) is None]
        if not commands:
            continue
        if found and block.page in ONE_AFTER_ANOTHER and found[-1][0] == block.page:
            found[-1][1].extend(commands)
        else:
            found.append((block.page, commands))
    return found


def exit_code(command):
    code = re.search(r"# exit code (\d)", command)
    return int(code.group(1)) if code else 0


def run_pages(folder):
    """Run the commands of the README and the tutorial, and `slicebeam serve` of the README."""
    os.environ["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    for name, page in (("readme", README), ("tutorial", TUTORIAL)):
        place = folder / name
        place.mkdir(parents=True)
        for shared in ("examples", "pipelines"):
            (place / shared).symlink_to(ROOT / shared)
        lines = []
        for command in (one for own, block in runnable() if own == page for one in block):
            said = exit_code(command)
            end = (
                f'code=$?; [ $code = {said} ] || {{ echo "exit code $code, not {said}"; exit 1; }}'
            )
            lines += [f"echo {shlex.quote(f'+ {command}')}", command, end]
        if subprocess.run(["bash", "-c", "\n".join(lines)], cwd=place, check=False).returncode:
            sys.exit(f"{page}: the last command above failed")
    served = re.search(r"`(slicebeam serve [^`]+)`", text_of(README))
    if served is None:
        raise ValueError("the README shows no command `slicebeam serve`")
    print("+", served[1], flush=True)
    command = shlex.split(served[1])
    how = {"cwd": folder / "readme", "stdout": subprocess.PIPE, "text": True}
    with subprocess.Popen(command, **how) as process:
        try:
            address = process.stdout.readline().strip() if process.stdout else ""
            with urlopen(address, timeout=60) as answer:
                if b"<html" not in answer.read():
                    raise ValueError(f"{address} is not a page")
        finally:
            process.terminate()


if __name__ == "__main__":
    run_pages(Path(sys.argv[1]))
