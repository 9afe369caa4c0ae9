"""Tests and corrections by option: what they do to q, what they promise, and what they refuse."""

import numpy as np
import pandas as pd
import pytest

from tests.refusals import refusing
from tests.running import search

ADULT = {
    "label": "income",
    "prediction": "prediction",
    "features": ("education", "native-country", "occupation", "sex"),
    "max_cross_size": 2,
    "min_slice_size": 1,
}
CORRECTIONS = ("fdr-level", "fwer-level", "bh", "by", "none")
SENTENCES = {
    "fdr-level": "Among the significant slices of all levels together at most 5% are expected to be "
    "false (Benjamini-Hochberg at 0.05/2 within each level).",
    "fwer-level": "With probability 95% no significant slice is false (Bonferroni at 0.05/2 within each level).",
    "bh": "Among the significant slices at most 5% are expected to be false (Benjamini-Hochberg over all levels).",
    "by": "Among the significant slices at most 5% are expected to be false, however the tests depend "
    "on each other (Benjamini-Yekutieli over all levels).",
    "none": "Exploratory: no correction for testing many slices.",
}  # fmt: skip


@pytest.mark.parametrize("correction", CORRECTIONS)
def test_what_a_correction_promises(correction, adult_path, tmp_path):
    found = search(
        tmp_path, data=adult_path, correction=correction, metric=("error_rate",), **ADULT
    )
    testing = found.document["testing"]
    assert testing["correction"] == correction
    assert testing["corrected_for"] == SENTENCES[correction]
    assert testing["family_size"] == sum(testing["family_per_level"])
    if correction == "none":
        assert testing["expected_false"] == pytest.approx(0.05 * sum(testing["tested_per_level"]))
    else:
        assert "expected_false" not in testing


ROWS = 300


def examples():
    rng = np.random.default_rng(0)
    frame = pd.DataFrame(
        {
            "age": rng.integers(18, 80, ROWS),
            "sex": rng.choice(["F", "M"], ROWS),
            "label": rng.choice(["no", "yes"], ROWS),
            "score": rng.random(ROWS),
            "three": rng.choice(["a", "b", "c"], ROWS),
            "guess": rng.choice(["a", "b", "c"], ROWS),
            "many": rng.integers(0, 80, ROWS),
            "id": rng.integers(0, 60, ROWS),
        }
    )
    frame["pred"] = np.where(rng.random(ROWS) < 0.8, frame["label"], "no")
    frame["old"] = np.where(rng.random(ROWS) < 0.7, frame["label"], "no")
    frame["above"] = frame["score"] + (frame.index == 7)
    frame["below"] = frame["score"] - (frame.index == 8) * 2
    frame["holes"] = frame["score"].where(frame.index != 17)
    frame["infinite"] = frame["score"].where(frame.index != 9, np.inf)
    return frame


@pytest.fixture
def refuse(tmp_path, capsys):
    return refusing("search", tmp_path, capsys, examples(), label="label", prediction="pred")


def test_classes_of_numbers(refuse):
    frame = examples()
    frame["digit"], frame["read"] = frame["many"] % 3, (frame["many"] * 7) % 3
    options = {"data": frame, "features": "sex,age"}
    message = refuse(label="digit", prediction="read", metric="recall", **options)
    assert message == (
        "label 'digit' has 3 classes (0, 1, 2): name the class of interest with --positive-class"
    )
    message = refuse(label="digit", prediction="read", metric="recall", positive_class=7, **options)
    assert message == "--positive-class 7 is not a value of label 'digit': labels are 0, 1, 2"
