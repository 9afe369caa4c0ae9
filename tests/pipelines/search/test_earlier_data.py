import json
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from scipy import stats

from slicebeam.pipelines.changelist.changes import NO_DRIFT
from slicebeam.pipelines.commands.api import search
from slicebeam.pipelines.commands.cli import run
from slicebeam.pipelines.search.significance import SecondTests
from slicebeam.pipelines.show.earlier import moved_lines
from tests.oracles import predicates
from tests.pipelines.page.in_browser import opened
from tests.running import refused


def frame(seed, n=6000, fall=0.0, more_hard=0.0):
    """A table of two features; a slice is worse by some points, a hard kind more frequent."""
    rng = np.random.default_rng(seed)
    kind = rng.choice(["easy", "hard", "odd"], n, p=[0.6 - more_hard, 0.3 + more_hard, 0.1])
    size = np.round(rng.gamma(2.0, 10.0, n), 2)
    place = rng.choice(["a", "b", "c", None], n)
    chance = np.where(kind == "hard", 0.25, 0.08) + fall * ((place == "b") & (kind == "easy"))
    y = rng.integers(0, 2, n)
    return pd.DataFrame(
        {
            "kind": kind, "size": size, "place": place, "late": y,
            "guess": np.where(rng.random(n) < chance, 1 - y, y), "shop": rng.integers(0, 300, n),
            "w": np.round(rng.gamma(3.0, 1.0, n), 3),
        }
    )  # fmt: skip


OPTIONS = {"label": "late", "prediction": "guess", "features": ["kind", "size", "place"], "bins": 4}


@pytest.fixture(scope="module")
def fallen():
    now, then = frame(1, n=9000, fall=0.2), frame(2, n=12000)
    return now, then, search(now, baseline_data=then, **OPTIONS)


def test_every_slice_has_both_values_and_fishers_p(fallen):
    now, then, report = fallen
    slices = report.slices.to_pandas()
    assert len(slices) > 60
    at = 0
    for row in slices.itertuples():
        predicate = json.loads(row.predicate)
        inside = [predicates.mask(table, predicate) for table in (now, then)]
        right = [
            (table.late == table.guess)[mine]
            for table, mine in zip((now, then), inside, strict=True)
        ]
        n, m = (len(one) for one in right)
        assert row.n == n
        assert row.value == pytest.approx(right[0].mean(), abs=1e-12)
        assert row.reference == pytest.approx(right[1].mean(), abs=1e-12)
        wrong, wrong_then = n - right[0].sum(), m - right[1].sum()
        if n >= 20 and m >= 20 and wrong + wrong_then:
            law = stats.hypergeom(n + m, wrong + wrong_then, n)
            assert row.p_value == pytest.approx(law.sf(wrong) + law.pmf(wrong) / 2, rel=1e-6)
            at += 1
    assert at > 60


EXAMPLES = Path(__file__).parents[3] / "examples"
REAL = {
    "compas": (EXAMPLES / "compas" / "compas_discretized.csv", "class", "predicted"),
    "electricity": (EXAMPLES / "electricity" / "electricity_scored.parquet", "class", "prediction"),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", REAL)
def test_on_real_tables_every_value_interval_and_p_is_that_of_scipy(name):
    """The later part of the rows against the earlier one; Newcombe's interval, and Fisher's mid-p."""
    path, label, prediction = REAL[name]
    table = pd.read_csv(path) if path.suffix == ".csv" else pd.read_parquet(path)
    cut = len(table) * 3 // 5
    then, now = table[:cut].reset_index(drop=True), table[cut:].reset_index(drop=True)
    columns = {"label": label, "prediction": prediction, "max_cross_size": 2}
    slices = search(now, baseline_data=then, **columns).slices.to_pandas()
    masks = {predicate: json.loads(predicate) for predicate in slices.predicate}
    counts = []
    for side in (now, then):
        right = (side[label] == side[prediction]).to_numpy()
        inside = [predicates.mask(side, written) for written in masks.values()]
        counts += [np.array([mask.sum() for mask in inside])]
        counts += [np.array([(mask & right).sum() for mask in inside])]
    n, x, m, y = counts
    assert len(slices) > 90
    assert (slices.n == n).all()
    assert (m[np.isfinite(slices.reference)] > 0).all()
    assert slices.value.to_numpy() == pytest.approx(x / n, abs=1e-12)
    has_then = m > 0
    assert slices.reference[has_then].to_numpy() == pytest.approx(
        y[has_then] / m[has_then], abs=1e-12
    )

    def wilson(k, of):
        z = stats.norm.ppf(0.975)
        middle, half = k + z * z / 2, z * np.sqrt(k * (of - k) / of + z * z / 4)
        return (middle - half) / (of + z * z), (middle + half) / (of + z * z)

    large = np.flatnonzero((n >= 20) & (m >= 20))
    n, x, m, y = (column[large] for column in (n, x, m, y))
    p, q, of_now, of_then = x / n, y / m, wilson(x, n), wilson(y, m)
    below = p - q - np.hypot(p - of_now[0], of_then[1] - q)
    above = p - q + np.hypot(of_now[1] - p, q - of_then[0])
    tested = slices.iloc[large]
    assert tested.ci_low.to_numpy() == pytest.approx(below, abs=1e-9)
    assert tested.ci_high.to_numpy() == pytest.approx(above, abs=1e-9)
    law = stats.hypergeom(n + m, (n - x) + (m - y), n)
    mid_p = law.sf(n - x) + law.pmf(n - x) / 2
    # With a variance above 1,000 the tail is that of r*.
    exact = law.var() <= 1000
    assert exact.sum() > 80
    found = np.where((n - x) + (m - y) > 0, tested.p_value.to_numpy(), mid_p)
    assert found[exact] == pytest.approx(mid_p[exact], rel=1e-6)
    assert found[~exact] == pytest.approx(mid_p[~exact], rel=2e-3)


@pytest.mark.parametrize("weight", [None, "w"])
def test_means_have_the_law_of_the_slices_own_values_beside_halls_t(weight, monkeypatch):
    """Where losses are less skewed than elsewhere: the share of 20,000 random subsets, and never less than Hall's p."""
    rng = np.random.default_rng(0)
    tables = []
    for n in (200, 6000):
        place = rng.choice(["a", "b", "c", "d"], n)
        loss = rng.lognormal(0, np.where(place == "a", 0.9, 0.4), n)
        loss *= np.where(place == "a", 0.7, 1.2) if n == 200 else 1.0
        w = rng.uniform(0.5, 2.0, n)
        tables.append(pd.DataFrame({"place": place, "late": loss, "guess": 0.0, "w": w}))
    now, then = tables if weight else (table.drop(columns="w") for table in tables)
    options = {"label": "late", "prediction": "guess", "metric": "mae", "weight": weight}
    options |= {"alpha": 0.5, "correction": "none", "alternative": "worse"}
    report = search(now, baseline_data=then, **options).slices.to_pandas()
    monkeypatch.setattr(SecondTests, "by_own_values", lambda *_: None)
    by_hall = search(now, baseline_data=then, **options).slices.to_pandas()
    raised = 0
    for row, hall in zip(report.itertuples(), by_hall.itertuples(), strict=True):
        inside = [predicates.mask(table, json.loads(row.predicate)) for table in (now, then)]
        both = pd.concat([table[mine] for table, mine in zip((now, then), inside, strict=True)])
        w = both["w"].to_numpy() if weight else np.ones(len(both))
        apart = w * (both["late"] - np.average(both["late"], weights=w)).to_numpy()
        drawn = (rng.random((apart.size, 100)) for _ in range(200))
        order = (np.argpartition(u, row.n, axis=0)[: row.n] for u in drawn)
        sums = np.concatenate([apart[some].sum(axis=0) for some in order])
        share = np.mean(sums >= apart[: row.n].sum())
        error = 4 * np.sqrt(share * (1 - share) / sums.size) + 0.05 * share + 1e-4
        assert row.p_value == pytest.approx(max(share, hall.p_value), abs=error)
        raised += row.p_value > hall.p_value * 2
    assert len(report) == 4
    assert raised


def test_the_finding_is_the_cause_and_the_parts_add_up(fallen):
    now, then, report = fallen
    document = report.changelist
    (finding,) = document.findings
    names = {one.slice_id: one.name for one in document.slices}
    assert names[finding.slice_id] == "kind = easy & place = b"
    assert finding.before == pytest.approx(finding.expected, abs=0.03)
    assert finding.value < finding.expected - 0.1
    overall = document.global_[0]
    assert overall.significant
    assert overall.before.value == pytest.approx((then.late == then.guess).mean())
    moved = document.earlier_data.moved[0]
    whole = (now.late == now.guess).mean() - (then.late == then.guess).mean()
    assert moved.change == pytest.approx(whole)
    assert moved.new_kinds + moved.mix.value + moved.model.value == pytest.approx(whole, abs=1e-9)
    assert moved.mix.lo < 0 < moved.mix.hi
    assert moved.model.hi < 0
    assert moved.by_model[0].slice_id == finding.slice_id
    assert not any(one.significant for one in document.earlier_data.drift)
    assert document.earlier_data.n == 12000


def test_the_part_that_changed_is_named_and_not_what_holds_it():
    """Three quarters of what is fast are worse; fast alone has the larger gain, as one condition is one of fewer."""

    def paces(seed, fall):
        rng = np.random.default_rng(seed)
        pace = rng.choice(["fast", "slow", "odd"], 9000, p=[0.1, 0.7, 0.2])
        place = rng.choice(["a", "b"], 9000, p=[0.25, 0.75])
        hue = rng.choice(list("rgb"), 9000)
        chance = np.where(pace == "fast", 0.01 + fall * (place == "b"), 0.1)
        late = rng.integers(0, 2, 9000)
        guess = np.where(rng.random(9000) < chance, 1 - late, late)
        return pd.DataFrame(
            {"pace": pace, "place": place, "hue": hue, "late": late, "guess": guess}
        )

    options = {"label": "late", "prediction": "guess"}
    document = search(paces(14, 0.12), baseline_data=paces(104, 0.0), **options).changelist
    names = {one.slice_id: one.name for one in document.slices}
    (finding,) = document.findings
    assert names[finding.slice_id] == "pace = fast & place = b"
    assert [names[one] for one in finding.near] == ["pace = fast"]


def test_without_a_single_error_then_the_cause_is_still_named():
    now, then = frame(1, n=9000, fall=0.3), frame(2, n=9000)
    then["guess"] = then["late"]
    document = search(now, baseline_data=then, **OPTIONS).changelist
    names = {one.slice_id: one.name for one in document.slices}
    causes = [names[finding.slice_id] for finding in document.findings]
    assert causes[:2] == ["kind = easy & place = b", "kind = hard"]


def test_another_mix_is_no_change_of_the_model():
    now, then = frame(3, n=8000, more_hard=0.15), frame(4, n=8000)
    document = search(now, baseline_data=then, **OPTIONS).changelist
    assert document.global_[0].significant
    assert document.findings == ()
    moved = document.earlier_data.moved[0]
    assert moved.mix.hi < 0
    assert moved.model.lo < 0 < moved.model.hi
    assert moved.by_mix[0].name == "kind"
    drift = document.earlier_data.drift[0]
    assert (drift.feature, drift.significant) == ("kind", True)
    assert (
        drift.share_now - drift.share_then == pytest.approx(0.15, abs=0.03)
        or drift.share_now < drift.share_then
    )


def test_a_finding_that_fewer_examples_have_is_a_part_of_the_mix():
    now, then = frame(8, n=9000, fall=0.5), frame(9, n=9000, fall=0.25)
    # As many of each kind and place as before.
    cause, others = (
        np.flatnonzero((now.kind == kind) & (now.place == place))
        for kind, place in (("easy", "b"), ("hard", "a"))
    )
    now.loc[cause[:600], "place"], now.loc[others[:600], "place"] = "a", "b"
    now.loc[cause[:600], "guess"] = now.loc[cause[:600], "late"]
    document = search(now, baseline_data=then, **OPTIONS).changelist
    moved, name = document.earlier_data.moved[0], "kind = easy & place = b"
    part = moved.by_mix[0]
    shares = [((table.kind == "easy") & (table.place == "b")).mean() for table in (then, now)]
    assert (part.name, part.value) == (name, name)
    assert (part.share_then, part.share_now) == pytest.approx(shares)
    # A fall of .25 beside it, for that many fewer.
    assert part.change.value == pytest.approx(0.25 * (shares[0] - shares[1]), abs=0.005)
    parts = moved.new_kinds + moved.mix.value + moved.model.value
    assert parts == pytest.approx(moved.change, abs=1e-9)
    shown = f"{name}: fewer ({shares[0]:.1%} → {shares[1]:.1%})"
    assert sum(line.endswith(shown) for line in moved_lines(document)) == 1


@pytest.mark.parametrize("more", [
    {"metric": "f1,recall,mcc"},
    {"weight": "w"},
    {"group": "shop"},
    {"strategy": "iterative"},
    {"strategy": "priority"},
    {"metric": "mean:size", "features": ["kind", "place"]},
    {"alternative": "both"},
])  # fmt: skip
def test_where_nothing_changed_nothing_is_told(more):
    now, then = frame(5, n=3000), frame(6, n=5000)
    document = search(now, baseline_data=then, **(OPTIONS | more)).changelist
    assert document.testing.significant == 0
    assert document.findings == ()
    assert not any(one.significant for one in document.global_)


def files(tmp_path, now, then):
    for name, table in (("now", now), ("then", then)):
        pq.write_table(
            pa.Table.from_pandas(table, preserve_index=False), tmp_path / f"{name}.parquet"
        )
    command = [
        "search",
        str(tmp_path / "now.parquet"),
        "--baseline-data",
        str(tmp_path / "then.parquet"),
    ]
    return [
        *command,
        "--label=late",
        "--prediction=guess",
        "--features=kind,size,place",
        "--bins=4",
    ]


def test_the_gate_the_text_and_a_resumed_run(tmp_path, capsys, fallen):
    now, then, _ = fallen
    command = [*files(tmp_path, now, then), f"--output={tmp_path}/out", "--fail-on=any"]
    assert run(command) == 1
    printed = capsys.readouterr().out
    assert "Why accuracy changed by -" in printed
    assert "by the model, on the same kinds of examples" in printed
    assert "worse than then by more than the lines above explain" in printed
    assert "The data has not drifted" in printed
    before = (tmp_path / "out" / "slices.parquet").read_bytes()
    assert run([*command, "--resume"]) == 1
    assert (tmp_path / "out" / "slices.parquet").read_bytes() == before
    assert run(["report", str(tmp_path / "out")]) == 0


def test_drift_fails_only_where_asked(tmp_path, capsys):
    now, then = frame(7, more_hard=0.3), frame(8)
    command = [*files(tmp_path, now, then), "--quiet"]
    assert run([*command, f"--output={tmp_path}/a", "--fail-on=drift"]) == 1
    assert "kind has drifted (population stability index" in capsys.readouterr().err
    assert run([*command, f"--output={tmp_path}/b"]) == 0


@pytest.mark.parametrize(("more", "message"), [
    (["--baseline-prediction", "guess"], "--baseline-data and --baseline-prediction"),
    (["--metric", "average_precision", "--score", "w"], "--metric average_precision is not compared between two data sets"),
    (["--fail-on", "drifted"], "--fail-on 'drifted'; did you mean 'drift'? choose from worse, drift, any"),
    (["--query", "shop"], "--baseline-data"),
])  # fmt: skip
def test_what_does_not_go_together_is_refused(tmp_path, capsys, more, message):
    now, then = frame(9, n=200), frame(10, n=200)
    assert message in refused(
        [*files(tmp_path, now, then), f"--output={tmp_path}/out", *more], capsys, folder=tmp_path
    )


def test_the_same_file_or_another_table_is_refused(tmp_path, capsys):
    now, then = frame(9, n=200), frame(10, n=200)
    command = files(tmp_path, now, then)
    same = [one.replace("then.parquet", "now.parquet") for one in command]
    assert "--data names this file as well" in refused(
        [*same, f"--output={tmp_path}/out"], capsys, folder=tmp_path
    )
    (tmp_path / "link.parquet").symlink_to("now.parquet")
    same = [part.replace("then.parquet", "link.parquet") for part in command]
    assert "--data names this file as well" in refused(
        [*same, f"--output={tmp_path}/out"], capsys, folder=tmp_path
    )
    (tmp_path / "link.parquet").unlink()
    files(tmp_path, now, then.drop(columns=["place"]))
    assert "place" in refused([*command, f"--output={tmp_path}/out"], capsys, folder=tmp_path)
    assert "--fail-on drift needs --baseline-data" in refused(
        [*command[:2], *command[4:], f"--output={tmp_path}/out", "--fail-on=drift"],
        capsys,
        folder=tmp_path,
    )


@pytest.mark.slow
def test_a_corrected_difference_is_right_on_average_where_few_are_found():
    found = []
    for seed in range(60):
        now, then = frame(2 * seed + 100, n=9000, fall=0.04), frame(2 * seed + 101, n=12000)
        report = search(now, baseline_data=then, **OPTIONS).changelist
        names = {one.slice_id: one.name for one in report.slices}
        found += [
            (one.difference, one.corrected.difference)
            for one in report.findings
            if names[one.slice_id] == "kind = easy & place = b"
        ]
    observed, corrected = np.mean(found, axis=0)
    # The slice is 15 % of the examples, and so much of its fall is in what is expected.
    assert 15 < len(found) < 50
    assert corrected == pytest.approx(-0.85 * 0.04, abs=0.004)
    assert observed < corrected - 0.006


def test_a_gate_of_drift_fails_where_no_feature_could_be_tested(tmp_path):
    for seed, name in enumerate(("now", "then")):
        table = frame(seed, n=500)[["late", "guess"]]
        table["tags"] = [[one] for one in np.resize(["x", "y", "z"], 500)]
        table.to_parquet(tmp_path / f"{name}.parquet")
    data = [f"--data={tmp_path}/now.parquet", f"--baseline-data={tmp_path}/then.parquet"]
    given = ["search", *data, "--label=late", "--prediction=guess", f"--output={tmp_path}/out"]
    assert run([*given, "--fail-on=drift"]) == 2
    gate = json.loads((tmp_path / "out" / "changelist.json").read_text())["gate"]
    assert gate["reasons"] == [NO_DRIFT]


def test_what_needs_independent_examples_is_not_told_of_groups(fallen, tmp_path, capsys):
    now, then, _ = fallen
    command = [*files(tmp_path, now, then), "--group=shop", f"--output={tmp_path}/out"]
    assert run([*command, "--fail-on=drift"]) == 2
    document = json.loads((tmp_path / "out" / "changelist.json").read_text())
    assert [document["earlier_data"][name] for name in ("moved", "drift")] == [[], []]
    (model,) = document["finding_models"]
    assert model["reason"] == "with groups, findings of a change are not chosen"
    assert document["testing"]["metrics"][0]["degraded"] > 5
    printed = " ".join(capsys.readouterr().out.split())
    for told in (
        f"FAIL: {NO_DRIFT}",
        "N" + NO_DRIFT[1:],
        "Whether the metric changed over all examples is not tested: examples are grouped",
        "with groups, findings of a change are not chosen",
    ):
        assert told in printed


@pytest.mark.browser
def test_the_page_says_what_was_before(browser, fallen, tmp_path):
    run([*files(tmp_path, *fallen[:2]), f"--output={tmp_path}/out", "--page"])
    document = json.loads((tmp_path / "out" / "changelist.json").read_text())
    first = document["findings"][0]["slice_id"]
    with opened(browser, tmp_path / "out") as page:
        shares = [(table.late == table.guess).mean() for table in fallen[1::-1]]
        assert "Accuracy fell from {:.1%} to {:.1%}".format(*shares) in page.inner_text("main")
    with opened(browser, tmp_path / "out", view=f"#slice/{first}") as page:
        text = page.inner_text("main")
        rows = page.locator("tr", has_text="Then").locator("svg.mark")
        mark = rows.first.get_attribute("aria-label")
    then = fallen[1].query("kind == 'easy' and place == 'b'")
    right = stats.binomtest(int((then.late == then.guess).sum()), len(then))
    ends = right.proportion_ci(method="wilson")
    shares = [f"{100 * share:.1f}%" for share in (right.statistic, ends.low, ends.high)]
    assert f"{shares[0]} then" in text
    assert "{} to {}".format(*shares[1:]) in mark
