"""The work folder: its lock, its files, planted links, and where processes look for modules."""

import json
import os
import shutil
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import Mock

import pytest

from slicebeam.metrics.attribution.estimates import YES
from slicebeam.metrics.errors import EngineError, InputError, SlicebeamError
from slicebeam.pipelines.attribution.labels import Labels
from slicebeam.pipelines.attribution.session import LabelPaths
from slicebeam.pipelines.commands.cli import run
from slicebeam.pipelines.config.search import search_config
from slicebeam.pipelines.discovery.known import PublishedDiscovery
from slicebeam.pipelines.run import lock_files, work_folder
from slicebeam.pipelines.run.lock_files import LostLockError, Owner, lock_of
from slicebeam.pipelines.run.work_folder import RunMarker, WorkFolder
from slicebeam.runner_configs.guarded_process import python_module
from slicebeam.transforms.storage import storage
from slicebeam.transforms.storage.publication import files_to_publish, remove_abandoned_lock
from slicebeam.transforms.storage.storage import remove_folder, storage_path
from tests.conftest import google_first, own_stores, slow
from tests.discovered import COLUMNS, planted_file
from tests.refusals import refusal, refuses
from tests.running import small_search
from tests.storage_faults import Fault

ROUNDS = 50
# Takes the lock of each folder that it is told, says whether it got it, and keeps it until it is
# told the next one.
CONTENDER = """
import sys
from slicebeam.metrics.errors import EngineError
from slicebeam.pipelines.run.lock_files import lock_of
from slicebeam.transforms.storage.storage import storage_path

print("ready", flush=True)
for line in sys.stdin:
    lock = lock_of(storage_path(line.strip()))
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
    return lock_of(folder, every, after)


def take(folder, **times):
    lock = held(folder, **times)
    lock.acquire()
    lock.check()
    lock.release()


def elsewhere(owner):
    return replace(owner, host="far", processes="another boot", user="ada", pid=77)


def put(folder, owner):
    (folder / lock_files.LOCK).write_bytes(owner.to_json())


@pytest.mark.parametrize("left", [slow("nothing"), "a dead run's lock"])
def test_one_of_those_that_start_at_the_same_instant_gets_it(tmp_path, left):
    contenders = [contender() for _ in range(3)]
    for number in range(ROUNDS):
        folder = tmp_path / str(number)
        folder.mkdir()
        if left != "nothing":
            put(folder, replace(Owner(), begun="long ago"))
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


def test_a_second_run_into_one_output_is_refused_with_documented_code(adult_path, tmp_path, capsys):
    work = tmp_path / "out" / "_work"
    work.mkdir(parents=True)
    lock = held(work)
    lock.acquire()
    command = ["search", f"--data={adult_path}", f"--output={tmp_path}/out", "--label=income"]
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
    assert refusal(EngineError, held(tmp_path).acquire) == (
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
    refuses(EngineError, f"process {os.getpid()}", other.acquire)
    one.release()
    other.acquire()
    other.release()


@pytest.mark.parametrize(("happens", "said"), [
    (lambda path: path.unlink(), "was removed while a run used it; run again without --resume"),
    (lambda path: (path.unlink(), put(path.parent, elsewhere(Owner()))), r"another run \(ada on far, process 77, .* took .* over"),
])  # fmt: skip
def test_a_run_notices_that_it_lost_the_folder(tmp_path, happens, said):
    lock = held(tmp_path)
    lock.acquire()
    lock.check()
    happens(tmp_path / "lock")
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    refuses(LostLockError, said, lock.check)
    lock.release()
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before


@pytest.mark.parametrize("left", ["", "abc", "[]", '{"owner": 1}', '{"owner": {"pid": 1}}'])
def test_nonsense_is_no_owner(tmp_path, left):
    (tmp_path / "lock").write_text(left)
    take(tmp_path)
    assert not list(tmp_path.iterdir())


def test_a_file_system_without_locks_is_refused(tmp_path, monkeypatch):
    fault = Mock(side_effect=OSError(95, "Operation not supported"))
    monkeypatch.setattr(storage.fcntl, "flock", fault)
    with pytest.raises(EngineError, match=r"has no locks \(flock\); choose another --work-dir"):
        held(tmp_path).acquire()


def test_a_process_number_of_another_container_says_nothing():
    owner = Owner()
    assert owner.lives()
    assert replace(owner, processes="pid:[1]").lives() is None
    assert elsewhere(owner).lives() is None
    assert replace(owner, begun="long ago").lives() is False
    assert Owner.from_json(owner.to_json()) == owner


def test_a_full_disk_leaves_no_lock(tmp_path, monkeypatch):
    fault = Mock(side_effect=OSError(28, "No space left on device"))
    monkeypatch.setattr(lock_files.os, "write", fault)
    with pytest.raises(EngineError, match=r"cannot write .*/lock: No space left.*free some space"):
        held(tmp_path).acquire()
    assert not list(tmp_path.iterdir())


def stored(bucket, **times):
    return held(storage_path(f"{bucket.uri}/work"), **times)


@google_first
def test_one_of_those_that_start_at_the_same_instant_gets_a_bucket(bucket):
    for number in range(20):
        if number % 2:
            bucket.write("work/lock", replace(Owner(), begun="long ago").to_json())
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
    refuses(EngineError, f"process {holder.pid}.*; wait for it, or choose", stored(bucket).acquire)
    holder.kill()
    holder.wait()
    lock = stored(bucket)
    lock.acquire()
    lock.check(at_once=True)
    lock.release()
    assert bucket.keys() == []


@own_stores
def test_a_bucket_of_a_run_elsewhere_is_free_when_it_lapsed(bucket):
    owner = elsewhere(Owner())
    bucket.write("work/lock", owner.to_json())
    with pytest.raises(EngineError, match=r"ada on far.*its lock lapses 180 s after that: wait"):
        stored(bucket).acquire()
    ended = threading.Event()

    def renew():
        while not ended.wait(0.02):
            bucket.write("work/lock", owner.to_json())

    thread = threading.Thread(target=renew)
    thread.start()
    refuses(EngineError, "ada on far", stored(bucket, every=0.2, after=0.0).acquire)
    ended.set()
    thread.join()
    take(storage_path(f"{bucket.uri}/work"), every=0.05, after=0.0)


@own_stores
def test_a_run_that_was_stopped_for_long_asks_before_it_goes_on(bucket):
    lock = stored(bucket, every=1000, after=0.02)
    lock.acquire()
    bucket.delete("work/lock")
    time.sleep(0.02)
    refuses(LostLockError, "was removed", lock.check)
    lock.release()


@own_stores
@pytest.mark.parametrize(("happens", "said"), [("removed", "was removed"), ("taken", "ada on far")])
def test_a_run_notices_that_it_lost_a_bucket(bucket, happens, said):
    lock = stored(bucket, every=0.05)
    lock.acquire()
    first = bucket.read("work/lock")
    while bucket.read("work/lock") == first:
        time.sleep(0.01)
    if happens == "removed":
        bucket.delete("work/lock")
    else:
        bucket.write("work/lock", elsewhere(Owner()).to_json())
    refuses(LostLockError, said, lock.check, at_once=True)
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

    other = config.model_copy(update={"bins": 5})
    with monkeypatch.context() as patch:
        patch.setattr(work_folder, "remove_folder", Mock(side_effect=KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            begun(folder, other)
    with begun(folder, other, resume=True) as work:
        assert [stage for stage in stages if work.done(stage) is not None] == []
        assert [path for path in work.path.rglob("*") if path.suffix == ".arrow"] == []


@pytest.mark.parametrize("changes", [{"bins": 5}, {}], ids=["other options", "begun anew"])
def test_another_run_finds_no_stage_whatever_its_name(tmp_path, config, changes):
    with begun(tmp_path / "_work", config) as work:
        (work.folder("what-comes-later") / "part").touch()
        work.finish("what-comes-later", {})
        (work.path / "answers").mkdir()
        (work.path / "answers" / "paid").touch()
    with begun(tmp_path / "_work", config.model_copy(update=changes)) as work:
        assert work.done("what-comes-later") is None
        assert sorted(path.name for path in work.path.iterdir()) == ["answers", "lock", "run.json"]
        assert (work.path / "answers" / "paid").exists()


def test_other_options_data_or_models_are_not_resumed(tmp_path, data, config):
    folder, model = tmp_path / "_work", tmp_path / "m.pkl"
    model.write_bytes(b"one")
    config = config.model_copy(update={"model": str(model)})
    other = config.model_copy(update={"bins": 5})
    with begun(folder, config) as work:
        work.folder("domains")
        work.finish("domains", {"learned": 1})
    begun(folder, config, resume=True).release()
    refuses(InputError, "--bins is 5 but was 10", begun, folder, other, resume=True)
    os.utime(data, (1, 1))
    changed = r"the data has changed .*eval\.parquet"
    refuses(InputError, changed, begun, folder, config, resume=True)
    # What was finished is still there.
    assert work.done("domains") == {"learned": 1}
    begun(folder, config).release()
    model.write_bytes(b"another")
    changed = r"changed since the run began .*m\.pkl"
    refuses(InputError, changed, begun, folder, config, resume=True)


@pytest.mark.parametrize("resume", [False, True])
def test_a_folder_in_use_is_neither_cleared_nor_resumed(tmp_path, config, resume):
    with begun(tmp_path / "_work", config) as work:
        work.folder("domains")
        work.finish("domains", {"learned": 1})
        said = f"process {os.getpid()}"
        refuses(EngineError, said, begun, tmp_path / "_work", config, resume=resume)
        assert work.done("domains") == {"learned": 1}


@pytest.mark.parametrize(
    "content", [b"", b"abc", b"[]", b"{}", b'{"layout": 4, "id": "0"}', b"\xff\x00"]
)
def test_a_damaged_mark_is_named(tmp_path, config, content):
    with begun(tmp_path / "_work", config) as work:
        (work.path / "run.json").write_bytes(content)
    said = r"_work/run\.json is damaged.* leave --resume out"
    refuses(InputError, said, begun, tmp_path / "_work", config, resume=True)
    begun(tmp_path / "_work", config).release()


def test_what_a_killed_run_was_writing_is_no_foreign_file(tmp_path, config):
    folder = tmp_path / "_work"
    folder.mkdir()
    for path in [folder / name for name in (".run.json.abcd_123", ".lock.0a1b2c3d", "lock")]:
        path.touch()
        os.utime(path, (1, 1))
    begun(folder, config).remove()
    assert not folder.exists()
    folder.mkdir()
    (folder / ".run.json.backup").touch()
    refuses(InputError, "contains files that no run wrote", begun, folder, config)
    assert (folder / ".run.json.backup").exists()


def test_a_damaged_note_is_no_note(tmp_path, config):
    with begun(tmp_path / "_work", config) as work:
        work.folder("domains")
        work.finish("domains", {"learned": [1]})
        assert work.done("domains") == {"learned": [1]}
        note = work.path / "stages" / "domains.json"
        note.write_bytes(note.read_bytes().replace(b"[1]", b"[2]"))
        assert (work.done("domains"), work.done("never")) == (None, None)


@pytest.mark.parametrize(("change", "said"), [
    (lambda path: path.write_bytes(b"thirteen byte"), "had 12 bytes and now has 13: it changed"),
    (lambda path: os.utime(path, (1, 1)), "was rewritten"),
    (lambda path: path.unlink(), "vanished"),
])  # fmt: skip
def test_data_that_changes_is_noticed(tmp_path, data, config, change, said):
    with begun(tmp_path / "_work", config) as work:
        work.check_data()
        change(data)
        error = refusal(InputError, work.check_data)
    expected = f"{data}: the file {said} while it was read; run again without --resume when nothing writes to it"
    assert error == expected


def test_a_folder_that_was_removed_takes_no_note_and_stays_so(tmp_path, config):
    """Else the next run would find files that no run put there."""
    with begun(tmp_path / "_work", config) as work:
        work.folder("one")
        shutil.rmtree(work.path)
        refuses(EngineError, "was removed while a run used it", work.check, at_once=True)
        refuses(EngineError, "was removed while a run used it", work.finish, "domains", {})
        refuses(EngineError, "cannot make .*_work/stages/one: No such file", work.folder, "one")
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


ROLES = ["--data", "DATA", "--label", "y", "--prediction", "p"]
SEARCH = ["search", *ROLES, "--output", "OUT"]
CHECK = ["check", "--changelist", "OUT", "--data", "DATA", "--output", "OUT"]
SHIFT = ["shift", "--data", "DATA", "--label", "y", "--old-prediction", "p"]
SHIFT += ["--replay-prediction", "p", "--budget", "40", "--output", "OUT"]
EDIT = ["edit", "rename", "--changelist", "OUT", "--slice", "SLICE", "--name", "b"]
DEFINE = ["define", "--changelist", "OUT", "--name", "a", "--where", "x = 1"]
REPORT = ["report", "OUT"]
RUN = ["run", "OUT/changelist.json", "--output", "OUT"]
# A command, the link in its output folder, where it leads, and whether the command goes on.
PLANTED = [
    (SEARCH, "_work", ".", False),
    (CHECK, "_work", ".", False),
    (SHIFT, "_work", ".", False),
    (RUN, "_work", "new", False),
    (SEARCH, "_work/stages", "stages", False),
    (SEARCH, "_work/lock", "file", False),
    (SEARCH, "_work/workers.log", "file", True),
    (SEARCH, ".changelist.json.lock", "file", False),
    (CHECK, ".changelist.json.lock", "new", False),
    # What is replaced is the link.
    (SEARCH, "slices.parquet", "file", True),
    (SHIFT, "changelist.json", "changelist.json", True),
    (REPORT, "report.html", "file", True),
    (REPORT, "report.html", "new", True),
    # Names that are taken, by whatever it is.
    (EDIT, "changelist.r1.json", "new", True),
    (DEFINE, "changelist.r1.json", "new", True),
    (EDIT, ".changelist.r1.json.12345678", "file", True),
]


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    return small_search(tmp_path_factory.mktemp("made"))


@pytest.fixture
def gift(made, tmp_path):
    shutil.copytree(made / "out", tmp_path / "gift")
    return tmp_path / "gift"


@pytest.fixture
def victim(made, tmp_path):
    folder = tmp_path / "victim"
    for name in ("own", "stages/00-encode", "slices-backup"):
        (folder / name).mkdir(parents=True)
    for name in ("file", "own/work.txt", "stages/a.json", "stages/00-encode/b", "run.json"):
        (folder / name).write_text(f"precious {name}")
    shutil.copy(made / "out" / "changelist.json", folder)
    return folder


def content(folder):
    paths = {str(path.relative_to(folder)): path for path in sorted(folder.rglob("*"))}
    return {name: path.read_bytes() if path.is_file() else None for name, path in paths.items()}


@pytest.mark.parametrize(("command", "link", "target", "goes_on"), [
    pytest.param(*row, id=f"{row[0][0]} {row[0][1] * (row[0] is EDIT)} {row[1]} {row[2]}")
    for row in PLANTED
])  # fmt: skip
def test_no_target_of_a_link_is_touched(command, link, target, goes_on, made, gift, victim, capfd):
    path = gift / link
    if path.parent != gift:
        path.parent.mkdir()
        RunMarker({}, run_id="x").write(path.parent / "run.json")
    slice_id = json.loads((gift / "changelist.json").read_text())["slices"][0]["slice_id"]
    path.unlink(missing_ok=True)
    path.symlink_to(victim / target)
    before = content(victim)
    values = {"DATA": str(made / "data.parquet"), "SLICE": slice_id}
    given = [values.get(one, one).replace("OUT", str(gift)) for one in command]
    code = run([*given, *([] if command[0] in ("edit", "define") else ["--quiet"])])
    said = capfd.readouterr().err
    assert content(victim) == before
    assert code == 0 if goes_on else code != 0, said
    if not goes_on:
        assert str(path) in said
        assert "is a link" in said or "symbolic link" in said


def test_a_discovery_and_its_embeddings(tmp_path, victim):
    data = planted_file(tmp_path / "data.parquet")
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "embeddings").symlink_to(victim)
    before = content(victim)
    roles = [f"--{name.replace('_', '-')}={value}" for name, value in COLUMNS.items()]
    assert run(["discover", f"--data={data}", *roles, f"--output={tmp_path}/out"]) == 2
    assert content(victim) == before


def test_labels(gift, victim, tmp_path):
    before = content(victim)
    (gift / "attribution").symlink_to(victim)
    document = str(gift / "changelist.json")
    refuses(InputError, "attribution is a link", LabelPaths.of, document, None)
    # A folder that the user names may be one.
    assert LabelPaths.of(document, str(gift / "attribution")).labels_dir == gift / "attribution"
    folder = tmp_path / "labels"
    folder.mkdir()
    store = Labels(folder / "labels.jsonl", "words")
    store.add({1: YES}, "me")
    store.path.rename(victim / "labels.jsonl")
    before = content(victim)
    store.path.symlink_to(victim / "labels.jsonl")
    store = Labels(folder / "labels.jsonl", "words")
    refuses(SlicebeamError, "symbolic link", store.add, {2: YES}, "me")
    assert content(victim) == before


def test_the_cache_of_a_document_that_is_read(gift, victim):
    discovery = SimpleNamespace(encoder="lsa", embedding_field=None, text_field="text")
    document = SimpleNamespace(discovery=discovery)
    known = PublishedDiscovery(str(gift / "changelist.json"), document)
    assert known.fields.encoder == "lsa"
    (gift / "embeddings").symlink_to(victim)
    with pytest.raises(InputError, match="embeddings is a link"):
        _ = known.fields


def test_stages_and_locks(gift, victim):
    before = content(victim)
    (gift / "stages").mkdir()
    (gift / "stages" / "00-encode").symlink_to(victim / "own")
    work = WorkFolder(gift)
    for use in (work.path_of, work.folder, work.empty):
        refuses(InputError, "00-encode is a link", use, "00-encode")
    (gift / "folder").symlink_to(victim)
    remove_folder(gift / "folder")
    assert not (gift / "folder").is_symlink()
    (gift / ".changelist.json.lock").symlink_to(victim / "file")
    refuses(InputError, "lock is a link", remove_abandoned_lock, gift / "changelist.json")
    files = files_to_publish(gift / "changelist.json", (), None, "me")
    with pytest.raises(InputError, match="lock is a link"), files as files:
        files.publish(b"{}")
    assert content(victim) == before


def test_what_is_no_file_is_not_waited_for(gift, made, commands):
    for name in (
        *(".slices.parquet.12345678", ".changelist.json.12345678", "changelist.r1.json"),
        *("slices.0123456789ab.parquet", ".changelist.r1.json.12345678"),
    ):
        os.mkfifo(gift / name)
    slice_id = json.loads((gift / "changelist.json").read_text())["slices"][0]["slice_id"]
    edit = ["edit", "rename", f"--changelist={gift}", f"--slice={slice_id}", "--name=b"]
    search = ["search", f"--data={made}/data.parquet", *ROLES[2:], f"--output={gift}", "--quiet"]
    # Opening a pipe that nobody writes to would never end.
    for command in (search, edit):
        ended = commands.start(command).ended(120)
        assert ended.code in (0, 2), ended.said


def test_an_output_folder_that_is_a_link_of_the_user_works(made, tmp_path):
    (tmp_path / "big" / "out").mkdir(parents=True)
    (tmp_path / "out").symlink_to(tmp_path / "big" / "out")
    (tmp_path / "scratch").mkdir()
    (tmp_path / "work").symlink_to(tmp_path / "scratch")
    values, out = {"DATA": str(made / "data.parquet")}, str(tmp_path / "out")
    for command in (SEARCH, CHECK, DEFINE, SEARCH, [*SEARCH, "--work-dir", "WORK"], REPORT):
        given = [values.get(one, one).replace("OUT", out) for one in command]
        assert run([one.replace("WORK", str(tmp_path / "work")) for one in given]) == 0
    names = {path.name for path in (tmp_path / "big" / "out").iterdir()}
    assert {"changelist.json", "slices.parquet", "report.html"} <= names
    assert (tmp_path / "out").is_symlink()
