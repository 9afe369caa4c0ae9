"""What is published is whole: the document, its schema, its table, and nothing on a full disk."""

import hashlib
import json
import signal
import subprocess

import jsonschema
import psutil
import pyarrow.parquet as pq
import pytest

import slicebeam.pipelines.search.search
from slicebeam.pipelines.changelist.document import ChangeList, json_schema
from slicebeam.pipelines.cli import run
from slicebeam.pipelines.search.findings import finding_lists
from slicebeam.pipelines.search.slices_table import SCHEMA
from tests.publications import Written, assert_published, publish_set
from tests.running import names_of, read, search
from tests.waiting_jobs import command, search_at_work

OPTIONS = {
    "label": "income",
    "prediction": "prediction",
    "features": ("age", "education", "occupation", "sex"),
}


@pytest.fixture(scope="module")
def found(tmp_path_factory, adult_path):
    return search(tmp_path_factory.mktemp("out"), data=adult_path, **OPTIONS)


def test_the_document_follows_its_schema(found):
    jsonschema.Draft202012Validator.check_schema(json_schema())
    jsonschema.validate(found.document, json_schema())
    again = ChangeList.model_validate(found.document)
    assert json.loads(again.to_json()) == found.document
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate({**found.document, "slices": [{}]}, json_schema())


def test_schema_command(capsys):
    assert run(["schema"]) == 0
    assert json.loads(capsys.readouterr().out) == json_schema()


def test_the_document_names_its_table(found):
    digest = hashlib.sha256(found.slices_bytes).hexdigest()
    assert found.document["search"]["slices_fingerprint"] == f"sha256:{digest}"
    table = pq.read_table(found.folder / "slices.parquet")
    assert table.schema == SCHEMA
    file = found.document["files"]["slices"]
    assert file["sha256"] == f"sha256:{digest}"
    assert file["size"] == len(found.slices_bytes)
    assert (found.folder / file["name"]).read_bytes() == found.slices_bytes
    names = ["changelist.json", file["name"], "slices.parquet"]
    assert sorted(path.name for path in found.folder.iterdir()) == names


def test_slice_ids_do_not_depend_on_the_order_of_columns(found, tmp_path, adult_path):
    turned = tmp_path / "turned.parquet"
    table = pq.read_table(adult_path)
    pq.write_table(table.select(table.column_names[::-1]), turned)
    other = search(tmp_path / "out", data=turned, **OPTIONS)
    one, two = (f.table.set_index("slice_id")["n"].sort_index() for f in (found, other))
    assert one.index.is_unique
    assert one.equals(two)


def test_a_run_that_another_one_overtook(tmp_path, adult_path, monkeypatch, capfd):
    """It says so, replaces nothing, and publishes over the other when it is told to go on."""
    output, work = tmp_path / "out", tmp_path / "work"
    publish_set(_made(output), Written("earlier"))
    command = ["search", f"--data={adult_path}", f"--output={output}", "--label=income"]
    command += ["--prediction=prediction", "--features=sex", f"--work-dir={work}", "--quiet"]

    def meanwhile(*arguments):
        publish_set(output, Written("another"))
        return finding_lists(*arguments)

    with monkeypatch.context() as patched:
        patched.setattr(slicebeam.pipelines.search.search, "finding_lists", meanwhile)
        assert run(command) == 2
    first, second = capfd.readouterr().err.splitlines()
    assert first.startswith(
        f"slicebeam: {output}/changelist.json was published by somebody else at"
    )
    assert first.endswith(", during this run; nothing was replaced")
    assert second == f"finished work is in {work}; continue with the same command and --resume"
    assert_published(output, Written("another"))
    assert run([*command, "--resume"]) == 0
    document = read(output).document
    assert sorted(path.name for path in output.iterdir()) == names_of(document)
    assert document["provenance"]["command"] == "search"
    replaced = {one["name"].partition(".")[0] for one in document["replaced_files"]}
    assert replaced == {"slices", "mixture"}


def _made(folder):
    folder.mkdir()
    return folder


@pytest.fixture
def small_disk(tmp_path):
    mount = tmp_path / "disk"
    mount.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=100k", "tmpfs", str(mount)]
    if subprocess.run(command, capture_output=True, check=False).returncode:
        pytest.skip("mounting a small disk is not permitted here")
    yield mount
    subprocess.run(["umount", "-l", str(mount)], check=True)


def test_a_full_disk_publishes_nothing_and_can_be_resumed(small_disk, adult_path, capfd):
    output = small_disk / "out"
    command = ["search", f"--data={adult_path}", f"--output={output}", "--label=income"]
    command += ["--prediction=prediction", "--features=age,education,occupation", "--quiet"]
    sizes, codes = [150, 250, 350, 3000], []
    for size in sizes:
        subprocess.run(["mount", "-o", f"remount,size={size}k", str(small_disk)], check=True)
        resume = ["--resume"]
        codes.append(run(command + resume))
        if codes[-1] == 0:
            break
        message = capfd.readouterr().err
        assert len(message.splitlines()) == 2
        assert "No space left on device" in message
        assert "--resume" in message
        assert not list(output.glob("*.json"))
        assert not list(output.glob("*.parquet"))
    assert codes[0] == 3
    assert codes[-1] == 0
    assert (output / "changelist.json").exists()


@pytest.mark.slow
@pytest.mark.parametrize("engine", ["direct", "direct_multi"])
@pytest.mark.parametrize("stage", ["encode", "iteration-1"])
def test_interrupted(tmp_path, adult_path, engine, stage):
    """Ctrl-C ends with 130 and one line, leaves no process, and the run can be resumed."""
    output = tmp_path / "out"
    process, workers = search_at_work(tmp_path, adult_path, engine, stage)
    # Two workers, and the process that they are forked from.
    assert len(workers) == (3 if engine == "direct_multi" else 0)
    process.send_signal(signal.SIGINT)
    _, message = process.communicate(timeout=60)
    assert process.returncode == 130, message
    assert message.strip() == (
        "slicebeam: interrupted; a search continues with the same options and --resume"
    )
    assert not (output / "changelist.json").exists()
    _, alive = psutil.wait_procs(workers, timeout=10)
    assert not alive
    if engine == "direct":
        subprocess.run([*command(output, adult_path, engine), "--resume"], check=True)
        assert (output / "changelist.json").exists()
