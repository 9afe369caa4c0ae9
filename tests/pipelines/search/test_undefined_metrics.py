"""Metrics without a value, or that say little, on the data, and numbers at the ends of what a float holds."""

import itertools
import json
import math
import shlex
from fractions import Fraction

import numpy as np
import pandas as pd
import pytest

from slicebeam.metrics.kinds import OF_CLASS_SCORES, OF_LISTS, OF_NUMBERS
from slicebeam.metrics.measures.cell_metric import CellMetric
from slicebeam.metrics.measures.metric import Slices
from slicebeam.metrics.measures.registry import metric, metrics, statistic_space
from slicebeam.pipelines.commands import api
from slicebeam.pipelines.commands.cli import run
from tests.conftest import slow
from tests.running import read

ROWS = 400


def table(**columns):
    """Labels, two models' classes, scores and losses, and a weight, of which some are constant."""
    rng = np.random.default_rng(3)
    label = rng.integers(0, 2, ROWS)
    frame = pd.DataFrame({"f": rng.choice(list("abc"), ROWS), "k": rng.choice(list("uv"), ROWS)})
    frame["y"] = label
    for name in ("p", "old"):
        frame[name] = np.where(rng.random(ROWS) < 0.8, label, 1 - label)
    for name in ("s", "s_old", "l", "l_old"):
        frame[name] = rng.random(ROWS)
    return frame.assign(**{"w": 1.0, **columns})


MCC = ("mcc", "mcc_multiclass")
NO_POSITIVE = {"precision": "no example is predicted positive", **dict.fromkeys(MCC, "predictions")}
ONE_CLASS = dict.fromkeys(("balanced_accuracy", *MCC, "auc"), "one class")
NO_NEGATIVE_LABEL = dict.fromkeys(("fpr", "specificity"), "no example has a negative label")
NO_POSITIVE_LABEL = dict.fromkeys(
    ("recall", "fnr", "average_precision"), "no example has a positive label"
)
F_SCORES = dict.fromkeys(("f1", "fbeta:2"), "no example has a positive label or")
LABELS = table()["y"].to_numpy()
# What is odd about the data, and which metrics it leaves without a value, for which reason.
CASES = {
    "all labels positive": ({"y": 1}, NO_NEGATIVE_LABEL | ONE_CLASS),
    "all labels negative": ({"y": 0}, NO_POSITIVE_LABEL | ONE_CLASS),
    "none predicted positive": ({"p": 0, "old": 0}, NO_POSITIVE),
    "nothing positive": ({"y": 0, "p": 0, "old": 0}, NO_POSITIVE_LABEL | ONE_CLASS | NO_POSITIVE | F_SCORES | dict.fromkeys((*MCC, "kappa"), "one class")),
    "positives have no weight": ({"w": 1.0 - LABELS}, NO_POSITIVE_LABEL | ONE_CLASS),
    "all scores and losses equal": ({"s": 0.5, "s_old": 0.5, "l": 0.5, "l_old": 0.5}, {}),
    "all right": ({"p": LABELS, "old": LABELS}, {}),
}  # fmt: skip
OTHERS = {*OF_NUMBERS, *OF_CLASS_SCORES, *OF_LISTS, "loss", "mrr"}
OF_CLASSES = ("accuracy", *(one for one in metrics() if one not in OTHERS), "fbeta:2")


# In the default run each case with one number of models.
@pytest.mark.parametrize(
    ("case", "models"),
    [(one, n) if at % 2 == n - 1 else slow(one, n) for at, one in enumerate(CASES) for n in (1, 2)],
)
def test_every_metric_on_degenerate_data(case, models, tmp_path, capsys):
    """A metric without a value says why; the others are tested, and a gate exits with 2."""
    columns, undefined = CASES[case]
    data, out = tmp_path / "data.parquet", tmp_path / "out"
    table(**columns).to_parquet(data)
    names = [name for name in OF_CLASSES if not metric(name).needs.two_models]
    names = [name for name in names if models == 1 or metric(name).compares_models]
    names = [name for name in names if "w" not in columns or metric(name).takes_weights]
    undefined = {name: why for name, why in undefined.items() if name in names}
    # The first metric steers the search.
    first = next(iter(undefined), "accuracy")
    names.sort(key=lambda name: name != first)
    arguments = [
        *("search", f"--data={data}", f"--output={out}", "--label=y", "--positive-class=1"),
        *("--prediction=p", "--score=s", "--features=f,k", f"--metric={','.join(names)}"),
        *(("--baseline-prediction=old", "--baseline-score=s_old") if models == 2 else ()),
        *(("--weight=w",) if "w" in columns else ()),
        *(("--strategy=iterative",) if models == 1 else ()),
    ]
    code = run([*arguments, "--fail-on=worse", "--quiet"])
    said, document = capsys.readouterr().err, read(out).document
    changes = {one["metric"]: one for one in document["global"]}
    tests = {one["metric"]: one for one in document["testing"]["metrics"]}
    assert {name for name, one in changes.items() if "value" not in one["after"]} == {*undefined}
    for name, why in undefined.items():
        assert why in changes[name]["reason"], name
        assert tests[name]["blind"] == changes[name]["reason"]
        assert tests[name]["tested"] == tests[name]["significant"] == 0
        if document["gate"]["exit_code"] == 2:
            reasons = " ".join(document["gate"]["reasons"])
            assert f"{name} could not be tested: {changes[name]['reason']}" in reasons
    gate = document["gate"]
    has_worse = any(one["degraded"] for one in tests.values())
    called = [one["direction"] for one in changes.values() if one["significant"]]
    expected = 1 if has_worse or "degraded" in called else 2 if undefined else gate["exit_code"]
    assert code == gate["exit_code"] == expected
    assert said.startswith("slicebeam: FAIL: ") == (code != 0)
    assert run(["report", str(out), "--quiet"]) == 0


def run_on(folder, frame, *flags):
    frame.to_parquet(folder / "data.parquet")
    paths = (f"--data={folder}/data.parquet", f"--output={folder}/out")
    return run(["search", *paths, *flags, "--fail-on=worse", "--quiet"])


@pytest.mark.parametrize(("name", "models"), [("mse", 1), ("mae", 2), ("bias", 2), ("loss", 1), ("loss", 2)])  # fmt: skip
def test_errors_without_any_variance(name, models, tmp_path):
    frame = table(l=0.5, l_old=0.5, s=0.5, s_old=0.5, y=1.0)
    flags = ["--loss=l"] if name == "loss" else ["--label=y", "--prediction=s"]
    if models == 2:
        flags += ["--baseline-loss=l_old"] if name == "loss" else ["--baseline-prediction=s_old"]
    assert run_on(tmp_path, frame, f"--metric={name}", "--features=f,k", *flags) == 0
    assert read(tmp_path / "out").document["gate"]["passed"]


def test_a_new_model_that_predicts_no_positive(tmp_path):
    flags = ("--label=y", "--prediction=p", "--baseline-prediction=old", "--metric=precision")
    assert run_on(tmp_path, table(p=0), *flags, "--features=f,k") == 2
    document = read(tmp_path / "out").document
    why = "no example is predicted positive by the new model"
    assert document["gate"]["reasons"] == [f"nothing could be tested: {why}"]
    begins = f"FAIL: nothing could be tested: {why}. Precision is undefined"
    assert document["summary"].startswith(begins)
    assert (document["global"][0]["reason"], document["global"][0].get("p_value")) == (why, 1.0)


def test_what_the_terminal_says_of_an_undefined_metric(tmp_path, capsys):
    data, out = tmp_path / "data.parquet", tmp_path / "out"
    table(p=0, y=LABELS).to_parquet(data)
    arguments = ["search", f"--data={data}", f"--output={out}", "--label=y", "--prediction=p"]
    flags = ("--features=f,k", "--metric=accuracy,precision")
    assert run([*arguments, *flags]) == 0
    said = " ".join(capsys.readouterr().out.split())
    why = "could not be tested: no example is predicted positive."
    assert f"Precision is undefined. It {why}" in said
    assert f"precision {why}" in said
    again = tmp_path / "again"
    arguments[2] = f"--output={again}"
    assert run([*arguments, *flags, f"--since={out}/changelist.json", "--json", "--quiet"]) == 0
    summary = json.loads(capsys.readouterr().out)
    assert "gate" not in summary
    assert "value" not in summary["global"][1]["after"]
    assert any("precision was undefined" in one for one in summary["since"]["warnings"])


def means(tmp_path, values, *flags):
    frame = pd.DataFrame({"f": np.resize(list("abcd"), len(values)), "v": values})
    frame.to_parquet(tmp_path / "data.parquet")
    arguments = ["search", f"--data={tmp_path}/data.parquet", "--metric=mean:v", "--features=f"]
    return run([*arguments, f"--output={tmp_path}/out", "--quiet", *flags])


@pytest.mark.parametrize(("offset", "scale"), [
    (1.7e18, 1e8), (2.0**53, 1e6), (1e12, 1.0), (0.0, 1e-70), (0.0, 1e-30), (-1e15, 1e4),
])  # fmt: skip
def test_means_at_the_ends_of_floats(offset, scale, tmp_path):
    rng = np.random.default_rng(0)
    values = offset + scale * (rng.random(2000) + 2.0 * (np.arange(2000) % 4 == 0))
    assert means(tmp_path, values, "--fail-on=worse") == 1
    found = read(tmp_path / "out")
    exact = [Fraction(one) for one in values]
    whole = sum(exact) / len(exact)
    for name, row in found.table.set_index("slice").iterrows():
        own = exact["abcd".index(str(name)[-1]) :: 4]
        mean = sum(own) / len(own)
        assert row["value"] == pytest.approx(float(mean), rel=1e-15)
        assert row["delta"] == pytest.approx(float(mean - whole), rel=1e-9)
        # Within four standard errors of the slice.
        assert 0 < row["ci_high"] - row["ci_low"] < 0.2 * scale
        assert row["ci_low"] < row["delta"] < row["ci_high"]
    (finding,) = found.document["findings"]
    assert finding["difference"] == pytest.approx(float(sum(exact[::4]) / 500 - whole), rel=1e-9)


@pytest.mark.parametrize(("values", "why"), [
    (1.7e18 + 256.0 * np.arange(2000), "too little for numbers of this size; subtract"),
    (2.0**53 + np.arange(2000) % 3, "too little for numbers of this size; subtract"),
    (1e-150 * (1.0 + np.arange(2000) % 5), "too small to be squared; multiply by a constant"),
    (1e-160 * (1.0 + np.arange(2000) % 5), "too small to be squared; multiply by a constant"),
])  # fmt: skip
def test_numbers_that_a_float_cannot_tell_apart(values, why, tmp_path, capsys):
    assert means(tmp_path, values) == 2
    said = capsys.readouterr().err
    assert said.startswith("slicebeam: the values of column 'v', from ")
    assert why in said
    assert len(said.splitlines()) == 1
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("value", [1e15, 1.7e18])
def test_a_constant_column_has_the_same_outcome_everywhere(value, tmp_path):
    assert means(tmp_path, np.full(400, value), "--fail-on=worse") == 0
    assert set(read(tmp_path / "out").table["reason"]) == {"all examples have the same outcome"}


N = 1000
DRAWN = np.random.default_rng(1)
SHOP = DRAWN.choice(list("wxyz"), N)
LABEL = DRAWN.integers(0, 2, N)
BAD = SHOP == "x"


def searched(folder, frame, *options):
    flags = ("--label=y", "--prediction=p", "--features=shop", "--max-cross-size=1")
    code = run_on(folder, frame, *flags, *options)
    document = json.loads((folder / "out" / "changelist.json").read_text())
    return code, pd.read_parquet(folder / "out" / "slices.parquet"), document["testing"]["metrics"]


def test_a_perfect_model_that_fails_on_a_slice(tmp_path):
    frame = pd.DataFrame({"shop": SHOP, "y": LABEL, "p": np.where(BAD, 0, LABEL), "o": LABEL})
    options = ("--baseline-prediction=o", "--metric=f1,balanced_accuracy")
    code, table, _ = searched(tmp_path, frame, *options)
    assert code == 1
    own = table[table["slice"] == "shop = x"]
    assert own["delta"].tolist() == [-1.0, -0.5]
    assert own["significant"].all()
    others = table[table["slice"] != "shop = x"]
    assert set(others["reason"]) == {"the two models never differ on the slice"}


def test_every_prediction_turned_round(tmp_path):
    frame = pd.DataFrame({"shop": SHOP, "y": LABEL, "p": 1 - LABEL, "o": LABEL})
    metrics = "precision,f1,fbeta:2,balanced_accuracy,f1_macro,mcc"
    code, table, _ = searched(tmp_path, frame, "--baseline-prediction=o", f"--metric={metrics}")
    assert code == 1
    assert table["significant"].all()
    assert set(table["test"]) == {"exact sign flips, constant change"}
    np.testing.assert_allclose(table["p_value"], 0.5 ** table["n"], rtol=1e-12)


@pytest.mark.parametrize("name", ["precision", "f1", "fbeta:2", "balanced_accuracy", "mcc"])
@pytest.mark.parametrize(("negatives", "positives"), [(11, 13), (10, 12), (14, 10)])
def test_exchange_is_the_share_of_all_exchanges(name, negatives, positives):
    space = statistic_space((name,), "baseline", weighted=False)
    own = metric(name)
    assert isinstance(own, CellMetric)
    positive = space.holds("positive")
    right, was_right = (positive == space.holds("predicted", old=old) for old in (False, True))
    of_label = [space.holds("positive") == label for label in (False, True)]

    def counts(swapped):
        found = np.zeros((1, space.cells), np.int64)
        for swaps, size, cells in zip(swapped, (negatives, positives), of_label, strict=True):
            found[0, cells & was_right & ~right] = size - swaps
            found[0, cells & right & ~was_right] = swaps
        return found

    def change(swapped):
        # A class that is never predicted has a precision of 0, as in scikit-learn.
        cells = counts(swapped).astype(np.float64)
        new, old = (own.value(Slices(cells, space, is_old=old)) for old in (False, True))
        return float(np.nan_to_num(new)[0] - np.nan_to_num(old)[0])

    observed, total = change((0, 0)), 0
    for swapped in itertools.product(range(negatives + 1), range(positives + 1)):
        ways = math.comb(negatives, swapped[0]) * math.comb(positives, swapped[1])
        total += ways * (change(swapped) <= observed + 1e-12)
    expected = total / 2 ** (negatives + positives)
    slices = Slices(counts((0, 0)), space, 100 * counts((0, 0))[0])
    lower, upper, both = (own.test(slices, one).p[0] for one in ("worse", "better", "both"))
    assert lower == pytest.approx(expected, rel=1e-12)
    assert (upper, both) == (1.0, 2 * lower)


def test_a_weight_beside_which_all_others_vanish(tmp_path):
    weight, label = np.ones(N), LABEL.copy()
    weight[5], label[5] = 1e12, 0
    predicted = np.where(DRAWN.random(N) < np.where(BAD, 0.2, 0.8), label, 1 - label)
    predicted[5] = 0
    frame = pd.DataFrame({"shop": SHOP, "y": label, "p": predicted, "w": weight})
    code, table, (tests,) = searched(tmp_path, frame, "--weight=w", "--metric=recall")
    assert code == 2
    assert (table["delta"].abs() > 0.1).any()
    assert tests["tested"] == 0
    assert "weighted too unequally" in tests["blind"]


def test_one_heavy_example_raises_no_alarm(tmp_path):
    weight = np.ones(N)
    weight[5] = 1e4
    right = DRAWN.random(N) < 0.6
    right[5] = True
    predicted = np.where(right, LABEL, 1 - LABEL)
    frame = pd.DataFrame({"shop": SHOP, "y": LABEL, "p": predicted, "w": weight})
    code, table, _ = searched(tmp_path, frame, "--weight=w")
    assert code == 2
    assert table["reason"].str.contains("weighted too unequally").all()


def test_all_weight_in_one_slice(tmp_path):
    predicted = np.where(DRAWN.random(N) < 0.6, LABEL, 1 - LABEL)
    frame = pd.DataFrame({"shop": SHOP, "y": LABEL, "p": predicted, "w": BAD * 1.0})
    code, table, (tests,) = searched(tmp_path, frame, "--weight=w")
    assert code == 2
    assert table.set_index("slice").loc["shop = x", "reason"] == "the slice is all examples"
    assert "the denominator is empty" in tests["blind"]


USER = np.arange(N) // 4
BY_ROWS, BY_GROUPS = "--test=bootstrap-rows", "--group=u"


def turned_on_a_slice():
    """A model that was always right, and is always wrong on one shop."""
    predicted = np.where(BAD, 1 - LABEL, LABEL)
    columns = {"shop": np.where(BAD, "x", SHOP), "y": LABEL, "p": predicted, "o": LABEL, "u": USER}
    return pd.DataFrame({**columns, "w": 0.5 + DRAWN.random(N)})


@pytest.mark.parametrize(("options", "name", "test"), [
    ((BY_ROWS,), "accuracy", "McNemar mid-p"),
    ((BY_ROWS,), "f1", "Hall's paired t"),
    ((BY_ROWS,), "fbeta:2", "Hall's paired t"),
    ((BY_ROWS, "--weight=w"), "accuracy", "Hall's paired t"),
    ((BY_GROUPS,), "accuracy", "exact sign flips of whole groups, constant change"),
])  # fmt: skip
def test_replicates_that_do_not_vary(tmp_path, options, name, test):
    flags = ("--baseline-prediction=o", f"--metric={name}", *options)
    code, table, _ = searched(tmp_path, turned_on_a_slice(), *flags)
    assert code == 1
    (own,) = table[table["slice"] == "shop = x"].to_dict("records")
    assert (own["delta"], own["test"]) == (-1.0, test)
    if BY_GROUPS in options:
        assert own["p_value"] == pytest.approx(0.5 ** len(set(USER[BAD])), rel=1e-9)


@pytest.mark.parametrize(("options", "test"), [
    ((BY_ROWS,), "exact sign flips, constant change"),
    ((BY_GROUPS,), "exact sign flips of whole groups, constant change"),
])  # fmt: skip
def test_losses_that_all_rise_by_a_tenth(tmp_path, options, test):
    """A tenth is no binary fraction: what rounding leaves between replicates is no variance."""
    old = DRAWN.random(N)
    frame = pd.DataFrame({"shop": SHOP, "o": old, "n": old + 0.1 * BAD, "u": USER})
    flags = ("--loss=n", "--baseline-loss=o", "--metric=loss", "--features=shop")
    code = run_on(tmp_path, frame, *flags, "--max-cross-size=1", *options)
    table = pd.read_parquet(tmp_path / "out" / "slices.parquet").set_index("slice")
    assert (code, table.loc["shop = x", "test"]) == (1, test)
    fewest = len(set(USER[BAD])) if BY_GROUPS in options else BAD.sum()
    assert table.loc["shop = x", "p_value"] == pytest.approx(0.5**fewest, rel=1e-6)


@pytest.mark.parametrize("name", ["f1", "recall"])
def test_a_gate_does_not_see_what_nothing_varies_in(tmp_path, name):
    """How many groups change in what counts is not known: exit code 2, though other slices are fine."""
    flags = ("--baseline-prediction=o", f"--metric={name}", BY_GROUPS)
    code, table, _ = searched(tmp_path, turned_on_a_slice(), *flags)
    assert code == 2
    own = table[table["slice"] == "shop = x"]
    said = "the models differ, without variation that this test could go by"
    assert own["reason"].tolist() == [said]
    assert own["p_value"].tolist() == [1.0]
    document = json.loads((tmp_path / "out" / "changelist.json").read_text())
    assert f"{name} on 1 slice: the models differ" in " ".join(document["testing"]["unseen"])
    assert document["gate"]["exit_code"] == 2


def test_a_gate_passes_what_is_surely_better(tmp_path):
    frame = turned_on_a_slice().rename(columns={"p": "o", "o": "p"})
    code, _, _ = searched(tmp_path, frame, "--baseline-prediction=o", "--metric=f1", BY_GROUPS)
    assert code == 0


EXAMPLES = 1000


def of_sizes(labels, counts, wrong):
    label = np.repeat(np.array(labels), counts)
    prediction = label.copy()
    prediction[EXAMPLES - wrong :] = labels[0]
    prediction[label == labels[0]] = labels[0]
    group = np.arange(EXAMPLES) % 7 % 3
    return pd.DataFrame({"label": label, "prediction": prediction, "group": group})


def lines(table, **options):
    options = {"label": "label", "prediction": "prediction", "max_cross_size": 1, **options}
    warnings = api.search(table, **options).changelist.testing.warnings
    return [one for one in warnings if "always predicting" in one or "Every label" in one]


@pytest.mark.parametrize(("rare", "is_noted"), [(200, True), (201, False)])
def test_from_four_fifths_of_one_class(rare, is_noted):
    table = of_sizes([0, 1], [EXAMPLES - rare, rare], wrong=30)
    found = lines(table)
    assert bool(found) is is_noted
    if is_noted:
        right = (table["label"] == table["prediction"]).mean()
        share = table["label"].value_counts(normalize=True).max()
        expected = (
            f"Accuracy ({right:.1%}) is mostly about one class: 0 is the label of {share:.1%} of the "
            f"examples, and always predicting it has {share:.1%}. --metric balanced_accuracy weighs "
            "both classes alike, --metric recall,precision is about class 1 alone."
        )
        assert found == [expected]


@pytest.mark.parametrize(("wrong", "is_noted"), [(400, True), (399, False)])
def test_no_better_than_the_most_frequent_class(wrong, is_noted):
    table = of_sizes([0, 1], [600, 400], wrong)
    assert bool(lines(table)) is is_noted
    if is_noted:
        (line,) = lines(table, metric="error_rate")
        assert line.startswith("Error rate (40.0%) is no better than always predicting 0 (40.0%). ")


@pytest.mark.slow
def test_several_classes():
    (line,) = lines(of_sizes(["a", "b", "c"], [500, 300, 200], wrong=500))
    assert line == (
        "Accuracy (50.0%) is no better than always predicting 'a' (50.0%). --metric recall_macro weighs "
        "all classes alike, --metric recall,precision --positive-class c is about class 'c' alone."
    )
    assert lines(of_sizes(["a", "b", "c"], [500, 300, 200], wrong=100)) == []
    assert len(lines(of_sizes(["a", "b", "c"], [920, 60, 20], wrong=10))) == 1


@pytest.mark.slow
@pytest.mark.parametrize(("labels", "extra"), [
    ([0, 1], {}),
    ([1, 0], {}),
    (["ok", "it's bad"], {}),
    ([1.0, 2.0], {}),
    ([False, True], {}),
    (["a", "b", "c"], {}),
    ([0, 1], {"score": "prediction", "prediction": None}),
    ([1, 0], {"score": "prediction", "prediction": None}),
])  # fmt: skip
def test_what_is_proposed_runs_and_says_more(labels, extra):
    rest = [40, 10] if len(labels) > 2 else [50]
    table = of_sizes(labels, [950, *rest], wrong=EXAMPLES)
    (line,) = lines(table, **extra)
    for part in line.split(". ", 1)[1].split("--metric ")[1:]:
        words = shlex.split(part.partition(" weighs")[0].partition(" is about")[0])
        more = {"positive_class": words[2]} if len(words) > 1 else {}
        options = {"label": "label", "prediction": "prediction", "max_cross_size": 1, **extra}
        report = api.search(table, metric=words[0].split(","), **more, **options)
        # The model predicts the most frequent class only.
        value = report.changelist.global_[0].after.value
        expected = 0.0 if "," in words[0] else 1 / len(labels)
        assert value == pytest.approx(expected)
        assert [one for one in report.changelist.testing.warnings if "always" in one] == []


@pytest.mark.parametrize(("name", "value"), [
    *(("metric", one) for one in ("recall", "label_rate", ["accuracy", "balanced_accuracy"])),
    *(("metric", "mean:weight"), ("weight", "weight"), ("baseline_prediction", "old")),
])  # fmt: skip
def test_nothing_is_said_where_it_does_not_matter(name, value):
    table = of_sizes([0, 1], [950, 50], wrong=10)
    table = table.assign(weight=1.0, old=np.where(np.arange(EXAMPLES) % 9, table["label"], 1))
    assert lines(table, features=["group"], **{name: value}) == []
    assert lines(table, features=["group"]) != []


def test_one_class_only():
    table = of_sizes([0, 1], [EXAMPLES, 0], wrong=0).assign(prediction=np.arange(EXAMPLES) % 5 % 2)
    assert lines(table) == ["Every label is 0: accuracy says nothing about any other class."]


def test_a_check_notes_it_too(tmp_path):
    table = of_sizes([0, 1], [950, 50], wrong=10)
    (tmp_path / "slices.yaml").write_text("- group = 1\n")
    options = {"label": "label", "prediction": "prediction"}
    found = api.check(table, slices=str(tmp_path / "slices.yaml"), **options)
    assert any("mostly about one class" in one for one in found.changelist.testing.warnings)
