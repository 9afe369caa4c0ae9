"""``--since``: what the document says of two runs, and of hand-made slices, against both tables."""

import datetime as dt
import hashlib
import json
import shutil
from types import SimpleNamespace
from unittest.mock import Mock

import jsonschema
import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from scipy import stats

from slicebeam.metrics.measures.metric import Slices
from slicebeam.metrics.measures.multiplicity import holm_adjusted
from slicebeam.metrics.measures.registry import metric, statistic_space
from slicebeam.metrics.significance.intervals import difference
from slicebeam.pipelines.changelist.document import json_schema
from slicebeam.pipelines.changelist.reading import read_search
from slicebeam.pipelines.commands.cli import run
from slicebeam.pipelines.config.search import search_config
from slicebeam.pipelines.search.fingerprints import against_data_of
from tests.conftest import slow
from tests.edited_documents import ROWS, examples, stand_in
from tests.oracles import predicates
from tests.pipelines.search.test_check import check
from tests.running import read, refused, search
from tests.trust_frames import few_groups, night, only_recall_is_worse

DAYS = ("2026-11-18", "2026-11-19", "2026-11-20")
OPTIONS = {"label": "income", "prediction": "prediction", "max_cross_size": 2}
OPTIONS["baseline_prediction"] = "prediction_old"
Z = stats.norm.ppf(0.975)


def data(days, number):
    return (str(days / f"date={DAYS[number]}" / "eval.parquet"),)


@pytest.fixture(scope="module")
def first(days, tmp_path_factory):
    return search(tmp_path_factory.mktemp("first"), data=data(days, 0), **OPTIONS)


@pytest.fixture(scope="module")
def second(days, first, tmp_path_factory):
    folder = tmp_path_factory.mktemp("second")
    since = str(first.folder / "changelist.json")
    return search(folder, data=data(days, 1), since=since, **OPTIONS)


def oracle(now, then):
    """The differences of all slices of both tables, their p and q."""
    both = now.merge(then, on="slice_id", suffixes=("", "_then"))
    both["difference"] = both["delta"] - both["delta_then"]
    rises = both["difference"] > 0
    near = np.where(rises, both["delta"] - both["ci_low"], both["ci_high"] - both["delta"])
    then = both["delta_then"]
    far = np.where(rises, both["ci_high_then"] - then, then - both["ci_low_then"])
    error = np.sqrt(near**2 + far**2) / Z
    both["p"] = 2 * stats.norm.sf(np.abs(both["difference"]) / error)
    both["q"] = stats.false_discovery_control(both["p"])
    return both.set_index("slice_id")


def test_differences_against_the_tables(first, second):
    both, since = oracle(second.table, first.table), second.document["since"]
    assert since["compared"] == len(both) > 500
    assert since["read_from"] == "slices.parquet"
    called = both["q"] <= 0.05
    assert since["worse"] == (called & (both["difference"] < 0)).sum() > 10
    assert since["better"] == (called & (both["difference"] > 0)).sum()
    listed = {one["slice_id"]: one for one in since["slices"]}
    assert set(both.index[called]) <= set(listed)
    compared = [one for one in listed.values() if "difference" in one]
    assert len(compared) > 10
    for one in compared:
        row = both.loc[one["slice_id"]]
        assert one["difference"]["value"] == pytest.approx(row["difference"], abs=1e-12)
        assert (one["p_value"], one["p_adjusted"]) == pytest.approx((row["p"], row["q"]), rel=1e-9)
        assert one["significant"] == (row["q"] <= 0.05)
        excludes = one["difference"]["lo"] > 0 or one["difference"]["hi"] < 0
        assert excludes == (one["p_value"] < 0.05)
        assert one["then"]["delta"]["value"] == row["delta_then"]
        assert one["now"]["n"] == row["n"]


def test_what_is_new(first, second):
    since = second.document["since"]
    then = set(first.table["slice_id"][first.table["significant"]])
    reported = {one["slice_id"] for one in second.document["slices"]}
    new = {one["slice_id"] for one in since["slices"] if one["status"] == "new"}
    assert new == reported - then
    assert since["new"] == len(new) >= 1
    worst = since["slices"][0]
    assert worst["name"] == "occupation = Sales & relationship = Husband"
    assert (worst["status"], worst["direction"], worst["significant"]) == ("new", "degraded", True)
    assert since["summary"].startswith("Since 20")
    assert f"{len(new)} new, 0 gone; delta {since['worse']} worse" in since["summary"]
    assert since["changelist_id"] == first.document["changelist_id"]


def test_what_is_gone(days, second, tmp_path):
    since = str(second.folder / "changelist.json")
    third = search(tmp_path, data=data(days, 2), since=since, **OPTIONS)
    gone = {one["slice_id"] for one in third.document["since"]["slices"] if one["status"] == "gone"}
    now = set(third.table["slice_id"][third.table["significant"]])
    assert gone == {one["slice_id"] for one in second.document["slices"]} - now
    assert third.document["since"]["gone"] == len(gone) >= 5
    assert third.document["since"]["better"] > 10
    assert third.document["since"]["slices"][0]["direction"] == "improved"


def test_bins_and_values_are_those_of_then(days, first, second, tmp_path):
    """So that slices have the same predicates; the configuration says it, and repeats the run."""
    both = [found.document["dataset"]["domains"] for found in (first, second)]
    shapes = [{domain["name"]: domain["singletons"] for domain in domains} for domains in both]
    assert shapes[0] == shapes[1]
    config = second.document["provenance"]["config"]
    assert config["domains"] == config["since"] == str(first.folder / "changelist.json")
    since = str(first.folder / "changelist.json")
    own = search(tmp_path, data=data(days, 1), since=since, bins=7, **OPTIONS).document
    assert "domains" not in own["provenance"]["config"]
    assert own["since"]["compared"] < second.document["since"]["compared"]


def test_slices_that_are_cut_otherwise_are_told(days, second, tmp_path):
    since = str(second.folder / "changelist.json")
    how = {"since": since, "bins": 7, "exclude_features": ("sex",)}
    found = search(tmp_path, data=data(days, 2), **how, **OPTIONS)
    slices = found.document["since"]["slices"]
    reasons = {one["name"]: one["missing"] for one in slices if "missing" in one}
    assert reasons["occupation = Sales & sex = Male"] == "now 'sex' was not a feature"
    cut = [reason for name, reason in reasons.items() if name.startswith("age")]
    assert cut == ["now the values of 'age' were binned differently"]
    (warning,) = found.document["since"]["warnings"]
    assert "slices that were reported then are not comparable: age" in warning
    assert f"--domains {since} uses the earlier bins" in warning


def test_without_the_table_only_reported_slices_are_compared(days, second, tmp_path):
    alone = tmp_path / "changelist.json"
    shutil.copy(second.folder / "changelist.json", alone)
    found = search(tmp_path / "out", data=data(days, 2), since=alone, **OPTIONS)
    since = found.document["since"]
    assert since["read_from"] == "changelist.json"
    assert 0 < since["compared"] <= len(second.document["slices"])
    assert "chosen for being extreme" in since["warnings"][0]
    # A table of another run beside it is not taken for its own.
    shutil.copy(found.folder / "slices.parquet", tmp_path / "slices.parquet")
    again = search(tmp_path / "out", data=data(days, 2), since=alone, **OPTIONS)
    assert again.document["since"]["read_from"] == "changelist.json"


def test_checks_since_checks(days, second, tmp_path):
    changelist = str(second.folder / "changelist.json")
    one = check(tmp_path / "one", data=data(days, 0), changelist=changelist)
    since = str(one.folder / "changelist.json")
    two = check(tmp_path / "two", data=data(days, 1), changelist=changelist, since=since)
    both, told = oracle(two.table, one.table), two.document["since"]
    assert told["compared"] == len(both) == len(second.document["slices"])
    assert told["worse"] == (both["q"] <= 0.05).sum() >= 4
    assert (len(told["slices"]), told["warnings"]) == (len(both), [])
    # In the very run that the slices come from they were chosen for being bad.
    third = check(tmp_path / "three", data=data(days, 2), changelist=changelist, since=changelist)
    assert "chosen for being extreme in the run" in third.document["since"]["warnings"][0]


def test_slices_that_one_run_did_not_test_are_not_compared(days, tmp_path):
    (tmp_path / "s.yaml").write_text(
        "".join(f"- age >= {age} & occupation = Sales\n" for age in range(20, 90, 3))
    )
    options = {key: value for key, value in OPTIONS.items() if key != "max_cross_size"}
    options |= {"slices": str(tmp_path / "s.yaml"), "min_slice_size": 100}
    one = check(tmp_path / "one", data=data(days, 0), **options)
    since = str(one.folder / "changelist.json")
    two = check(tmp_path / "two", data=data(days, 1), since=since, **options)
    large = (one.table["n"] >= 100) & (two.table["n"] >= 100)
    assert two.document["since"]["compared"] == large.sum()
    assert 2 < large.sum() < len(large) - 5
    compared = [one["now"]["n"] for one in two.document["since"]["slices"] if "difference" in one]
    assert len(compared) == large.sum()
    assert min(compared) >= 100


def test_the_very_same_examples_are_told(days, first, tmp_path):
    since = str(first.folder / "changelist.json")
    found = search(tmp_path, data=data(days, 0), since=since, alpha=0.01, **OPTIONS)
    told = found.document["since"]
    assert (told["new"], told["gone"], told["worse"], told["better"]) == (0, 0, 0, 0)
    assert "nothing can have changed" in told["warnings"][0]
    said = "alpha was 0.05 then and is 0.01 now, so other slices are significant."
    assert told["warnings"][1] == said


def arguments(days, output, *more):
    (path,) = data(days, 1)
    roles = ["--label=income", "--prediction=prediction", "--baseline-prediction=prediction_old"]
    return ["search", f"--data={path}", f"--output={output}", "--max-cross-size=2", *roles, *more]


WRONG = {
    "no file": (["--since=none.json"], "--since none.json: no such file"),
    "no document": (["--since=DAYS"], "--since DAYS is a folder; name its changelist.json"),
    "metric": (["--metric=error_rate"], "metric was 'accuracy' there and is 'error_rate' here, so the runs can't"),
    "compare": (["--compare=overall"], "compare was 'baseline' there and is 'overall' here"),
    "alternative": (["--alternative=both"], "alternative was 'worse' there and is 'both' here"),
    "weight": (["--weight=age"], "weight was not given there and is 'age' here"),
    "two": (["--since-if-exists=x.json"], "--since and --since-if-exists both name"),
}  # fmt: skip


@pytest.mark.parametrize("case", WRONG)
def test_runs_that_measured_other_things(case, days, first, tmp_path, capsys):
    more, message = WRONG[case]
    more = [one.replace("DAYS", str(days)) for one in more]
    since = [] if more[0].startswith("--since=") else [f"--since={first.folder}/changelist.json"]
    said = refused([*arguments(days, tmp_path), *since, *more], capsys, folder=days)
    assert message.replace("DAYS", "DIR") in said
    assert not (tmp_path / "_work").exists()


def test_the_first_run_has_no_earlier_one(days, tmp_path, capsys):
    output = tmp_path / "out"
    perhaps = f"--since-if-exists={tmp_path}/out/changelist.json"
    assert run([*arguments(days, output, perhaps)]) == 0
    said = capsys.readouterr().err
    assert f"there is no '{output}/changelist.json' yet, so there is nothing to compare" in said
    assert "since" not in read(output).document
    # The second one replaces what it is compared with.
    assert run([*arguments(days, output, perhaps), "--json"]) == 0
    summary = json.loads(capsys.readouterr().out)
    assert summary["since"]["compared"] == read(output).document["since"]["compared"] > 500
    assert summary["since"]["new"] == 0


def test_what_the_terminal_shows(days, first, tmp_path, capsys):
    assert run(arguments(days, tmp_path, f"--since={first.folder}/changelist.json")) == 0
    lines = capsys.readouterr().out.splitlines()
    assert any(line.startswith("Since ") for line in lines)
    line = next(line for line in lines if line.split()[:1] == ["new,"])
    numbers, name = line.split()[:9], " ".join(line.split()[9:])
    name, _, alike = name.partition(" (")
    assert name == "occupation = Sales & relationship = Husband"
    assert alike == "and 9 like it)"
    table, before = read(tmp_path).table, first.table
    (now,) = table[table["slice"] == name].itertuples()
    (then,) = before[before["slice"] == name].itertuples()
    values = [f"{then.value:.3f}", "→", f"{now.value:.3f}"]
    assert numbers == ["new,", "worse", *values, "delta", "+0.064", "→", "-0.514"]


ROLES = {"label": "y", "prediction": "p"}
METRICS = ("accuracy", "recall", "mean:cost")


def agresti_coull(marked, n):
    """The interval of a share (Agresti and Coull 1998), with Student's quantile."""
    more = n + Z**2
    middle = (marked + Z**2 / 2) / more
    half = stats.t(more - 1).ppf(0.975) * np.sqrt(middle * (1 - middle) / more)
    return marked / n, max(middle - half, 0.0), min(middle + half, 1.0)


def mover(now, then):
    """The difference of two estimates, its interval and p (Zou and Donner 2008), one by one."""
    (x, x_low, x_high), (y, y_low, y_high) = now, then
    low = x - y - np.sqrt((x - x_low) ** 2 + (y_high - y) ** 2)
    high = x - y + np.sqrt((x_high - x) ** 2 + (y - y_low) ** 2)
    reach = x - y - low if x > y else high - (x - y)
    return x - y, low, high, 2 * stats.norm.sf(abs(x - y) / reach * Z)


def with_cost(frame, seed):
    return frame.assign(cost=np.random.default_rng(seed).exponential(2.0, len(frame)))


@pytest.fixture(scope="module")
def frames():
    return with_cost(night(0.82, 5000, seed=3), 1), with_cost(night(0.80, 4000, seed=4), 2)


@pytest.fixture(scope="module")
def nights(frames, tmp_path_factory):
    folder = tmp_path_factory.mktemp("nights")
    options = {**ROLES, "features": ("f", "k"), "max_cross_size": 2}
    found = []
    for number, frame in enumerate(frames):
        frame.to_parquet(folder / f"{number}.parquet")
        since = {"since": str(folder / "0" / "changelist.json")} if number else {}
        since["compare"] = "overall"
        data = (str(folder / f"{number}.parquet"),)
        found.append(search(folder / str(number), data=data, metric=METRICS, **since, **options))
    return found[0], found[1]


def estimates(name, frame):
    right = frame["y"] == frame["p"]
    if name == "recall":
        return agresti_coull(int(right[frame["y"] == 1].sum()), int((frame["y"] == 1).sum()))
    return agresti_coull(int(right.sum()), len(frame))


def test_the_metrics_over_all_examples(frames, nights):
    overall = {one["metric"]: one for one in nights[1].document["since"]["overall"]}
    assert tuple(overall) == METRICS
    p = {}
    for name in ("accuracy", "recall"):
        then, now = (estimates(name, frame) for frame in frames)
        value, low, high, p[name] = mover(now, then)
        one, changed = overall[name], overall[name]["value_change"]
        assert (one["then"]["value"], one["now"]["value"]) == pytest.approx((then[0], now[0]))
        expected = {"value": value, "lo": low, "hi": high, "confidence": 0.95}
        assert changed["difference"] == pytest.approx(expected, abs=1e-10)
        assert changed["p_value"] == pytest.approx(p[name], rel=1e-8)
        assert (one["n_then"], one["n_now"]) == (5000, 4000)
        # With thousands of examples Newcombe's interval is near that of the z test.
        counts = [round(one * n) for one, n in ((then[0], 5000), (now[0], 4000))]
        if name == "accuracy":
            shares = stats.contingency.chi2_contingency(
                [[counts[0], 5000 - counts[0]], [counts[1], 4000 - counts[1]]], correction=False
            )
            assert changed["p_value"] == pytest.approx(shares.pvalue, rel=0.05)
    # The mean of a cost without any change: near Welch's test, whose interval has no skewness.
    cost = overall["mean:cost"]["value_change"]
    welch = stats.ttest_ind(frames[1]["cost"], frames[0]["cost"], equal_var=False)
    assert cost["p_value"] == pytest.approx(welch.pvalue, abs=0.03)
    interval = welch.confidence_interval(0.95)
    assert (cost["difference"]["lo"], cost["difference"]["hi"]) == pytest.approx(
        (interval.low, interval.high), abs=0.02
    )
    p["mean:cost"] = cost["p_value"]
    adjusted = holm_adjusted([p[name] for name in METRICS])
    found = [one["value_change"] for one in overall.values()]
    assert [one["p_adjusted"] for one in found] == pytest.approx(adjusted.tolist(), rel=1e-7)
    assert [one["significant"] for one in found] == [bool(each <= 0.05) for each in adjusted]


def test_holm_by_its_definition():
    p = [0.04, 0.01, 0.03, 0.005, 1.0]
    # 5·.005, 4·.01, 3·.03, 2·.04 → .09 (no less than the one before), 1
    assert holm_adjusted(p).tolist() == pytest.approx([0.09, 0.04, 0.09, 0.025, 1.0])
    assert holm_adjusted([0.7, 0.8]).tolist() == [1.0, 1.0]
    assert holm_adjusted([]).tolist() == []


def test_the_values_of_slices(frames, nights):
    """Every slice that both tables have, by the formula of the interval and Benjamini-Hochberg."""
    first, second = nights
    both = second.table.merge(first.table, on=["slice_id", "metric"], suffixes=("", "_then"))
    listed = {(one["slice_id"], one["metric"]): one for one in second.document["since"]["slices"]}
    counts = {one["metric"]: one for one in second.document["since"]["metrics"]}
    for name in ("accuracy", "mean:cost"):
        own = both[both["metric"] == name]
        p = np.empty(len(own))
        for at, row in enumerate(own.itertuples()):
            ends = (row.value, row.value_low, row.value_high)
            ends_then = (row.value_then, row.value_low_then, row.value_high_then)
            if name == "accuracy":
                exact = agresti_coull(round(row.value * row.n), row.n)
                assert ends == pytest.approx(exact, abs=1e-12)
            p[at] = mover(ends, ends_then)[3]
        q = stats.false_discovery_control(p)
        assert counts[name]["value_compared"] == len(own) == 15
        fell = (own["value"] - own["value_then"]).to_numpy() < 0
        worse = fell if name == "accuracy" else ~fell
        assert counts[name]["value_worse"] == ((q <= 0.05) & worse).sum()
        assert counts[name]["value_better"] == ((q <= 0.05) & ~worse).sum()
        for at, row in enumerate(own.itertuples()):
            one = listed.get((row.slice_id, name))
            assert one is not None or q[at] > 0.05
            if one is not None:
                assert one["value_change"]["p_value"] == pytest.approx(p[at], rel=1e-8)
                assert one["value_change"]["p_adjusted"] == pytest.approx(q[at], rel=1e-8)
                assert one["then"]["value_interval"]["lo"] == row.value_low_then


def test_the_value_fell_everywhere(tmp_path, capsys):
    """No slice stands out, on either night; what is wrong is wrong with all of them."""
    for number, accuracy in enumerate((0.95, 0.65)):
        night(accuracy, 8000, seed=number).to_parquet(tmp_path / f"{number}.parquet")
    flags = ["--label=y", "--prediction=p", "--fail-on=worse", "--compare=overall"]

    def command(number, *more):
        data, output = tmp_path / f"{number}.parquet", tmp_path / f"out{number}"
        return ["search", f"--data={data}", f"--output={output}", *flags, *more]

    assert run(command(0)) == 0
    since = f"--since={tmp_path}/out0/changelist.json"
    capsys.readouterr()
    assert run(command(1, since, "--json")) == 1
    printed = capsys.readouterr()
    assert "FAIL: Accuracy over all examples 95." in printed.err
    summary = json.loads(printed.out)["since"]
    (overall,) = summary["overall"]
    change = overall["value_change"]
    assert (change["significant"], change["direction"]) == (True, "degraded")
    assert (summary["worse"], summary["metrics"][0]["value_worse"]) == (0, 15)
    slices = summary["slices"]
    assert all(one["value_change"]["significant"] for one in slices)
    assert all(one["now"]["value"] < one["then"]["value"] for one in slices)
    assert read(tmp_path / "out1").document["testing"]["degraded"] == 0
    capsys.readouterr()
    assert run(command(1, since)) == 1
    lines = capsys.readouterr().out.splitlines()
    at = next(i for i, line in enumerate(lines) if line.startswith("Since "))
    assert "(significantly worse)" in lines[at]
    first_line = next(line for line in lines[at:] if "over all examples" in line)
    assert "p < 1e-300, significantly worse)" in first_line
    assert any(line.split()[:2] == ["value", "worse"] for line in lines)
    assert run(["search", f"--data={tmp_path}/0.parquet", f"--output={tmp_path}/back", *flags,
                "--quiet", f"--since={tmp_path}/out1/changelist.json"]) == 0  # fmt: skip


def test_a_fall_of_the_second_metric_in_a_check(tmp_path):
    """Recall fell everywhere, accuracy hardly: positives are few."""
    frames = []
    for number, recall in enumerate((0.9, 0.4)):
        rng = np.random.default_rng(number)
        label = (rng.random(6000) < 0.05).astype(int)
        missed = (label == 1) & (rng.random(6000) > recall)
        noise = (label == 0) & (rng.random(6000) < 0.10 - 0.02 * number)
        guess = np.where(missed, 0, np.where(noise, 1, label))
        frames.append(pd.DataFrame({"f": rng.choice(list("ab"), 6000), "y": label, "p": guess}))
        frames[-1].to_parquet(tmp_path / f"{number}.parquet")
    (tmp_path / "s.yaml").write_text("- f = a\n- f = b\n")
    options = {"slices": str(tmp_path / "s.yaml"), "metric": ("accuracy", "recall"), **ROLES}
    check(tmp_path / "one", data=(str(tmp_path / "0.parquet"),), **options)
    since = str(tmp_path / "one" / "changelist.json")
    arguments = ["check", f"--slices={options['slices']}", f"--since={since}", "--quiet"]
    arguments += [f"--data={tmp_path}/1.parquet", "--label=y", "--prediction=p", "--fail-on=worse"]
    two = [*arguments, f"--output={tmp_path}/two"]
    assert run([*two, "--metric=accuracy"]) == 0
    assert run([*two, "--metric=accuracy,recall"]) == 1
    found = read(tmp_path / "two").document["since"]
    changed = {one["metric"]: one["value_change"] for one in found["overall"]}
    assert not changed["accuracy"]["significant"] or changed["accuracy"]["direction"] == "improved"
    assert changed["recall"]["direction"] == "degraded"
    value = frames[1].query("y == 1")["p"].mean() - frames[0].query("y == 1")["p"].mean()
    assert changed["recall"]["difference"]["value"] == pytest.approx(value, abs=1e-12)
    assert {one["metric"] for one in found["slices"]} == {"accuracy", "recall"}
    assert found["compared"] == sum(one["compared"] for one in found["metrics"]) == 4


def test_two_models_then_and_now(tmp_path):
    """The delta of the update fell, though the value rose: the old model is far better by now."""
    for number, (new, old) in enumerate(((0.80, 0.78), (0.84, 0.93))):
        frame = night(new, 6000, seed=number)
        right = np.random.default_rng(9 + number).random(6000) < old
        frame["old"] = np.where(right, frame["y"], 1 - frame["y"])
        frame.to_parquet(tmp_path / f"{number}.parquet")
    options = {**ROLES, "baseline_prediction": "old", "features": ("f",)}
    one = search(tmp_path / "one", data=tmp_path / "0.parquet", **options)
    since = str(tmp_path / "one" / "changelist.json")
    two = search(tmp_path / "two", data=tmp_path / "1.parquet", since=since, **options)
    (overall,) = two.document["since"]["overall"]
    assert overall["value_change"]["direction"] == "improved"
    deltas = [found.document["global"][0]["delta"] for found in (two, one)]
    now, then = ((one["value"], one["lo"], one["hi"]) for one in deltas)
    value, low, high, p = mover(now, then)
    changed = overall["delta_change"]
    expected = {"value": value, "lo": low, "hi": high, "confidence": 0.95}
    assert changed["difference"] == pytest.approx(expected, abs=1e-12)
    assert changed["p_value"] == pytest.approx(p, rel=1e-8)
    assert (changed["significant"], changed["direction"]) == (True, "degraded")
    assert (overall["delta_now"]["value"], overall["delta_then"]["value"]) == (now[0], then[0])


def test_other_metrics_than_the_first(tmp_path):
    only_recall_is_worse().to_parquet(tmp_path / "d.parquet")
    data = {"data": (str(tmp_path / "d.parquet"),), **ROLES}
    search(tmp_path / "one", metric=("accuracy", "recall"), **data)
    since = str(tmp_path / "one" / "changelist.json")
    found = search(tmp_path / "two", metric=("recall", "f1"), since=since, **data).document["since"]
    assert [one["metric"] for one in found["overall"]] == ["recall"]
    assert found["metric"] == "recall"
    (stays,) = (one for one in found["slices"] if one["status"] == "stays")
    assert (stays["name"], stays["metric"]) == ("f = a", "recall")
    said = "Not compared, because it was not measured"
    assert found["warnings"][:2] == [f"{said} then: f1.", f"{said} now: accuracy."]


def test_groups_have_no_interval_over_all_examples(tmp_path):
    few_groups(60).to_parquet(tmp_path / "d.parquet")
    data = {"data": (str(tmp_path / "d.parquet"),), "group": "u", **ROLES}
    search(tmp_path / "one", **data)
    since = str(tmp_path / "one" / "changelist.json")
    found = search(tmp_path / "two", since=since, **data).document["since"]
    (overall,) = found["overall"]
    assert "value_change" not in overall
    assert "only slices are resampled by groups" in overall["reason"]
    assert any("over all examples changed could not be tested" in one for one in found["warnings"])
    assert "(not tested)" in found["summary"]


def test_values_without_intervals_are_not_compared(frames, nights, tmp_path):
    frames[1].to_parquet(tmp_path / "d.parquet")
    options = {**ROLES, "features": ("f", "k"), "max_cross_size": 2}
    options |= {"data": (str(tmp_path / "d.parquet"),), "metric": METRICS, "compare": "overall"}
    since = str(tmp_path / "changelist.json")
    table = pq.read_table(nights[0].folder / "slices.parquet")
    for name in ("value_low", "value_high"):
        at = table.column_names.index(name)
        table = table.set_column(at, name, pa.nulls(table.num_rows, pa.float64()))
    pq.write_table(table, tmp_path / "slices.parquet")
    document = json.loads((nights[0].folder / "changelist.json").read_text("utf-8"))
    digest = hashlib.sha256((tmp_path / "slices.parquet").read_bytes()).hexdigest()
    document["search"]["slices_fingerprint"] = f"sha256:{digest}"
    (tmp_path / "changelist.json").write_text(json.dumps(document), "utf-8")
    found = search(tmp_path / "out", since=since, **options).document["since"]
    assert [one["value_compared"] for one in found["metrics"]] == [0, 0, 0]
    assert sum("could not be compared" in one for one in found["warnings"]) == 3


@pytest.mark.parametrize(("name", "n"), [("accuracy", 500), slow("accuracy", 8000), ("mean", 400)])
def test_error_rates_of_the_difference_of_values(name, n):
    """Two runs of the same model: 8,000 draws tell rates of 5 % and 1 % to .7 and .3 points."""
    rng, draws = np.random.default_rng(n), 8_000
    if name == "accuracy":
        space, own = statistic_space(["accuracy"], "overall"), metric("accuracy")

        def estimates():
            wrong = rng.binomial(n, 0.1, draws)
            sums = np.stack([n - wrong, wrong], axis=1).astype(np.int64)
            return own.value(Slices(sums, space)), *own.value_interval(
                Slices(sums, space, sums[0]), 0.95
            )
    else:
        from slicebeam.metrics.significance.hall import Moments, against_zero

        def estimates():
            x = rng.exponential(size=(draws, n)).astype(np.float32)
            skewness = ((x - x.mean(axis=1, keepdims=True)) ** 3).mean(axis=1) / x.std(axis=1) ** 3
            size, mean = np.float64(n), x.mean(axis=1, dtype=np.float64)
            own = Moments(size, mean, x.var(axis=1, ddof=1).astype(np.float64), skewness)
            everything = Moments(np.float64(1e6), np.float64(1), np.float64(1), np.float64(2))
            return mean, *against_zero(own, everything).interval(0.95)

    found = difference(estimates(), estimates(), 0.95)
    assert 0.040 <= np.mean(found.p <= 0.05) <= 0.058
    assert 0.005 <= np.mean(found.p <= 0.01) <= 0.0135
    assert 0.018 <= np.sum(found.p[found.value < 0] <= 0.05) / draws <= 0.031


def test_the_schema_holds_values_and_deltas(nights, second):
    for found in (nights[1], second):
        jsonschema.validate(found.document, json_schema())
    schema = pq.read_schema(nights[0].folder / "slices.parquet")
    assert pa.types.is_floating(schema.field("value_low").type)


LABELLED = {"label": "label", "prediction": "prediction"}
SEARCH = LABELLED | {"example_id": "id", "exclude_features": ("text", "other"), "max_cross_size": 1}
# By their predicates, whether the search has them; what it says of the others.
HAND_MADE = {
    "age < 30": "the search had no predicate 'age < 30'",
    "age in {20, 21}": "the search had no predicate 'age in {20, 21}'",
    "sex = Male & age in [41, 62)": "the search had no predicate 'age in [41, 62)'",
    "price < 1.5": "the search had no predicate 'price < 1.5'",
    "price = 0.25": None,
    "day >= 2024-03-01": "the search had no predicate 'day >= 2024-03-01'",
    "city is missing": None,
    "city not in {a, b}": "the search had no predicate 'city not in {a, b}'",
    "tags contains x": None,
    "other < 2": "'other' was not a feature",
    "sex = Male & other < 2": "'other' was not a feature",
}
NO_PREDICATE = "it was not searched for: no predicate describes it"
EXPECTED = HAND_MADE | {"merged": NO_PREDICATE, "listed": NO_PREDICATE}


def frame(seed):
    random, found = np.random.default_rng(seed), examples()
    found["price"] = random.choice([0.1, 0.25, 1.5, 2.75, 9.5], ROWS)
    days = random.integers(0, 300, ROWS)
    found["day"] = [dt.date(2024, 1, 1) + dt.timedelta(days=int(one)) for one in days]
    found["city"] = random.choice(np.array(["a", "b", "c", None], object), ROWS)
    found["tags"] = [list("xyz"[: random.integers(0, 4)]) for _ in range(ROWS)]
    found["other"] = random.integers(0, 5, ROWS)
    return found


def written(folder, name, seed):
    path = folder / name
    pq.write_table(pa.Table.from_pandas(frame(seed), preserve_index=False), path)
    return str(path)


@pytest.fixture(scope="module")
def new_data(tmp_path_factory):
    return (written(tmp_path_factory.mktemp("new"), "new.parquet", 2),)


@pytest.fixture(scope="module")
def edited(tmp_path_factory):
    folder = tmp_path_factory.mktemp("edited")
    search(folder / "out", data=written(folder, "old.parquet", 1), **SEARCH)
    (folder / "ids.txt").write_text("".join(f"n{row}\n" for row in range(200)))
    with pytest.MonkeyPatch.context() as patch:
        stand_in(patch, frame(1))
        for text in HAND_MADE:
            define(folder, text, f"--where={text}")
        define(folder, "listed", f"--ids={folder}/ids.txt")
        define(folder, "one", "--where=age < 40")
        define(folder, "other", "--where=price < 2")
        both = ("--slice=one", "--slice=other", "--name=merged")
        assert run(["edit", "merge", f"--changelist={folder}/out", *both, "--quiet"]) == 0
    revisions = (folder / "out").glob("changelist.r*.json")
    (*_, last) = sorted(revisions, key=lambda one: one.stat().st_mtime_ns)
    return str(last)


def define(folder, name, definition):
    command = ["define", f"--changelist={folder}/out", f"--name={name}", definition, "--quiet"]
    assert run(command) == 0


def reasons(found):
    return {one["name"]: one.get("missing") for one in found.document["since"]["slices"]}


def expected(when):
    return {name: reason and f"{when} {reason}" for name, reason in EXPECTED.items()}


def test_a_check_and_a_search_since_the_edited_document(edited, new_data, tmp_path):
    found = reasons(check(tmp_path / "check", data=new_data, changelist=edited, since=edited))
    assert {name: found[name] for name in EXPECTED} == expected("then")
    # Those of the search are in both runs.
    assert len(found) > len(EXPECTED)
    assert not any(found[name] for name in {*found} - {*EXPECTED})
    found = search(tmp_path, data=new_data, since=edited, **SEARCH)
    assert {name: reasons(found)[name] for name in EXPECTED} == expected("now")


def test_a_search_since_a_check_of_other_slices(new_data, tmp_path):
    (tmp_path / "slices.yaml").write_text("[age < 30, price = 0.25, other < 2]")
    checked = check(tmp_path / "then", data=new_data, slices=f"{tmp_path}/slices.yaml", **LABELLED)
    since = str(checked.folder / "changelist.json")
    found = reasons(search(tmp_path / "now", data=new_data, since=since, **SEARCH))
    for name in ("age < 30", "price = 0.25", "other < 2"):
        reason = HAND_MADE[name]
        assert found[name] == (reason and f"now {reason}")


def test_slices_of_mostly_the_same_examples_are_one_line(tmp_path, capsys):
    """The overlap of rows by pandas: each slice that is like another follows it, and no two lines repeat each other."""
    rng = np.random.default_rng(4)
    nights = []
    for number, fall in enumerate((0.0, 0.3)):
        place, half = rng.choice([*"abcdef"], 6000), rng.choice(["x", "y"], 6000)
        twin = np.where(rng.random(6000) < 0.95, np.char.add(place, "2"), "other")
        label = rng.integers(0, 2, 6000)
        wrong = rng.random(6000) < 0.15 + fall * (place == "b")
        guess = np.where(wrong, 1 - label, label)
        frame = {"place": place, "twin": twin, "half": half, "y": label, "p": guess}
        nights.append(pd.DataFrame(frame))
        nights[-1].to_parquet(tmp_path / f"{number}.parquet")
    options = {**ROLES, "max_cross_size": 2, "compare": "overall"}
    search(tmp_path / "0", data=str(tmp_path / "0.parquet"), **options)
    command = ["search", f"{tmp_path}/1.parquet", "--label=y", "--prediction=p"]
    command += ["--max-cross-size=2", "--compare=overall", f"--since={tmp_path}/0/changelist.json"]
    assert run([*command, f"--output={tmp_path}/1"]) == 0
    printed, now = capsys.readouterr().out, read(tmp_path / "1")
    rows = [one for one in now.document["since"]["slices"] if one["significant"]]
    held = {one["slice_id"]: predicates.mask(nights[1], one["predicate"]) for one in rows}

    def share(one, other):
        both = [held[row["slice_id"]] for row in (one, other)]
        return (both[0] & both[1]).sum() / min(mine.sum() for mine in both)

    seen, alike = {}, 0
    for row in rows:
        like = row.get("like")
        known = [one for one in seen.values() if one["direction"] == row["direction"]]
        nearest = [one["slice_id"] for one in known if share(one, row) >= 0.8]
        assert like == (nearest[0] if nearest else None)
        alike += like is not None
        if like is None:
            seen[row["slice_id"]] = row
    assert alike >= 3
    assert " like it)" in printed
    assert sum(line.count(" → ") == 2 for line in printed.splitlines()) < len(rows)


# With the data of the earlier run --------------------------------------------------------------


@pytest.fixture(scope="module")
def two_nights(tmp_path_factory):
    folder = tmp_path_factory.mktemp("two-nights")
    for number, accuracy in enumerate((0.9, 0.8, 0.8)):
        night(accuracy, 4000, seed=number).to_parquet(folder / f"{number}.parquet")
    search(folder / "0", data=str(folder / "0.parquet"), **ONE_MODEL)
    return folder


ONE_MODEL = {**ROLES, "max_cross_size": 2}


def since_first(folder, output, *, data="1.parquet", **options):
    since = str(folder / "0" / "changelist.json")
    return search(output, data=str(folder / data), since=since, **ONE_MODEL, **options)


def test_data_that_is_still_there_is_compared(two_nights, tmp_path):
    """As ``--baseline-data`` does; the document repeats the run."""
    found = since_first(two_nights, tmp_path / "since")
    earlier = {"baseline_data": (str(two_nights / "0.parquet"),)}
    named = search(tmp_path / "named", data=str(two_nights / "1.parquet"), **earlier, **ONE_MODEL)
    assert found.slices_bytes == named.slices_bytes
    config = found.document["provenance"]["config"]
    assert config["baseline_data"] == [str(two_nights / "0.parquet")]
    assert "since" not in config
    assert "since" not in found.document
    assert found.document["earlier_data"]["n"] == 4000
    again = ["run", str(tmp_path / "since" / "changelist.json"), "--quiet"]
    assert run([*again, f"--output={tmp_path}/again"]) == 0
    assert read(tmp_path / "again").slices_bytes == found.slices_bytes


def test_which_of_both_is_said(two_nights, tmp_path, capsys):
    command = [
        "search",
        f"--data={two_nights}/1.parquet",
        f"--since={two_nights}/0/changelist.json",
    ]
    command += ["--label=y", "--prediction=p", f"--output={tmp_path}"]
    assert run(command) == 0
    assert "its data is still there, so each slice is compared on both" in capsys.readouterr().err
    assert run([*command, "--compare=overall"]) == 0
    assert "its data" not in capsys.readouterr().err


def without(name):
    return lambda folder: (
        night(0.9, 4000, seed=1).drop(columns=name).to_parquet(folder / "1.parquet")
    )


def with_text(folder):
    path = folder / "0" / "changelist.json"
    document = json.loads(path.read_text("utf-8"))
    document["dataset"]["fingerprint"] = "sha256:" + "0" * 64
    path.write_text(json.dumps(document), "utf-8")


@pytest.mark.parametrize(("change", "options", "said"), [
    (lambda folder: (folder / "0.parquet").unlink(), {}, "0.parquet: no such file"),
    (lambda folder: night(0.9, 4000, seed=9).to_parquet(folder / "0.parquet"), {}, "has other examples or predictions now"),
    (with_text, {}, "has other examples or predictions now"),
    (without("k"), {}, "only one data set has 'k'"),
    (None, {"confirm": 0.3}, "leave one out"),
    (None, {"data": "0.parquet"}, "this run reads the same files"),
    (lambda folder: (folder / "same.parquet").symlink_to("0.parquet"), {"data": "same.parquet"}, "this run reads the same files"),
])  # fmt: skip
def test_why_published_slices_are_compared(
    two_nights, tmp_path, monkeypatch, change, options, said
):
    folder, notes = tmp_path / "nights", []
    shutil.copytree(two_nights, folder)
    text = (folder / "0" / "changelist.json").read_text("utf-8")
    (folder / "0" / "changelist.json").write_text(text.replace(str(two_nights), str(folder)))
    if change is not None:
        change(folder)
    monkeypatch.setattr(
        "slicebeam.pipelines.show.terminal.Terminal.note", lambda _, text: notes.append(text)
    )
    found = since_first(folder, tmp_path / "out", **options)
    assert found.document["since"]["compared"] > 2
    (note,) = [one for one in notes if "as published" in one]
    assert said in note


def test_a_run_with_earlier_data_can_be_followed_by_its_data_only(two_nights, tmp_path, capsys):
    shutil.copy(two_nights / "1.parquet", tmp_path / "1.parquet")
    search(
        tmp_path / "1", data=str(tmp_path / "1.parquet"),
        baseline_data=(str(two_nights / "0.parquet"),), **ONE_MODEL,
    )  # fmt: skip
    command = ["search", f"--data={two_nights}/2.parquet", "--label=y", "--prediction=p"]
    command += ["--max-cross-size=2", f"--since={tmp_path}/1/changelist.json"]
    assert run([*command, f"--output={tmp_path}/2", "--quiet"]) == 0
    assert read(tmp_path / "2").document["earlier_data"]["uri"] == [f"{tmp_path}/1.parquet"]
    # Where slices are to be compared, theirs have no difference from the other examples.
    differs = "compare was 'earlier' there and is 'overall' here, so the runs can't be compared"
    output = f"--output={tmp_path}/3"
    assert differs in refused([*command, output, "--compare=overall"], capsys, folder=tmp_path)
    (tmp_path / "slices.yaml").write_text("- f = a\n")
    watched = ["check", f"--slices={tmp_path}/slices.yaml", *command[1:4], command[-1], output]
    assert differs in refused(watched, capsys, folder=tmp_path)
    (tmp_path / "1.parquet").unlink()
    said = refused([*command, f"--output={tmp_path}/3"], capsys, folder=tmp_path)
    assert "only its data can be compared, not its slices" in said
    assert said.endswith("name the data with --baseline-data")


def test_data_is_not_verified_here_for_workers_elsewhere(two_nights):
    """It may be more than this machine can read."""
    config = search_config({
        "data": (str(two_nights / "1.parquet"),), "output": "out", **ONE_MODEL, "label": "y",
        "since": str(two_nights / "0" / "changelist.json"),
    })  # fmt: skip
    document = read_search(str(two_nights / "0" / "changelist.json"), "--since")
    for elsewhere, is_verified in (("Dataflow", False), (None, True)):
        observer = Mock()
        against = against_data_of(config, document, SimpleNamespace(elsewhere=elsewhere), observer)
        assert (against is not None) == is_verified
        (note,) = [call.args[0] for call in observer.note.call_args_list]
        assert ("the workers of Dataflow" in note) != is_verified
