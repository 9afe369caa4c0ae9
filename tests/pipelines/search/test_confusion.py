"""Label by prediction on each reported slice and outside of it, against tables that pandas makes of the rows."""

import json

import numpy as np
import pandas as pd
import pytest

from slicebeam.pipelines.changelist.parts import Confusion
from slicebeam.pipelines.changelist.reading import read_search
from slicebeam.pipelines.commands.cli import run
from slicebeam.pipelines.search import listed_counts
from slicebeam.pipelines.search import search as search_module
from slicebeam.pipelines.show.error_kinds import error_text
from slicebeam.pipelines.show.result import notebook_html
from tests.oracles import predicates

ROWS = 4000


def read(out):
    return json.loads((out / "changelist.json").read_text())


def crossed(frame, label, prediction, classes, weight):
    values = pd.Series(1 if weight is None else frame[weight], index=frame.index)
    grouped = values.groupby([frame[label], frame[prediction]]).sum()
    return [[grouped.get((row, column), 0) for column in classes] for row in classes]


def check(document, frame, label, predictions, weight=None, most=10_000):
    """Compare all tables of a document with those of pandas; return how many slices have some."""
    for one in document["slices"][:most]:
        found = one["confusion"]
        held = predicates.mask(frame, one["definition"]["predicate"])
        assert int(held.sum()) == one["size"]["n"]
        assert found.keys() - {"classes"} == {
            place + suffix for place in ("inside", "outside") for suffix in predictions
        }
        for suffix, column in predictions.items():
            for place, rows in (("inside", held), ("outside", ~held)):
                wanted = crossed(frame[rows], label, column, found["classes"], weight)
                if weight is None:
                    assert found[place + suffix] == wanted
                else:
                    assert np.allclose(found[place + suffix], wanted, rtol=1e-9)
    return len(document["slices"])


def planted(classes, seed=1):
    """Return rows of which a conjunction mistakes the first class for the last, with missing values."""
    rng = np.random.default_rng(seed)
    frame = pd.DataFrame({name: rng.choice(list("uvw"), ROWS) for name in "ab"})
    frame.loc[rng.random(ROWS) < 0.1, "a"] = None
    frame["x"] = np.where(rng.random(ROWS) < 0.1, np.nan, rng.normal(size=ROWS))
    frame["y"] = rng.choice(classes, ROWS)
    for name, worse in (("p", 0.6), ("old", 0.1)):
        right = rng.random(ROWS) < 0.9
        frame[name] = np.where(right, frame["y"], rng.choice(classes, ROWS))
        bad = (frame["a"] == "u") & (frame["y"] == classes[0]) & (rng.random(ROWS) < worse)
        frame.loc[bad, name] = classes[-1]
    frame["w"] = rng.integers(1, 9, ROWS) / 4 + 0.1
    return frame


def searched(frame, out, *options, label="y", prediction="p"):
    data = out.with_suffix(".parquet")
    frame.to_parquet(data)
    given = ["search", str(data), f"--output={out}", f"--label={label}"]
    assert run([*given, f"--prediction={prediction}", *options]) == 0
    return read(out)


def test_tables_of_the_demo_data(adult_path, tmp_path, capsys):
    out = tmp_path / "out"
    given = ["search", str(adult_path), f"--output={out}", "--label=income"]
    assert run([*given, "--prediction=prediction", "--exclude-features=row_id,fnlwgt"]) == 0
    document = read(out)
    assert check(document, pd.read_parquet(adult_path), "income", {"": "prediction"}) > 100
    assert {one["slice_id"] for one in document["slices"] if "confusion" in one} >= {
        one["slice_id"] for one in document["findings"]
    }
    line = " 1  false positives 18% against 0.61% of the others"
    assert line + "\n" in capsys.readouterr().out
    changelist = read_search(str(out / "changelist.json"), "a test")
    assert line in notebook_html(changelist)


@pytest.mark.parametrize("metric", ["accuracy", "f1_macro", "accuracy,mcc_multiclass"])
def test_several_classes(metric, tmp_path, capsys):
    classes = ["cat", "dog", "emu", "fox"]
    frame = planted(classes)
    document = searched(frame, tmp_path / "out", "--features=a,b,x", f"--metric={metric}")
    assert check(document, frame, "y", {"": "p"})
    assert document["slices"][0]["confusion"]["classes"] == classes
    if metric == "accuracy":
        assert "most often fox for cat: " in capsys.readouterr().out


def test_more_than_ten_classes_have_none(tmp_path):
    frame = planted(list("abcdefghijk"))
    document = searched(frame, tmp_path / "out", "--features=a,b,x")
    assert document["slices"]
    assert not any("confusion" in one for one in document["slices"])


def test_weights_are_summed(tmp_path):
    frame = planted([0, 1])
    options = "--features=a,b,x", "--weight=w"
    document = searched(frame, tmp_path / "out", *options)
    assert check(document, frame, "y", {"": "p"}, "w")


@pytest.mark.parametrize("classes", [[0, 1], list("abc")])
def test_two_models(classes, tmp_path, capsys):
    frame = planted(classes)
    options = "--features=a,b,x", "--baseline-prediction=old"
    document = searched(frame, tmp_path / "out", *options)
    assert check(document, frame, "y", {"": "p", "_before": "old"})
    printed = capsys.readouterr().out
    assert ("false positives" if 0 in classes else "most often c for a:") in printed
    assert ", before " in printed


@pytest.mark.parametrize("positive", ["no", "yes"])
def test_classes_of_scores(positive, tmp_path):
    frame = planted(["no", "yes"])
    score = np.where(frame.pop("p") == positive, 0.9, 0.2)
    frame = frame.assign(s=score)
    data, out = tmp_path / "data.parquet", tmp_path / "out"
    frame.to_parquet(data)
    given = ["search", str(data), f"--output={out}", "--label=y", "--score=s", "--features=a,b,x"]
    assert run([*given, f"--positive-class={positive}", "--metric=accuracy", "--quiet"]) == 0
    other = {"no": "yes", "yes": "no"}[positive]
    frame["p"] = np.where(score > 0.5, positive, other)
    assert check(read(out), frame, "y", {"": "p"})


def test_a_check_of_given_slices_has_them(tmp_path):
    frame = planted([0, 1])
    document = searched(frame, tmp_path / "out", "--features=a,b,x")
    out, data = tmp_path / "again", tmp_path / "out.parquet"
    changelist = f"--changelist={tmp_path / 'out' / 'changelist.json'}"
    assert run(["check", f"--data={data}", f"--output={out}", changelist, "--quiet"]) == 0
    again = {one["slice_id"]: one["confusion"] for one in read(out)["slices"]}
    assert again == {one["slice_id"]: one["confusion"] for one in document["slices"]}


def test_slices_beyond_those_that_are_covered(tmp_path, monkeypatch):
    monkeypatch.setattr(listed_counts, "MOST_COVERING", 3)
    frame = planted([0, 1])
    document = searched(frame, tmp_path / "out", "--features=a,b,x", "--alternative=both")
    assert check(document, frame, "y", {"": "p"}) > 3
    assert [one["slices"] for one in document["coverage"]] == [3]


def test_losses_alone_have_none(tmp_path):
    frame = planted([0, 1]).assign(loss=lambda rows: (rows["y"] != rows["p"]) * 1.5)
    data, out = tmp_path / "data.parquet", tmp_path / "out"
    frame.to_parquet(data)
    given = ["search", str(data), f"--output={out}", "--loss=loss", "--features=a,b,x"]
    assert run([*given, "--metric=loss", "--quiet"]) == 0
    assert not any("confusion" in one for one in read(out)["slices"])


def test_a_run_that_continues_counts_the_same(tmp_path, monkeypatch):
    frame = planted(list("abc"))
    options = "--features=a,b,x", "--alternative=both"
    whole = searched(frame, tmp_path / "whole", *options)
    stopped = search_module.build

    def stops(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(search_module, "build", stops)
    data, out = tmp_path / "whole.parquet", tmp_path / "out"
    given = ["search", str(data), f"--output={out}", "--label=y", "--prediction=p", "--quiet"]
    assert run([*given, *options]) != 0
    monkeypatch.setattr(search_module, "build", stopped)
    assert run([*given, *options, "--resume"]) == 0
    assert [one["confusion"] for one in read(out)["slices"]] == [
        one["confusion"] for one in whole["slices"]
    ]
    assert (out / "slices.parquet").read_bytes() == (tmp_path / "whole/slices.parquet").read_bytes()


def confusion(inside, outside, **more):
    return Confusion(classes=list(range(len(inside))), inside=inside, outside=outside, **more)


@pytest.mark.parametrize(
    ("inside", "outside", "is_worse", "text"),
    [
        ([[90, 10], [31, 69]], [[960, 40], [90, 910]], True, "false negatives 31% against 9% of the others"),
        ([[60, 40], [50, 50]], [[900, 100], [100, 900]], True, "false negatives 50% against 10% of the others"),
        ([[990, 10], [50, 50]], [[800, 200], [500, 500]], False, "false positives 1% against 20% of the others"),
        # As often as elsewhere, too rarely to say, and without a label of that class.
        ([[90, 10], [10, 90]], [[900, 100], [100, 900]], True, None),
        ([[3, 1], [1, 3]], [[900, 100], [100, 900]], True, None),
        ([[0, 0], [50, 50]], [[100, 100], [0, 0]], True, None),
    ],
)  # fmt: skip
def test_the_kind_of_error_that_differs_most(inside, outside, is_worse, text):
    n = sum(map(sum, inside)), sum(map(sum, outside))
    found = confusion(inside, outside)
    assert error_text(found, n, is_worse) == text
    # The unit of weights changes nothing.
    heavy = confusion((np.array(inside) * 7.5).tolist(), (np.array(outside) * 7.5).tolist())
    assert error_text(heavy, n, is_worse) == text


def test_a_named_class_is_the_positive_one():
    tables = {"inside": [[50, 50], [10, 90]], "outside": [[900, 100], [100, 900]]}
    named = Confusion(classes=["a", "b"], **tables)
    assert (
        error_text(named, (200, 2000), True, "a") == "false negatives 50% against 10% of the others"
    )
    assert (
        error_text(named, (200, 2000), True) == "most often b for a: 50% against 10% of the others"
    )
    before = named.model_copy(update={"inside_before": ((90, 10), (10, 90))})
    assert error_text(before, (200, 2000), True, "b") == "false positives 50%, before 10%"
