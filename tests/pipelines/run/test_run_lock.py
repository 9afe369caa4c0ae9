"""The work folder: its lock, what is found in it, and where processes look for modules."""

import os
import shutil
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest

from slicebeam.metrics.errors import EngineError, InputError
from slicebeam.pipelines.cli import run
from slicebeam.pipelines.config.search import search_config
from slicebeam.pipelines.run import lock_files, work_folder
from slicebeam.pipelines.run.lock_files import LocalLock, LostLockError, Owner, lock_file
from slicebeam.pipelines.run.run_lock import RunLock
from slicebeam.pipelines.run.work_folder import WorkFolder
from slicebeam.runner_configs.guarded_process import python_module
from slicebeam.transforms.storage import storage
from slicebeam.transforms.storage.storage import storage_path
from tests.conftest import google_first, own_stores, slow
from tests.storage_faults import Fault

ROUNDS = 50
# Takes the lock of each folder that it is told, says whether it got it, and keeps it until it is
# told the next one.
CONTENDER = """
import sys
from slicebeam.metrics.errors import EngineError
from slicebeam.pipelines.run.lock_files import lock_file
from slicebeam.pipelines.run.run_lock import RunLock
from slicebeam.transforms.storage.storage import storage_path

print("ready", flush=True)
for line in sys.stdin:
    folder = storage_path(line.strip())
    lock = RunLock(folder, lock_file(folder))
    try:
        lock.acquire()
        print("got it", flush=True)
    except EngineError as error:
        print(error, flush=True)
    sys.stdin.readline()
    lock.release()
    print("released", flush=True)
"""


def contender():
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    process = subprocess.Popen([sys.executable, "-c", CONTENDER], **pipes)
    assert hear(process) == "ready"
    return process


def tell(process, text):
    process.stdin.write(f"{text}\n")
    process.stdin.flush()


def hear(process):
    return process.stdout.readline().strip()


def held(folder, every=15.0, after=180.0):
    return RunLock(folder, lock_file(folder), every, after)


def take(folder, **times):
    lock = held(folder, **times)
    lock.acquire()
    lock.check()
    lock.release()


def elsewhere(owner):
    return replace(owner, host="far", machine="another boot", user="ada", pid=77)


def put(folder, owner):
    (folder / lock_files.LOCK).write_bytes(owner.to_json())


@pytest.mark.parametrize("left", [slow("nothing"), "a dead run's lock"])
def test_one_of_those_that_start_at_the_same_instant_gets_it(tmp_path, left):
    contenders = [contender() for _ in range(3)]
    for number in range(ROUNDS):
        folder = tmp_path / str(number)
        folder.mkdir()
        if left != "nothing":
            put(folder, replace(Owner.this_process(), begun="long ago"))
        for one in contenders:
            tell(one, str(folder))
        told = [hear(one) for one in contenders]
        assert told.count("got it") == 1, told
        winner = contenders[told.index("got it")]
        for line in told:
            assert line == "got it" or f"process {winner.pid}" in line
        for one in contenders:
            tell(one, "release")
        assert [hear(one) for one in contenders] == ["released"] * 3
        assert not list(folder.iterdir())
    for one in contenders:
        one.stdin.close()
        assert one.wait() == 0


def test_a_second_run_into_one_output_is_refused_with_the_documented_code(
    adult_path, tmp_path, capsys
):
    work = tmp_path / "out" / "_work"
    work.mkdir(parents=True)
    lock = held(work)
    lock.acquire()
    command = ["search", f"--data={adult_path}", f"--output={tmp_path / 'out'}", "--label=income"]
    code = run([*command, "--prediction=prediction", "--features=sex"])
    lock.release()
    assert f"is using {work}; wait for it" in capsys.readouterr().err
    page = (Path(__file__).parents[3] / "docs" / "reference" / "exit-codes.md").read_text("utf-8")
    rows = [line.split(" | ") for line in page.splitlines() if "another run is using" in line]
    assert [int(one[0].lstrip("| ")) for one in rows] == [code] == [3]
    # One that has ended is in nobody's way.
    assert run([*command, "--prediction=prediction", "--features=sex"]) == 0
    assert run([*command, "--prediction=prediction", "--features=sex"]) == 0


def test_who_has_it_is_said_and_a_dead_one_gives_way_at_once(tmp_path):
    holder = contender()
    tell(holder, tmp_path)
    assert hear(holder) == "got it"
    owner = Owner.from_json((tmp_path / "lock").read_bytes())
    assert owner.pid == holder.pid
    with pytest.raises(EngineError) as refusal:
        held(tmp_path).acquire()
    assert str(refusal.value) == (
        f"another run ({owner.user} on {owner.host}, process {holder.pid}, since {owner.started}) is "
        f"using {tmp_path}; wait for it, or choose another --work-dir"
    )
    holder.kill()
    holder.wait()
    assert (tmp_path / "lock").exists()
    take(tmp_path)
    assert not list(tmp_path.iterdir())


def test_a_folder_in_use_by_this_process_is_in_use(tmp_path):
    one, other = held(tmp_path), held(tmp_path)
    one.acquire()
    with pytest.raises(EngineError, match=f"process {os.getpid()}"):
        other.acquire()
    one.release()
    other.acquire()
    other.release()


@pytest.mark.parametrize(("happens", "said"), [
    (lambda path: path.unlink(), "was removed while a run used it; run again without --resume"),
    (lambda path: (path.unlink(), put(path.parent, elsewhere(Owner.this_process()))), r"another run \(ada on far, process 77, .* took .* over"),
])  # fmt: skip
def test_a_run_notices_that_it_lost_the_folder(tmp_path, happens, said):
    lock = held(tmp_path, every=0.01)
    lock.acquire()
    lock.check()
    happens(tmp_path / "lock")
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    while lock._lost is None:
        time.sleep(0.001)
    with pytest.raises(LostLockError, match=said):
        lock.check()
    lock.release()
    # What is another's stays.
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before


def test_a_run_that_was_stopped_for_long_asks_before_it_goes_on(tmp_path):
    lock = held(tmp_path, every=1000, after=0.02)
    lock.acquire()
    put_aside = tmp_path / "lock"
    put_aside.unlink()
    time.sleep(0.02)
    with pytest.raises(LostLockError, match="was removed"):
        lock.check()
    lock.release()


@pytest.mark.parametrize("left", ["", "abc", "[]", '{"pid": 1}', '{"pid": "x"}'])
def test_nonsense_is_no_owner(tmp_path, left):
    (tmp_path / "lock").write_text(left)
    take(tmp_path)
    assert not list(tmp_path.iterdir())


def test_a_file_system_without_locks_is_refused(tmp_path, monkeypatch):
    def refuse(*_):
        raise OSError(95, "Operation not supported")

    monkeypatch.setattr(storage.fcntl, "flock", refuse)
    with pytest.raises(EngineError, match=r"has no locks \(flock\); choose another --work-dir"):
        held(tmp_path).acquire()


def test_a_process_number_of_another_container_says_nothing():
    owner = Owner.this_process()
    assert owner.lives()
    assert replace(owner, processes="pid:[1]").lives() is None
    assert elsewhere(owner).lives() is None
    assert replace(owner, begun="long ago").lives() is False
    assert Owner.from_json(owner.to_json()) == owner


def test_a_full_disk_leaves_no_lock(tmp_path, monkeypatch):
    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(lock_files.os, "write", full)
    with pytest.raises(EngineError, match=r"cannot write .*/lock: No space left.*free some space"):
        LocalLock(tmp_path, Owner.this_process()).take()
    assert not list(tmp_path.iterdir())


def stored(bucket, **times):
    return held(storage_path(f"{bucket.uri}/work"), **times)


@google_first
def test_one_of_those_that_start_at_the_same_instant_gets_a_bucket(bucket):
    for number in range(20):
        if number % 2:
            dead = replace(Owner.this_process(), begun="long ago")
            bucket.write("work/lock", dead.to_json())
        locks = [stored(bucket) for _ in range(3)]

        def told(lock):
            try:
                lock.acquire()
            except EngineError as error:
                return str(error)
            return "got it"

        with ThreadPoolExecutor(len(locks)) as pool:
            said = list(pool.map(told, locks))
        assert said.count("got it") == 1
        assert all(f"process {os.getpid()}" in one for one in said if one != "got it")
        for lock in locks:
            lock.release()
        assert bucket.keys() == []


@google_first
def test_a_bucket_of_a_dead_run_is_free_at_once(bucket):
    holder = contender()
    tell(holder, f"{bucket.uri}/work")
    assert hear(holder) == "got it"
    with pytest.raises(EngineError, match=f"process {holder.pid}.*; wait for it, or choose"):
        stored(bucket).acquire()
    holder.kill()
    holder.wait()
    lock = stored(bucket)
    lock.acquire()
    lock.check(at_once=True)
    lock.release()
    assert bucket.keys() == []


@own_stores
def test_a_bucket_of_a_run_elsewhere_is_free_when_it_lapsed(bucket):
    owner = elsewhere(Owner.this_process())
    bucket.write("work/lock", owner.to_json())
    with pytest.raises(EngineError, match=r"ada on far.*its lock lapses 180 s after that: wait"):
        stored(bucket).acquire()
    ended = threading.Event()

    def renew():
        renewals = 0
        while not ended.wait(0.02):
            renewals += 1
            bucket.write("work/lock", owner.to_json(renewals))

    thread = threading.Thread(target=renew)
    thread.start()
    with pytest.raises(EngineError, match="ada on far"):
        stored(bucket, every=0.2, after=0.0).acquire()
    ended.set()
    thread.join()
    take(storage_path(f"{bucket.uri}/work"), every=0.05, after=0.0)


@own_stores
@pytest.mark.parametrize("happens", ["removed", "taken"])
def test_a_run_notices_that_it_lost_a_bucket(bucket, happens):
    lock = stored(bucket, every=0.05)
    lock.acquire()
    first = bucket.read("work/lock")
    while bucket.read("work/lock") == first:
        time.sleep(0.01)
    if happens == "removed":
        bucket.delete("work/lock")
    else:
        bucket.write("work/lock", elsewhere(Owner.this_process()).to_json())
    with pytest.raises(
        LostLockError, match=r"was removed" if happens == "removed" else "ada on far"
    ):
        lock.check(at_once=True)
    left = bucket.keys()
    lock.release()
    assert bucket.keys() == left


@own_stores
def test_a_lost_answer_does_not_lose_a_bucket(bucket, proxy):
    """A write that is repeated meets what it wrote itself."""
    fault = proxy.add(Fault("lose answer", method="PUT|POST", times=1))
    lock = stored(bucket)
    lock.acquire()
    assert fault.struck == 1
    again = proxy.add(Fault("lose answer", method="PUT|POST", times=1))
    lock.check(at_once=True)
    assert again.struck == 1
    lock.release()
    assert bucket.keys() == []


def test_a_folder_that_a_run_removes_as_it_ends_is_made_again(tmp_path):
    folder = tmp_path / "work"
    folder.mkdir()
    lock = held(folder)
    folder.rmdir()
    lock.acquire()
    assert (folder / lock_files.LOCK).is_file()
    lock.release()
    assert not list(folder.iterdir())


@pytest.fixture
def data(tmp_path):
    path = tmp_path / "eval.parquet"
    path.write_bytes(b"twelve bytes")
    return path


@pytest.fixture
def config(tmp_path, data):
    options = {"output": str(tmp_path), "label": "y", "prediction": "p"}
    return search_config({"data": (str(data),), **options})


def begun(folder, config, *, resume=False):
    work = WorkFolder(folder)
    work.begin(config, list(config.data), resume=resume)
    return work


def test_clearing_that_is_cut_short_leaves_no_stage_that_is_done(tmp_path, config, monkeypatch):
    """Nor one that another configuration finds: the folder is the new run's before it is cleared."""
    folder, stages = tmp_path / "_work", ("shards", "hashes", "iteration-1", "what-comes-later")
    with begun(folder, config) as work:
        for stage in stages:
            (work.folder(stage) / "000000.arrow").touch()
            work.finish(stage, {})

    def killed(path):
        raise KeyboardInterrupt

    other = config.model_copy(update={"bins": 5})
    with monkeypatch.context() as patch:
        patch.setattr(work_folder, "remove_folder", killed)
        with pytest.raises(KeyboardInterrupt):
            begun(folder, other)
    with begun(folder, other, resume=True) as work:
        assert [stage for stage in stages if work.done(stage) is not None] == []
        assert [path for path in work.path.rglob("*") if path.suffix == ".arrow"] == []


def test_another_configuration_finds_no_stage_whatever_its_name(tmp_path, config):
    with begun(tmp_path / "_work", config) as work:
        (work.folder("what-comes-later") / "part").touch()
        work.finish("what-comes-later", {})
        (work.kept_folder("answers") / "paid").touch()
    with begun(tmp_path / "_work", config.model_copy(update={"bins": 5})) as work:
        assert work.done("what-comes-later") is None
        assert sorted(path.name for path in work.path.iterdir()) == ["answers", "lock", "run.json"]
        assert (work.path / "answers" / "paid").exists()


def test_what_a_killed_run_was_writing_is_no_foreign_file(tmp_path, config, monkeypatch):
    folder = tmp_path / "_work"
    folder.mkdir()
    left = [folder / name for name in (".run.json.abcd_123", ".lock.0a1b2c3d", "lock")]
    for path in left:
        path.touch()
        os.utime(path, (1, 1))
    # Nobody says whose lock it is, and it is old enough to be watched.
    monkeypatch.setattr(work_folder.RunLock, "_is_dead", lambda *_: True)
    begun(folder, config).remove()
    assert not folder.exists()
    folder.mkdir()
    (folder / ".run.json.backup").touch()
    with pytest.raises(InputError, match="contains files that no run wrote"):
        begun(folder, config)


def test_a_damaged_note_is_no_note(tmp_path, config):
    with begun(tmp_path / "_work", config) as work:
        work.folder("domains")
        work.finish("domains", {"learned": [1]})
        assert work.done("domains") == {"learned": [1]}
        note = work.path / "stages" / "domains.json"
        note.write_bytes(note.read_bytes().replace(b"[1]", b"[2]"))
        assert work.done("domains") is None
        assert work.done("never") is None


@pytest.mark.parametrize(("change", "said"), [
    (lambda path: path.write_bytes(b"thirteen byte"), "had 12 bytes and now has 13: it changed"),
    (lambda path: os.utime(path, (1, 1)), "was rewritten"),
    (lambda path: path.unlink(), "vanished"),
])  # fmt: skip
def test_data_that_changes_is_noticed(tmp_path, data, config, change, said):
    with begun(tmp_path / "_work", config) as work:
        work.check_data()
        change(data)
        with pytest.raises(InputError) as error:
            work.check_data()
    assert str(error.value) == (
        f"{data}: the file {said} while it was read; run again without --resume when nothing writes to it"
    )


def test_a_folder_that_was_removed_takes_no_note(tmp_path, config):
    with begun(tmp_path / "_work", config) as work:
        shutil.rmtree(work.path)
        with pytest.raises(EngineError, match="was removed while a run used it"):
            work.check(at_once=True)
        with pytest.raises(EngineError, match="was removed while a run used it"):
            work.finish("domains", {})
    assert not (tmp_path / "_work").exists()


def test_a_stage_whose_files_are_gone_is_not_finished(tmp_path, config):
    with begun(tmp_path / "_work", config) as work:
        for stage in ("shards", "hashes"):
            for number in range(3):
                (work.folder(stage) / f"{number:06d}.arrow").touch()
            work.finish(stage, {"more": 1})
            assert work.done(stage) == {"more": 1}
            (work.path_of(stage) / "000001.arrow").unlink()
            assert work.done(stage) is None


def test_a_folder_that_is_deleted_stays_so(tmp_path, config):
    """Else the next run would find files that no run put there."""
    folder = tmp_path / "work"
    with begun(folder, config) as work:
        work.folder("one")
        shutil.rmtree(folder)
        with pytest.raises(EngineError, match=r"cannot make .*work/stages/one: No such file"):
            work.folder("one")
        assert not folder.exists()


def test_a_process_looks_into_the_working_folder_only_where_this_one_does(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("json", "runpy", "linecache", "tokenize"):
        (tmp_path / f"{name}.py").write_text(f"open({str(tmp_path / 'came')!r}, 'w').close()\n")

    def done():
        command = [*python_module("json.tool"), "--compact"]
        return subprocess.run(command, input="[ 1 ]", capture_output=True, text=True, check=False)

    elsewhere = [one for one in sys.path if one not in ("", str(tmp_path))]
    monkeypatch.setattr(sys, "path", elsewhere)
    found = done()
    assert (found.returncode, found.stdout) == (0, "[1]\n"), found.stderr
    assert not (tmp_path / "came").exists()
    # In a notebook, modules of the user's own lie there.
    monkeypatch.setattr(sys, "path", ["", *elsewhere])
    done()
    assert (tmp_path / "came").exists()
