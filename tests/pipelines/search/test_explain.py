"""What ``--explain`` prints repeats a p-value by hand; how many findings planted slices give."""

import json
import re

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from scipy import stats

from slicebeam.pipelines.commands.cli import run
from tests.planted import planted_triple
from tests.random_subsets import saddle_point
from tests.running import read, search

# What is printed of p and q has six digits.
PRINTED = 1e-5
OLD = ("--baseline-prediction=prediction_old", "--baseline-score=score_old")


@pytest.fixture
def explained(tmp_path, adult_path, capsys):
    """Run a search with ``--explain``; return the lines about the slice and what was published."""

    def run_it(slice_, *flags):
        code = run(arguments(adult_path, tmp_path, f"--explain={slice_}", *flags))
        printed = capsys.readouterr()
        assert code == 0, printed.err
        if "--json" in flags:
            return json.loads(printed.out)["explanation"], read(tmp_path)
        lines = printed.out.splitlines()
        begin = next(i for i, line in enumerate(lines) if re.search(r"\(n = .*, level \d\)$", line))
        end = next(i for i in range(begin, len(lines)) if not lines[i].strip())
        return lines[begin:end], read(tmp_path)

    return run_it


def arguments(data, output, *flags):
    given = ["search", f"--data={data}", f"--output={output}", "--label=income"]
    given += ["--prediction=prediction", "--score=score", "--features=sex,relationship"]
    return [*given, "--max-cross-size=2", *flags]


def numbers(lines):
    found, current = {}, {}
    for line in lines[1:]:
        if head := re.match(r"  (\w[\w:.]*): .*, reference ", line):
            current = found.setdefault(head[1], {})
        elif both := re.match(r"    p = (\S+) \(.*\), q = (\S+)$", line):
            current |= {"p": float(both[1]), "q": float(both[2])}
        elif given := re.match(r"    (\S.*) = (-?[\d,.]+(?:e[+-]?\d+)?)$", line):
            current[given[1]] = float(given[2].replace(",", ""))
    return found


def row_of(found, slice_, metric):
    table = found.table
    chosen = table[(table["metric"] == metric) & (table["slice"] == slice_)]
    assert len(chosen) == 1
    return next(chosen.itertuples())


def test_a_mid_p_by_hand(explained, adult):
    lines, found = explained("sex = Male", "--metric=error_rate,precision,recall")
    assert lines[0] == f"sex = Male (n = {(adult['sex'] == 'Male').sum():,}, level 1)"
    named = numbers(lines)
    assert set(named) == {"error_rate", "precision", "recall"}
    for name, of in named.items():
        law = stats.hypergeom(int(of["N"]), int(of["K"]), int(of["n"]))
        x = of["x"]
        upper, lower = law.sf(x) + law.pmf(x) / 2, law.cdf(x) - law.pmf(x) / 2
        expected = upper if name == "error_rate" else lower
        row = row_of(found, "sex = Male", name)
        assert of["p"] == pytest.approx(expected, rel=PRINTED)
        assert of["p"] == pytest.approx(row.p_value, rel=PRINTED)
        assert of["q"] == pytest.approx(row.q_value, rel=PRINTED)
    men, wrong = adult["sex"] == "Male", adult["income"] != adult["prediction"]
    counts = {"n": men.sum(), "x": (men & wrong).sum(), "N": len(adult), "K": wrong.sum()}
    assert {key: named["error_rate"][key] for key in counts} == counts
    positive = adult["income"] == 1
    assert named["recall"]["n"] == (men & positive).sum()
    assert named["recall"]["K"] == (positive & ~wrong).sum()
    assert any("test: hypergeometric mid-p" in line for line in lines)
    assert any("q: fdr-level; " in line and "q <= 0.05" in line for line in lines)


def test_by_slice_id_and_as_json(explained):
    name = "sex = Male & relationship = Husband"
    by_text, found = explained(name)
    assert by_text[0].endswith("level 2)")
    as_json, _ = explained(row_of(found, name, "accuracy").slice_id, "--json")
    assert [line.rstrip() for line in as_json] == [line.rstrip() for line in by_text]


def test_mcnemars_by_hand(explained, adult):
    lines, found = explained("sex = Female", "--alternative=both", *OLD)
    of = numbers(lines)["accuracy"]
    b, c = of["b (only new marked)"], of["c (only old)"]
    women = adult[adult["sex"] == "Female"]
    new, old = (women["income"] == women[p] for p in ("prediction", "prediction_old"))
    assert (b, c) == ((new & ~old).sum(), (old & ~new).sum())
    assert of["n"] == len(women)
    law = stats.binom(int(b + c), 0.5)
    tails = law.sf(b) + law.pmf(b) / 2, law.cdf(b) - law.pmf(b) / 2
    assert of["p"] == pytest.approx(min(1, 2 * min(tails)), rel=PRINTED)
    assert of["p"] == pytest.approx(row_of(found, "sex = Female", "accuracy").p_value, rel=PRINTED)


def test_means_by_hand(explained, adult):
    """The sum of the deviations and the law of random subsets; the moments of the interval."""
    name = "sex = Male & relationship = Unmarried"
    lines, found = explained(name, "--metric=brier", "--alternative=both")
    of = numbers(lines)["brier"]
    value = ((adult["score"].astype(float) - adult["income"]) ** 2).to_numpy()
    held = ((adult["sex"] == "Male") & (adult["relationship"] == "Unmarried")).to_numpy()
    for side, some in (("slice", value[held]), ("complement", value[~held])):
        assert of[f"{side} n"] == some.size
        assert of[f"{side} mean"] == pytest.approx(some.mean(), rel=1e-8)
        assert of[f"{side} variance"] == pytest.approx(some.var(ddof=1), rel=1e-8)
        assert of[f"{side} skewness"] == pytest.approx(stats.skew(value), rel=1e-8)
    assert (of["n"], of["N"]) == (held.sum(), value.size)
    assert of["mean of all"] == pytest.approx(value.mean(), rel=1e-8)
    assert of["S"] == pytest.approx((value[held] - value.mean()).sum(), rel=1e-8)
    tails = saddle_point(value - value.mean(), int(of["n"]), of["S"])
    assert 1e-9 < of["p"] < 1
    assert of["p"] == pytest.approx(2 * min(tails), rel=0.01)
    assert of["p"] == pytest.approx(row_of(found, name, "brier").p_value, rel=1e-5)


def test_cells_of_the_confusion_matrix(explained, adult):
    lines, _ = explained("sex = Male", "--metric=balanced_accuracy")
    of = numbers(lines)["balanced_accuracy"]
    for prefix, some in (("slice", adult[adult["sex"] == "Male"]), ("all", adult)):
        for y, p in ((0, 0), (0, 1), (1, 0), (1, 1)):
            words = ["positive" if y else "not positive", "predicted" if p else "not predicted"]
            counted = ((some["income"] == y) & (some["prediction"] == p)).sum()
            assert of[f"{prefix} count: {', '.join(words)}"] == counted


def test_replicates_are_told(explained):
    flags = ("--test=bootstrap-rows", "--replicates=100", "--seed=5")
    lines, found = explained("relationship = Husband", *flags)
    assert any("test: bootstrap of examples, t" in line for line in lines)
    assert "    B = 100 replicates, seed 5" in lines
    p = row_of(found, "relationship = Husband", "accuracy").p_value
    assert numbers(lines)["accuracy"]["p"] == pytest.approx(p, rel=PRINTED)


@pytest.mark.slow
def test_a_slice_without_a_test_says_why(explained):
    lines, found = explained("relationship = Own-child", "--metric=accuracy,precision")
    row = row_of(found, "relationship = Own-child", "precision")
    text = "\n".join(lines)
    if isinstance(row.reason, str):
        assert f"p = 1 without a test: {row.reason}" in text
    lines, found = explained("sex = Female", "--test=bootstrap-rows", "--replicates=20")
    row = row_of(found, "sex = Female", "accuracy")
    assert "far from significant" in row.reason
    assert f"    p = 1 without a test: {row.reason}" in lines
    assert "p" not in numbers(lines)["accuracy"]


MISTYPED = {
    "sex = Mal": "unknown predicate 'sex = Mal'; did you mean 'sex = Male'? predicates: ",
    "sexx = Male": "unknown feature 'sexx'; did you mean 'sex'? features: sex, relationship",
    "age in [3, 5)": "unknown feature 'age'; features: sex, relationship",
    "sex = Male & sex = Female": "it has two predicates of 'sex'",
    "husbands": "'husbands' is not a condition; write it as in",
}


@pytest.mark.parametrize("name", MISTYPED)
def test_a_mistyped_slice_is_refused_before_anything_is_counted(tmp_path, adult_path, capsys, name):
    assert run(arguments(adult_path, tmp_path, f"--explain={name}")) == 2
    printed = capsys.readouterr()
    (line,) = (line for line in printed.err.splitlines() if not line.startswith("["))
    assert line.startswith(f"slicebeam: --explain {name!r}: {MISTYPED[name]}")
    assert "iteration 1" not in printed.err
    assert not (tmp_path / "changelist.json").exists()
    # What is not a predicate at all is refused before the data is looked at.
    assert ("reading the data" in printed.err) == (name != "husbands")


def test_more_predicates_than_slices_have(tmp_path, adult_path, capsys):
    name = "sex = Male & relationship = Husband"
    assert run(arguments(adult_path, tmp_path, f"--explain={name}", "--max-cross-size=1")) == 2
    said = capsys.readouterr().err
    assert "it has 2 predicates, and slices here have up to 1; raise --max-cross-size" in said


def test_the_order_of_the_predicates_does_not_matter(explained):
    lines, _ = explained("relationship = Husband & sex = Male")
    assert lines[0].startswith("sex = Male & relationship = Husband (n = ")


@pytest.mark.parametrize(("flags", "why"), [
    (("--min-slice-size=6000",), "it has fewer than 6,000 examples"),
    (("--strategy=iterative", "--min-slice-size=6000"), "it has fewer than 6,000 examples, or --strategy iterative did not visit it"),
])  # fmt: skip
def test_a_slice_that_is_not_tested_is_a_note(tmp_path, adult_path, capsys, flags, why):
    name = "sex = Female & relationship = Wife"
    assert run(arguments(adult_path, tmp_path, *flags, f"--explain={name}")) == 0
    assert f"{name}: not tested: {why}." in capsys.readouterr().out
    assert (tmp_path / "changelist.json").exists()


def test_an_id_of_no_slice_is_a_note(tmp_path, adult_path, capsys):
    assert run(arguments(adult_path, tmp_path, "--explain=0123456789abcdef")) == 0
    why = "no slice of this run has this id, or it has fewer than "
    assert f"0123456789abcdef: not tested: {why}" in capsys.readouterr().out


def test_a_slice_of_a_check_by_its_name(tmp_path, adult_path, capsys):
    (tmp_path / "s.yaml").write_text("- name: men\n  predicate: sex = Male\n- sex = Female\n")
    command = ["check", f"--slices={tmp_path}/s.yaml", f"--data={adult_path}"]
    command += ["--label=income", "--prediction=prediction", f"--output={tmp_path}/out"]
    assert run([*command, "--explain=men"]) == 0
    assert "sex = Male (n = " in capsys.readouterr().out
    assert run([*command, "--explain=mem"]) == 2
    said = capsys.readouterr().err
    assert "--explain 'mem': unknown slice 'mem'; did you mean 'men'? slices: men, " in said


@pytest.mark.parametrize("flags", [(), OLD], ids=["overall", "baseline"])
def test_the_document_agrees(explained, flags):
    metrics = "error_rate,f1,brier,balanced_accuracy"
    more = ("--alternative=both", f"--metric={metrics}", *flags)
    _, found = explained("sex = Male", *more)
    slices = found.document["slices"]
    assert slices
    for one in slices:
        for change in one["changes"]:
            row = row_of(found, one["name"], change["metric"])
            assert change.get("test") == (row.test if isinstance(row.test, str) else None)
            assert change.get("reason") == (row.reason if isinstance(row.reason, str) else None)
            assert change["p_value"] == row.p_value
    lines, _ = explained(slices[0]["name"], *more)
    named = numbers(lines)
    for change in slices[0]["changes"]:
        of, inputs = named[change["metric"]], change["inputs"]
        assert inputs
        assert {key: of[key] for key in inputs} == pytest.approx(inputs, rel=1e-8)


PRUNE = "--prune-significant"
NAMES = ("a", "b", "c", "d")
OPTIONS = {"label": "label", "prediction": "pred", "max_cross_size": 3}


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    rng = np.random.default_rng(7)
    frame = pd.DataFrame({name: rng.choice([*"uvwxyz"], 3000) for name in NAMES})
    label = rng.integers(0, 2, 3000)
    bad = (frame["a"] == "u") | (frame["b"] == "v")
    frame["label"], wrong = label, rng.random(3000) < np.where(bad, 0.5, 0.1)
    frame["pred"] = np.where(wrong, 1 - label, label)
    path = tmp_path_factory.mktemp("data") / "data.parquet"
    frame.to_parquet(path)
    return path


@pytest.mark.parametrize("strategy", ["iterative", "priority"])
def test_slices_that_were_not_visited_are_counted_by_a_bound(data, tmp_path, strategy):
    options = OPTIONS | {"strategy": strategy}
    if strategy == "priority":
        options |= {"iterations": 2, "max_candidates": 60}
    else:
        options |= {"prune_significant": True}
    testing = search(tmp_path / "out", data=data, **options).document["testing"]
    batch = search(tmp_path / "batch", data=data, **OPTIONS).document["testing"]
    family, tested = testing["family_size"], sum(testing["tested_per_level"])
    there_are = sum(batch["tested_per_level"])
    assert tested < there_are <= family
    assert testing["corrected_for"].endswith(
        f"The correction counts {family:,} slices: {tested:,} that were tested and, with p = 1, at most "
        f"{family - tested:,} that were not visited (an upper bound)."
    )
    assert batch["family_size"] == there_are
    assert "upper bound" not in batch["corrected_for"]


def test_explain_says_so_too(data, tmp_path, capsys):
    arguments = ["search", f"--data={data}", "--label=label", "--prediction=pred"]
    arguments.append("--explain=a = u")
    for strategy, bound in ((["--strategy=iterative", PRUNE], "at most "), ([], "")):
        assert run([*arguments, f"--output={tmp_path}/out", *strategy]) == 0
        said = re.search(r"q: fdr-level; (.*?)\d+ slices of level 1", capsys.readouterr().out)
        assert said[1] == bound


@pytest.mark.slow
def test_permuted_errors_have_no_findings(adult, tmp_path):
    """Where nothing is to be found, at least nine of ten runs find nothing."""
    with_findings = 0
    for seed in range(10):
        frame = adult.drop(columns=["fnlwgt", "row_id", "score", "score_old", "prediction_old"])
        mixed = np.random.default_rng(seed).permutation(len(frame))
        frame["income"] = adult["income"].to_numpy()[mixed]
        frame["prediction"] = adult["prediction"].to_numpy()[mixed]
        frame.to_parquet(tmp_path / "data.parquet")
        roles = {"label": "income", "prediction": "prediction"}
        found = search(tmp_path / f"out-{seed}", data=tmp_path / "data.parquet", **roles)
        with_findings += bool(found.document["findings"])
    assert with_findings <= 1


@pytest.mark.slow
def test_planted_slices_are_recovered(tmp_path):
    """Of five planted slices those that are significant are findings, and next to nothing else is."""
    recovered = significant = found_in_all = unrelated = 0
    for seed in range(4):
        rng = np.random.default_rng(seed)
        rows, features, values = 20_000, 14, 5
        codes = rng.integers(0, values, (rows, features))
        planted = []
        rate = np.full(rows, 0.08)
        for size in (1, 1, 2, 2, 3):
            some = rng.choice(features, size, replace=False)
            wanted = {int(one): int(rng.integers(values)) for one in some}
            inside_planted = np.all([codes[:, f] == v for f, v in wanted.items()], axis=0)
            rate[inside_planted] += {1: 0.08, 2: 0.15, 3: 0.35}[size]
            planted.append({f"x{f} = v{v}" for f, v in wanted.items()})
        frame = pd.DataFrame({f"x{f}": [f"v{v}" for v in codes[:, f]] for f in range(features)})
        frame["label"] = 0
        frame["prediction"] = (rng.random(rows) < rate).astype(int)
        frame.to_parquet(tmp_path / "data.parquet")
        roles = {"label": "label", "prediction": "prediction"}
        found = search(tmp_path / f"out-{seed}", data=tmp_path / "data.parquet", **roles)
        assert sum(found.document["testing"]["tested_per_level"]) > 20_000
        names = {one["slice_id"]: one["name"] for one in found.document["slices"]}
        findings_ = [set(names[one["slice_id"]].split(" & ")) for one in found.document["findings"]]
        marginal = [set(text.split(" & ")) for text in found.table[found.table.significant].slice]
        significant += sum(one in marginal for one in planted)
        recovered += sum(one in findings_ for one in planted)
        found_in_all += len(findings_)
        unrelated += sum(not any(one & other for other in planted) for one in findings_)
    assert significant >= 18
    assert recovered >= significant
    assert unrelated <= 0.05 * found_in_all


ROLES = {"label": "label", "prediction": "prediction"}


def place(planted, folder, **options):
    pq.write_table(pa.table(planted.columns), folder / "data.parquet")
    found = search(folder / "out", data=folder / "data.parquet", **ROLES, **options)
    return planted.place(found.document), found.document["search"]["strategy"]


@pytest.fixture(scope="module")
def planted():
    return planted_triple(3, 40_000, 24)


@pytest.mark.parametrize(("options", "expected"), [
    ({"strategy": "priority", "max_candidates": 1000}, 1),
    ({"strategy": "priority", "max_candidates": 1000, "prune_significant": True}, None),
    ({"strategy": "iterative", "features": "planted"}, 1),
    ({"strategy": "iterative", "features": "planted", "prune_significant": True}, None),
])  # fmt: skip
def test_the_slice_takes_the_place_of_its_parents(planted, tmp_path, options, expected):
    if options.get("features"):
        options = options | {"features": tuple(field for field, _, _ in planted.conditions)}
    assert place(planted, tmp_path, **options)[0] == expected


@pytest.mark.slow
@pytest.mark.parametrize(("seed", "worse_values", "most"), [(11, 0, 3), (12, 0, 3), (0, 6, 9)])
def test_the_default_search_of_a_wide_table(tmp_path, seed, worse_values, most):
    """Nor do the children of values that are worse fill the queue."""
    rank, strategy = place(planted_triple(seed, 150_000, 100, worse_values=worse_values), tmp_path)
    assert strategy == "priority"
    assert rank is not None
    assert rank <= most
