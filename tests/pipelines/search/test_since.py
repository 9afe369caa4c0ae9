"""``--since``: what the document says of two runs, against the tables of both."""

import json
import shutil

import numpy as np
import pytest
from scipy import stats

from slicebeam.pipelines.cli import run
from tests.pipelines.check.test_check import check
from tests.running import read, refused, search

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
    far = np.where(
        rises, both["ci_high_then"] - both["delta_then"], both["delta_then"] - both["ci_low_then"]
    )
    error = np.sqrt(near**2 + far**2) / Z
    both["p"] = 2 * stats.norm.sf(np.abs(both["difference"]) / error)
    both["q"] = stats.false_discovery_control(both["p"])
    return both.set_index("slice_id")


def test_differences_against_the_tables(first, second):
    both = oracle(second.table, first.table)
    since = second.document["since"]
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
    shapes = [
        {domain["name"]: domain["singletons"] for domain in found.document["dataset"]["domains"]}
        for found in (first, second)
    ]
    assert shapes[0] == shapes[1]
    config = second.document["provenance"]["config"]
    assert config["domains"] == config["since"] == str(first.folder / "changelist.json")
    since = str(first.folder / "changelist.json")
    own = search(tmp_path, data=data(days, 1), since=since, bins=7, **OPTIONS).document
    assert "domains" not in own["provenance"]["config"]
    assert own["since"]["compared"] < second.document["since"]["compared"]


def test_slices_that_are_cut_otherwise_are_told(days, second, tmp_path):
    since = str(second.folder / "changelist.json")
    found = search(
        tmp_path, data=data(days, 2), since=since, bins=7, exclude_features=("sex",), **OPTIONS
    )
    reasons = {
        one["name"]: one["missing"] for one in found.document["since"]["slices"] if "missing" in one
    }
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
    both = oracle(two.table, one.table)
    told = two.document["since"]
    assert told["compared"] == len(both) == len(second.document["slices"])
    assert told["worse"] == (both["q"] <= 0.05).sum() >= 4
    # A check lists all of its slices.
    assert len(told["slices"]) == len(both)
    assert told["warnings"] == []
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
    assert told["warnings"][1] == (
        "alpha was 0.05 then and is 0.01 now, so other slices are significant."
    )


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
    # Nothing was begun.
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
    since = f"--since={first.folder}/changelist.json"
    assert run(arguments(days, tmp_path, since)) == 0
    lines = capsys.readouterr().out.splitlines()
    assert any(line.startswith("Since ") for line in lines)
    line = next(line for line in lines if line.split()[:1] == ["new,"])
    numbers, name = line.split()[:9], " ".join(line.split()[9:])
    assert name == "occupation = Sales & relationship = Husband"
    table, before = read(tmp_path).table, first.table
    (now,) = table[table["slice"] == name].itertuples()
    (then,) = before[before["slice"] == name].itertuples()
    values = [f"{then.value:.3f}", "→", f"{now.value:.3f}"]
    assert numbers == ["new,", "worse", *values, "delta", "+0.064", "→", "-0.514"]
