"""Examples, edits, own data and the playground of a served output, asked as the page asks."""

import pickle
import shutil
import sys
import time
from contextlib import suppress
from pathlib import Path

import pandas as pd
import pyarrow.parquet as pq
import pytest
from sklearn.tree import DecisionTreeClassifier

from slicebeam.pipelines.cli import run
from slicebeam.pipelines.serve import protection
from slicebeam.pipelines.serve.served import state_folder
from tests.conftest import ADULT
from tests.oracles.predicates import mask
from tests.pipelines.page.results import discovery_result, search_result
from tests.pipelines.serve.asking import asks, document, served_page


@pytest.fixture(scope="module")
def searched(tmp_path_factory):
    return search_result(tmp_path_factory.mktemp("searched"), baseline=True)


@pytest.fixture
def result(searched, tmp_path):
    return Path(shutil.copytree(searched, tmp_path / "out"))


def test_examples_are_those_of_the_slice_with_old_beside_new(result):
    page = served_page(result)
    ask, rows = asks(page), pq.read_table(ADULT).to_pylist()
    one = max(document(result)["slices"], key=lambda each: each["size"]["n"])
    seen, first = [], ask("examples", slice_id=one["slice_id"])
    assert first["is_same"] is True
    assert first["held"] == first["n"] == first["total"] == one["size"]["n"]
    for role, number in first["roles"].items():
        found = ask("examples", slice_id=one["slice_id"], role=role)
        assert found["total"] == number
        for each in found["examples"]:
            row = rows[each["row"]]
            said = {cell["is"]: cell["text"] for cell in each["outcome"]}
            columns = {"label": "income", "old": "prediction_old", "new": "prediction"}
            assert said == {model: str(row[column]) for model, column in columns.items()}
            was, now = (said[model] == said["label"] for model in ("old", "new"))
            expected = [["both wrong", "fixed"], ["broken", "both right"]]
            assert role == each["role"] == expected[was][now]
            for part in one["definition"]["predicate"]["all"]:
                if part["op"] == "==":
                    assert row[part["field"]] == part["value"]
    # The pages hold every example once, the broken ones first.
    for offset in range(0, first["total"], first["per_page"]):
        seen += ask("examples", slice_id=one["slice_id"], offset=offset)["examples"]
        if offset > 200:
            break
    assert len({each["row"] for each in seen}) == len(seen)
    order = list(dict.fromkeys(each["role"] for each in seen))
    assert order == sorted(order, key=["broken", "both wrong", "fixed", "both right"].index)
    cell = {"slice_id": one["slice_id"], "row": seen[0]["row"], "column": "income"}
    assert ask("examples/cell", **cell)["text"] == str(rows[seen[0]["row"]]["income"])
    for wrong in ({"column": "nonsense"}, {"row": 10**6}):
        assert asks(page, 404)("examples/cell", **{**cell, **wrong})


def test_a_slice_of_the_table_is_shown_and_added(result):
    page = served_page(result)
    table = pq.read_table(result / "slices.parquet").to_pylist()
    known = {one["slice_id"] for one in document(result)["slices"]}
    other = next(one for one in table if one["slice_id"] not in known and one["n"] > 100)
    found = asks(page)("examples", slice_id=other["slice_id"])
    assert found["held"] == found["n"] == other["n"]
    for odd in ("0" * 16, "'; DROP TABLE slices; --"):
        assert "neither in the document" in asks(page, 404)("examples", slice_id=odd)["error"]
    added = asks(page)("edits/add", revision=0, slice_id=other["slice_id"])
    assert added["slices"] == [other["slice_id"]]
    new = document(result, added["file"])["slices"][-1]
    assert (new["name"], new["size"]["n"]) == (other["slice"], other["n"])
    again = asks(page, 400)("edits/add", revision=1, slice_id=other["slice_id"])
    assert "has the same definition" in again["error"]


def test_other_data_shows_no_example(result, tmp_path):
    rows, other = pq.read_table(ADULT), tmp_path / "other.parquet"
    ages = rows["age"].take([*range(1, rows.num_rows), 0])
    pq.write_table(rows.set_column(rows.column_names.index("age"), "age", ages), other)
    page, slice_id = served_page(result, other), document(result)["slices"][0]["slice_id"]
    said = asks(page, 409)("examples", slice_id=slice_id)["error"]
    assert "is not what the document is about" in said
    # The fingerprint is kept for these very files only.
    pq.write_table(rows, other)
    assert asks(page)("examples", slice_id=slice_id)["is_same"] is True


@pytest.mark.slow
def test_edits_write_the_revisions_of_the_commands(result):
    page = served_page(result)
    ask, slice_id = asks(page), document(result)["slices"][0]["slice_id"]
    hostile = "<img src=x onerror=alert(1)>"
    done = ask("edits/rename", revision=0, slice_id=slice_id, name=hostile)
    assert done["file"] == "changelist.r1.json"
    refused = asks(page, 409)("edits/note", revision=0, slice_id=slice_id, note="late")
    assert "revision 1 has come" in refused["error"]
    assert ask("examples", slice_id=slice_id)["name"] == hostile
    ask("edits/note", revision=1, slice_id=slice_id, note="look at this")
    ask("edits/describe", revision=2, slice_id=slice_id, text="wives")
    ask("edits/remove", revision=3, slice_id=slice_id)
    listed = page.get("/api/edits").json()["edits"]
    # What was removed still has its name.
    assert listed[0]["slice"] == listed[-1]["what"] == hostile
    assert [one["op"] for one in listed] == ["remove_slice", "describe", "annotate", "rename"]
    for revision in range(4, 8):
        ask("edits/undo", revision=revision)
    assert "nothing to undo" in asks(page, 400)("edits/undo", revision=8)["error"]
    first, last = document(result), document(result, "changelist.r8.json")
    assert (last["slices"], last["coverage"]) == (first["slices"], first["coverage"])
    rename = ["edit", "rename", "--changelist", str(result), "--slice", slice_id]
    assert run([*rename, "--name", "a", "--quiet"]) == 0
    assert (result / "changelist.r9.json").exists()


def wait_for_end(page):
    end = time.monotonic() + 60
    while (status := page.get("/api/own").json())["state"] == "running":
        assert time.monotonic() < end
        time.sleep(0.05)
    return status


def bring(page, name, content):
    kind = {"content-type": "application/octet-stream"}
    return page.post("/api/upload/own", params={"name": name}, content=content, headers=kind)


def test_a_file_is_kept_under_a_name_of_our_own(result, monkeypatch):
    page, state = served_page(result), state_folder(result)
    for name in ("../../evil.csv", "/etc/passwd.csv", "a\x00b.csv", "<img src=x onerror=x>.csv"):
        answer = bring(page, name, b"a,b\n1,2\n")
        assert answer.status_code == 200, answer.text
        assert [one.name for one in (state / "own").iterdir()] == ["data.csv"]
        assert "\x00" not in answer.json()["file"]
    assert bring(page, "x.exe", b"MZ").status_code == 415
    assert bring(page, "x.csv", b"").status_code == 400
    monkeypatch.setattr(protection, "MOST_UPLOADED", 1000)
    assert bring(page, "x.csv", b"x" * 2000).status_code == 413
    assert list((state / "own").iterdir()) == []
    assert page.get("/api/own").json()["brought"] is None
    assert asks(page, 400)("own/start")["error"] == "choose a file first"
    # Only files of the command line can be named.
    assert asks(page, 404)("own/start", file=0)
    assert asks(page, 422)("own/start", file="/etc/passwd")


@pytest.mark.slow
def test_own_data_is_checked_beside_the_document(result, tmp_path):
    half = tmp_path / "half.parquet"
    pq.write_table(pq.read_table(ADULT).slice(0, 9_000), half)
    page = served_page(result, half)
    assert page.get("/api/own").json() == {"state": "none", "files": [str(half)], "brought": None}
    assert bring(page, "mine.parquet", half.read_bytes()).status_code == 200
    brought = asks(page)("own/start")
    assert (brought["state"], brought["file"]) == ("running", "mine.parquet")
    assert "a check runs" in asks(page, 409)("own/start", file=0)["error"]
    assert "a check runs" in bring(page, "b.csv", b"1").json()["error"]
    found = wait_for_end(page)
    assert (found["state"], found["n"]) == ("done", 9_000), found
    asks(page)("own/start", file=0)
    assert wait_for_end(page)["slices"] == found["slices"]
    output, uri = tmp_path / "checked", str(result / "changelist.json")
    command = ["check", "--changelist", uri, "--since", uri, "--data", str(half), "--quiet"]
    assert run([*command, "--output", str(output)]) == 0
    for one, other in zip(found["slices"], document(output)["since"]["slices"], strict=True):
        assert (one["slice_id"], one["now"]["n"]) == (other["slice_id"], other["now"]["n"])
        assert one["now"]["delta"] == other["now"]["delta"]
        assert one.get("value_change") == other.get("value_change")
    assert bring(page, "b.csv", b"a,b\n1,2\n").status_code == 200
    asks(page)("own/start")
    failed = wait_for_end(page)
    assert failed["state"] == "failed"
    assert "income" in failed["error"]


def processes_of(result):
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with suppress(OSError):
            found.append(path.read_bytes().replace(b"\0", b" ").decode("utf-8", "replace"))
    return [one for one in found if str(result) in one and " check " in one]


@pytest.mark.slow
def test_a_check_is_cancelled_and_leaves_no_process(result, tmp_path):
    page = served_page(result, ADULT)
    asks(page)("own/start", file=0)
    assert processes_of(result)
    assert asks(page)("own/cancel")["state"] == "cancelled"
    assert processes_of(result) == []
    asks(page)("own/start", file=0)
    assert wait_for_end(page)["state"] == "done"


@pytest.mark.slow
def test_examples_of_a_discovery_are_those_that_were_tested(tmp_path):
    discovery_result(tmp_path)
    data, output = f"--data={tmp_path}/reviews.parquet", tmp_path / "shaped"
    command = ["discover", data, "--text=text", f"--output={output}", "--quiet"]
    command += ["--label=label", "--example-id=id", "--prediction=new", "--baseline-prediction=old"]
    assert run([*command, "--components=3", "--loss-weight=1", "--discovery-share=0.4"]) == 0
    ask = asks(served_page(output))
    assert document(output)["discovery"]["discovery_share"] == 0.4
    for one in document(output)["slices"]:
        found = ask("examples", slice_id=one["slice_id"])
        assert found["held"] == found["n"] == one["size"]["n"] > 0
        assert found["is_same"] is None
        assert found["examples"][0]["fields"][0]["name"] == "text"


_HANDLER = """
from apache_beam.ml.inference.base import ModelHandler, PredictionResult

class Old(ModelHandler):
    def load_model(self):
        return 40

    def run_inference(self, batch, model, inference_args=None):
        for row in batch:
            yield PredictionResult(row, int(int(row["age"]) > model))

def old():
    return Old()
"""


@pytest.mark.slow
def test_both_models_and_the_slices_of_an_input(tmp_path, monkeypatch):
    rows = pq.read_table(ADULT).to_pandas()
    read = ["age", "education-num", "hours-per-week"]
    model = DecisionTreeClassifier(max_depth=3, random_state=0).fit(rows[read], rows["income"])
    path = tmp_path / "new.pickle"
    path.write_bytes(pickle.dumps(model))
    (tmp_path / "own_old_model.py").write_text(_HANDLER)
    monkeypatch.syspath_prepend(tmp_path)
    output = tmp_path / "out"
    command = ["search", "--data", str(ADULT), "--label", "income", "--prediction", "prediction"]
    command += ["--exclude-features", "row_id,fnlwgt,score,score_old,prediction_old", "--quiet"]
    assert run([*command, "--output", str(output)]) == 0
    page = served_page(output, model=str(path), baseline_model="own_old_model:old")
    ask = asks(page)
    example = ask("playground/example", row=17)
    values = {one["name"]: one["value"] for one in example["fields"]}
    assert values["age"] == str(rows["age"][17])
    assert [one["is"] for one in example["models"]] == ["old", "new"]
    for age in (rows["age"][17], 77, 19):
        values["age"] = str(age)
        found = ask("playground/answer", values=values)
        old, new = found["models"]
        given = rows.loc[[17], read].assign(age=age)
        assert old["predicted"] == str(int(age > 40))
        assert new["predicted"] == str(model.predict(given)[0])
        assert dict(new["scores"])["1"] == pytest.approx(model.predict_proba(given)[0, 1])
        changed, slices = rows.loc[17].to_dict() | {"age": age}, document(output)["slices"]
        held = [mask(pd.DataFrame([changed]), one["definition"]["predicate"]) for one in slices]
        expected = [one["slice_id"] for one, is_in in zip(slices, held, strict=True) if is_in[0]]
        assert (found["slices"], found["unknown"]) == (expected, 0)
    # What a model makes of a missing value is for it to say.
    (old, _) = ask("playground/answer", values={**values, "age": ""})["models"]
    assert "NaN to integer" in old["error"]
    for wrong in ({"age": "old"}, {"nonsense": "1"}, {"age": 3}):
        assert asks(page, 422)("playground/answer", values={**values, **wrong})
    assert asks(page, 404)("playground/example", row=10**7)
    # Nothing that a request names is ever loaded.
    assert asks(page, 422)("playground/answer", values=values, model="os:abort")
    sys.modules.pop("own_old_model")
    # A model of the playground has no part in what is checked.
    assert ask("examples", slice_id=slices[0]["slice_id"])["is_same"] is True


@pytest.mark.slow
def test_a_text_falls_into_the_groups_of_a_discovery(tmp_path):
    output = discovery_result(tmp_path)
    ask = asks(served_page(output))
    names = {one["slice_id"]: one["name"] for one in document(output)["slices"]}
    texts = ("soup bread waiter menu kitchen taste", "actor scene plot camera director ending")
    found = [ask("playground/answer", values={"text": text}) for text in texts]
    assert all(one["unknown"] == 0 for one in found)
    groups = [{names[slice_id] for slice_id in one["slices"]} for one in found]
    assert groups[0]
    assert not groups[0] & groups[1]
