"""The strategies against the paper's algorithms, what batches cost, gaps of groups, what predicts labels."""

import json
from collections import Counter
from dataclasses import fields
from functools import cache
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.special import ndtri

from slicebeam.metrics.counting.lattice import Lattice
from slicebeam.metrics.errors import EngineError, OptionError
from slicebeam.metrics.measures.registry import statistic_space
from slicebeam.pipelines.commands import api
from slicebeam.pipelines.commands.cli import run
from slicebeam.pipelines.config.search import search_config
from slicebeam.pipelines.prepare.features import LabelPrediction, predicts_label
from slicebeam.pipelines.run.work_folder import WorkFolder
from slicebeam.pipelines.search import findings, strategies
from slicebeam.pipelines.search.refinement_labels import nested_classes
from slicebeam.pipelines.search.results import MetricResult, given_order
from slicebeam.pipelines.search.strategies import Iterative, Priority, SearchState
from slicebeam.transforms.storage.work_files import open_arrow, write_arrow
from tests.oracles import lattice as oracle
from tests.oracles.predicates import mask
from tests.refusals import refuses
from tests.running import read, search


class RandomData:
    def __init__(self, seed, *, most_levels=4):
        rng = np.random.default_rng(seed)
        features = int(rng.integers(1, 6))
        sizes = tuple(rng.integers(1, 4, features).tolist())
        self.rows = int(rng.integers(1, 60))
        self.levels = int(rng.integers(1, most_levels + 1))
        multi = tuple((rng.random(features) < 0.25).tolist())
        self.lattice = Lattice(sizes, self.levels, multi, multi)
        self.list_features = {self.name(f) for f in range(features) if multi[f]}
        self.masks = {}
        for feature, size in enumerate(sizes):
            # Skewed, so that small and empty slices are many.
            code = (rng.random(self.rows) ** 2 * size).astype(int)
            for value in range(size):
                mask = rng.random(self.rows) < 0.4 if multi[feature] else code == value
                self.masks[self.name(feature), value] = mask
        self.seed = seed
        self.size_of = cache(oracle.counter(self.masks))

    @staticmethod
    def name(feature):
        return f"f{feature}"

    def conjunction(self, key):
        digits = [d for d in self.lattice.digits(np.array([key]))[0].tolist() if d]
        owners = [int(self.lattice.feature_of[d]) for d in digits]
        return frozenset(
            (self.name(f), d - 1 - int(self.lattice.offsets[f]))
            for f, d in zip(owners, digits, strict=True)
        )

    def random_of(self, conjunction, purpose):
        digits = [int(name[1:]) * 10 + value for name, value in sorted(conjunction)]
        return float(np.random.default_rng([self.seed, purpose, *digits]).random())

    def p_value(self, conjunction):
        return round(self.random_of(conjunction, 1) * 4) / 4

    def delta(self, conjunction):
        return round(self.random_of(conjunction, 4) * 4 - 2) / 2

    def evidence(self, conjunction, visited):
        """The z of a slice's difference from the most similar of its visited parents."""
        z, delta = -float(ndtri(max(self.p_value(conjunction), 1e-300))), self.delta(conjunction)
        if z <= 0 or delta == 0:
            return z
        parents = [conjunction - {one} for one in conjunction]
        shares = [1 - self.delta(one) / delta for one in parents if one in visited]
        return z * min([1.0, *shares])

    def is_significant(self, conjunction, share):
        return self.random_of(conjunction, 2) < share

    def is_late(self, conjunction):
        return self.random_of(conjunction, 3) < 0.5

    def significant(self, large, share):
        """Significant slices of those visited: half of them only once there is a second level."""
        is_deep = any(len(one) > 1 for one in large)
        called = [one for one in large if self.is_significant(one, share)]
        return {one for one in called if is_deep or not self.is_late(one)}


def searched(data, steps, min_size, *, significant_share=0.2):
    """Drive a strategy as the search does, and yield what is known after each iteration."""
    known = SearchState(min_size)
    while (proposal := steps.next(known)) is not None:
        names = [data.conjunction(key) for key in proposal.candidates.tolist()]
        sizes = np.array([data.size_of(one) for one in names], np.int64)
        p = np.array([data.p_value(one) for one in names])
        known.add(proposal.candidates, sizes)
        added = np.searchsorted(known.keys, proposal.candidates)
        assert np.isnan(known.p[added]).all()
        assert not known.significant[added].any()
        tested = np.where(sizes >= min_size, p, np.nan)
        # The first test orders the queue, whatever replicates say of some slices later.
        delta = np.array([data.delta(one) for one in names])
        known.learn(proposal.candidates, np.minimum(tested * 1.5, 1.0), tested, delta)
        visited = {
            data.conjunction(key): size
            for key, size in zip(known.keys.tolist(), known.sizes.tolist(), strict=True)
            if size >= min_size
        }
        called = data.significant(visited, significant_share)
        known.significant[:] = [data.conjunction(key) in called for key in known.keys.tolist()]
        yield known, proposal


def check_proposal(data, known, proposal):
    """A candidate's base is a visited slice of one predicate less, with its size."""
    candidates = [data.conjunction(key) for key in proposal.candidates.tolist()]
    assert len(set(candidates)) == len(candidates)
    of = (proposal.bases.tolist(), proposal.base_sizes.tolist())
    for one, base, size in zip(candidates, *of, strict=True):
        if base == 0:
            assert len(one) == 1
            continue
        parent = data.conjunction(base)
        assert parent < one
        assert len(parent) == len(one) - 1
        assert size == data.size_of(parent) >= known.min_size


def generated_by(data, steps, min_size, share):
    generated, estimates = [], []
    known = SearchState(min_size)
    for known, proposal in searched(data, steps, min_size, significant_share=share):
        check_proposal(data, known, proposal)
        generated.append({data.conjunction(key) for key in proposal.candidates.tolist()})
        estimates.append(proposal.expected)
    assert np.all(np.diff(known.keys) > 0)
    assert steps.next(known) is None
    return generated, estimates, known


SEEDS = st.integers(0, 2**32)
SHARES = st.sampled_from([0.0, 0.1, 0.4])


@pytest.fixture(params=[1, 10, 1 << 18])
def _in_pieces(request, monkeypatch):
    """Children are generated some at a time; which does not matter."""
    monkeypatch.setattr(strategies, "_CHILDREN_AT_A_TIME", request.param)


@pytest.mark.usefixtures("_in_pieces")
def test_iterative_is_algorithm_1():
    @settings(max_examples=60, deadline=None)
    @given(seed=SEEDS, min_size=st.integers(1, 5), share=SHARES, prune=st.booleans())
    def check(seed, min_size, share, *, prune):
        data = RandomData(seed)
        steps = Iterative(data.lattice, prune_significant=prune)
        generated, estimates, known = generated_by(data, steps, min_size, share)
        expected = oracle.algorithm_1(
            list(data.masks),
            data.size_of,
            lambda large: data.significant(large, share) if prune else set(),
            data.levels,
            min_size,
        )
        assert generated == expected.generated
        assert estimates == [float(len(some)) for some in expected.generated]
        if prune:
            found = {data.conjunction(key) for key in known.keys[known.significant].tolist()}
            assert found == expected.significant

    check()


@pytest.mark.usefixtures("_in_pieces")
def test_priority_is_algorithm_2():
    @settings(max_examples=100, deadline=None)
    @given(
        seed=SEEDS,
        min_size=st.integers(1, 5),
        share=SHARES,
        prune=st.booleans(),
        iterations=st.integers(1, 6),
        most=st.sampled_from([1, 3, 8, 20, None]),
    )
    def check(seed, min_size, share, *, prune, iterations, most):
        data = RandomData(seed)
        steps = Priority(
            data.lattice, iterations=iterations, max_candidates=most, prune_significant=prune
        )
        generated, estimates, known = generated_by(data, steps, min_size, share)
        place = {name: number for number, name in enumerate(data.masks)}
        expected = oracle.algorithm_2(
            list(data.masks),
            data.size_of,
            lambda one, visited: data.p_value(one) if prune else -data.evidence(one, visited),
            lambda large: data.significant(large, share) if prune else set(),
            data.levels,
            min_size,
            iterations,
            float("inf") if most is None else most,
            lambda one: sorted(place[name] for name in one),
        )
        assert generated == expected.generated
        np.testing.assert_allclose(estimates, expected.estimates, rtol=1e-12)
        if prune:
            found = {data.conjunction(key) for key in known.keys[known.significant].tolist()}
            assert found == expected.significant

    check()


def test_knowledge_stays_sorted():
    known = SearchState(2)
    keys = np.random.default_rng(0).permutation(40)
    for some in np.split(keys, [5, 6, 20]):
        known.add(some, some + 1)
        known.learn(some, some / 40, some / 60)
        known.significant |= known.keys % 3 == 0
    assert known.keys.tolist() == sorted(keys.tolist())
    np.testing.assert_array_equal(known.sizes, known.keys + 1)
    np.testing.assert_array_equal(known.p, known.keys / 40)
    np.testing.assert_array_equal(known.first_p, known.keys / 60)
    known.learn(known.keys[3:5], np.array([0.25, 0.5]))
    assert known.p[3:5].tolist() == known.first_p[3:5].tolist() == [0.25, 0.5]
    assert known.p[5] == known.keys[5] / 40
    np.testing.assert_array_equal(known.significant, known.keys % 3 == 0)
    assert known.size_of(np.array([7, 3])).tolist() == [8, 4]
    assert known.keys[known.closed(prune_significant=False)].tolist() == [0]
    assert known.keys[known.closed(prune_significant=True)].tolist() == list(range(0, 40, 3))


ROLES = {"data": ("x.parquet",), "output": "out", "label": "y", "prediction": "p"}


def cost(rows, features, **options):
    config, lattice = search_config(ROLES | options), Lattice((9,) * features, 3)
    return strategies.batch_cost(config, lattice, statistic_space(config.metric, "overall"), rows)


@pytest.mark.parametrize(("rows", "features", "options", "strategy"), [
    (16_281, 14, {}, "batch"),
    # More than ten million conjunctions, in seconds.
    (47_655, 65, {}, "batch"),
    (10_000, 50, {"correction": "by"}, "batch"),
    (150_000, 100, {}, "priority"),
    # Few conjunctions, of very many examples.
    (100_000_000, 40, {}, "priority"),
    # Every example counts in twenty replicates besides.
    (150_000, 70, {}, "batch"),
    (150_000, 70, {"test": "paper"}, "priority"),
    # All p-values are held together.
    (47_655, 65, {"correction": "by"}, "priority"),
    (150_000, 100, {"strategy": "batch"}, "batch"),
])  # fmt: skip
def test_the_default_strategy(rows, features, options, strategy):
    fits = cost(rows, features, **options).fits
    assert search_config(ROLES | options).resolved_strategy(10**8, batch_fits=fits) == strategy


def test_it_grows_with_the_data_and_with_nothing_else():
    seconds = [cost(rows, 40).seconds for rows in (1000, 30_000, 1_000_000)]
    assert seconds == sorted(seconds)
    assert cost(30_000, 41).seconds > seconds[1]
    elsewhere = cost(30_000, 40, memory_budget="4GB", runner_config="direct_multi")
    assert elsewhere == cost(30_000, 40, save_slices="tested", seed=3) == cost(30_000, 40)


def test_few_slices_are_large_enough_where_cells_outnumber_examples():
    few, many = cost(1000, 20), cost(1_000_000, 20)
    assert 0 < few.tested < many.tested / 20
    assert many.tested == pytest.approx(Lattice((9,) * 20, 3).space(), rel=0.01)
    assert cost(1, 1).tested == 0


def test_a_run_and_its_dry_run_choose_alike(tmp_path, monkeypatch, capsys):
    rng = np.random.default_rng(0)
    frame = pd.DataFrame({name: rng.choice([*"uvw"], 500) for name in "abcyp"})
    frame.to_parquet(tmp_path / "data.parquet")
    roles = [f"--data={tmp_path}/data.parquet", "--label=y", "--prediction=p"]
    for most, strategy in ((60.0, "batch"), (0.0, "priority")):
        monkeypatch.setattr(strategies, "MOST_SECONDS", most)
        command = ["search", *roles, f"--output={tmp_path / strategy}"]
        assert run([*command, "--dry-run", "--json"]) == 0
        planned = json.loads(capsys.readouterr().out)
        assert planned["strategy"] == strategy
        assert planned["batch_seconds"] > 0
        if strategy == "batch":
            stage = next(job for job in planned["jobs"] if job["stage"] == "iteration-1")
            assert stage["seconds"] == planned["batch_seconds"]
        assert run([*command, "--dry-run"]) == 0
        assert "counting and testing all of them takes about" in capsys.readouterr().out
        assert run(command) == 0
        assert read(tmp_path / strategy).document["search"]["strategy"] == strategy
        capsys.readouterr()


def test_nested_slices_of_one_size_are_one_class():
    lattice = Lattice((2, 2, 2), 3)
    digits = np.array([[1, 0, 0], [3, 0, 0], [1, 3, 0], [1, 5, 0], [1, 3, 5], [2, 4, 0]])
    keys = lattice.keys(digits)
    # a (40) = a&b (40); a&c (30) = a&b&c (30); b has 50; the last has 40 by chance.
    classes = nested_classes(keys, np.array([40, 50, 40, 30, 30, 40]), np.arange(6), lattice)
    assert (classes[0], classes[3]) == (classes[2], classes[4])
    assert len(set(classes.tolist())) == 4


@pytest.mark.parametrize("chunk_rows", [100, 100_000])
def test_against_the_sets_of_examples(tmp_path, chunk_rows):
    rng = np.random.default_rng(0)
    kind = rng.integers(0, 4, 1500)
    frame = pd.DataFrame(
        {
            "kind": kind.astype(str),
            # Another name of the same, a coarser one, and one that only one kind has.
            "code": np.array(list("wxyz"))[kind],
            "half": kind // 2,
            "only": np.where(kind == 3, rng.integers(0, 2, 1500), 9),
            "other": rng.integers(0, 3, 1500).astype(str),
            "label": 1,
            "prediction": (rng.random(1500) > np.array([0.1, 0.1, 0.2, 0.6])[kind]).astype(int),
        }
    )
    frame.to_parquet(tmp_path / "data.parquet")
    roles = {"label": "label", "prediction": "prediction", "chunk_rows": chunk_rows}
    found = search(tmp_path / "out", data=tmp_path / "data.parquet", **roles)
    significant = found.table[found.table["significant"]]
    sets = {}
    for row in significant.itertuples():
        members = mask(frame, json.loads(row.predicate)).tobytes()
        size = row.cross_size if row.label != "inherited" else 99
        sets.setdefault(members, []).append((size, row.slice_id))
    shown = [sum(size != 99 for size, _ in alike) for alike in sets.values()]
    copies = sum(max(one - 1, 0) for one in shown)
    assert copies > 0
    assert found.document["search"]["reported"] == sum(one > 0 for one in shown)
    assert found.document["search"]["duplicates"] == copies
    for one in found.document["slices"]:
        alike = next(a for a in sets.values() if one["slice_id"] in [slice_id for _, slice_id in a])
        assert one["cross_size"] == min(size for size, _ in alike)
        others = {slice_id for _, slice_id in alike} - {one["slice_id"]}
        assert set(one.get("same_examples_as", [])) == others


def _leave_half_a_part(folder):
    """Leave what one of another number of workers may have written, of some slices or patterns."""
    for path in list(folder.glob("000000.arrow")):
        batch = open_arrow(path).get_batch(0)
        half = batch.slice(batch.num_rows // 2)
        write_arrow(path.with_stem("000007"), batch.schema, [half])
    assert list(folder.glob("000007.*"))


@pytest.mark.parametrize("stage", ["hashes", "findings-0-worse-2"])
def test_parts_of_a_stopped_run_are_not_added(tmp_path, adult_path, monkeypatch, stage):
    rng = np.random.default_rng(0)
    part = rng.integers(0, 10, 3000)
    # Any two of these are the examples of part 0: that takes three predicates to see, or hashes.
    frame = pd.DataFrame({name: np.isin(part, (0, 1 + at)) for at, name in enumerate("abcdef")})
    frame["label"] = 1
    frame["prediction"] = (rng.random(3000) > np.where(part == 0, 0.6, 0.1)).astype(int)
    frame.to_parquet(tmp_path / "data.parquet")
    options = {"label": "label", "prediction": "prediction", "max_cross_size": 2}
    options["data"] = tmp_path / "data.parquet"
    # However few, examples are counted anew for each finding.
    monkeypatch.setattr(findings, "MOST_HELD", 0)
    if stage != "hashes":
        # Above a single slice explains everything; here many overlap.
        options = {"data": (str(adult_path),), "label": "income", "prediction": "prediction"}
        options["features"] = ("education", "relationship", "marital-status", "sex")
    expected = search(tmp_path / "plain", **options)
    assert stage != "hashes" or expected.document["search"]["duplicates"] > 10
    finish = WorkFolder.finish

    def stop(work, name, *facts):
        if name == stage:
            _leave_half_a_part(work.path_of(stage))
            raise EngineError("stopped")
        finish(work, name, *facts)

    with monkeypatch.context() as patch:
        patch.setattr(WorkFolder, "finish", stop)
        refuses(EngineError, "stopped", search, tmp_path / "out", **options)
    found = search(tmp_path / "out", resume=True, **options)
    assert found.slices_bytes == expected.slices_bytes
    for part in ("slices", "findings", "finding_models"):
        assert found.document[part] == expected.document[part]


@pytest.mark.parametrize("metric", ["accuracy", "error_rate", "loss"])
def test_slices_without_a_delta_are_last_whatever_the_metric(metric):
    delta = np.array([np.nan, 0.1, -0.1, np.nan, 0.0])
    measured = MetricResult(**dict.fromkeys((one.name for one in fields(MetricResult)), delta))
    measured.name, measured.significant = metric, np.zeros(5, bool)
    measured.ci_low, measured.ci_high = delta - 0.05, delta + 0.05
    order = given_order(SimpleNamespace(metrics=[measured], keys=np.arange(1, 6)))
    assert order.positions[0] == (2 if metric == "accuracy" else 1)
    assert order.positions[-2:].tolist() == [0, 3]
    assert order.by_metric[0].tolist() == order.positions.tolist()


@pytest.mark.parametrize("metric", ["accuracy", "error_rate"])
def test_a_slice_without_a_delta_is_neither_worse_nor_better(metric):
    delta = np.array([np.nan, 0.1, -0.1, 0.0])
    measured = MetricResult(**dict.fromkeys((one.name for one in fields(MetricResult)), delta))
    measured.name = metric
    better, worse = [[1], [2]] if metric == "accuracy" else [[2], [1]]
    assert np.flatnonzero(measured.worse).tolist() == worse
    assert np.flatnonzero(measured.gain > 0).tolist() == better


SIZES = {"student": 300, "retired": 400, "clerk": 1000, "rare": 25}
COMMON = {"label": "y", "features": ["age", "job"], "max_cross_size": 1}


@pytest.fixture(scope="module")
def people():
    rng = np.random.default_rng(1)
    job = np.repeat(list(SIZES), list(SIZES.values()))
    y = rng.integers(0, 2, job.size)
    wrong = rng.random((2, job.size)) < np.where(job == "student", 0.4, 0.2)
    columns = {"job": job, "age": rng.integers(18, 80, job.size), "y": y}
    return pd.DataFrame(columns | {"new": y ^ wrong[0], "old": y ^ wrong[1]})


def of_groups(data, model, measure):
    """The share of each job with 30 examples of which it is."""
    within = {"true_positive_rate": data.y == 1, "false_positive_rate": data.y == 0}
    chosen = data[within.get(measure, data.y >= 0)]
    marked = chosen[model] == chosen.y if measure == "accuracy" else chosen[model]
    groups = marked.groupby(chosen.job).agg(["mean", "size"])
    return groups[groups["size"] >= 30]


@pytest.mark.parametrize("strategy", ["batch", "priority"])
def test_gaps_of_both_models_are_those_of_the_data(people, strategy):
    models = {"prediction": "new", "baseline_prediction": "old", "strategy": strategy}
    report = api.search(people, **COMMON, **models, parity="job", metric=["error_rate", "npv"])
    gaps = report.parity.to_pylist()
    assert [one["model"] for one in gaps] == ["before"] * 4 + ["after"] * 4
    for one in gaps:
        groups = of_groups(people, {"after": "new", "before": "old"}[one["model"]], one["measure"])
        for end, at in (("lowest", groups["mean"].idxmin()), ("highest", groups["mean"].idxmax())):
            assert one[end] == {
                "name": f"job = {at}",
                "n": groups["size"][at],
                "value": pytest.approx(groups["mean"][at]),
            }
        assert (one["left_out"], one["groups"]) == (["job = rare"], 3)
    accuracy = gaps[3]
    assert (accuracy["lowest"]["name"], accuracy["p_value"]) == ("job = student", 0.0001)
    assert accuracy["gap"]["lo"] > 0.1
    # The same slices as without.
    plain = api.search(people, **COMMON, **models, metric=["error_rate", "npv"])
    assert plain.slices.equals(report.slices)
    assert plain.parity.num_rows == 0


def test_what_the_command_prints(people, tmp_path, capsys):
    people.to_parquet(tmp_path / "data.parquet")
    flags = ["--label=y", "--prediction=new", "--features=job,age", "--max-cross-size=1"]
    command = ["search", str(tmp_path / "data.parquet"), *flags, f"--output={tmp_path / 'out'}"]
    assert run([*command, "--parity=age,job"]) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "Largest gaps between groups of age, in bins: prediction rate: lowest" in said
    assert "Largest gaps between groups of job: prediction rate: lowest" in said
    text = f"{of_groups(people, 'new', 'accuracy')['mean'].min():.3f}".removeprefix("0")
    assert f"accuracy: lowest {text} in job = student (n 300), highest " in said
    assert "fewer than 30 examples: job = rare." in said
    assert run([*command, "--parity=job", "--json", "--min-slice-size=350"]) == 0
    published = json.loads((tmp_path / "out" / "changelist.json").read_text())["parity"]
    printed = json.loads(capsys.readouterr().out)["parity"]
    assert printed == published
    assert printed[3]["left_out"] == ["job = rare", "job = student"]
    # Fewer than two groups have enough positive labels.
    assert "gap" not in printed[1]


@pytest.mark.parametrize(("column", "message"), [
    (lambda y: ["a"] * len(y), r"parity 'it' has no groups: one value only \('a'\)"),
    (lambda y: [["a", "b"], ["b"]] * (len(y) // 2) + [["a"]], "whose groups overlap"),
    (lambda y: [f"v{at // 6}" for at in range(len(y))], "more than 200; lower top_values or bins"),
])  # fmt: skip
def test_columns_without_groups_are_refused(people, column, message):
    data = people.assign(it=column(people.y))
    options = {"label": "y", "prediction": "new", "features": ["it", "job"], "parity": "it"}
    refuses(OptionError, message, api.search, data, **options, top_values=300, min_slice_size=2)


def left_out_errors(values, labels):
    """Predict each example by the others with its value; no value or a tie is an error."""
    wrong = 0
    for at, (value, label) in enumerate(zip(values, labels, strict=True)):
        others = Counter(
            labels[i] for i in range(len(values)) if i != at and values[i] == value
        ).most_common(2)
        is_tie = len(others) == 2 and others[0][1] == others[1][1]
        wrong += not others or is_tie or others[0][0] != label
    return wrong


def table_of(values, labels):
    table = np.zeros((max(values) + 1, max(labels) + 1), np.int64)
    np.add.at(table, (values, labels), 1)
    return table


def drawn(seed):
    """From no noise to some, and from a value for each class to very few examples a value."""
    rng = np.random.default_rng(seed)
    classes, size = int(rng.integers(2, 5)), int(rng.integers(60, 300))
    labels = rng.choice(classes, size, p=rng.dirichlet(np.ones(classes)))
    noisy = np.where(rng.random(size) < 0.06 * rng.random(), rng.integers(0, classes, size), labels)
    values = (noisy + classes * rng.integers(0, rng.choice([1, 2, 5, 40]), size)).tolist()
    return values, labels.tolist()


def test_agrees_with_predicting_each_example_by_the_others():
    answers = Counter()
    for seed in range(40):
        values, labels = drawn(seed)
        size, wrong = len(labels), left_out_errors(values, labels)
        others = size - Counter(labels).most_common(1)[0][1]
        table = table_of(values, labels)
        found = predicts_label(table, np.zeros(len(table), bool))
        expected = None
        if others >= 20 and wrong <= 0.05 * others:
            expected = LabelPrediction((size - wrong) / size, (size - others) / size)
        assert found == expected, seed
        answers[found is None] += 1
    assert min(answers[True], answers[False]) >= 5


BORDER = [[100, 0]] * 6 + [[60, 40]] + [[0, 100]] * 3
RANGES, VALUES = "ranges", "values"


@pytest.mark.parametrize(("table", "kind", "share"), [
    # Of the 100 examples not of the most frequent class one error in twenty is left at most.
    ([[900, 5], [0, 95]], VALUES, 0.995),
    ([[900, 6], [0, 94]], VALUES, None),
    # 99 % of the labels are right, as always: half of the rare ones are missed.
    ([[9900, 50], [0, 50]], VALUES, None),
    # Few examples say nothing.
    ([[500, 0], [0, 20]], VALUES, 1.0),
    ([[500, 0], [0, 19]], VALUES, None),
    # Values that occur once predict nothing.
    ([[1, 0]] * 200 + [[0, 1]] * 200, VALUES, None),
    # A border may lie within a range, but not within a value, and must leave half of the others.
    (BORDER, RANGES, 1.0),
    (BORDER, VALUES, None),
    ([[100, 0]] * 9 + [[50, 50]], RANGES, None),
    ([[100, 0]] * 8 + [[30, 70], [0, 30]], RANGES, None),
])  # fmt: skip
def test_what_predicts_the_label(table, kind, share):
    found = predicts_label(np.array(table), np.full(len(table), kind == RANGES))
    assert (found and found.right) == share
    if table is BORDER and found:
        assert found.most_frequent == 600 / 900
