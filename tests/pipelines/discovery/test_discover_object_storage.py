"""Discovery, revisions and checks whose data and output are in object storage."""

import json

import pytest

from slicebeam.pipelines.api import discover
from slicebeam.pipelines.cli import run
from tests.conftest import google_first
from tests.discovered import COLUMNS, discovery, planted_file
from tests.running import names_of


@google_first
@pytest.mark.slow
def test_as_on_a_disk(bucket, tmp_path):
    local = planted_file(tmp_path / "data.parquet")
    data = bucket.upload(tmp_path / "data.parquet", "data/data.parquet")
    options = {**COLUMNS, "components": (8,), "chunk_rows": 250}
    report = discover(data, output=f"{bucket.uri}/out", **options)
    alone = discovery(tmp_path / "alone", data=(local,), **options)
    found = json.loads(bucket.read("out/changelist.json"))
    assert bucket.keys() == ["data/data.parquet", *(f"out/{name}" for name in names_of(found))]
    for name in ("discovery", "slices", "testing"):
        assert found[name] == alone.document[name]
    assert bucket.read("out/slices.parquet") == alone.slices_bytes
    for name in ("membership.parquet", "mixture.npz"):
        assert bucket.read(f"out/{name}") == (tmp_path / "alone" / name).read_bytes()
    first = report.changelist.slices[0]
    folder = f"{bucket.uri}/out"
    renamed = ["edit", "rename", "--changelist", folder, "--slice", first.slice_id]
    assert run([*renamed, "--name", "the worst", "--quiet"]) == 0
    split = ["edit", "split", "--changelist", folder, "--slice", "the worst"]
    assert run([*split, "--where", "id < 300", "--quiet"]) == 0
    revised = json.loads(bucket.read("out/changelist.r2.json"))
    assert [edit["op"] for edit in revised["edits"]] == ["rename", "split"]
    check = ["check", "--changelist", f"{folder}/changelist.r2.json", "--data", data]
    assert run([*check, "--output", f"{bucket.uri}/checked", "--quiet"]) == 0
    checked = json.loads(bucket.read("checked/changelist.json"))
    sizes = {one["slice_id"]: one["size"]["n"] for one in checked["slices"]}
    assert sizes == {one["slice_id"]: one["size"]["n"] for one in revised["slices"]}
