"""Examples in the page; without a browser."""

import json

import pyarrow.parquet as pq
import pytest

from slicebeam.pipelines.changelist.reading import read_search
from slicebeam.pipelines.cli import run
from slicebeam.pipelines.page.examples import examples_of
from tests.conftest import ADULT
from tests.pipelines.page.results import discovery_result, search_result


def test_examples_are_in_the_slice_and_wrong_ones_come_first(tmp_path):
    uri = str(search_result(tmp_path) / "changelist.json")
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
    result = search_result(tmp_path)
    other = tmp_path / "other.parquet"
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
    result = discovery_result(tmp_path)
    (tmp_path / "reviews.parquet").unlink()
    uri = str(result / "changelist.json")
    found = examples_of(uri, read_search(uri, ""), (), 3)
    document = json.loads((result / "changelist.json").read_text())
    assert found
    for one in document["slices"]:
        ids = {str(example["id"]) for example in one["found"]["examples"]}
        assert {str(example["id"]) for example in found[one["slice_id"]]} <= ids
        assert len(found[one["slice_id"]]) == 3
