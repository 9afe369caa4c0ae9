"""A work folder that a run was killed in tells of nothing that is not there."""

import os
import shutil

import pytest

from slicebeam.metrics.errors import EngineError, InputError
from slicebeam.pipelines.config.search import search_config
from slicebeam.pipelines.run import work_folder
from slicebeam.pipelines.run.work_folder import WorkFolder


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
