"""Whole searches and shifts against independent oracles: tests, corrections, publication, what is told."""

import hashlib
import itertools
import json

import jsonschema
import numpy as np
import pandas as pd
import pyarrow.parquet as pq
import pytest
import yaml
from scipy import stats

import slicebeam.pipelines.search.search
from slicebeam.pipelines.changelist.document import ChangeList, json_schema
from slicebeam.pipelines.commands.cli import run
from slicebeam.pipelines.search.findings import finding_lists
from slicebeam.pipelines.search.slices_table import SCHEMA
from tests.conftest import ADULT_ROLES, slow
from tests.oracles import lattice, predicates, significance
from tests.publications import Written, assert_published, publish_set
from tests.refusals import refusing
from tests.running import names_of, read, refused, search
from tests.shift_runs import (
    METHODS,
    REPLAYED,
    ROLES,
    Z,
    document,
    made,
    matrix,
    saved,
    shift,
    timeless,
)

OVERALL = {"label": "income", "prediction": "prediction"}
OVERALL |= {"exclude_features": ("row_id", "score", "score_old", "prediction_old")}


@pytest.fixture(scope="module")
def overall(tmp_path_factory, adult_path):
    folder = tmp_path_factory.mktemp("overall")
    return search(folder, data=adult_path, metric=("accuracy", "error_rate"), **OVERALL)


@pytest.fixture(scope="module")
def masks(overall, adult):
    named = lattice.singletons(overall.domains())
    return {name: predicates.mask(adult, predicate) for name, predicate in named.items()}


def _mask(masks, conjunction):
    return np.logical_and.reduce([masks[name] for name in conjunction])


@pytest.mark.parametrize("every_nth", [9, slow(1)])
def test_rows_say_what_pandas_says(overall, adult, masks, every_nth):
    right = (adult["income"] == adult["prediction"]).to_numpy()
    every, of = np.count_nonzero(right), overall.table["metric"]
    rows, other = (overall.table[of == m].iloc[::every_nth] for m in ("accuracy", "error_rate"))
    for row, conjunction in zip(rows.itertuples(), overall.conjunctions(rows), strict=True):
        held = _mask(masks, conjunction)
        inside = np.count_nonzero(right & held)
        assert row.n == np.count_nonzero(held)
        assert row.share == row.n / len(adult)
        assert abs(row.value - inside / row.n) <= 1e-15
        assert abs(row.reference - every / len(adult)) <= 1e-15
        assert abs(row.complement - (every - inside) / (len(adult) - row.n)) <= 1e-15
        assert row.delta == row.value - row.reference
        assert row.ci_low <= row.delta <= row.ci_high
        assert abs(row.impact - row.n * row.delta) <= 1e-9
        assert row.cross_size == len(conjunction)
    for column in ("slice_id", "predicate", "n", "p_value", "q_value", "label", "parent"):
        assert rows[column].reset_index(drop=True).equals(other[column].reset_index(drop=True))
    for column in ("value", "reference", "complement"):
        np.testing.assert_allclose(rows[column], 1 - other[column].to_numpy(), atol=1e-15)
    np.testing.assert_allclose(rows["ci_low"], -other["ci_high"].to_numpy(), atol=1e-12)


def test_p_values_are_the_hypergeometric_mid_p(overall, adult):
    wrong = int((adult["income"] != adult["prediction"]).sum())
    rows = overall.table[overall.table["metric"] == "error_rate"]
    x = np.rint(rows["n"] * rows["value"])
    # Many slices have the same counts.
    (n, x), slices = np.unique([rows["n"], x], axis=1, return_inverse=True)
    law = stats.hypergeom(len(adult), wrong, n)
    expected = (law.sf(x) + law.pmf(x) / 2)[slices]
    np.testing.assert_allclose(rows["p_value"], expected, rtol=1e-8, atol=1e-14)


def _corrected(found, adult, masks, correction):
    """The p-value of a slice, and which of the visited are significant, by the oracle."""
    wrong = (adult["income"] != adult["prediction"]).to_numpy()
    n_all, k_all = len(adult), int(wrong.sum())
    sizes = {name: int(mask.sum()) for name, mask in masks.items()}
    known = {}

    def p_value(conjunction):
        if conjunction not in known:
            held = _mask(masks, conjunction)
            known[conjunction] = significance.hypergeometric_mid_p(
                int(held.sum()), int((held & wrong).sum()), n_all, k_all, "upper"
            )
        return known[conjunction]

    visited = {}
    count = lattice.counter(masks)

    def evaluate(conjunction):
        visited[conjunction] = count(conjunction)
        return visited[conjunction]

    def significant(large):
        levels = range(1, 4)
        counts = (sizes, visited, n_all, 20)
        bounds = {level: significance.level_bound(level, *counts) for level in levels}
        q = significance.q_values({one: p_value(one) for one in large}, bounds, correction, 3)
        return {one for one, value in q.items() if value <= 0.05}

    return p_value, evaluate, significant


@pytest.mark.parametrize("correction", ["fdr-level", slow("fwer-level")])
def test_iterative_is_algorithm_1(tmp_path, adult_path, adult, correction):
    # Few coarse features, so that a plain transcription takes seconds.
    features = ("age", "education", "occupation", "hours-per-week", "sex", "marital-status")
    options = {"data": adult_path, "features": features, "bins": 4, "correction": correction}
    roles = {name: OVERALL[name] for name in ("label", "prediction")}
    found = search(tmp_path, strategy="iterative", prune_significant=True, **options, **roles)
    named = lattice.singletons(found.domains())
    masks = {name: predicates.mask(adult, predicate) for name, predicate in named.items()}
    _, evaluate, significant = _corrected(found, adult, masks, correction)
    expected = lattice.algorithm_1(list(named), evaluate, significant, 3, 20)
    tested = {one for one, n in expected.visited.items() if n >= 20}
    assert set(found.conjunctions()) == tested
    assert set(found.conjunctions(found.table[found.table["significant"]])) == expected.significant
    records = found.document["search"]["iterations"]
    assert [record["candidates"] for record in records] == [len(s) for s in expected.generated]
    nonempty = [sum(expected.visited[one] > 0 for one in s) for s in expected.generated]
    assert [record["nonempty"] for record in records] == nonempty
    assert len(expected.significant) > 5
    assert len(expected.generated) == 3


@pytest.mark.slow
def test_labels_follow_their_definition(overall, adult):
    rows = overall.table[overall.table["metric"] == "error_rate"]
    conjunctions = overall.conjunctions(rows)
    by_slice = dict(zip(conjunctions, rows.itertuples(), strict=True))
    called = {one for one, row in by_slice.items() if row.significant}
    seen = set()
    for one in [one for one in conjunctions if one in called][::5]:
        row = by_slice[one]
        parents = [one - {name} for name in one if len(one) > 1]
        parts = [itertools.combinations(sorted(one), size) for size in range(1, len(one))]
        above = set(map(frozenset, itertools.chain(*parts)))
        p, margins = [], []
        for parent in parents:
            of = by_slice[parent]
            x, x_parent = round(row.n * row.value), round(of.n * of.value)
            law = stats.hypergeom(of.n, x_parent, row.n)
            # A parent with the same examples explains all of it.
            p.append(1.0 if of.n == row.n else law.sf(x) + law.pmf(x) / 2)
            margins.append(row.value - of.value)
        if not above & called:
            expected = "new"
        elif max(p) < 0.01 and min(margins) >= 0.02:
            expected = "refines"
        else:
            expected = "inherited"
        assert row.label == expected
        seen.add(expected)
        if parents:
            explained = [by_slice[parent].slice_id for parent in parents]
            assert p[explained.index(row.parent)] == pytest.approx(max(p), rel=1e-6, abs=1e-300)
    assert seen == {"new", "refines", "inherited"}
    assert rows.loc[~rows["significant"], "label"].isna().all()


def reported(found):
    """The slices of the document that say more than those above them."""
    return [one for one in found.document["slices"] if "place" in one["changes"][0]]


def test_the_document_ranks_by_the_lower_confidence_bound(overall):
    bounds = [one["changes"][0]["delta"]["hi"] for one in reported(overall)]
    slices = overall.document["slices"]
    # Findings that slices above them explain come last.
    assert slices[: len(bounds)] == reported(overall)
    findings = {one["slice_id"] for one in overall.document["findings"]}
    assert {one["slice_id"] for one in slices[len(bounds) :]} <= findings
    assert findings <= {one["slice_id"] for one in slices}
    assert bounds == sorted(bounds)
    rows = overall.table[overall.table["metric"] == "accuracy"].set_index("slice_id")
    for one in overall.document["slices"][:50]:
        row = rows.loc[one["slice_id"]]
        assert (one["size"]["n"], one["name"]) == (row["n"], row["slice"])
        assert one["changes"][0]["p_value"] == row["p_value"]
        assert {"all": one["definition"]["predicate"]["all"]} == json.loads(row["predicate"])


def test_no_role_is_a_feature(overall):
    names = {domain["name"] for domain in overall.document["dataset"]["domains"]}
    assert not names & set(ADULT_ROLES)


def test_a_degraded_slice_below_an_improved_one_is_reported(tmp_path):
    """What improved cannot explain what degraded: with both directions each has its own parents."""
    random = np.random.default_rng(3)
    a, b = (random.choice(list("uvwx"), 160_000) for _ in range(2))
    frame = pd.DataFrame({"a": a, "b": b, "label": 1})
    right = np.where(a == "u", 0.999, np.where(b == "u", 0.9945, 0.985))
    right[(a == "u") & (b == "u")] = 0.970
    frame["prediction"] = (random.random(len(frame)) < right).astype(int)
    path = tmp_path / "signs.parquet"
    frame.to_parquet(path)
    roles = {"label": "label", "prediction": "prediction"}
    found = search(tmp_path / "out", data=path, **roles, alternative="both")
    rows = found.table.set_index("slice")
    assert rows.loc["a = u", "significant"]
    assert rows.loc["a = u", "delta"] > 0
    assert not rows.loc["b = u", "significant"]
    assert rows.loc["a = u & b = u", "label"] == "new"
    assert found.document["slices"][0]["name"] == "a = u & b = u"
    assert found.document["testing"]["degraded"] >= 1


def test_a_repeated_example_id_does_not_make_slices_the_same(tmp_path):
    """Two disjoint slices whose examples share ids in pairs hold different examples."""
    number = np.arange(8000)
    frame = pd.DataFrame({"id": number // 2, "a": np.where(number % 2, "odd", "even")})
    frame["g"] = np.where(number // 2 % 10 == 0, "bad", "good")
    frame["label"], frame["prediction"] = 1, (frame["g"] == "good").astype(int)
    path = tmp_path / "ids.parquet"
    frame.to_parquet(path)
    options = {"label": "label", "prediction": "prediction", "example_id": "id"}
    assert search(tmp_path / "out", data=path, **options).document["search"]["duplicates"] == 0


OPTIONS = {"label": "income", "prediction": "prediction"}
OPTIONS |= {"features": ("age", "education", "occupation", "sex")}


@pytest.fixture(scope="module")
def found(tmp_path_factory, adult_path):
    return search(tmp_path_factory.mktemp("out"), data=adult_path, **OPTIONS)


def test_the_document_follows_its_schema(found):
    jsonschema.Draft202012Validator.check_schema(json_schema())
    jsonschema.validate(found.document, json_schema())
    assert json.loads(ChangeList.model_validate(found.document).to_json()) == found.document
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate({**found.document, "slices": [{}]}, json_schema())


def test_schema_command(capsys):
    assert run(["schema"]) == 0
    assert json.loads(capsys.readouterr().out) == json_schema()


def test_the_document_names_its_table(found):
    digest = hashlib.sha256(found.slices_bytes).hexdigest()
    assert found.document["search"]["slices_fingerprint"] == f"sha256:{digest}"
    assert pq.read_table(found.folder / "slices.parquet").schema == SCHEMA
    file = found.document["files"]["slices"]
    assert file["sha256"] == f"sha256:{digest}"
    assert file["size"] == len(found.slices_bytes)
    assert (found.folder / file["name"]).read_bytes() == found.slices_bytes
    names = ["changelist.json", file["name"], "slices.parquet"]
    assert sorted(path.name for path in found.folder.iterdir()) == names


def test_slice_ids_do_not_depend_on_the_order_of_columns(found, tmp_path, adult_path):
    turned = tmp_path / "turned.parquet"
    table = pq.read_table(adult_path)
    pq.write_table(table.select(table.column_names[::-1]), turned)
    other = search(tmp_path / "out", data=turned, **OPTIONS)
    one, two = (f.table.set_index("slice_id")["n"].sort_index() for f in (found, other))
    assert one.index.is_unique
    assert one.equals(two)


def test_a_run_that_another_one_overtook(tmp_path, adult_path, monkeypatch, capfd):
    """It says so, replaces nothing, and publishes over the other when it is told to go on."""
    output, work = tmp_path / "out", tmp_path / "work"
    output.mkdir()
    publish_set(output, Written("earlier"))
    command = ["search", f"--data={adult_path}", f"--output={output}", "--label=income"]
    command += ["--prediction=prediction", "--features=sex", f"--work-dir={work}", "--quiet"]

    def meanwhile(*arguments):
        publish_set(output, Written("another"))
        return finding_lists(*arguments)

    with monkeypatch.context() as patched:
        patched.setattr(slicebeam.pipelines.search.search, "finding_lists", meanwhile)
        assert run(command) == 2
    first, second = capfd.readouterr().err.splitlines()
    begins = f"slicebeam: {output}/changelist.json was published by somebody else at"
    assert first.startswith(begins)
    assert first.endswith(", during this run; nothing was replaced")
    assert second == f"finished work is in {work}; continue with the same command and --resume"
    assert_published(output, Written("another"))
    assert run([*command, "--resume"]) == 0
    document = read(output).document
    assert sorted(path.name for path in output.iterdir()) == names_of(document)
    assert document["provenance"]["command"] == "search"
    replaced = {one["name"].partition(".")[0] for one in document["replaced_files"]}
    assert replaced == {"slices", "mixture"}


ADULT = {"label": "income", "prediction": "prediction", "max_cross_size": 2, "min_slice_size": 1}
ADULT |= {"features": ("education", "native-country", "occupation", "sex")}
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
    how = {"correction": correction, "metric": ("error_rate",)}
    testing = search(tmp_path, data=adult_path, **how, **ADULT).document["testing"]
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
    columns = {"age": rng.integers(18, 80, ROWS), "sex": rng.choice(["F", "M"], ROWS)}
    columns |= {"label": rng.choice(["no", "yes"], ROWS), "score": rng.random(ROWS)}
    columns |= {name: rng.choice(["a", "b", "c"], ROWS) for name in ("three", "guess")}
    columns |= {"many": rng.integers(0, 80, ROWS), "id": rng.integers(0, 60, ROWS)}
    frame = pd.DataFrame(columns)
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
    said = "label 'digit' has 3 classes (0, 1, 2): name the class of interest with --positive-class"
    assert message == said
    message = refuse(label="digit", prediction="read", metric="recall", positive_class=7, **options)
    assert message == "--positive-class 7 is not a value of label 'digit': labels are 0, 1, 2"


@pytest.fixture(scope="module")
def frame():
    return made()


@pytest.fixture(scope="module")
def pool(frame, tmp_path_factory):
    return saved(frame, tmp_path_factory.mktemp("pool"))


def test_an_earlier_document_tells_the_old_matrix(frame, tmp_path):
    first = ["--data", saved(frame, tmp_path, "one.parquet"), *REPLAYED]
    earlier = shift(tmp_path / "one", *first, "--budget", 150)
    later = made(seed=2, churn=0)
    # Other shares of the labels, and label 2 is gone; class 2 is known from the document only.
    later = later[(later["label"] == 0) | (later.index % 3 > 0)]
    later = later.assign(label=later["label"].replace(2, 1), new=later["old"].replace(2, 1))
    second = ["--data", saved(later, tmp_path, "two.parquet"), "--label", "label"]
    second += ["--replay-prediction", "new", "--old-matrix", tmp_path / "one" / "changelist.json"]
    found = shift(tmp_path / "two", *second, "--budget", 120)
    told = found["shift"]
    assert (told["labels"], told["predictions"]) == ([0, 1], [0, 1, 2])
    assert (told["method"], told["old_from"]) == ("proportional", "document")
    before = np.array(earlier["shift"]["new_matrix"])[:2]
    shares = later["label"].value_counts(normalize=True).sort_index().to_numpy()
    scale = (shares / before.sum(axis=1))[:, None]
    np.testing.assert_allclose(told["old_matrix"], before * scale, rtol=1e-9)
    assert any("--old-matrix" in line for line in told["warnings"])
    together = np.hypot(np.array(earlier["shift"]["new_errors"])[:2] * scale, told["new_errors"])
    moved = np.array(told["shift"])
    np.testing.assert_allclose(told["shift_lo"], np.maximum(moved - Z * together, -shares[:, None]))
    np.testing.assert_allclose(told["shift_hi"], np.minimum(moved + Z * together, shares[:, None]))
    was, now = earlier["global"][0]["after"], found["global"][0]["after"]
    delta = found["global"][0]["delta"]
    width = np.hypot(was["hi"] - was["lo"], now["hi"] - now["lo"])
    assert delta["hi"] - delta["lo"] == pytest.approx(width)
    assert found["global"][0]["before"]["value"] == pytest.approx(np.trace(before * scale))


@pytest.mark.slow
def test_answers_that_were_none_stay_in_the_old_matrix(frame, tmp_path):
    silent = frame.assign(new=frame["new"].where(frame.index % 5 > 0))
    first = ["--data", saved(silent, tmp_path, "one.parquet"), *REPLAYED]
    earlier = shift(tmp_path / "one", *first, "--budget", 600)["shift"]
    assert earlier["predictions"] == [0, 1, 2, None]
    second = ["--data", saved(frame, tmp_path), "--label", "label", "--replay-prediction", "new"]
    second += ["--old-matrix", tmp_path / "one" / "changelist.json"]
    told = shift(tmp_path / "two", *second, "--budget", 600)["shift"]
    assert told["predictions"] == [0, 1, 2, None]
    np.testing.assert_allclose(told["old_matrix"], earlier["new_matrix"])
    np.testing.assert_allclose(told["new_matrix"], matrix(frame, "new", told), atol=1e-12)
    assert {(one["label"], one.get("prediction")) for one in told["changed"]} >= {(0, None)}


def test_a_target_error_stops_early_or_warns(tmp_path):
    flags = ["--data", saved(made(3000, churn=0.03), tmp_path), *REPLAYED, "--target-error", "0.03"]
    reached = shift(tmp_path / "one", *flags)["shift"]
    assert reached["stopped"] == "target_error"
    assert 100 <= reached["cost"]["calls"] < 3000
    assert reached["frobenius_bound"] <= 0.03
    assert reached["warnings"] == []
    short = shift(tmp_path / "two", *flags, "--budget", 110)["shift"]
    assert (short["stopped"], short["cost"]["calls"]) == ("budget", 110)
    assert short["frobenius_bound"] > 0.03
    (warning,) = short["warnings"]
    assert "was spent before the target error was reached" in warning


@pytest.mark.parametrize(("budget", "price", "calls", "spent"), [
    ("$1.5", 0.025, 60, 1.5), ("1.51 eur", 0.03, 50, 1.5), ("1GBP", 0, 600, 0.0),
])  # fmt: skip
def test_a_budget_in_money(budget, price, calls, spent, pool, tmp_path):
    flags = ["--data", pool, *REPLAYED, "--budget", budget, "--price", price]
    cost = shift(tmp_path, *flags)["shift"]["cost"]
    currency = {"$1.5": "USD", "1.51 eur": "EUR", "1GBP": "GBP"}[budget]
    assert (cost["calls"], cost["spent"], cost["currency"]) == (calls, spent, currency)
    assert run(["run", str(tmp_path / "changelist.json"), "--quiet"]) == 0
    assert document(tmp_path)["shift"]["cost"] == cost


def described(folder, **options):
    (folder / "run.yaml").write_text(yaml.safe_dump({"command": "shift", **options}))
    return str(folder / "run.yaml")


def test_a_file_describes_a_shift(pool, tmp_path, monkeypatch):
    monkeypatch.setenv("WHERE", str(tmp_path / "there"))
    options = {"data": pool, "label": "label", "old_prediction": "old", "replay_prediction": "new"}
    file = described(tmp_path, **options, budget=150, output="${WHERE}/{date}", quiet=True)
    assert run(["run", file, "--date", "2026-03-01"]) == 0
    found = tmp_path / "there" / "2026-03-01"
    shift(tmp_path / "flags", "--data", pool, *REPLAYED, "--budget", 150)
    assert timeless(found) == timeless(tmp_path / "flags")
    again = tmp_path / "again"
    assert run(["run", str(found / "changelist.json"), "--output", str(again), "--quiet"]) == 0
    assert timeless(again) == timeless(found)


def test_the_document_of_a_shift_is_refused_where_slices_are_wanted(pool, tmp_path, capsys):
    shift(tmp_path / "out", "--data", pool, *REPLAYED, "--budget", 100)
    made_by = str(tmp_path / "out" / "changelist.json")
    outcome = ["--data", pool, "--label", "label", "--prediction", "new"]
    output = ["--output", str(tmp_path / "other")]
    for arguments in (
        ["search", *outcome, "--domains", made_by],
        ["search", *outcome, "--since", made_by],
        ["check", *outcome, "--changelist", made_by],
        ["shift", "--data", pool, *REPLAYED, "--budget", "100", "--changelist", made_by],
    ):
        told = refused([*arguments, *output], capsys, folder=tmp_path)
        assert "is the document of a shift; name the document of a search or a check" in told
    assert not (tmp_path / "other" / "changelist.json").exists()
    assert run(["search", *outcome, "--features", "part", "--quiet", *output]) == 0
    other = ["shift", "--data", pool, "--label", "label", "--replay-prediction", "new"]
    other += ["--budget", "100", "--old-matrix", str(tmp_path / "other" / "changelist.json")]
    told = refused([*other, "--output", str(tmp_path / "third")], capsys, folder=tmp_path)
    assert told.startswith("--old-matrix DIR/other/changelist.json is not the document of a shift")


@pytest.mark.slow
def test_fail_on_worse(frame, tmp_path):
    flags = ["--data", saved(frame, tmp_path), *ROLES, "--budget", 300, "--fail-on", "worse"]
    shift(tmp_path / "worse", *flags, "--replay-prediction", "new", code=1)
    document = json.loads((tmp_path / "worse" / "changelist.json").read_text())
    assert document["gate"]["exit_code"] == 1
    assert document["summary"].startswith("FAIL: Accuracy over all examples ")
    shift(tmp_path / "same", *flags, "--replay-prediction", "old")
    better = saved(frame.assign(new=frame["label"]), tmp_path, "better.parquet")
    shift(tmp_path / "better", "--data", better, *flags[2:], "--replay-prediction", "new")
    # Worse on one slice, better by far elsewhere.
    bad = frame["part"] == "a"
    mixed = frame.assign(old=frame["label"].where(bad, (frame["label"] + 1) % 3))
    mixed["new"] = frame["label"].mask(bad & (frame.index % 3 == 0), (frame["label"] + 1) % 3)
    data = saved(mixed, tmp_path, "mixed.parquet")
    arguments = ["--data", data, *flags[2:], "--replay-prediction", "new"]
    found = shift(tmp_path / "mixed", *arguments, "--by", "part", code=1)
    assert found["global"][0]["direction"] == "improved"
    shift(tmp_path / "mixed", *arguments)


def test_what_a_machine_reads(pool, tmp_path, capsys):
    flags = ["shift", "--data", pool, *REPLAYED, "--budget", "100", "--price", "0.01"]
    flags += ["--by", "part", "--output", str(tmp_path)]
    assert run([*flags, "--log-format", "json"]) == 0
    printed = capsys.readouterr()
    events = [json.loads(line) for line in printed.err.splitlines()]
    (published,) = (event for event in events if event["event"] == "published")
    assert (published["calls"], published["spent"], published["exit_code"]) == (100, 1.0, 0)
    assert published["changelist"] == str(tmp_path / "changelist.json")
    assert {"stage", "published"} <= {event["event"] for event in events}
    assert run([*flags, "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    found = document(tmp_path)
    assert told["document"] == str(tmp_path / "changelist.json")
    assert told["shift"]["cost"]["calls"] == 100
    for name in ("summary", "global", "shift", "slices"):
        assert told[name] == found[name]
    wrong = ["--output", str(tmp_path / "none"), "--log-format=json", "--seed=x"]
    assert run([*flags[:-4], *wrong]) == 2
    lines = [json.loads(line) for line in capsys.readouterr().err.splitlines()]
    assert [(line["event"], line["exit_code"]) for line in lines] == [("error", 2)]


def test_plans_and_studies_need_no_output(pool, tmp_path, monkeypatch, capsys):
    (tmp_path / "here").mkdir()
    (tmp_path / "temporary").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "temporary"))
    flags = ["shift", "--data", pool, "--json", "--budget", "60", "--repeat", "3"]
    assert run([*flags, *ROLES, "--plan", "--method", "plus"]) == 0
    planned = json.loads(capsys.readouterr().out)
    assert [one["churn"] for one in planned] == [0.02, 0.05, 0.1, None]
    assert run([*flags[:-4], *ROLES, "--plan", "--repeat=8", "--price=0.5"]) == 0
    planned = json.loads(capsys.readouterr().out)
    assert {one["method"] for one in planned} == set(METHODS)
    assert {(one["budget"], one["cost"]) for one in planned} == {(250, 125.0), (500, 250.0)}
    plan = [*flags[:3], *ROLES, "--plan", "--repeat=8", "--method=plus"]
    assert run([*plan, "--price=0.5", "--budget=50USD"]) == 0
    shown = capsys.readouterr().out
    for said in ("a completely new API", "2% of the predictions change", "50.00"):
        assert said in shown
    assert run([*flags, *REPLAYED]) == 0
    without = json.loads(capsys.readouterr().out)
    assert not list((tmp_path / "here").iterdir())
    assert not list((tmp_path / "temporary").iterdir())
    assert run([*flags, *REPLAYED, "--output", str(tmp_path / "out")]) == 0
    assert json.loads(capsys.readouterr().out) == without
    file = described(tmp_path, data=pool, label="label", old_prediction="old", plan=True, budget=60)
    assert run(["run", file, "--json"]) == 0
    assert len(json.loads(capsys.readouterr().out)) == 3 * 4


def test_the_schema_holds_for_every_command(pool, tmp_path):
    outcome = ["--data", pool, "--label", "label", "--prediction", "old", "--quiet"]
    assert run(["search", *outcome, "--features=part,size", "--output", str(tmp_path / "a")]) == 0
    (tmp_path / "slices.yaml").write_text("- part = b\n")
    slices = ["--slices", str(tmp_path / "slices.yaml"), "--output", str(tmp_path / "b")]
    assert run(["check", *outcome, *slices]) == 0
    flags = ["--data", pool, *REPLAYED, "--budget", 100, "--by", "part", "--price", "0.1"]
    shift(tmp_path / "c", *flags, "--difficulty", "confidence")
    validator = jsonschema.Draft202012Validator(json_schema())
    for name in "abc":
        validator.validate(document(tmp_path / name))
    wrong = document(tmp_path / "c")
    wrong["shift"]["method"] = "guess"
    with pytest.raises(jsonschema.ValidationError):
        validator.validate(wrong)
