"""Findings of a document that do not fit its slices, or each other, are refused in a line."""

import copy
import json

import pytest

from slicebeam.metrics.errors import InputError
from slicebeam.pipelines.changelist.reading import read_search
from slicebeam.pipelines.cli import run
from tests.edited_documents import searched


@pytest.fixture(scope="module")
def original(tmp_path_factory):
    return searched(tmp_path_factory.mktemp("searched"))


def first(**changed):
    return lambda document: document["findings"][0].update(changed)


def model(**changed):
    return lambda document: document["finding_models"][0].update(changed)


def shared(**changed):
    return lambda document: document["finding_models"][0]["intersections"][0].update(changed)


@pytest.mark.parametrize(("change", "said"), [
    (first(slice_id="ab"), "findings[0] is about slice 'ab', which is not in the document"),
    (first(n=7), "findings[0].n is 7, but its slice has"),
    (first(n=-7), "findings[0].n is -7, but its slice has"),
    (first(rank=3), "have the ranks 3, 2"),
    (first(rank=2), "have the ranks 2, 2"),
    (lambda document: document["findings"].reverse(), "have the ranks"),
    (lambda document: document["findings"].pop(0), "have the ranks 2"),
    (first(interval=[0.5, -0.5]), "findings[0].interval begins at 0.5, above its end at -0.5"),
    (first(difference=0.9), "findings[0].difference is 0.9, but value - expected is"),
    (first(p_value=1.5), "findings[0].p_value is 1.5, which is not a probability"),
    (first(held_share=-0.1), "findings[0].held_share is -0.1, which is not between 0 and 1"),
    (first(metric="auc"), "findings[0] is of 'auc', worse, which is not in finding_models"),
    (first(direction="better"), "findings[0] is of 'accuracy', better, which is"),
    (model(metric="auc"), "finding_models[0] is of 'auc', which is not a metric of the document"),
    (model(candidates=-1), "finding_models[0] counts fewer than 0 slices"),
    (model(removed=[1]), "have the ranks 1, 2"),
    (shared(findings=[2, 1]), "is of the findings [2, 1], which are not ascending ranks"),
    (shared(findings=[40]), "is of the findings [40], which are not ascending ranks"),
    (shared(share=0), "intersections[0].share is 0, which is not between 0 and 1"),
    (shared(share=1), "intersections add up to 1."),
    (lambda document: document["finding_models"].append(document["finding_models"][0]), "finding_models[1] is the second of accuracy, worse"),
    (first(value="NaN"), "incomplete ChangeList (findings.0.value"),
])  # fmt: skip
def test_findings_that_do_not_fit(change, said, original, tmp_path, capsys):
    content = json.loads(original.read_text())
    edited = copy.deepcopy(content)
    change(edited)
    path = tmp_path / "changelist.json"
    path.write_text(json.dumps(edited))
    with pytest.raises(InputError) as caught:
        read_search(str(path), "--changelist")
    assert said in str(caught.value)
    assert str(caught.value).startswith(f"--changelist {path}: ")
    assert "\n" not in str(caught.value)
    name = content["slices"][0]["name"]
    assert run(["edit", "annotate", f"--changelist={path}", f"--slice={name}", "--note=x"]) == 2
    assert capsys.readouterr().err.count("\n") == 1
    path.write_text(json.dumps(content))
    assert read_search(str(path), "--changelist").findings


def test_numbers_that_json_has_not(original, tmp_path):
    content = json.loads(original.read_text())
    content["findings"][0]["value"] = float("nan")
    path = tmp_path / "changelist.json"
    path.write_text(json.dumps(content))
    with pytest.raises(InputError, match="not readable as JSON"):
        read_search(str(path), "--changelist")


def test_removing_a_slice_says_what_goes_with_it(original, tmp_path, capsys):
    content = json.loads(original.read_text())
    path = tmp_path / "changelist.json"
    path.write_text(original.read_text())
    gone = content["findings"][0]["slice_id"]
    assert run(["edit", "remove", f"--changelist={path}", f"--slice={gone}"]) == 0
    said = capsys.readouterr().err
    assert "note: removing its slice also removed finding 1 of accuracy (worse);" in said
    revision = json.loads((tmp_path / "changelist.r1.json").read_text())
    assert [one["rank"] for one in revision["findings"]] == [
        one["rank"] for one in content["findings"][1:]
    ]
    assert revision["finding_models"][0]["removed"] == [1]
    assert run(["edit", "undo", f"--changelist={tmp_path}"]) == 0
    again = json.loads((tmp_path / "changelist.r2.json").read_text())
    assert again["findings"] == content["findings"]
