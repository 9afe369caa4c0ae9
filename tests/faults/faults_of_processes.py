"""Faults that strike processes: killed, ended, out of memory, at any moment."""

import resource
import signal
import time
from contextlib import suppress
from functools import partial

import psutil

from tests.faults.faults import (
    ABORTED,
    CLEAR,
    EQUAL,
    WAYS,
    Fault,
    half_published,
    quick,
    resumed,
    same,
    verdict,
    whole,
)

# How a run ends that was told to: the signal's number above 128, as shells have it.
ENDING = {signal.SIGINT: 130, signal.SIGTERM: 143, signal.SIGHUP: 129}
# Before that the command has not begun, and a signal just ends it.
_BEGUN = 0.1
MULTI = ("--runner-config=direct_multi",)


def finished(work):
    """Return what a run has finished, and what changes when it is done again."""
    stages = work / "stages"
    # Parts that the driver makes of the counted ones, in a moment, are written each time.
    files = stages.glob("iteration-*/[0-9]*.arrow")
    counted = [path for path in files if not path.parent.name.endswith("-parts")]
    paths = [*stages.glob("*.json"), *counted]
    found = {}
    for path in paths:
        stat = path.stat()
        found[str(path.relative_to(work))] = (stat.st_ino, stat.st_mtime_ns)
    return found


def _is_over(work):
    """Whether a run has published, and removes or has removed its work folder."""
    begun, document = work / "run.json", work.parent / "changelist.json"
    try:
        return document.stat().st_mtime_ns >= begun.stat().st_mtime_ns
    except FileNotFoundError:
        return not begun.exists()


def done_again(before, work):
    """Return whether what was finished before is still that, unless the run is over."""
    now = before if _is_over(work) else finished(work)
    again = sorted(name for name, what in before.items() if now.get(name) != what)
    return f"done again: {again}" if again else EQUAL


def nothing_half(output, bench, *flags):
    if (output / "changelist.json").exists():
        return whole(output, bench.undisturbed(*flags))
    return half_published(output)


def killed(way, bench, number):
    flags = WAYS[way]
    output = bench.place() / "out"
    work = output / "_work"
    command = bench.search(output, *flags)
    before = {}
    for more in ((), ("--resume",))[: 1 + number % 2]:
        running = bench.commands.start([*command, *more])
        time.sleep(bench.moment(*flags))
        running.send(signal.SIGKILL)
        ended = running.ended()
        if ended.code == 0:
            yield same(output, bench.undisturbed(*flags))
            return
        if ended.code != -signal.SIGKILL:
            yield f"exit code {ended.code}; {ended.said!r}"
        yield nothing_half(output, bench, *flags)
        yield done_again(before, work)
        before = finished(work) if work.exists() else {}
    yield resumed(bench, command, output, bench.undisturbed(*flags))


def told_to_end(number_of_signal, bench, number):
    flags = WAYS[list(WAYS)[number % len(WAYS)]]
    output = bench.place() / "out"
    command = bench.search(output, *flags)
    running = bench.commands.start(command)
    time.sleep(_BEGUN + bench.moment(*flags))
    if running.runs():
        running.send(number_of_signal)
    ended = running.ended()
    yield verdict(ended, output, bench.undisturbed(*flags), codes=(ENDING[number_of_signal],))
    if ended.code != 0:
        yield EQUAL if "--resume" in ended.said else f"no way on; {ended.said!r}"
        yield nothing_half(output, bench, *flags)
        yield resumed(bench, command, output, bench.undisturbed(*flags))


def worker_killed(bench, number):
    """Kill one of the worker processes in the middle of a job."""
    flags = WAYS["batch"]
    output = bench.place() / "out"
    command = bench.search(output, *flags, *MULTI)
    running = bench.commands.start(command)
    moments = ("shards", "iteration-1/plan", "iteration-1.json")
    moment = output / "_work" / "stages" / moments[number % len(moments)]
    while running.runs() and not moment.exists():
        time.sleep(0.002)
    time.sleep(float(bench.random.uniform(0, 0.3)))
    family = []
    if running.runs():
        family = psutil.Process(running.pid).children(recursive=True)
        # Any of them: also the one that the others are forked from.
        if family:
            family[int(bench.random.integers(len(family)))].kill()
    ended = running.ended()
    yield verdict(ended, output, bench.undisturbed(*flags), codes=(3,))
    if ended.code != 0:
        yield nothing_half(output, bench, *flags)
        yield EQUAL if "--resume" in ended.said else f"no way on; {ended.said!r}"
        yield resumed(bench, [*command, *MULTI], output, bench.undisturbed(*flags))
    _, alive = psutil.wait_procs(family, timeout=10)
    yield f"left processes: {alive}" if alive else EQUAL


def several_ended(bench, number):
    """End a run with worker processes from outside: they end with it."""
    output = bench.place() / "out"
    flags = WAYS["batch"]
    command = bench.search(output, *flags, *MULTI)
    running = bench.commands.start(command)
    while running.runs() and not (output / "_work" / "stages" / "iteration-1").exists():
        time.sleep(0.002)
    family = psutil.Process(running.pid).children(recursive=True) if running.runs() else []
    which = (signal.SIGKILL, *ENDING)[number % 4]
    running.send(which)
    ended = running.ended()
    if which == signal.SIGKILL:
        yield EQUAL if ended.code in (0, -which) else f"exit code {ended.code}"
    else:
        yield verdict(ended, output, bench.undisturbed(*flags), codes=(ENDING[which],))
    _, alive = psutil.wait_procs(family, timeout=20)
    yield f"left processes: {alive}" if alive else EQUAL
    yield resumed(bench, command, output, bench.undisturbed(*flags))


def out_of_memory(bench, number):
    flags = WAYS[list(WAYS)[number % len(WAYS)]]
    output = bench.place() / "out"
    command = bench.search(output, *flags)
    running = bench.commands.start(command)
    time.sleep(_BEGUN + bench.moment(*flags))
    with suppress(ProcessLookupError):
        has = psutil.Process(running.pid).memory_info().vms if running.runs() else 0
        resource.prlimit(running.pid, resource.RLIMIT_AS, (has + (1 << 20), -1))
    ended = running.ended(30.0)
    # Arrow and gRPC have threads of their own, and end the process where they get no more; glibc
    # does where a thread's own variables get no memory (elf/dl-tls.c), and has no other way.
    is_aborted = (ended.code == -signal.SIGABRT and ended.said.startswith("terminate called")) or (
        ended.code == 127 and ended.said.startswith("cannot allocate memory for thread-local data")
    )
    if is_aborted or ended.code is None:
        # Python waits for ever for a thread of its own that got no memory to begin.
        yield ABORTED
    else:
        yield verdict(ended, output, bench.undisturbed(*flags), codes=(3,))
    if ended.code != 0:
        yield nothing_half(output, bench, *flags)
        yield resumed(bench, command, output, bench.undisturbed(*flags))


FAULTS = [
    *(
        Fault(f"killed, {way}, then resumed", 20, partial(killed, way), {EQUAL}, quick(way))
        for way in WAYS
    ),
    *(
        Fault(
            f"{one.name}, then resumed",
            10,
            partial(told_to_end, one),
            {EQUAL, CLEAR},
            (one % 4,) if one is signal.SIGTERM else (),
        )
        for one in ENDING
    ),
    Fault("a worker process killed, then resumed", 6, worker_killed, {EQUAL, CLEAR}),
    Fault("a run with worker processes killed or ended", 4, several_ended, {EQUAL, CLEAR}),
    Fault("the system refuses memory, then resumed", 8, out_of_memory, {EQUAL, CLEAR, ABORTED}),
]
