"""``--fail-on worse``: which document gives which exit code, and what the run says."""

import itertools
import json

import numpy as np
import pandas as pd
import pytest

from slicebeam.pipelines.changelist.parts import Estimate
from slicebeam.pipelines.changelist.testing import Validation
from slicebeam.pipelines.commands.api import check as check_from_python
from slicebeam.pipelines.commands.cli import run
from slicebeam.pipelines.search.summary import gate_of, judged
from tests.conftest import slow
from tests.pipelines.search.test_check import check
from tests.running import read, search
from tests.trust_frames import few_groups, night, only_recall_is_worse

ROLES = {"label": "y", "prediction": "p"}
FLAGS = ("--label=y", "--prediction=p")


def written(frame, path):
    frame.to_parquet(path)
    return str(path)


@pytest.fixture(scope="module")
def recalls(tmp_path_factory):
    """A search for two metrics, of which the second one has the finding."""
    folder, frame = tmp_path_factory.mktemp("recalls"), only_recall_is_worse()
    data = written(frame, folder / "data.parquet")
    found = search(folder / "out", data=data, metric=("accuracy", "recall"), **ROLES)
    return frame, data, found


# The truth table ------------------------------------------------------------------------------


class _Document:
    """As much of a document as the gate looks at."""

    def __init__(self, metrics, since=None, change=None):
        self.testing = type("Testing", (), {"metrics": [_Named(m) for m in metrics], "unseen": ()})
        self.since, self.validation, self.shift = since, None, None
        self.known = ()
        self.global_ = () if change is None else (change,)


class _Named:
    tolerated = None

    def __init__(self, facts):
        self.__dict__.update(facts)


def change(direction, *, significant):
    difference = Estimate(value=-0.1, lo=-0.2, hi=-0.05)
    facts = {"significant": significant, "direction": direction, "p_value": 0.01}
    return _Named({**facts, "difference": difference})


def overall(value, delta):
    moments = dict.fromkeys(("now", "then"), _Named({"value": 0.5}))
    absent = dict.fromkeys(("delta_now", "delta_then", "reason"))
    changes = {"value_change": value, "delta_change": delta}
    return _Named({"metric": "accuracy", **moments, **absent, **changes})


CHANGES = {
    "absent": None,
    "fell": change("degraded", significant=True),
    "fell by chance": change("degraded", significant=False),
    "rose": change("improved", significant=True),
}


def of_two_models(one):
    if one is None:
        return None
    estimate = _Named({"value": 0.5})
    facts = {"metric": "accuracy", "before": estimate, "after": estimate, "reason": None}
    return _Named({**one.__dict__, **facts, "delta": one.__dict__["difference"]})


def test_the_truth_table():
    """Every combination of two metrics' slices and of the changes over all examples."""
    states = {
        "clean": {"degraded": 0, "blind": None},
        "worse": {"degraded": 3, "blind": None},
        "blind": {"degraded": 0, "blind": "2 slices: fewer than 30 groups"},
    }
    seen = set()
    for first, second, value, delta, models in itertools.product(
        states, states, CHANGES, CHANGES, CHANGES
    ):
        metrics = [{"metric": f"m{at}", **states[one]} for at, one in enumerate((first, second))]
        since = _Named({"overall": [overall(CHANGES[value], CHANGES[delta])]})
        document = _Document(metrics, since, of_two_models(CHANGES[models]))
        assert gate_of(document, None) is None
        if "worse" in (first, second) or "fell" in (value, delta, models):
            expected = 1
        else:
            expected = 2 if "blind" in (first, second) else 0
        gate = gate_of(document, "worse")
        assert gate.exit_code == expected, (first, second, value, delta, models)
        assert gate.passed == (expected == 0) == (not gate.reasons)
        assert gate.line().startswith("PASS: " if gate.passed else "FAIL: ")
        seen.add(expected)
    assert seen == {0, 1, 2}


@pytest.mark.parametrize("fail_on", [None, "worse"])
@pytest.mark.parametrize("state", ["clean", "worse", "blind"])
@pytest.mark.parametrize("missed", [False, True])
def test_thresholds_are_part_of_the_gate(fail_on, state, missed):
    tests = {"degraded": int(state == "worse"), "blind": "why" if state == "blind" else None}
    document = _Document([{"metric": "accuracy", **tests}])
    missing = ("slices of sex",) if missed else ()
    document.validation = Validation(passed=not missed, checked=3, missing_slices=missing)
    gate = gate_of(document, fail_on)
    assert gate is not None
    is_worse = missed or (fail_on is not None and state == "worse")
    is_blind = fail_on is not None and state == "blind"
    assert gate.exit_code == (1 if is_worse else 2 if is_blind else 0)
    assert ("TFMA has not checked the threshold for slices of sex" in gate.line()) == missed
    if gate.passed and fail_on is None:
        assert gate.line() == "PASS: all thresholds are met"


@pytest.mark.parametrize(("whole", "part"), list(itertools.product(CHANGES, CHANGES)))
def test_the_gate_of_a_shift(whole, part):
    """It has no tests of slices, but changes of those that the user named."""
    document = _Document([], None, of_two_models(CHANGES[whole]))
    document.testing = None
    changes = [one for one in (of_two_models(CHANGES[part]),) if one is not None]
    document.slices = [_Named({"changes": (one,)}) for one in changes]
    gate = gate_of(document, "worse")
    assert gate.exit_code == int("fell" in (whole, part))
    assert len(gate.reasons) == (whole == "fell") + (part == "fell")


def test_a_line_has_the_first_reasons_only():
    gate = judged("worse", [f"reason {number}" for number in range(7)])
    assert gate.line() == "FAIL: reason 0; reason 1; reason 2; and 4 more"
    assert len(gate.reasons) == 7


# Every metric counts --------------------------------------------------------------------------


def test_a_slice_that_only_the_second_metric_finds(recalls):
    frame, _, found = recalls
    document = found.document
    (one,) = document["slices"]
    assert one["name"] == "f = a"
    accuracy, recall = one["changes"]
    assert (accuracy["significant"], recall["significant"]) == (False, True)
    assert "place" not in accuracy
    assert (recall["place"], recall["label"], recall["direction"]) == (1, "new", "degraded")
    assert one["refinement"]["label"] == "new"
    positive = frame[frame["y"] == 1]
    inside = positive[positive["f"] == "a"]
    assert recall["after"]["value"] == pytest.approx(inside["p"].mean(), abs=1e-12)
    assert recall["reference"] == pytest.approx(positive["p"].mean(), abs=1e-12)
    testing = document["testing"]
    counts = (testing["significant"], testing["degraded"], document["search"]["reported"])
    assert counts == (1, 1, 1)
    by_metric = {each["metric"]: each for each in testing["metrics"]}
    counts = {
        name: (each["tested"], each["significant"], each["degraded"], each["reported"])
        for name, each in by_metric.items()
    }
    assert counts == {"accuracy": (4, 0, 0, 0), "recall": (4, 1, 1, 1)}
    assert document["summary"].startswith(
        f"Accuracy is {(frame['y'] == frame['p']).mean():.1%} over 6,000 examples. No slice is "
        f"significantly worse. Recall is {positive['p'].mean():.1%}. 1 finding holds "
    )
    assert document["title"] == ("Accuracy and Recall: where they are worse than over all examples")


def test_q_values_are_corrected_for_all_metrics(recalls, tmp_path):
    """They are those of each metric alone times the number of metrics, and the run says so."""
    _, data, found = recalls
    for name in ("accuracy", "recall"):
        alone = search(tmp_path / name, data=data, metric=(name,), **ROLES).table
        own = found.table[found.table["metric"] == name].reset_index(drop=True)
        alone["q_value"] = np.minimum(1.0, 2 * alone["q_value"])
        pd.testing.assert_frame_equal(own, alone)
    said = found.document["testing"]["corrected_for"]
    assert "That holds for the 2 metrics together: q-values are multiplied by their number." in said


def test_the_exit_code_and_what_the_terminal_shows(recalls, tmp_path, capsys):
    _, data, _ = recalls
    arguments = ["search", f"--data={data}", f"--output={tmp_path}", *FLAGS, "--fail-on=worse"]
    assert run([*arguments, "--metric=accuracy"]) == 0
    capsys.readouterr()
    assert run([*arguments, "--metric=accuracy,recall"]) == 1
    shown = capsys.readouterr()
    assert "Recall, worse than expected (over all examples" in shown.out
    assert "Accuracy, worse" not in shown.out
    printed = " ".join(shown.out.split())
    assert "That holds for the 2 metrics together" in printed
    assert (
        "Where nothing is worse, about 1 run in 20 fails by chance, at most (--alpha 0.05)."
        in printed
    )
    assert shown.err.splitlines()[-1] == (
        "slicebeam: FAIL: recall is significantly worse on 1 slice"
    )
    assert shown.out.split()[0] == "FAIL:"


def test_the_summary_and_the_log(recalls, tmp_path, capsys):
    _, data, found = recalls
    arguments = ["search", f"--data={data}", f"--output={tmp_path}", *FLAGS, "--fail-on=worse"]
    assert run([*arguments, *["--metric=accuracy,recall", "--json", "--log-format=json"]]) == 1
    printed = capsys.readouterr()
    summary = json.loads(printed.out)
    row = found.table.query("metric == 'recall' and slice == 'f = a'").iloc[0]
    (worst,) = summary["slices"]
    _, change = worst["changes"]
    assert (change["metric"], worst["name"], change["label"]) == ("recall", "f = a", "new")
    assert (change["after"]["value"], change["p_adjusted"]) == (row["value"], row["q_value"])
    degraded = {one["metric"]: one["degraded"] for one in summary["testing"]["metrics"]}
    assert degraded == {"accuracy": 0, "recall": 1}
    event = json.loads(printed.err.splitlines()[-1])
    assert (event["event"], event["exit_code"], event["degraded"]) == ("published", 1, 1)
    counts = {"tested": 4, "significant": 1, "degraded": 1, "reported": 1}
    assert event["metrics"]["recall"] == counts
    assert event["reasons"] == ["recall is significantly worse on 1 slice"]


def test_a_check_by_several_metrics(recalls, tmp_path):
    _, data, _ = recalls
    (tmp_path / "s.yaml").write_text("- f = c\n- f = b\n- f = a\n")
    slices = str(tmp_path / "s.yaml")
    found = check(tmp_path, data=(data,), slices=slices, metric=("accuracy", "recall"), **ROLES)
    # The only significant slice comes first, though not by the first metric.
    assert found.document["slices"][0]["name"] == "f = a"
    assert found.document["testing"]["degraded"] == 1
    places = [
        [change["place"] for one in found.document["slices"] for change in one["changes"][at:][:1]]
        for at in (0, 1)
    ]
    assert [sorted(one) for one in places] == [[1, 2, 3]] * 2
    assert places[1][0] == 1
    arguments = ["check", f"--slices={slices}", f"--data={data}", f"--output={tmp_path}", *FLAGS]
    arguments += ["--fail-on=worse", "--quiet"]
    assert run([*arguments, "--metric=accuracy"]) == 0
    assert run([*arguments, "--metric=accuracy,recall"]) == 1


def test_the_lists_of_two_metrics_against_the_table(tmp_path, adult_path):
    """Each metric's places are the order by the bound of its own delta, duplicates once."""
    options = {"label": "income", "prediction": "prediction", "max_cross_size": 2, "bins": 4}
    options["features"] = ("age", "education", "sex", "relationship", "hours-per-week")
    found = search(tmp_path, data=adult_path, metric=("recall", "specificity"), **options)
    document, table = found.document, found.table
    shown = {}
    for name in ("recall", "specificity"):
        own = table[table["metric"] == name].set_index("slice_id")
        placed = [
            (change["place"], one["slice_id"])
            for one in document["slices"]
            for change in one["changes"]
            if change["metric"] == name and "place" in change
        ]
        ids = [slice_id for _, slice_id in sorted(placed)]
        assert [place for place, _ in sorted(placed)] == list(range(1, len(ids) + 1))
        # The delta is negative: the bound nearer to zero is the upper one, the worst is the lowest.
        assert own.loc[ids, "ci_high"].is_monotonic_increasing
        assert own.loc[ids, "label"].isin(["new", "refines"]).all()
        shown[name] = set(own.index[own["label"].isin(["new", "refines"])])
        copies = {copy for one in document["slices"] for copy in one.get("same_examples_as", ())}
        assert shown[name] - copies == set(ids)
        counts = next(one for one in document["testing"]["metrics"] if one["metric"] == name)
        assert counts["reported"] == len(ids)
        assert counts["significant"] == counts["degraded"] == own["significant"].sum()
    assert shown["specificity"] - shown["recall"]
    pairs = table.groupby("slice_id")["significant"].any()
    assert document["testing"]["significant"] == pairs.sum()
    listed = [
        one["slice_id"]
        for one in document["slices"]
        if any("place" in change for change in one["changes"])
    ]
    assert document["search"]["reported"] == len(listed) == len(set(listed))


def test_of_many_slices_each_metric_has_its_share():
    from slicebeam.pipelines.search.results import joined

    reported = joined([np.arange(0, 3000), np.arange(5000, 5800), np.arange(100, 200)])
    assert reported.positions.size == 3800
    *others, last = reported.listed(np.append(np.arange(2000, 2128), 7000), 1000).tolist()
    assert last == 7000
    listed = np.array(others)
    assert listed.size == 999
    assert (np.diff(listed) > 0).all()
    assert set(range(250)) | set(range(2000, 2128)) <= set(listed.tolist())
    assert np.isin(np.arange(5000, 5250), listed).all()
    assert np.isin(np.arange(100, 200), listed).all()
    assert (reported.listed(np.zeros(0, np.int64), 4000) == reported.positions).all()


# What is tolerated ------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def one_slice_fell(tmp_path_factory):
    """Two models: the new one is 3 points better over all examples, and 3 points worse on one slice."""
    rng = np.random.default_rng(0)
    slices, label = rng.integers(0, 8, 16_000), rng.integers(0, 2, 16_000)
    was_wrong = rng.random(16_000) < 0.1
    lost = ~was_wrong & (rng.random(16_000) < np.where(slices == 3, 0.034, 0.001))
    wrong = was_wrong & ((rng.random(16_000) < 0.6) | (slices == 3)) | lost
    frame = pd.DataFrame({"f": slices.astype(str), "y": label})
    for name, of_model in (("new", wrong), ("old", was_wrong)):
        frame[name] = np.where(of_model, 1 - label, label)
    frame["loss"], frame["old_loss"] = wrong.astype(float), was_wrong.astype(float)
    frame["unit"] = np.arange(16_000)
    return written(frame, tmp_path_factory.mktemp("tolerance") / "data.parquet")


MODELS = ("--label=y", "--prediction=new", "--baseline-prediction=old", "--features=f")
LOSSES = ("--loss=loss", "--baseline-loss=old_loss", "--features=f")
GROUPS = (*MODELS, "--group=unit", "--replicates=50")
TURNED = ("--label=y", "--prediction=old", "--baseline-prediction=new", "--features=f")


@pytest.mark.parametrize(("flags", "code", "said"), [
    ((*MODELS, "--tolerance=.05"), 0, "worse by more than is tolerated (accuracy 0.05)"),
    ((*MODELS, "--tolerance=.015"), 1, "worse by more than 0.015 on 1 slice"),
    # It is worse by 3 points, but not significantly by more than 2.8.
    ((*MODELS, "--tolerance=accuracy=.028"), 0, "(accuracy 0.028)"),
    # The models in the other order: 3 points worse over all examples.
    ((*TURNED, "--tolerance=.02"), 1, "significantly worse), by more than 0.02 (p = "),
    ((*LOSSES, "--tolerance=.01"), 1, "loss is significantly worse by more than 0.01 on 1 slice"),
    slow((*MODELS, "--metric=accuracy,error_rate", "--tolerance=accuracy=.05"), 1,
         "error_rate is significantly worse on 1"),
    slow((*TURNED, "--tolerance=.05"), 0, "(accuracy 0.05)"),
    slow((*GROUPS, "--tolerance=.05"), 0, "(accuracy 0.05)"),
    slow((*GROUPS, "--tolerance=.01"), 1, "worse by more than 0.01 on 1 slice"),
    slow((*LOSSES, "--tolerance=.05"), 0, "(loss 0.05)"),
    slow((*MODELS[:2], MODELS[3], "--tolerance=.08"), 0, "(accuracy 0.08)"),
    slow((*MODELS[:2], MODELS[3], "--tolerance=.02"), 1, "worse by more than 0.02 on 1 slice"),
])  # fmt: skip
def test_what_is_tolerated(one_slice_fell, tmp_path, capsys, flags, code, said):
    arguments = ["search", f"--data={one_slice_fell}", "--fail-on=worse", f"--output={tmp_path}"]
    assert run([*arguments, *flags]) == code
    assert said in " ".join(capsys.readouterr().out.split())
    assert read(tmp_path).document["gate"]["passed"] == (code == 0)


def test_a_check_with_a_slice_too_small_to_test_tolerates_the_same(
    one_slice_fell, tmp_path, capsys
):
    small = pd.read_parquet(one_slice_fell)
    small = small[(small.f != "5") | (small.index < 60)]
    data, slices = written(small, tmp_path / "data.parquet"), tmp_path / "slices.yaml"
    assert 0 < (small.f == "5").sum() < 20
    slices.write_text("".join(f"- f = {value}\n" for value in range(8)))
    arguments = ["check", f"--data={data}", f"--slices={slices}", *MODELS[:3], "--fail-on=worse"]
    for tolerance, code in ((0.015, 1), (0.05, 0)):
        out = f"--output={tmp_path / str(code)}"
        assert run([*arguments, out, f"--tolerance={tolerance}"]) == code
    assert "worse by more than 0.015 on 1 slice" in " ".join(capsys.readouterr().out.split())


def test_a_published_result_keeps_its_tolerance(one_slice_fell, tmp_path, capsys):
    flags = (f"--data={one_slice_fell}", f"--output={tmp_path}", *MODELS, "--quiet")
    gated = ["search", *flags, "--fail-on=worse"]
    assert run([*gated, "--tolerance=.05"]) == 0
    assert run([*gated, "--resume", "--tolerance=.05"]) == 0
    assert run(["search", *flags, "--resume"]) == 0
    for other in ([], ["--tolerance=.01"]):
        assert run([*gated, "--resume", *other]) == 2
        assert "judged by another one; leave --resume out" in capsys.readouterr().err


@pytest.mark.parametrize(("flags", "said"), [
    ("--tolerance=.1", "--tolerance is for --fail-on worse"),
    ("--fail-on=worse --tolerance=x", "'x' is not a number above 0, such as .005"),
    ("--fail-on=worse --tolerance=-1", "'-1' is not a number above 0"),
    ("--fail-on=worse --tolerance=nan", "'nan' is not a number above 0"),
    ("--fail-on=worse --tolerance=1", "accuracy lies between 0 and 1, so it never falls by that much"),
    ("--fail-on=worse --tolerance=recall=.1", "'recall' is not a metric of this run; they are accuracy; repeat --tolerance"),
    ("--fail-on=worse --tolerance=.1 --tolerance=accuracy=.2", "accuracy has a tolerance already"),
    ("--fail-on=worse --tolerance=.1 --metric=f1 --compare=overall", "f1 has no test against a tolerance; leave it out"),
    ("--fail-on=worse --tolerance=.1 --weight=loss --compare=overall", "accuracy with --weight has no test against"),
    ("--fail-on=worse --tolerance=.1 --metric=auc --score=loss --baseline-score=old_loss", "by NAME=NUMBER: all but auc"),
    ("--fail-on=worse --tolerance=.1 --test=paper", "leave --test paper out"),
    ("--fail-on=worse --tolerance=.1 --since=earlier.json", "leave --since or --tolerance out"),
])  # fmt: skip
def test_wrong_tolerances(one_slice_fell, tmp_path, capsys, flags, said):
    output = tmp_path / "out"
    arguments = ["search", f"--data={one_slice_fell}", f"--output={output}", *MODELS]
    assert run([*arguments, *flags.split()]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert said in line
    assert not output.exists()


# A gate that can't see -------------------------------------------------------------------------


def gate(command, output, *flags):
    return run([command, f"--output={output}", *FLAGS, *flags])


@pytest.mark.parametrize("groups", [10, slow(29)])
def test_too_few_groups(groups, tmp_path, capsys):
    data = f"--data={written(few_groups(groups), tmp_path / 'data.parquet')}"
    out = tmp_path / "out"
    assert gate("search", out, data, "--group=u", "--fail-on=worse") == 2
    printed = capsys.readouterr()
    lines = [line for line in printed.err.splitlines() if not line.startswith("[")]
    (line,) = lines
    assert line == (
        f"slicebeam: FAIL: nothing could be tested: no slice has more than {groups} groups, and "
        "30 are needed"
    )
    assert "No slice could be tested for accuracy" in " ".join(printed.out.split())
    document = read(out).document
    assert "No slice could be tested." in document["summary"]
    (tests,) = document["testing"]["metrics"]
    assert tests["tested"] == 0
    assert any("No slice could be tested" in one for one in document["testing"]["warnings"])
    # Without a gate it is a warning, and the run is done.
    assert gate("search", out, data, "--group=u", "--quiet") == 0
    # An earlier run to compare with changes nothing: the metric over all examples has no test either.
    more = ("--fail-on=worse", "--quiet", f"--since={out}/changelist.json")
    assert gate("search", tmp_path / "again", data, "--group=u", *more) == 2


def test_few_groups_are_an_error_also_where_no_slice_looks_worse(tmp_path):
    """What a gate can see does not depend on what is there."""
    frame = few_groups(10)
    frame["p"] = night(0.8, len(frame))["p"].to_numpy()
    data = f"--data={written(frame, tmp_path / 'data.parquet')}"
    assert gate("search", tmp_path / "out", data, "--group=u", "--fail-on=worse", "--quiet") == 2


def test_enough_groups_are_tested(tmp_path):
    data = f"--data={written(few_groups(60), tmp_path / 'data.parquet')}"
    assert gate("search", tmp_path / "out", data, "--group=u", "--fail-on=worse", "--quiet") == 1
    found = read(tmp_path / "out")
    assert set(found.table[found.table["reason"].isna()]["test"]) == {"bootstrap of groups, t"}
    assert found.document["testing"]["test"] == "bootstrap of groups, t"
    assert "blind" not in found.document["testing"]["metrics"][0]


def test_one_blind_metric_is_enough(tmp_path, capsys):
    """Of five positive examples there is no test of recall."""
    frame = night(0.8)
    frame["y"] = (np.arange(len(frame)) % 800 == 0).astype(int)
    data = f"--data={written(frame, tmp_path / 'data.parquet')}"
    out = tmp_path / "out"
    more = ("--fail-on=worse", "--quiet")
    assert gate("search", out, data, "--metric=accuracy,recall", *more) == 2
    said = capsys.readouterr().err
    assert "no slice could be tested for recall: " in said
    assert "fewer than 10 examples in the denominator" in said
    assert "accuracy" not in said
    assert gate("search", out, data, "--metric=accuracy", "--fail-on=worse", "--quiet") == 0


def test_slices_that_are_all_too_small(tmp_path, capsys):
    data = f"--data={written(night(0.8), tmp_path / 'data.parquet')}"
    more = ("--min-slice-size=4000", "--fail-on=worse", "--quiet")
    assert gate("search", tmp_path / "out", data, *more) == 2
    said = capsys.readouterr().err
    assert "FAIL: nothing could be tested: no slice has at least 4,000 examples" in said


@pytest.mark.parametrize(("kind", "flags"), [
    ("right", ()),
    ("the same model", ("--baseline-prediction=old",)),
    ("the same model", ("--baseline-prediction=old", "--test=bootstrap-rows")),
    ("the same model", ("--baseline-prediction=old", "--metric=recall,mse,f1")),
])  # fmt: skip
def test_what_surely_is_not_worse_is_no_blindness(kind, flags, tmp_path):
    """A perfect model has no worse slice, and a model that is the old one has changed nowhere."""
    frame = night(1.0 if kind == "right" else 0.8)
    frame["old"] = frame["p"]
    data = f"--data={written(frame, tmp_path / 'data.parquet')}"
    more = ("--exclude-features=old", *flags, "--fail-on=worse", "--quiet")
    assert gate("search", tmp_path / "out", data, *more) == 0
    assert all("blind" not in one for one in read(tmp_path / "out").document["testing"]["metrics"])


def test_a_check_whose_slices_are_empty(tmp_path, capsys):
    data = f"--data={written(night(0.8), tmp_path / 'data.parquet')}"
    (tmp_path / "s.yaml").write_text("- f = nothing\n- k = nowhere\n")
    slices = f"--slices={tmp_path / 's.yaml'}"
    out = tmp_path / "out"
    assert gate("check", out, data, slices, "--fail-on=worse", "--quiet") == 2
    said = capsys.readouterr().err
    assert "FAIL: nothing could be tested: 2 slices: no examples satisfy it" in said
    assert gate("check", out, data, slices, "--quiet") == 0
    (tmp_path / "s.yaml").write_text("- f = nothing\n- k = u\n")
    assert gate("check", out, data, slices, "--fail-on=worse", "--quiet") == 0


def test_a_check_of_a_clean_run(tmp_path, capsys):
    """There is nothing to look at, and nothing that could not be seen."""
    frame = night(0.8)
    data = f"--data={written(frame, tmp_path / 'data.parquet')}"
    assert gate("search", tmp_path / "one", data, "--quiet") == 0
    changelist = f"--changelist={tmp_path}/one/changelist.json"
    out = tmp_path / "two"
    for more in ((), ("--fail-on=worse",)):
        assert gate("check", out, data, changelist, *more) == 0
        said = " ".join(capsys.readouterr().out.split())
        assert "There was no slice to check." in said
        assert "reports no slice: there was nothing to check" in said
    document = read(out).document
    assert (document["slices"], document["check"]["slices"]) == ([], 0)
    assert len(read(out).table) == 0
    assert run(["check", data, changelist, f"--output={out}", "--dry-run", "--quiet"]) == 0
    # A fall of the overall value is seen all the same.
    worse = f"--data={written(night(0.6, seed=2), tmp_path / 'worse.parquet')}"
    since = f"--since={out}/changelist.json"
    third = tmp_path / "three"
    assert gate("check", third, worse, changelist, since, "--fail-on=worse", "--quiet") == 1
    found = check_from_python(frame, changelist=f"{tmp_path}/one/changelist.json")
    assert found.slices.num_rows == 0


def test_no_interval_without_a_delta(tmp_path):
    """Slice ``f = a`` has no positive example, hence no recall; neither has its interval."""
    frame = night(0.8)
    frame.loc[frame["f"] == "a", "y"] = 0
    data = written(frame, tmp_path / "data.parquet")
    (tmp_path / "s.yaml").write_text("- f = a\n- f = b\n")
    metrics = ("recall", "precision", "f1", "balanced_accuracy", "mcc")
    options = {"data": (data,), "slices": str(tmp_path / "s.yaml"), "positive_class": "1", **ROLES}
    found = check(tmp_path / "out", metric=metrics, **options)
    undefined = found.table["delta"].isna()
    assert undefined.any()
    ends = ["ci_low", "ci_high", "value_low", "value_high"]
    assert found.table.loc[undefined, ends].isna().all(axis=None)
    assert found.table.loc[~undefined, ends].notna().all(axis=None)
    for one in found.document["slices"]:
        for change in one["changes"]:
            for estimate in (change["delta"], change["after"]):
                assert ("value" in estimate) or not {"lo", "hi"} & set(estimate)


# What cannot be seen ----------------------------------------------------------------------------


def watched(folder, *slices):
    (folder / "slices.yaml").write_text("slices:\n" + "".join(f"  - {one}\n" for one in slices))
    return str(folder / "slices.yaml")


def test_given_slices_that_could_not_be_tested_are_named(tmp_path, capsys):
    frame = night(0.8)
    frame.loc[:6, "f"] = "tiny"
    frame["f"] = np.where((frame["f"] == "a") & (frame["y"] == 0), "b", frame["f"])
    data = written(frame, tmp_path / "data.parquet")
    named = "{name: the lost ones, predicate: f = gone}"
    arguments = ["check", "--data", data, "--output", str(tmp_path / "out"), *FLAGS]
    arguments += ["--metric=accuracy,specificity", "--fail-on=worse"]
    slices = watched(tmp_path, "f = b", "f = a", "f = tiny", named)
    assert run([*arguments, "--slices", slices]) == 0
    warnings = read(tmp_path / "out").document["testing"]["warnings"]
    assert warnings == [
        "Slice f = a was not tested for specificity: the denominator is empty.",
        "Slice f = tiny was not tested: 7 examples are too few.",
        "Slice the lost ones (f = gone) was not tested: no examples now.",
    ]
    assert "no examples now" in capsys.readouterr().out
    assert run([*arguments, "--slices", watched(tmp_path, "f = tiny", "f = gone")]) == 2
    warnings = read(tmp_path / "out").document["testing"]["warnings"]
    assert "Slice f = gone was not tested: no examples now." in warnings


@pytest.mark.parametrize("option", ["--since", "--domains"])
def test_a_feature_that_the_data_has_lost(tmp_path, capsys, option):
    arguments = ["search", *FLAGS, "--fail-on=worse"]
    then = written(night(0.8), tmp_path / "then.parquet")
    assert run([*arguments, "--data", then, "--output", str(tmp_path / "then")]) == 0
    earlier = str(tmp_path / "then" / "changelist.json")
    now = written(night(0.8).drop(columns="k"), tmp_path / "now.parquet")
    output = ["--output", str(tmp_path / "now"), option, earlier]
    capsys.readouterr()
    assert run([*arguments, "--data", now, *output]) == 2
    said = capsys.readouterr()
    assert f"cannot be judged: slices of feature 'k', which {option} {earlier} has" in said.err
    assert "k: a feature in" in said.out
    drift = read(tmp_path / "now").document["dataset"]["drift"]
    assert drift[0].startswith(f"k: a feature in {earlier}, but not a column of this data")
    # What is not asked for is not missed.
    assert run([*arguments, "--data", now, *output, "--features=f"]) == 0


# One value, wherever it is said ---------------------------------------------------------------


def two_models(fallen):
    """Two models, of which the new one is worse in slices that are too small to be significant."""
    rng, n = np.random.default_rng(0), 3000
    label = rng.integers(0, 2, n)
    frame = pd.DataFrame({"f": np.char.add("r", (np.arange(n) // 30).astype(str)), "y": label})
    frame["v"] = rng.random(n)
    for name, wrong in (("old", 0.05), ("p", 0.09 if fallen else 0.05)):
        frame[name] = np.where(rng.random(n) < wrong, 1 - label, label)
    return frame


BASELINE = ("--baseline-prediction=old", "--features=f", "--top-values=1000")
# The command, the table, further flags, and the exit code with --fail-on worse.
SAID = {
    "a slice is worse": ("search", "recalls", ("--metric=accuracy,recall",), 1),
    "two models that are as good": ("search", "level", BASELINE, 0),
    "worse over all examples in a check": ("check", "fallen", BASELINE, 1),
    "worse over all examples in a discovery": ("discover", "fallen", (*BASELINE, "--embedding=e", "--components=2"), 1),
    "worse since then": ("search", "since", (), 1),
    "a metric untested": ("search", "none", ("--metric=accuracy,precision",), 2),
    "from a file": ("run", "fallen", (), 1),
}  # fmt: skip


@pytest.fixture(scope="module")
def tables(tmp_path_factory):
    """The tables of `SAID`, slices to check, an earlier run, and a run file."""
    folder = tmp_path_factory.mktemp("tables")
    written(night(0.8), folder / "night.parquet")
    written(night(0.8).assign(p=0), folder / "none.parquet")
    written(night(0.6, seed=2), folder / "since.parquet")
    written(only_recall_is_worse(), folder / "recalls.parquet")
    written(two_models(fallen=False), folder / "level.parquet")
    fallen = two_models(fallen=True)
    fallen["e"] = list(np.random.default_rng(1).normal(size=(len(fallen), 4)))
    written(fallen, folder / "fallen.parquet")
    (folder / "slices.yaml").write_text("- f = r1\n- f = r2\n")
    then = ["search", f"--data={folder}/night.parquet", f"--output={folder}/then", *FLAGS]
    assert run([*then, "--quiet"]) == 0
    return folder


@pytest.mark.parametrize("name", SAID)
def test_all_that_say_the_gate_agree(name, tables, tmp_path, capsys):
    """The first word of the terminal, the summary, the document, ``--json`` and the exit code."""
    command, data, more, expected = SAID[name]
    paths = (f"--data={tables}/{data}.parquet", f"--output={tmp_path}/out")
    arguments = [command, *paths, *FLAGS, *more, "--fail-on=worse"]
    if command == "check":
        slices = f"--slices={tables}/slices.yaml"
        arguments = [command, *paths, *FLAGS, BASELINE[0], slices, "--fail-on=worse"]
    elif command == "run":
        (tmp_path / "run.yaml").write_text(
            f"command: search\ndata: {tables}/fallen.parquet\noutput: {tmp_path}/out\nlabel: y\n"
            "prediction: p\nbaseline_prediction: old\nfeatures: [f]\ntop_values: 1000\n"
            "fail_on: worse\n"
        )
        arguments = [command, str(tmp_path / "run.yaml")]
    elif data == "since":
        arguments.append(f"--since={tables}/then/changelist.json")
    code, printed = run(arguments), capsys.readouterr()
    document = read(tmp_path / "out").document
    gate = document["gate"]
    word = "PASS:" if expected == 0 else "FAIL:"
    assert (code, gate["exit_code"], gate["passed"]) == (expected, expected, expected == 0)
    assert printed.out.split()[0] == document["summary"].split()[0] == word
    last = printed.err.splitlines()[-1]
    assert last.startswith("slicebeam: FAIL: ") == (expected != 0)
    said = " ".join(printed.out.split())
    for reason in gate["reasons"]:
        assert reason in document["summary"]
        assert reason in said
        assert reason in last
    # The same again, of what is published: nothing but JSON, and one line where it fails.
    assert run([*arguments, "--resume", "--json", "--quiet"]) == expected
    printed = capsys.readouterr()
    summary = json.loads(printed.out)
    assert summary["gate"] == {"fail_on": "worse", "reasons": [], **gate}
    assert summary["summary"] == document["summary"]
    assert printed.err.splitlines() == ([last] if expected else [])


def test_a_fall_over_all_examples_is_the_first_sentence_without_a_gate(tables, tmp_path, capsys):
    arguments = ["search", f"--data={tables}/fallen.parquet", f"--output={tmp_path}", *FLAGS]
    assert run([*arguments, *BASELINE, "--metric=accuracy,recall"]) == 0
    document = read(tmp_path).document
    assert "gate" not in document
    assert document["summary"].startswith("Accuracy over all examples 9")
    assert "significantly worse). Recall over all examples" in document["summary"]
    assert capsys.readouterr().out.split()[:4] == ["Accuracy", "over", "all", "examples"]
    # Corrected over the metrics by Holm's method, at the run's alpha.
    p = [one["p_value"] for one in document["global"]]
    q = [one["p_adjusted"] for one in document["global"]]
    assert min(q) == pytest.approx(2 * min(p))
    assert max(q) == pytest.approx(max(*p, 2 * min(p)))
    strict = f"--alpha={min(p):.17g}"
    assert run([*arguments, *BASELINE, "--metric=accuracy,recall", strict, "--quiet"]) == 0
    assert not any(one["significant"] for one in read(tmp_path).document["global"])
    assert run([*arguments, *BASELINE, strict, "--quiet", "--fail-on=worse"]) == 1


def test_a_quiet_log_still_says_that_a_gate_fails(tables, tmp_path, capsys):
    arguments = ["search", f"--output={tmp_path}", *FLAGS, "--quiet", "--log-format=json"]
    flags = (f"--data={tables}/fallen.parquet", *BASELINE)
    assert run([*arguments, *flags, "--fail-on=worse"]) == 1
    (event,) = map(json.loads, capsys.readouterr().err.splitlines())
    assert (event["event"], event["gate"], event["exit_code"]) == ("published", "FAIL", 1)
    assert run([*arguments, *flags]) == 0
    assert capsys.readouterr().err == ""


def test_that_groups_leave_a_fall_of_all_examples_untested_is_said(tmp_path, capsys):
    frame = few_groups(60).assign(old=lambda rows: rows["y"])
    data = f"--data={written(frame, tmp_path / 'data.parquet')}"
    out = tmp_path / "out"
    assert gate("search", out, data, "--baseline-prediction=old", "--group=u", "--quiet") == 0
    said = "Whether the model changed over all examples is not tested"
    assert any(said in one for one in read(out).document["testing"]["warnings"])
    assert gate("search", out, data, "--baseline-prediction=old", "--quiet") == 0
    assert not any(said in one for one in read(out).document["testing"]["warnings"])
