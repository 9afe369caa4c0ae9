"""``slicebeam report`` without a browser: where the page appears, what may stand in it, and examples."""

import json
import re
import subprocess
import sys
import zipfile
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from slicebeam.pipelines.changelist.reading import read_search
from slicebeam.pipelines.cli import run
from slicebeam.pipelines.page.examples import examples_of
from slicebeam.pipelines.page.single_file import embedded_json
from tests.conftest import ADULT, own_stores
from tests.pipelines.page import results

ROOT = Path(__file__).parents[3]


def overview(page):
    found = re.search(r'<script type="application/json" id="overview">(.*?)</script>', page)
    assert found
    return json.loads(found[1])


def test_the_page_of_a_folder_and_of_a_document(tmp_path, capsys):
    result = results.search_result(tmp_path)
    assert run(["report", str(result)]) == 0
    assert capsys.readouterr().out == f"{result}/report.html\n"
    page = (result / "report.html").read_text()
    (result / "report.html").unlink()
    assert run(["report", str(result / "changelist.json"), "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {"report": str(result / "report.html")}
    assert (result / "report.html").read_text() == page
    document = json.loads((result / "changelist.json").read_text())
    assert overview(page)["findings"] == document["findings"]
    assert [one.name for one in result.iterdir() if one.name.startswith(".")] == []


def test_the_last_revision_of_a_folder_is_shown(tmp_path):
    result = results.search_result(tmp_path)
    first = json.loads((result / "changelist.json").read_text())["findings"][0]["slice_id"]
    renaming = ["--slice", first, "--name", "the worst", "--quiet"]
    assert run(["edit", "rename", "--changelist", str(result), *renaming]) == 0
    assert run(["report", str(result), "--quiet"]) == 0
    assert '"name":"the worst"' in (result / "report.html").read_text()


def test_a_run_writes_its_page(tmp_path, capsys):
    names, output = "row_id,fnlwgt,score,score_old,prediction_old", tmp_path / "out"
    command = ["search", "--data", str(ADULT), "--label", "income", "--prediction", "prediction"]
    command += ["--max-cross-size", "1", "--exclude-features", names, "--output", str(output)]
    assert run([*command, "--page", "--dry-run"]) == 2
    assert "--page has no effect with --dry-run, which runs no job" in capsys.readouterr().err
    assert run([*command, "--page"]) == 0
    assert f"page: {output}/report.html\n" in capsys.readouterr().err
    page = (output / "report.html").read_bytes()
    assert run(["report", str(output), "--quiet"]) == 0
    assert (output / "report.html").read_bytes() == page
    # A run that published, and was killed before its page was there, is taken up.
    (output / "report.html").unlink()
    assert run([*command, "--resume", "--quiet", "--page"]) == 0
    assert (output / "report.html").read_bytes() == page


@pytest.mark.slow
def test_a_shift_writes_its_page(tmp_path):
    output = results.shift_result(tmp_path)
    command = ["shift", "--data", str(tmp_path / "pool.parquet"), "--label", "label"]
    command += ["--old-prediction", "old", "--replay-prediction", "new", "--budget", "2000"]
    assert run([*command, "--page", "--quiet", "--output", str(output)]) == 0
    assert b"Shift" in (output / "report.html").read_bytes()
    assert run([*command, "--page", "--plan", "--quiet"]) == 2


def test_what_is_no_document_is_said_and_no_page_is_left(tmp_path, capsys):
    (tmp_path / "changelist.json").write_text("{}")
    assert run(["report", str(tmp_path)]) == 2
    assert "slicebeam report" in capsys.readouterr().err
    assert not (tmp_path / "report.html").exists()


@own_stores
def test_a_document_in_a_bucket(bucket, tmp_path):
    result = results.search_result(tmp_path)
    assert run(["report", str(result), "--quiet"]) == 0
    for name in ("changelist.json", "slices.parquet"):
        bucket.write(f"out/{name}", (result / name).read_bytes())
    assert run(["report", f"{bucket.uri}/out", "--quiet"]) == 0
    assert bucket.read("out/report.html") == (result / "report.html").read_bytes()


def test_no_text_ends_its_element(tmp_path):
    result = results.search_result(tmp_path)
    results.hostile_document(result)
    assert run(["report", str(result), "--quiet"]) == 0
    page = (result / "report.html").read_text()
    assert page.count("</script") == 3
    assert results.HOSTILE not in page
    assert overview(page)["title"] == results.HOSTILE
    assert json.loads(embedded_json([results.HOSTILE])) == [results.HOSTILE]


def test_the_bundle_names_no_host_and_the_lock_file_no_registry():
    folder = ROOT / "pipelines" / "page"
    # The namespaces that SVG and MathML are known by are names, which nothing fetches.
    for name in ("page", "served"):
        script = (folder / "bundle" / f"{name}.js").read_text("utf-8")
        assert set(re.findall(r"https?://[\w.]+", script)) <= {"http://www.w3.org"}
        assert "url(" not in (folder / "bundle" / f"{name}.css").read_text("utf-8")
    assert "resolved" not in (folder / "package-lock.json").read_text("utf-8")


@pytest.mark.slow
def test_the_wheel_has_the_bundle(tmp_path):
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir"]
    subprocess.run([*command, str(tmp_path), "."], cwd=ROOT, check=True)
    (wheel,) = tmp_path.glob("*.whl")
    names = zipfile.ZipFile(wheel).namelist()
    bundle = {f"{name}.{kind}" for name in ("page", "served") for kind in ("js", "css")}
    assert {f"slicebeam/pipelines/page/bundle/{name}" for name in bundle} <= set(names)
    assert not [name for name in names if "node_modules" in name]


def test_examples_are_in_the_slice_and_wrong_ones_come_first(tmp_path):
    uri = str(results.search_result(tmp_path) / "changelist.json")
    document = read_search(uri, "")
    found = examples_of(uri, document, (), 4)
    assert set(found) == {one.slice_id for one in document.findings}
    rows = pq.read_table(ADULT).to_pylist()
    for one in document.slices:
        for example in found.get(one.slice_id, []):
            fields = dict(example["fields"])
            # The models are wrong on far more than four examples of each finding.
            assert example["role"] == "wrong"
            assert fields["income"] != fields["prediction"]
            row = next(row for row in rows if all(str(row[key]) == fields[key] for key in fields))
            for part in one.definition.predicate.all:
                value = row[part.field]
                low_high = part.value if part.op == "between" else (part.value, None)
                inside = value == part.value if part.op == "==" else value >= low_high[0]
                assert inside or part.op not in ("==", "between", ">=")
    assert found == examples_of(uri, document, (), 4)


def test_other_data_is_refused(tmp_path, capsys):
    result, other = results.search_result(tmp_path), tmp_path / "other.parquet"
    pq.write_table(pq.read_table(ADULT).slice(0, 5_000), other)
    assert run(["report", str(result), "--examples", "2", "--data", str(other)]) == 2
    assert "name the data that the document is about with --data" in capsys.readouterr().err
    assert not (result / "report.html").exists()
    assert run(["report", str(result), "--data", str(other)]) == 2
    assert "--data goes with --examples" in capsys.readouterr().err
    assert run(["report", str(result), "--examples", "2", "--data", "gs://bucket/a.parquet"]) == 2
    assert "not on this machine" in capsys.readouterr().err


@pytest.mark.slow
def test_a_discovery_has_its_examples_in_the_document(tmp_path):
    result = results.discovery_result(tmp_path)
    (tmp_path / "reviews.parquet").unlink()
    uri = str(result / "changelist.json")
    found = examples_of(uri, read_search(uri, ""), (), 3)
    document = json.loads((result / "changelist.json").read_text())
    assert found
    for one in document["slices"]:
        ids = {str(example["id"]) for example in one["found"]["examples"]}
        assert {str(example["id"]) for example in found[one["slice_id"]]} <= ids
        assert len(found[one["slice_id"]]) == 3
