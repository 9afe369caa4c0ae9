"""Faults that strike files: damaged, changed, gone, forbidden, or no room for them."""

import os
import shutil
import signal
import subprocess
import time
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq

from tests.faults.faults import (
    ADULT,
    CLEAR,
    EQUAL,
    NOBODY,
    WAYS,
    Fault,
    half_published,
    published,
    resumed,
    same,
    verdict,
)

OLD = b'{"old": "document"}'


def flip(path, random):
    content = bytearray(path.read_bytes())
    content[int(random.integers(len(content)))] ^= 1 << int(random.integers(8))
    path.write_bytes(content)


def cut(path, random):
    content = path.read_bytes()
    path.unlink()
    path.write_bytes(content[: int(random.integers(1, len(content)))])


def empty(path, random):
    path.unlink()
    path.touch()


def vanish(path, random):
    path.unlink()


def forbid(path, random):
    path.chmod(0)


DAMAGES = (flip, cut, empty, vanish, forbid)
# Files of the work folder, when they are struck, and in which search.
PLACES = (
    ("batch", "stages/domains.json", "stages/shards"),
    ("batch", "stages/domains/*.json", "stages/domains.json"),
    ("batch", "stages/shards/*.arrow", "stages/shards.json"),
    ("iterative", "stages/shards/*.arrow", "stages/iteration-2/plan"),
    ("iterative", "stages/iteration-1/0*.arrow", "stages/iteration-2/plan"),
    ("batch", "stages/iteration-1/plan", "stages/iteration-1/plan"),
    ("bootstrap-rows", "stages/iteration-1/0*.arrow", "stages/iteration-1-resampled/plan"),
    ("bootstrap-rows", "stages/shards.json", "stages/iteration-1/plan"),
    ("csv", "stages/parquet/*.parquet", "stages/parquet.json"),
    ("csv", "stages/parquet/*.json", "stages/parquet.json"),
    ("batch", "stages/hashes/0*.arrow", "stages/hashes.json"),
    ("batch", "run.json", "stages/shards.json"),
)


def user():
    return NOBODY if os.geteuid() == 0 else 0


def data_of(bench, way):
    """Return the data that a way reads; the same examples."""
    if way != "csv":
        return ADULT
    path = bench.folder / "adult.csv"
    if not path.exists():
        pa.csv.write_csv(pq.read_table(ADULT), path)
    return path


def struck(bench, command, moment, strike):
    running = bench.commands.start(command, user=user())
    stopped = running.stopped_when(moment.exists)
    if stopped:
        strike()
        running.send(signal.SIGCONT)
    return running.ended(), stopped


def damaged(is_resumed, bench, number):
    damage = DAMAGES[number % len(DAMAGES)]
    way, pattern, moment = PLACES[number // len(DAMAGES) % len(PLACES)]
    flags, data = WAYS.get(way, ()), data_of(bench, way)
    output = bench.place() / "out"
    work = output / "_work"
    command = bench.search(output, *flags, data=data)
    undisturbed = bench.undisturbed(*flags, data=data)
    hit = []

    def strike():
        found = sorted(work.glob(pattern))
        if found:
            hit.append(found[int(bench.random.integers(len(found)))])
            damage(hit[0], bench.random)

    if is_resumed:
        running = bench.commands.start(command, user=user())
        while running.runs() and not (work / moment).exists():
            time.sleep(0.001)
        time.sleep(float(bench.random.uniform(0, 0.05)))
        running.send(signal.SIGKILL)
        running.ended()
        strike()
        ended = bench.commands.run([*command, "--resume"], user=user())
    else:
        ended, _ = struck(bench, command, work / moment, strike)
    found = verdict(ended, output, undisturbed)
    if found == CLEAR and hit and hit[0].name not in ended.said:
        found = f"{hit[0].name} is not named: {ended.said!r}"
    yield found if found in (EQUAL, CLEAR) else f"{damage.__name__} {pattern}: {found}"
    if ended.code != 0:
        yield half_published(output)
        # What it says: delete the file, or run again without --resume; or empty the folder.
        if "or empty this one" in ended.said:
            shutil.rmtree(work)
        again = bench.commands.run(command, user=user())
        failed = f"again: exit code {again.code}; {again.said!r}"
        yield failed if again.code else same(output, undisturbed)


def other_content(path, random):
    table = pq.read_table(path)
    turned = table.column("age").combine_chunks().take(np.arange(table.num_rows)[::-1])
    pq.write_table(table.set_column(table.column_names.index("age"), "age", turned), path)


def fewer(path, random):
    beside = path.with_name("beside")
    pq.write_table(pq.read_table(path).slice(0, 9000), beside)
    beside.replace(path)


def same_size(path, random):
    content = bytearray(path.read_bytes())
    middle = len(content) // 2
    content[middle : middle + 64] = content[middle : middle + 64][::-1]
    path.write_bytes(content)


CHANGES = (other_content, fewer, same_size, vanish, cut, forbid)
MOMENTS = ("run.json", "stages/domains", "stages/domains.json")
MOMENTS += ("stages/shards", "stages/shards/000000-000002.arrow")


def input_changed(bench, number):
    change = CHANGES[number % len(CHANGES)]
    moment = MOMENTS[number // len(CHANGES) % len(MOMENTS)]
    place = bench.place()
    data, output = place / "eval.parquet", place / "out"
    shutil.copy(ADULT, data)
    command = bench.search(output, data=data)
    moment_of_run = output / "_work" / moment
    ended, stopped = struck(bench, command, moment_of_run, lambda: change(data, bench.random))
    found = verdict(ended, output, bench.undisturbed(), codes=(2, 3))
    if found == CLEAR and not ("eval.parquet" in ended.said and len(ended.said) > 60):
        found = f"the file is not named: {ended.said!r}"
    if found == EQUAL and stopped and moment != MOMENTS[-1] and change is not forbid:
        found = "the change was not noticed"
    yield found if found in (EQUAL, CLEAR) else f"{change.__name__} at {moment}: {found}"
    if ended.code != 0:
        yield EQUAL if not published(output) else f"half published: {sorted(published(output))}"
        data.unlink(missing_ok=True)
        shutil.copy(ADULT, data)
        again = bench.commands.run(command, user=user())
        yield same(output, bench.undisturbed()) if again.code == 0 else f"again: {again.said!r}"


def input_damaged(bench, number):
    """Search in data that is damaged from the start."""
    damage = (cut, empty, vanish, forbid)[number % 4]
    place = bench.place()
    data, output = place / "eval.parquet", place / "out"
    shutil.copy(ADULT, data)
    damage(data, bench.random)
    ended = bench.commands.run(bench.search(output, data=data), user=user())
    found = verdict(ended, output, bench.undisturbed())
    yield found if "eval.parquet" in ended.said else f"the file is not named: {ended.said!r}"


@contextmanager
def small_disk(bench, kilobytes):
    place, options = bench.place(), f"size={kilobytes}k,mode=777"
    subprocess.run(["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(place)], check=True)
    try:
        yield place
    finally:
        subprocess.run(["umount", "-l", str(place)], check=True)


def grow(disk, kilobytes):
    subprocess.run(["mount", "-o", f"remount,size={kilobytes}k", str(disk)], check=True)


def may_mount():
    if os.geteuid() != 0:
        return False
    place = Path("/tmp") / f"slicebeam-mount-{os.getpid()}"
    place.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(place)]
    permitted = subprocess.run(command, capture_output=True, check=False).returncode == 0
    if permitted:
        subprocess.run(["umount", "-l", str(place)], check=True)
    place.rmdir()
    return permitted


def most_used(bench, *flags):
    if flags in bench.known:
        return int(bench.known[flags])
    output = bench.place() / "out"
    running = bench.commands.start(bench.search(output, *flags))
    most = 0
    while running.runs():
        paths = [Path(folder, name) for folder, _, names in os.walk(output) for name in names]
        most = max(most, sum(map(_blocks, paths)) // 2)
        time.sleep(0.005)
    running.ended()
    bench.known[flags] = most
    return most


def _blocks(path):
    try:
        return path.stat().st_blocks
    except FileNotFoundError:
        return 0


def disk_full(bench, number):
    flags = WAYS[list(WAYS)[number % len(WAYS)]]
    size = max(4, int(float(bench.random.uniform(0, 1)) * most_used(bench, *flags)))
    with small_disk(bench, size) as disk:
        output = disk / "out"
        output.mkdir()
        (output / "changelist.json").write_bytes(OLD)
        command = bench.search(output, *flags)
        ended = bench.commands.run(command)
        yield verdict(ended, output, bench.undisturbed(*flags), codes=(3,))
        if ended.code == 0:
            return
        yield EQUAL if "No space left" in ended.said else f"no reason: {ended.said!r}"
        left = published(output)
        yield EQUAL if left == {"changelist.json": OLD} else f"half published: {sorted(left)}"
        grow(disk, 100_000)
        yield resumed(bench, command, output, bench.undisturbed(*flags))


def file_too_large(bench, number):
    """Let the system refuse files above a size, as quotas do."""
    flags = WAYS[list(WAYS)[number % len(WAYS)]]
    output = bench.place() / "out"
    output.mkdir()
    (output / "changelist.json").write_bytes(OLD)
    command = bench.search(output, *flags)
    limit = int(2 ** float(bench.random.uniform(10, 18)))
    ended = bench.commands.run(command, limits={"RLIMIT_FSIZE": limit})
    yield verdict(ended, output, bench.undisturbed(*flags), codes=(3,))
    if ended.code != 0:
        left = published(output)
        yield EQUAL if left == {"changelist.json": OLD} else f"half published: {sorted(left)}"
        yield resumed(bench, command, output, bench.undisturbed(*flags))


def folder_struck(which, bench, number):
    """Delete a folder under a running search, or forbid to write into it."""
    flags = WAYS[("iterative", "batch", "priority", "bootstrap-rows")[number % 4]]
    place = bench.place()
    output, work = place / "out", place / "work"
    for folder in (output, work):
        folder.mkdir()
        folder.chmod(0o777)
    command = [*bench.search(output, *flags), f"--work-dir={work}"]
    running = bench.commands.start(command, user=user())
    time.sleep(bench.moment(*flags))
    is_published = False
    if running.runs():
        running.send(signal.SIGSTOP)
        is_published = (output / "changelist.json").exists()
        strike_folder(which, output, work)
        running.send(signal.SIGCONT)
    ended = running.ended()
    if is_published and which == "output deleted":
        yield EQUAL if ended.code == 0 else f"exit code {ended.code}; {ended.said!r}"
        return
    yield verdict(ended, output, bench.undisturbed(*flags), codes=(3,))
    if ended.code != 0:
        yield EQUAL if not published(output) else f"half published: {sorted(published(output))}"
        named = str(output if which == "output deleted" else work)
        yield EQUAL if named in ended.said else f"the folder is not named: {ended.said!r}"
        for folder in (output, work):
            folder.mkdir(exist_ok=True)
            folder.chmod(0o777)
        for folder in work.glob("**/"):
            folder.chmod(0o777)
        yield resumed(bench, command, output, bench.undisturbed(*flags), user=user())


def strike_folder(which, output, work):
    if which == "work folder deleted":
        shutil.rmtree(work)
    elif which == "output deleted":
        shutil.rmtree(output)
    else:
        for folder in work.glob("**/"):
            folder.chmod(0o555)


_EACH = len(DAMAGES) * len(PLACES)
_EITHER = {EQUAL, CLEAR}
FAULTS = [
    # Of the quick tries: a bit of a shard between iterations, a bit of data that was converted,
    # and as many examples with other values after the domains were learned.
    Fault("a file of the work folder damaged, going on", _EACH, partial(damaged, False), _EITHER, (15,)),
    Fault("a file of the work folder damaged, then resumed", _EACH, partial(damaged, True), _EITHER, (40,)),
    Fault("the data changed while it is read", len(CHANGES) * len(MOMENTS), input_changed, _EITHER, (12,)),
    Fault("the data damaged, missing or forbidden", 8, input_damaged, {CLEAR}, (0, 3)),
    Fault("a file too large for its quota, then resumed", 12, file_too_large, _EITHER, (0,)),
    *(
        Fault(f"{which} under a run", 12, partial(folder_struck, which), _EITHER, tries)
        for which, tries in {
            "work folder deleted": (0,),
            "output deleted": (),
            "work folder made read-only": (),
        }.items()
    ),
]  # fmt: skip
if may_mount():
    FAULTS.append(Fault("the disk full, then resumed", 24, disk_full, _EITHER, (0,)))
