"""What the tests of faults share: commands that can be struck, and the verdict afterwards."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterable
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from slicebeam.transforms.storage.publish import is_own_name
from tests.running import Found, names_of, own_file, read

ROOT = Path(__file__).parents[2]
ADULT = ROOT / "pipelines" / "demo_data" / "adult_scored.parquet"
EQUAL, CLEAR = "equal result", "clear error"
# By a library or by Python itself, which may also wait for ever: the run can only be killed where
# it is not dead, and resumed.
ABORTED = "aborted"
# A run takes about a second.
_MOST_SECONDS = 90.0
NOBODY = 65534
FEATURES = "age,workclass,education,marital-status,occupation,hours-per-week,native-country"
# Small chunks and blocks, so that there is much to be struck.
COMMON = ("--label=income", "--prediction=prediction", f"--features={FEATURES}")
COMMON += ("--chunk-rows=3000", "--memory-budget=16MB", "--quiet")
WAYS = {
    "batch": ("--strategy=batch",),
    "iterative": ("--strategy=iterative",),
    "priority": ("--strategy=priority", "--max-candidates=400"),
    "bootstrap-rows": ("--test=bootstrap-rows", "--replicates=20", "--max-cross-size=2"),
    "check": ("check",),
}


def quick(way):
    return (1,) if way == "batch" else ()


@dataclass(frozen=True)
class Ended:
    code: int | None
    said: str


class Command:
    """A command that runs."""

    def __init__(self, commands, pid, errors):
        self._commands, self.pid, self._errors = commands, pid, errors
        self._ended = None

    def send(self, number):
        os.kill(self.pid, number)

    def runs(self):
        try:
            state = Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()[0]
        except FileNotFoundError:
            return False
        return state != "Z"

    def poll(self):
        """Return how it has ended; None if it runs."""
        return None if self.runs() else self.ended().code

    def stopped_when(self, condition):
        while self.runs():
            if condition():
                self.send(signal.SIGSTOP)
                return True
            time.sleep(0.001)
        return False

    def ended(self, seconds=_MOST_SECONDS):
        if self._ended is None:
            code = self._commands.ask({"wait": self.pid, "seconds": seconds})
            self._ended = Ended(code, self._errors.read_text("utf-8", "replace"))
        return self._ended


class Commands:
    """Starts commands as forks of a process that has imported what they need; a context."""

    def __init__(self, environment=None):
        path = os.pathsep.join([str(ROOT / ".typing"), str(ROOT)])
        self._process = subprocess.Popen(
            [sys.executable, str(ROOT / "tests" / "forked_commands.py")],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            # As the command sets it for itself, before it imports what reads it.
            env={**os.environ, "PYTHONPATH": path, "GRPC_VERBOSITY": "NONE", **(environment or {})},
        )
        self._folder = Path(tempfile.mkdtemp(prefix="slicebeam-faults-"))
        # Also a user without rights has to write there.
        self._folder.chmod(0o777)
        self._is_ready = False
        self._count = 0

    @property
    def pid(self):
        return self._process.pid

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self._process.stdin.close()
        self._process.wait()
        shutil.rmtree(self._folder)

    def await_ready(self):
        if not self._is_ready:
            assert self._process.stdout.readline() == "ready\n"
            self._is_ready = True

    def ask(self, request):
        self.await_ready()
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(request) + "\n")
        self._process.stdin.flush()
        return json.loads(self._process.stdout.readline())

    def start(
        self,
        arguments,
        *,
        stdin=os.devnull,
        stdout=os.devnull,
        stderr=None,
        folder=Path("/"),
        environment=None,
        without=(),
        limits=None,
        user=0,
        hook="",
    ):
        self._count += 1
        errors = self._folder / f"{self._count}.err"
        errors.touch()
        errors.chmod(0o666)
        request = (
            {"arguments": list(arguments), "stdin": stdin, "stdout": stdout}
            | {"stderr": str(errors) if stderr is None else stderr, "folder": str(folder)}
            | {"environment": dict(environment or {}), "without": list(without)}
            | {"limits": dict(limits or {}), "user": user, "hook": hook}
        )
        return Command(self, self.ask(request), errors)

    def run(self, arguments, **surroundings):
        return self.start(arguments, **surroundings).ended()


@dataclass
class Bench:
    commands: Commands
    folder: Path
    stack: ExitStack = field(default_factory=ExitStack)
    random: np.random.Generator = field(default_factory=lambda: np.random.default_rng(11))
    known: dict[Any, Any] = field(default_factory=dict)
    _undisturbed: dict[tuple[str, ...], tuple[Found, float]] = field(default_factory=dict)
    _count: int = 0

    def place(self):
        self._count += 1
        place = self.folder / str(self._count)
        place.mkdir()
        place.chmod(0o777)
        return place

    def search(self, output, *flags, data=ADULT):
        if flags[:1] == ("check",):
            known = self.undisturbed().folder / "changelist.json"
            given = ["check", f"--data={data}", f"--output={output}", f"--changelist={known}"]
            return [*given, "--chunk-rows=3000", "--memory-budget=16MB", "--quiet", *flags[1:]]
        return ["search", f"--data={data}", f"--output={output}", *COMMON, *flags]

    def undisturbed(self, *flags, data=ADULT):
        return self._reference(flags, data)[0]

    def seconds(self, *flags):
        return self._reference(flags, ADULT)[1]

    def _reference(self, flags, data):
        key = (str(data), *flags)
        if key not in self._undisturbed:
            output = self.place() / "out"
            self.commands.await_ready()
            begun = time.monotonic()
            ended = self.commands.run(self.search(output, *flags, data=data))
            assert ended.code == 0, ended
            self._undisturbed[key] = read(output), time.monotonic() - begun
        return self._undisturbed[key]

    def moment(self, *flags):
        return float(self.random.uniform(0.0, self.seconds(*flags)))


@contextmanager
def bench(commands):
    with tempfile.TemporaryDirectory(prefix="slicebeam-faults-") as folder:
        Path(folder).chmod(0o777)
        with ExitStack() as stack:
            yield Bench(commands, Path(folder), stack)


def verdict(ended, output, undisturbed, *, codes=(2, 3)):
    """Return what came of a run that was struck: `EQUAL`, `CLEAR`, or what is wrong with it."""
    if ended.code == 0:
        return same(output, undisturbed)
    if ended.code is None:
        return f"did not end; {ended.said!r}"
    if ended.code not in codes:
        return f"exit code {ended.code}; {ended.said!r}"
    lines = ended.said.splitlines()
    if not 1 <= len(lines) <= 2 or not lines[0].startswith("slicebeam: "):
        return f"no clear error; {ended.said!r}"
    if "unforeseen" in ended.said or "Traceback" in ended.said:
        return f"unforeseen; {ended.said!r}"
    return CLEAR


def same(output, undisturbed):
    try:
        found = read(output)
    except (OSError, ValueError) as error:
        return f"nothing published ({error})"
    if found.slices_bytes != undisturbed.slices_bytes:
        return "other slices.parquet"
    if _told(found) != _told(undisturbed):
        return "other changelist.json"
    strange = sorted({path.name for path in output.iterdir()} - set(names_of(found.document)))
    return f"left behind: {strange}" if strange else EQUAL


def whole(output, undisturbed):
    """Return `EQUAL` where a killed run published all that its document names, or how that differs."""
    document = json.loads((output / "changelist.json").read_text("utf-8"))
    table = own_file(output, "slices.parquet")
    if not table.exists() or table.read_bytes() != undisturbed.slices_bytes:
        return f"other {table.name}"
    if _told(Found(document, undisturbed.table, output)) != _told(undisturbed):
        return "other changelist.json"
    may = {"_work", *names_of(document)}
    names = sorted(path.name for path in output.iterdir() if path.name not in may)
    strange = [name for name in names if name[0] != "." and not is_own_name(name)]
    return f"left behind: {strange}" if strange else EQUAL


def _told(found):
    """Return the document without times, and without the engine."""
    document = found.timeless()
    for name in ("runner_option", "beam"):
        document["provenance"]["config"].pop(name, None)
    return document


def resumed(bench, command, output, undisturbed, **surroundings):
    """Return what came of resuming a run, wherever it was ended."""
    ended = bench.commands.run([*command, "--resume"], **surroundings)
    if ended.code == 2 and ended.said.endswith("; leave --resume out to replace it\n"):
        ended = bench.commands.run(command, **surroundings)
    if ended.code != 0:
        return f"resuming: exit code {ended.code}; {ended.said!r}"
    return same(output, undisturbed)


def half_published(output):
    names = {name for name in published(output) if name[0] != "." and not is_own_name(name)}
    return f"half published: {sorted(names)}" if names else EQUAL


def published(output):
    if not output.is_dir():
        return {}
    return {path.name: path.read_bytes() for path in output.iterdir() if path.is_file()}


@dataclass(frozen=True)
class Fault:
    """What goes wrong.

    name : a row of the table
    times : how often it is tried for the table; each number of a try is another place or moment
    strike : does it once, is told the number of the try, and yields verdicts
    may : which verdicts may come; anything else is a fault of ours
    quick : the numbers of the tries of the short tests
    """

    name: str
    times: int
    strike: Callable[[Bench, int], Iterable[str]]
    may: frozenset[str] | set[str]
    quick: tuple[int, ...] = ()

    def tried(self, bench, numbers):
        tally = Tally()
        for number in numbers:
            tally.add(*self.strike(bench, number))
        return tally


@dataclass
class Tally:
    tried: int = 0
    found: Counter[str] = field(default_factory=Counter)

    def add(self, *verdicts):
        self.tried += 1
        bad = [one for one in verdicts if one not in (EQUAL, CLEAR, ABORTED)]
        better = [one for one in (ABORTED, CLEAR, EQUAL) if one in verdicts]
        self.found[[*bad, *better, EQUAL][0]] += 1

    def other(self, may):
        return {name: count for name, count in self.found.items() if name not in may}
