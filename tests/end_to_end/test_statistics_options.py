"""Tests and corrections by option: what they do to q, what they promise, and what they refuse."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from tests.oracles import predicates
from tests.running import Found, refused, search

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    Refuse = Callable[..., str]

ADULT: dict[str, Any] = {
    "label": "income",
    "prediction": "prediction",
    "features": ("education", "native-country", "occupation", "sex"),
    "max_cross_size": 2,
    "min_slice_size": 1,
}
CORRECTIONS = ("fdr-level", "fwer-level", "fwer-tarone", "bh", "by", "none")


@pytest.fixture(scope="module")
def corrected(
    tmp_path_factory: pytest.TempPathFactory, adult_path: Path
) -> Callable[[str, str], Found]:
    known: dict[tuple[str, str], Found] = {}

    def once(correction: str, way: str = "error_rate") -> Found:
        if (correction, way) not in known:
            folder = tmp_path_factory.mktemp(correction)
            options: dict[str, Any] = {"metric": (way,)}
            if way == "baseline":
                options = {"baseline_prediction": "prediction_old", "alternative": "both"}
            known[correction, way] = search(
                folder, data=(str(adult_path),), correction=correction, **ADULT, **options
            )
        return known[correction, way]

    return once


def tarone(p: np.ndarray, least: np.ndarray, level: np.ndarray, family: list[int]) -> np.ndarray:
    """min(1, L · p · M(p)), M the slices of the level that can reach p; the unseen ones can."""
    q = np.empty(p.size)
    least = np.minimum(least, p)
    for i in range(p.size):
        here = level == level[i]
        able = (least[here] <= p[i] * (1 + 1e-9)).sum() + family[level[i] - 1] - here.sum()
        q[i] = min(1, len(family) * p[i] * able)
    return q


def test_tarone_is_its_formula(corrected: Callable[..., Found], adult: pd.DataFrame) -> None:
    found = corrected("fwer-tarone")
    rows, N = found.table, len(adult)
    K = int((adult["income"] != adult["prediction"]).sum())
    n = rows["n"].to_numpy()
    law = stats.hypergeom(N, K, n)
    end = law.pmf(np.minimum(n, K)) / 2
    family = found.document["testing"]["family_per_level"]
    level = rows["cross_size"].to_numpy()
    expected = tarone(rows["p_value"].to_numpy(), end, level, family)
    np.testing.assert_allclose(rows["q_value"], expected, rtol=1e-7)
    np.testing.assert_array_equal(rows["significant"], rows["q_value"] <= 0.05)
    bonferroni = np.minimum(1, 2 * rows["p_value"] * np.array(family)[level - 1])
    assert (rows["q_value"] < bonferroni / 2).sum() > 20


def test_tarone_of_two_models(corrected: Callable[..., Found], adult: pd.DataFrame) -> None:
    found = corrected("fwer-tarone", "baseline")
    differ = (adult["prediction"] != adult["prediction_old"]).to_numpy()
    singles: dict[str, np.ndarray] = {}
    discordant = np.zeros(len(found.table), int)
    for i, text in enumerate(found.table["predicate"]):
        held = differ
        for condition in json.loads(text)["all"]:
            key = json.dumps(condition)
            if key not in singles:
                singles[key] = predicates.mask(adult, {"all": [condition]})
            held = held & singles[key]
        discordant[i] = held.sum()
    # Both tails of Binomial(d, ½), of which the last value counts half: 2 · ½ · 2^-d.
    end = 0.5**discordant
    expected = tarone(
        found.table["p_value"].to_numpy(),
        end,
        found.table["cross_size"].to_numpy(),
        found.document["testing"]["family_per_level"],
    )
    np.testing.assert_allclose(found.table["q_value"], expected, rtol=1e-7)


@pytest.mark.parametrize("way", ["error_rate", "baseline"])
def test_tarone_is_between_bonferroni_and_nothing(
    corrected: Callable[..., Found], way: str
) -> None:
    called = {
        name: set(found.table.loc[found.table["significant"], "slice_id"])
        for name in ("fwer-level", "fwer-tarone", "none")
        for found in [corrected(name, way)]
    }
    assert called["fwer-level"] <= called["fwer-tarone"] < called["none"]
    q = [corrected(name, way).table.set_index("slice_id")["q_value"] for name in called]
    assert (q[2] <= q[1] + 1e-15).all()
    assert (q[1] <= q[0] + 1e-15).all()


@pytest.mark.slow
@pytest.mark.parametrize("strategy", ["iterative", "priority"])
def test_tarone_step_by_step(tmp_path: Path, adult_path: Path, strategy: str) -> None:
    options = {**ADULT, "data": (str(adult_path),), "metric": ("error_rate",)}
    options["strategy"], options["min_slice_size"] = strategy, 5
    tables = {}
    for correction in ("fwer-level", "fwer-tarone", "none"):
        found = search(tmp_path / correction, correction=correction, **options)
        tables[correction] = found.table.set_index("slice_id")
    level, more = tables["fwer-level"], tables["fwer-tarone"]
    called = set(level[level["significant"]].index) & set(more.index)
    assert called
    assert called <= set(more[more["significant"]].index)


def test_tarone_where_only_the_margins_are_known(tmp_path: Path, adult_path: Path) -> None:
    """Of MCC no smallest p is known, but a slice without a denominator is never called."""
    options = {**ADULT, "data": (str(adult_path),), "metric": ("mcc",), "max_cross_size": 1}
    table = search(tmp_path, correction="fwer-tarone", **options).table
    testable = table["reason"].isna()
    assert 0 < testable.sum() < len(table)
    p = table["p_value"].to_numpy()
    expected = np.where(testable, np.minimum(1, p * testable.sum()), 1.0)
    np.testing.assert_allclose(table["q_value"], expected, rtol=1e-9)


def test_the_other_corrections(corrected: Callable[..., Found]) -> None:
    p, level = (corrected("none").table[c].to_numpy() for c in ("p_value", "cross_size"))
    family = np.array(corrected("none").document["testing"]["family_per_level"])
    harmonic = (1 / np.arange(1, family.sum() + 1)).sum()
    expected = {
        "none": p,
        "fwer-level": np.minimum(1, 2 * p * family[level - 1]),
        "bh": stats.false_discovery_control(p),
        "by": np.minimum(1, stats.false_discovery_control(p) * harmonic),
    }
    # All of the family was visited, so that scipy's number of tests is the family's.
    assert p.size == family.sum()
    for name, q in expected.items():
        got = corrected(name).table["q_value"]
        capped = got < 1
        np.testing.assert_allclose(got[capped], q[capped], rtol=1e-9)
        np.testing.assert_array_equal(corrected(name).table["significant"], got <= 0.05)


SENTENCES = {
    "fdr-level": "Among the significant slices of all levels together at most 5% are expected to be "
    "false (Benjamini-Hochberg at 0.05/2 within each level).",
    "fwer-level": "With probability 95% no significant slice is false (Bonferroni at 0.05/2 within "
    "each level).",
    "fwer-tarone": "With probability 95% no significant slice is false (Tarone: Bonferroni at 0.05/2 "
    "within each level, without the slices that are too small ever to be significant).",
    "bh": "Among the significant slices at most 5% are expected to be false (Benjamini-Hochberg over "
    "all levels).",
    "by": "Among the significant slices at most 5% are expected to be false, however the tests depend "
    "on each other (Benjamini-Yekutieli over all levels).",
    "none": "Exploratory: no correction for testing many slices.",
}


@pytest.mark.parametrize("correction", CORRECTIONS)
def test_what_a_correction_promises(corrected: Callable[..., Found], correction: str) -> None:
    testing = corrected(correction).document["testing"]
    assert testing["correction"] == correction
    assert testing["corrected_for"] == SENTENCES[correction]
    assert testing["family_size"] == sum(testing["family_per_level"])
    if correction == "none":
        assert testing["expected_false"] == pytest.approx(0.05 * sum(testing["tested_per_level"]))
    else:
        assert "expected_false" not in testing


ROWS = 300


def examples() -> pd.DataFrame:
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


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("options") / "eval.parquet"
    examples().to_parquet(path)
    return path


@pytest.fixture
def refuse(data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Refuse:
    """Run a search that must fail, and return what it said in a line or two."""

    def run_it(**options: Any) -> str:
        named = {"data": data, "label": "label", "prediction": "pred", "output": tmp_path}
        arguments = ["search"]
        for name, value in (named | options).items():
            if value is not None:
                arguments += ["--" + name.replace("_", "-"), str(value)]
        said = refused(arguments, capsys, folder=data.parent)
        assert not list(tmp_path.glob("*.parquet"))
        assert not list(tmp_path.glob("*.json"))
        return said

    return run_it


def test_classes_of_numbers(refuse: Refuse, data: Path, tmp_path_factory: Any) -> None:
    frame = pd.read_parquet(data)
    frame["digit"], frame["read"] = frame["many"] % 3, (frame["many"] * 7) % 3
    frame["guess"] = (frame["many"] * 3) % 80
    path = tmp_path_factory.mktemp("numbers") / "eval.parquet"
    frame.to_parquet(path)
    options = {"data": path, "features": "sex,age"}
    message = refuse(label="digit", prediction="read", metric="recall", **options)
    assert message == (
        "label 'digit' has 3 classes (0, 1, 2): name the class of interest with --positive-class"
    )
    message = refuse(label="many", prediction="guess", metric="f1_macro", **options)
    assert message.startswith("label 'many' and the predictions have ")
    assert "80 classes" in message
    assert "for at most 64 classes" in message
    assert message.endswith("use accuracy, or a metric of one class with --positive-class")
    message = refuse(label="digit", prediction="read", metric="recall", positive_class=7, **options)
    assert message == "--positive-class 7 is not a value of label 'digit': labels are 0, 1, 2"


def test_messages_name_the_row_and_the_remedy(refuse: Refuse) -> None:
    message = refuse(metric="log_loss", score="above", positive_class="yes")
    assert "in row 8 of DIR/eval.parquet" in message
    assert "probabilities, 0 to 1" in message
    message = refuse(metric="brier,log_loss", score="below", positive_class="yes")
    assert "in row 9 of DIR/eval.parquet" in message
    assert "but --metric brier, log_loss takes probabilities" in message
