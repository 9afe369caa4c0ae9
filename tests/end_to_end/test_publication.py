"""What is published is whole: the document, its schema and its table."""

import hashlib
import json

import jsonschema
import pyarrow.parquet as pq
import pytest

import slicebeam.pipelines.search.search
from slicebeam.pipelines.changelist.document import ChangeList, json_schema
from slicebeam.pipelines.cli import run
from slicebeam.pipelines.search.findings import finding_lists
from slicebeam.pipelines.search.slices_table import SCHEMA
from tests.publications import Written, assert_published, publish_set
from tests.running import names_of, read, search

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
