"""Links that a stranger put into an output folder: nothing where they lead is written, emptied or removed."""

import json
import os
import shutil
import subprocess
import sys
from types import SimpleNamespace

import pandas as pd
import pytest

from slicebeam.metrics.attribution.estimates import YES
from slicebeam.metrics.errors import InputError, SlicebeamError
from slicebeam.pipelines.attribution.labels import LabelStore
from slicebeam.pipelines.attribution.session import LabelPaths
from slicebeam.pipelines.cli import run
from slicebeam.pipelines.discovery.known import PublishedDiscovery
from slicebeam.pipelines.run.work_folder import RunMarker, WorkFolder
from slicebeam.transforms.storage.publication import files_to_publish, remove_abandoned_lock
from slicebeam.transforms.storage.storage import remove_folder
from tests.discovered import COLUMNS, planted_file

ROLES = ["--data", "DATA", "--label", "y", "--prediction", "p"]
SEARCH = ["search", *ROLES, "--output", "OUT"]
CHECK = ["check", "--changelist", "OUT", "--data", "DATA", "--output", "OUT"]
SHIFT = [
    *("shift", "--data", "DATA", "--label", "y", "--old-prediction", "p"),
    *("--replay-prediction", "p", "--budget", "40", "--output", "OUT"),
]
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
    folder = tmp_path_factory.mktemp("made")
    frame = pd.DataFrame({"x": [one % 7 for one in range(400)], "y": [0, 1] * 200})
    frame["p"] = frame.y.where(frame.x != 3, 1 - frame.y)
    frame.to_parquet(folder / "data.parquet")
    options = ["--data", str(folder / "data.parquet"), "--label", "y", "--prediction", "p"]
    assert run(["search", *options, "--quiet", "--output", str(folder / "out")]) == 0
    return folder


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
    return {
        str(path.relative_to(folder)): path.read_bytes() if path.is_file() else None
        for path in sorted(folder.rglob("*"))
    }


@pytest.mark.parametrize(("command", "link", "target", "goes_on"), [
    pytest.param(*row, id=f"{row[0][0]} {row[0][1] * (row[0] is EDIT)} {row[1]} {row[2]}")
    for row in PLANTED
])  # fmt: skip
def test_nothing_where_a_link_leads_is_touched(
    command, link, target, goes_on, made, gift, victim, capfd
):
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
    assert run(["discover", f"--data={data}", *roles, f"--output={tmp_path / 'out'}"]) == 2
    assert content(victim) == before


def test_labels(gift, victim, tmp_path):
    before = content(victim)
    (gift / "attribution").symlink_to(victim)
    document = str(gift / "changelist.json")
    with pytest.raises(InputError, match="attribution is a link"):
        LabelPaths.of(document, None)
    # A folder that the user names may be one.
    assert LabelPaths.of(document, str(gift / "attribution")).labels_dir == gift / "attribution"
    folder = tmp_path / "labels"
    folder.mkdir()
    store = LabelStore(folder, [], "words")
    store.add({1: YES}, "me")
    store.path.rename(victim / "labels.jsonl")
    before = content(victim)
    store.path.symlink_to(victim / "labels.jsonl")
    store = LabelStore(folder, [], "words")
    with pytest.raises(SlicebeamError, match="symbolic link"):
        store.add({2: YES}, "me")
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
        with pytest.raises(InputError, match="00-encode is a link"):
            use("00-encode")
    (gift / "paid").symlink_to(victim)
    with pytest.raises(InputError, match="paid is a link"):
        work.kept_folder("paid")
    (gift / "folder").symlink_to(victim)
    remove_folder(gift / "folder")
    assert not (gift / "folder").is_symlink()
    (gift / ".changelist.json.lock").symlink_to(victim / "file")
    with pytest.raises(InputError, match="lock is a link"):
        remove_abandoned_lock(gift / "changelist.json")
    with (
        pytest.raises(InputError, match="lock is a link"),
        files_to_publish(gift / "changelist.json", (), None, "me") as files,
    ):
        files.publish(b"{}")
    assert content(victim) == before


def test_what_is_no_file_is_not_waited_for(gift, made):
    for name in (
        *(".slices.parquet.12345678", ".changelist.json.12345678", "changelist.r1.json"),
        *("slices.0123456789ab.parquet", ".changelist.r1.json.12345678"),
    ):
        os.mkfifo(gift / name)
    slice_id = json.loads((gift / "changelist.json").read_text())["slices"][0]["slice_id"]
    edit = ["edit", "rename", f"--changelist={gift}", f"--slice={slice_id}", "--name=b"]
    for command in (["search", *ROLES, f"--output={gift}", "--quiet"], edit):
        given = [str(made / "data.parquet") if one == "DATA" else one for one in command]
        # Opening a pipe that nobody writes to would never end.
        done = subprocess.run(
            [sys.executable, "-m", "slicebeam.pipelines.cli", *given],
            timeout=120,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode in (0, 2), done.stderr


def test_an_output_folder_that_is_a_link_of_the_user_works(made, tmp_path):
    (tmp_path / "big" / "out").mkdir(parents=True)
    (tmp_path / "out").symlink_to(tmp_path / "big" / "out")
    (tmp_path / "scratch").mkdir()
    (tmp_path / "work").symlink_to(tmp_path / "scratch")
    values = {"DATA": str(made / "data.parquet")}
    out = str(tmp_path / "out")
    for command in (SEARCH, CHECK, REPORT, DEFINE, SEARCH, [*SEARCH, "--work-dir", "WORK"]):
        given = [values.get(one, one).replace("OUT", out) for one in command]
        assert run([one.replace("WORK", str(tmp_path / "work")) for one in given]) == 0
    names = {path.name for path in (tmp_path / "big" / "out").iterdir()}
    assert {"changelist.json", "slices.parquet", "report.html"} <= names
    assert (tmp_path / "out").is_symlink()
