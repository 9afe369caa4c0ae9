"""Faults of what surrounds a run: its clock, its streams, its limits, other runs, an eager engine."""

import importlib.util
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from contextlib import suppress
from functools import partial
from pathlib import Path

import apache_beam as beam

from tests.faults.faults import (
    ADULT,
    CLEAR,
    EQUAL,
    NOBODY,
    WAYS,
    Commands,
    Ended,
    Fault,
    bench,
    quick,
    resumed,
    same,
    verdict,
)

MULTI = ("--runner-config=direct_multi",)


class Twice(beam.DoFn):
    """Does what another DoFn does, as engines do it at times."""

    def __init__(self, inner):
        self.inner, self.seen = inner, []
        self.random = random.Random(5)

    def setup(self):
        self.inner.setup()

    def start_bundle(self):
        self.inner.start_bundle()

    def finish_bundle(self):
        return self.inner.finish_bundle()

    def teardown(self):
        self.inner.teardown()

    def process(self, element):
        self.seen.append(element)
        for _ in self.inner.process(element) or ():
            break
        list(self.inner.process(element) or ())
        again = list(self.inner.process(element) or ())
        list(self.inner.process(self.random.choice(self.seen)) or ())
        yield from again


def everything_twice():
    """Let every function of every pipeline process every element again and again."""
    wired = beam.ParDo
    beam.ParDo = lambda function: wired(Twice(function))


def twice(way, bench, number):
    flags = WAYS[way]
    output = bench.place() / "out"
    hook = f"{__name__}:{everything_twice.__name__}"
    ended = bench.commands.run(bench.search(output, *flags), hook=hook)
    yield verdict(ended, output, bench.undisturbed(*flags), codes=())


def two_runs(bench, number):
    """Start runs in one folder at the same instant, with or without what a dead one left."""
    output = bench.place() / "out"
    command = bench.search(output)
    if number % 2:
        first = bench.commands.start(command)
        while first.runs() and not (output / "_work" / "lock").exists():
            time.sleep(0.001)
        first.send(signal.SIGKILL)
        first.ended()
    running = [bench.commands.start(command) for _ in range(3)]
    ended = [one.ended() for one in running]
    codes = sorted(str(one.code) for one in ended)
    # One that starts when the other is through finds nothing in its way.
    yield EQUAL if "0" in codes else f"exit codes {codes}; {[one.said for one in ended]}"
    for one, its in zip(running, ended, strict=True):
        if its.code != 0:
            found = verdict(its, output, bench.undisturbed(), codes=(3,))
            others = [f"process {other.pid}," for other in running if other is not one]
            named = any(other in its.said for other in others)
            yield found if named or found != CLEAR else f"the holder is not named: {its.said!r}"
    yield same(output, bench.undisturbed())


def aloud(command):
    return [part for part in command if part != "--quiet"]


def streams(bench, number):
    place = bench.place()
    output = place / "out"
    command = aloud(bench.search(output))
    kind = ("stdin", "stdout", "stderr", "all", "stdout pipe", "stderr pipe")[number % 6]
    if kind.endswith("pipe"):
        pipe = place / "pipe"
        os.mkfifo(pipe)
        reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
        running = bench.commands.start(command, **{kind.removesuffix(" pipe"): str(pipe)})
        while running.runs() and not _has_open(running.pid, pipe):
            time.sleep(0.001)
        time.sleep(bench.moment() if number % 4 < 2 else 0.0)
        os.close(reader)
        ended = running.ended()
    else:
        names = ("stdin", "stdout", "stderr") if kind == "all" else (kind,)
        ended = bench.commands.run(command, **dict.fromkeys(names, ""))
    found = verdict(ended, output, bench.undisturbed(), codes=())
    yield found if found == EQUAL else f"{kind}: {found}"


def _has_open(pid, path):
    with suppress(OSError):
        return any(link.readlink() == path for link in Path(f"/proc/{pid}/fd").iterdir())
    return False


def few_files(bench, number):
    """Let the system open few files at a time only."""
    output = bench.place() / "out"
    engine = MULTI if number % 3 == 2 else ()
    command = [*bench.search(output), *engine]
    ended = bench.commands.run(command, limits={"RLIMIT_NOFILE": 6 + 3 * number})
    yield verdict(ended, output, bench.undisturbed(), codes=(3,))
    if ended.code != 0:
        yield resumed(bench, command, output, bench.undisturbed())


def poor(bench, number):
    """Take away folders and variables that programs like to have."""
    place = bench.place()
    place.chmod(0o755)
    output = place / "out"
    output.mkdir()
    output.chmod(0o777)
    work = place / "work"
    command = [*bench.search(output), f"--work-dir={work}"]
    work.mkdir()
    work.chmod(0o777)
    user = NOBODY if os.geteuid() == 0 else 0
    gone = place / "gone"
    surroundings = [
        {"environment": {"TMPDIR": str(gone)}},
        {"environment": {"TMPDIR": str(place)}, "user": user},
        {"without": ["HOME", "USER", "LOGNAME", "LNAME", "USERNAME"], "user": user},
        {"environment": {"HOME": str(gone)}},
        {"folder": place, "user": user},
        {"folder": Path("/proc")},
    ]
    ended = bench.commands.run(command, **surroundings[number % len(surroundings)])
    found = verdict(ended, output, bench.undisturbed(), codes=())
    yield found if found == EQUAL else f"{surroundings[number % len(surroundings)]}: {found}"


def language(bench, number):
    """Run where the system speaks ASCII, with names that are not, or no text at all."""
    place = bench.place()
    name = (b"plain", "Gr\u00f6\u00dfe".encode(), b"latin\xe9")[number % 3]
    folder = Path(os.fsdecode(os.fsencode(place) + b"/" + name))
    folder.mkdir()
    data = folder / "eval.parquet"
    shutil.copy(ADULT, data)
    output = folder / "out"
    environment = {key: value for key, value in os.environ.items() if not key.startswith("LC_")}
    environment |= {"LANG": "C", "LC_ALL": "C"}
    if number % 2:
        environment |= {"PYTHONCOERCECLOCALE": "0", "PYTHONUTF8": "0"}
    program = [sys.executable, "-m", "slicebeam.pipelines.commands.cli"]
    command = [*program, *aloud(bench.search(output, data=data))]
    ended = subprocess.run(command, env=environment, capture_output=True, check=False)
    said = ended.stderr.decode("utf-8", "replace")
    lines = [line for line in said.splitlines() if not line.startswith("[")]
    yield verdict(
        Ended(ended.returncode, "\n".join(lines)), output, bench.undisturbed(), codes=(2,)
    )
    if ended.returncode != 0:
        is_text = number % 3 == 0 or (number % 3 == 1 and number % 2 == 0)
        yield f"{name!r} is text: {said!r}" if is_text or "UTF-8" not in said else CLEAR


def faketime():
    """Return the library that lets a process see another time."""
    found = importlib.util.find_spec("libfaketime")
    for folder in (found.submodule_search_locations or ()) if found else ():
        library = Path(folder) / "vendor" / "libfaketime" / "src" / "libfaketime.so.1"
        if library.exists():
            return library
    return None


JUMPS = ("+3600", "-86400", "+864000", "-1", "+315360000")


def with_clock(library, outer):
    """Return a bench whose commands see the time that a file says, and the file."""
    if library not in outer.known:
        clock = outer.place() / "clock"
        clock.write_text("+0")
        environment = {"LD_PRELOAD": str(library), "FAKETIME_TIMESTAMP_FILE": str(clock)} | {
            "FAKETIME_NO_CACHE": "1",
            "FAKETIME_DONT_FAKE_MONOTONIC": "1",
            "NO_FAKE_STAT": "1",
        }
        commands = outer.stack.enter_context(Commands(environment))
        outer.known[library] = outer.stack.enter_context(bench(commands)), clock
    inner, clock = outer.known[library]
    clock.write_text("+0")
    return inner, clock


def clock_jumps(library, outer, number):
    """Set the clock while a run goes on, and between a run and its resumption."""
    flags = WAYS[list(WAYS)[number % len(WAYS)]]
    inner, clock = with_clock(library, outer)
    # Documents of a check name the earlier run, which each bench has its own of.
    undisturbed = inner.undisturbed(*flags)
    output = inner.place() / "out"
    command = inner.search(output, *flags)
    running = inner.commands.start(command)
    time.sleep(outer.moment(*flags) / 2)
    clock.write_text(JUMPS[number % len(JUMPS)])
    running.stopped_when((output / "_work" / "stages" / "shards.json").exists)
    if running.runs():
        other = inner.commands.run(command)
        named = f"process {running.pid}," in other.said
        yield EQUAL if named and other.code == 3 else f"a second run: {other}"
        clock.write_text(JUMPS[(number + 1) % len(JUMPS)])
        running.send(signal.SIGCONT)
    yield verdict(running.ended(), output, undisturbed, codes=())
    yield no_negative_seconds(output)
    # And between a run that is killed and the one that resumes it.
    output = inner.place() / "out"
    command = inner.search(output, *flags)
    running = inner.commands.start(command)
    time.sleep(outer.moment(*flags))
    running.send(signal.SIGKILL)
    running.ended()
    clock.write_text(JUMPS[(number + 2) % len(JUMPS)])
    yield resumed(inner, command, output, undisturbed)
    yield no_negative_seconds(output)


def no_negative_seconds(output):
    from tests.running import read

    wrong = [
        (name, record[name])
        for record in read(output).document["search"]["iterations"]
        for name in ("wall_seconds", "cpu_seconds")
        if not 0 <= record[name] < 600
    ]
    return f"times that can't be: {wrong}" if wrong else EQUAL


FAULTS = [
    *(
        Fault(f"every bundle twice, {way}", 1, partial(twice, way), {EQUAL}, quick(way))
        for way in WAYS
    ),
    Fault("three runs in one work folder", 10, two_runs, {EQUAL, CLEAR}, (1,)),
    Fault("standard streams closed", 12, streams, {EQUAL}),
    Fault("few open files", 12, few_files, {EQUAL, CLEAR}, (1,)),
    Fault("no TMPDIR, HOME, user name, current folder", 6, poor, {EQUAL}, (2,)),
    Fault("LANG=C and names that are no text", 6, language, {EQUAL, CLEAR}),
]
_library = faketime()
if _library is not None:
    FAULTS.append(
        Fault("the clock set while a run goes on", 6, partial(clock_jumps, _library), {EQUAL})
    )
