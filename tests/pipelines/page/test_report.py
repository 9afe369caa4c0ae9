"""``slicebeam report`` without a browser: where the page appears, what may stand in it, examples and rows."""

import base64
import json
import re
import subprocess
import sys
import zipfile
import zlib
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from slicebeam.pipelines.changelist.reading import read_search
from slicebeam.pipelines.commands.cli import run
from slicebeam.pipelines.discovery.group_map import centres
from slicebeam.pipelines.page.content import embedded_json
from slicebeam.pipelines.page.examples import examples_of
from slicebeam.pipelines.page.rows import SCHEMA, kept_rows
from slicebeam.pipelines.page.tables import Payload, packed_tables
from tests.conftest import ADULT, own_stores
from tests.pipelines.page import results
from tests.pipelines.page.results import search_result

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


def test_a_page_goes_with_the_result_that_it_shows(tmp_path, capsys):
    page = tmp_path / "overall" / "report.html"
    for mine in (False, True):
        result = results.search_result(tmp_path)
        # Another file of this name stays.
        page.write_text("<title>mine</title>")
        if not mine:
            assert run(["report", str(result), "--quiet"]) == 0
        capsys.readouterr()
        roles = ["--label=income", "--prediction=prediction", "--features=sex"]
        assert run(["search", str(ADULT), *roles, f"--output={result}"]) == 0
        assert page.exists() == mine
        removed = f"{page} showed the result that is replaced now, and is removed; slicebeam report"
        assert (removed in capsys.readouterr().err) != mine


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
    assert "--page has no effect with --dry-run; leave one out" in capsys.readouterr().err
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
    assert "--data needs --examples" in capsys.readouterr().err
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


WIDTHS = {"u8": 1, "u16": 2, "u32": 4, "i32": 4, "f32": 4, "f64": 8}


def unpacked(text):
    whole = zlib.decompress(base64.b64decode(text), -zlib.MAX_WBITS)
    size = int.from_bytes(whole[:4], "little")
    return json.loads(whole[4 : 4 + size]), whole[4 + size :]


def column(held, place):
    width = WIDTHS[place["type"]]
    planes = np.frombuffer(held, np.uint8, width * place["length"], place["at"])
    kind = f"<{place['type'][0]}{width}"
    return np.ascontiguousarray(planes.reshape(width, -1).T).view(kind).ravel()


def made_table(rows, metrics):
    """Return rows as `slices.parquet` has them, of which few are findings and some are inherited."""
    rng = np.random.default_rng(1)
    predicate = '{"all": [{"field": "a", "op": "==", "value": %d}]}'
    pieces = []
    for name in metrics:
        delta = rng.normal(size=rows)
        label = rng.choice(["new", "refines", "inherited", ""], rows)
        finding = np.zeros(rows, np.int32)
        finding[rng.choice(rows, 3, replace=False)] = (1, 2, 3)
        columns = {
            "slice_id": [f"{one:016x}" for one in range(rows)],
            "slice": [f"a = {one}" for one in range(rows)],
            "predicate": [predicate % one for one in range(rows)],
            "n": rng.integers(1, 10_000, rows),
            "metric": [name] * rows,
            "delta": delta,
            "ci_low": delta - 0.1,
            "ci_high": delta + 0.1,
            "significant": label != "",
            "label": pa.array(label, mask=label == ""),
            "finding": pa.array(finding, mask=finding == 0),
        }
        others = {one.name: pa.nulls(rows, one.type) for one in SCHEMA}
        pieces.append(pa.table(others | columns))
    return pa.concat_tables(pieces)


def test_the_surest_rows_are_kept_and_findings_in_any_case(tmp_path):
    table = made_table(5_000, ("accuracy",))
    kept = kept_rows(table, ["accuracy"], 700)
    found = kept.tables["accuracy"]
    assert (found.num_rows, kept.totals["accuracy"].slices) == (700, 5_000)
    assert kept.totals["accuracy"].significant == pc.sum(table["significant"]).as_py()

    # Sorted by Python, row by row.
    def tier(row):
        bound = row["ci_low"] if row["delta"] > 0 else -row["ci_high"]
        if row["finding"]:
            return 0, -bound
        if not row["significant"]:
            return 3, -bound
        return (2 if row["label"] == "inherited" else 1), -bound

    best = sorted(table.to_pylist(), key=tier)[:700]
    assert set(found["slice_id"].to_pylist()) == {row["slice_id"] for row in best}
    # The same whether it is in memory or in row groups of a file.
    path = tmp_path / "sl[i]ces*?.parquet"
    pq.write_table(table, path, row_group_size=333)
    again = kept_rows(path, ["accuracy"], 700)
    assert again.tables["accuracy"].equals(found)
    assert again.totals == kept.totals


def test_metrics_share_the_rows(tmp_path):
    names = ("accuracy", "log_loss")
    table, path = made_table(3_000, names), tmp_path / "slices.parquet"
    pq.write_table(table, path, row_group_size=700)
    kept = kept_rows(path, names, 800)
    ids = [kept.tables[name]["slice_id"].to_pylist() for name in names]
    assert (ids[0], len(ids[0])) == (ids[1], 400)
    for name in names:
        own = table.filter(pc.equal(table["metric"], name))
        assert set(own.filter(own["finding"].is_valid())["slice_id"].to_pylist()) <= set(ids[0])


def test_the_density_counts_every_slice():
    table = made_table(4_000, ("accuracy",))
    density = kept_rows(table, ["accuracy"], 10).totals["accuracy"].density
    assert sum(cell[2] for cell in density["cells"]) == 4_000
    significant = pc.sum(table["significant"]).as_py()
    assert sum(cell[3] for cell in density["cells"]) == significant
    assert density["low"] == pc.min(table["delta"]).as_py()
    assert density["most"] == pc.max(table["n"]).as_py()


def test_columns_come_back_as_they_were():
    rng = np.random.default_rng(2)
    columns = [
        rng.integers(0, 255, 100).astype(np.uint8),
        rng.integers(-5, 90_000, 100).astype(np.int32),
        rng.normal(size=100).astype(np.float32),
        rng.normal(size=100),
        np.zeros(0, np.uint32),
    ]
    payload = Payload()
    places = [payload.column(one) for one in columns]
    content, held = unpacked(payload.packed({"places": places}))
    for one, place in zip(columns, content["places"], strict=True):
        assert np.array_equal(column(held, place), one)


def test_the_payload_has_the_numbers_of_the_run(tmp_path):
    result = search_result(tmp_path)
    uri, table = str(result / "changelist.json"), pq.read_table(result / "slices.parquet")
    packed = packed_tables(read_search(uri, ""), kept_rows(table, ["accuracy"]), {})
    content, held = unpacked(packed)
    assert content["rows"] == table.num_rows
    ids = column(held, content["ids"]).tobytes().hex()
    assert [ids[at : at + 16] for at in range(0, len(ids), 16)] == table["slice_id"].to_pylist()
    metric = content["metrics"]["accuracy"]
    for name in ("value", "value_low", "delta", "ci_high"):
        expected = table[name].to_numpy()
        assert np.allclose(column(held, metric[name]), expected, rtol=1e-6, equal_nan=True)
    q = column(held, metric["q_value"])
    assert np.allclose(q, np.log10(table["q_value"].to_numpy()), rtol=1e-6, atol=1e-7)
    starts = np.cumsum([0, *column(held, content["lengths"])])
    codes = column(held, content["codes"])
    texts = [
        " & ".join(content["conditions"][code]["text"] for code in codes[begin:end])
        for begin, end in pairwise(starts.tolist())
    ]
    assert texts == table["slice"].to_pylist()


def test_slices_of_the_document_that_the_table_has_not_are_there(tmp_path):
    document = read_search(str(search_result(tmp_path) / "changelist.json"), "")
    content, held = unpacked(packed_tables(document, None, {}))
    assert not content["from_table"]
    assert content["rows"] == len(document.slices)
    value = column(held, content["metrics"]["accuracy"]["value"])
    assert np.allclose(value, [one.changes[0].after.value for one in document.slices])


def mixture(components, dimensions):
    rng = np.random.default_rng(4)
    return SimpleNamespace(
        weights=rng.random(components),
        means=rng.normal(size=(components, dimensions)) * np.arange(1, dimensions + 1),
        variances=rng.random((components, dimensions)),
    )


def test_centres_lie_along_the_axes_that_hold_most():
    given = mixture(12, 5)
    places, shown = centres(given)
    # Examples drawn from the mixture have the variance that the share is of.
    rng, weights = np.random.default_rng(5), given.weights / given.weights.sum()
    drawn = rng.choice(12, 400_000, p=weights)
    examples = rng.normal(given.means[drawn], np.sqrt(given.variances[drawn]))
    values = np.linalg.eigvalsh(np.cov(given.means.T, aweights=weights, bias=True))[::-1]
    assert np.isclose(shown, values[:2].sum() / examples.var(axis=0).sum(), rtol=0.01)
    own = np.cov(places.T, aweights=weights, bias=True)
    assert np.allclose(own, np.diag(values[:2]), atol=1e-9)


def test_a_map_of_one_dimension_is_a_line():
    places, shown = centres(mixture(4, 1))
    assert places.shape == (4, 2)
    assert not places[:, 1].any()
    assert 0 < shown < 1
