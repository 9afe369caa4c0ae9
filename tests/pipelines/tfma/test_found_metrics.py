"""Metrics of TensorFlow Model Analysis on slices, against its own evaluator."""

import json

import numpy as np
import pandas as pd
import pytest

from slicebeam.metrics.counting.counting import Ragged
from slicebeam.pipelines.cli import run
from slicebeam.transforms.tfma.computations import LABEL, PREDICTION, Computations
from slicebeam.transforms.tfma.metric_specs import parse_metric
from tests.conftest import ADULT
from tests.pipelines.eval_config.oracle import Number, key_of, their_numbers
from tests.pipelines.eval_config.test_against_tfma import ONE_MODEL

pytestmark = pytest.mark.tfma
MODULE = "tests.own_tfma_metric"
OWN = f"tfma:{MODULE}.MeanGap(power=2)"
SPECS = [
    "tfma:NDCG(gain_key=gain,top_k_list=[3,5],query_key=query)",
    "tfma:ConfusionMatrixAtThresholds(thresholds=[0.3,0.6])",
    "tfma:AUC",
    "tfma:Hinge",
    OWN,
]
SLICES = [("sex", "Female"), ("race", "Black")]


@pytest.fixture(scope="module")
def frame():
    found = pd.read_parquet(ADULT).head(1200).reset_index(drop=True)
    found["label"] = (
        found["income"].astype(str).str.contains(">50K") | (found["income"] == 1)
    ) * 1.0
    found["query"] = np.arange(len(found)) % 97
    found["gain"] = found["label"] * 2 + (found["age"] > 40)
    return found[["sex", "race", "label", "score", "query", "gain"]].astype(
        {"score": float, "gain": float}
    )


def checked(frame, folder, *options):
    frame.to_parquet(folder / "data.parquet")
    slices = [{"all": [{"field": field, "op": "==", "value": value}]} for field, value in SLICES]
    (folder / "slices.json").write_text(json.dumps(slices))
    arguments = ["check", "--data", str(folder / "data.parquet"), "--label", "label"]
    arguments += ["--score", "score", "--slices", str(folder / "slices.json"), *options]
    arguments += ["--tfma-module", MODULE]
    assert run([*arguments, "--output", str(folder / "out"), "--quiet"]) == 0
    return dict(json.loads((folder / "out" / "changelist.json").read_text()))


@pytest.mark.parametrize("text", SPECS)
def test_values_are_those_of_the_evaluator(text, frame, tmp_path):
    metrics = ("--metric", "accuracy", "--metric", text, "--replicates", "5")
    document = checked(frame, tmp_path, *metrics)
    spec = parse_metric(text, [MODULE])
    query = f'query_key: "{spec.query_key}"' if spec.query_key else ""
    slices = " ".join(f'slicing_specs {{ feature_keys: "{field}" }}' for field, _ in SLICES)
    config = f"""{ONE_MODEL} metrics_specs {{ metrics {{ class_name: "{spec.class_name}"
    module: "{spec.module}" config: '{spec.config}' }} {query} }} slicing_specs {{}} {slices}"""
    expected, _, _ = their_numbers(frame, config, tmp_path)
    keys = {one["slice_id"]: key_of(one) for one in document["slices"]}
    assert set(keys.values()) == {(one,) for one in SLICES}
    compared = 0
    for entry in document["tfma_metrics"]:
        assert entry["metric"] == text
        assert entry["overall"].get("lo", -np.inf) <= entry["overall"]["value"]
        name, _, of = entry["name"].partition("@")
        values = {keys[one["slice_id"]]: one["after"]["value"] for one in entry["slices"]}
        for key, value in {(): entry["overall"]["value"], **values}.items():
            wanted = expected[key][Number("after", "", of, name)]
            assert value == pytest.approx(wanted, rel=1e-6), (key, entry["name"])
            compared += 1
        unit = "queries" if spec.query_key else "rows"
        assert (entry["unit"], entry["replicates"]) == (unit, 5)
    assert compared >= 3


def test_results_do_not_depend_on_chunks(frame, tmp_path):
    found = []
    for rows in ("100000", "211"):
        folder = tmp_path / rows
        folder.mkdir()
        options = ["--metric", f"accuracy,tfma:Precision,{OWN}", "--chunk-rows", rows]
        found.append(checked(frame, folder, *options)["tfma_metrics"])
    for one, other in zip(*found, strict=True):
        assert one["overall"] == pytest.approx(other["overall"], rel=1e-12)
        for a, b in zip(one["slices"], other["slices"], strict=True):
            assert a["p_value"] == pytest.approx(b["p_value"], rel=1e-9)


@pytest.mark.parametrize(
    ("metric", "message"),
    [
        ("accuracy,tfma:NDC(gain_key=g)", "did you mean 'NDCG'?"),
        ("accuracy,tfma:NDCG(gain_key=gain,top_k_list=[3])", "a query_key is required"),
        ("accuracy,tfma:NDCG(gain_key=gian,top_k_list=[3],query_key=query)", "did you mean 'gain'?"),
        ("accuracy,tfma:AUC(nonsense=3)", "nonsense"),
        ("accuracy,tfma:AUC(3)", "is no name=value"),
        ("accuracy,tfma:tests.own_tfma_metric.MeanGab", "did you mean 'MeanGap'?"),
        ("accuracy,tfma:no_such.Thing", "No module named 'no_such'"),
        # What a module of metrics holds besides metrics is not called.
        ("accuracy,tfma:tests.own_tfma_metric.beam", "has no metric beam"),
        ("accuracy,tfma:tests.own_tfma_metric._Gap(key=1,config=2,power=3)", "has no metric _Gap"),
        ("accuracy,tfma:MeanMetricWrapper(fn='mse')", "neither TFMA nor Keras has"),
        ("accuracy,tfma:Metric(name='x')", "neither TFMA nor Keras has"),
        ("accuracy,tfma:Bleu(tokenize='flores200')", "leave it out"),
        ("tfma:AUC", "can't steer a search"),
    ],
)  # fmt: skip
def test_what_is_not_possible_is_said(metric, message, frame, tmp_path, capsys):
    frame.to_parquet(tmp_path / "data.parquet")
    options = ["--data", str(tmp_path / "data.parquet"), "--label", "label", "--score", "score"]
    out = ["--output", str(tmp_path / "out"), "--features", "sex,race"]
    modules = ["--tfma-module", MODULE, "--tfma-module", "no_such"]
    assert run(["search", *options, *out, *modules, "--metric", metric]) == 2
    error = capsys.readouterr().err
    assert message in error
    assert len([one for one in error.splitlines() if one.startswith("slicebeam: ")]) == 1


def test_a_dry_run_says_the_cost(frame, tmp_path, capsys):
    frame.to_parquet(tmp_path / "data.parquet")
    options = ["--data", str(tmp_path / "data.parquet"), "--label", "label", "--score", "score"]
    out = ["--output", str(tmp_path / "out"), "--features", "sex,race", "--metric"]
    dry = ["search", *options, *out, f"accuracy,{OWN}", "--dry-run", f"--tfma-module={MODULE}"]
    assert run(dry) == 0
    assert f"not included: {OWN}: about 1.5" in capsys.readouterr().out
    assert run(["search", *options, *out, "accuracy,tfma:Precision"]) == 0
    shown = capsys.readouterr()
    assert "tfma:Precision on " in shown.err
    assert "s of CPU" in shown.err
    assert "tfma:Precision precision: " in shown.out


@pytest.mark.slow
@pytest.mark.parametrize(
    ("text", "truth", "queries"),
    [
        ("tfma:Precision", 0.75, 0),
        (OWN, 1 / 6, 0),
        ("tfma:NDCG(gain_key=gain,top_k_list=[1],query_key=query)", None, 60),
    ],
)
def test_intervals_cover_the_truth(text, truth, queries):
    """Of 300 draws: scores are uniform, and a label is 1 as often as its score says."""
    from slicebeam.pipelines.tfma.found_metrics import tested
    from slicebeam.transforms.tfma import measure_slices

    computations = Computations(parse_metric(text, [MODULE]))
    random = np.random.default_rng(5)
    n = 240
    estimates = []
    for _ in range(300):
        score = random.uniform(size=n)
        label = (random.uniform(size=n) < score).astype(float)
        columns = {LABEL: label, PREDICTION: score}
        ids = random.integers(0, 2**63, n).astype(np.uint64)
        if computations.spec.query_key:
            columns |= {
                "gain": random.integers(1, 5, n) + 2.0 * label,
                "query": np.arange(n) % queries,
            }
            accumulate = measure_slices._AccumulateQueriesFn(computations, 20, 0)
            items = [
                ({k: v[columns["query"] == q] for k, v in columns.items()}, [], int(ids[q]))
                for q in range(queries)
            ]
        else:
            accumulate = measure_slices._AccumulateFn(computations, 20, 0)
            items = [(columns, Ragged(np.zeros(n + 1, np.int64), np.zeros(0, np.int64)), ids)]
        merged = {}
        for item in items:
            for (_, replicate), accumulator in accumulate.process(item):
                merged.setdefault(replicate, []).append(accumulator)
        is_counted = computations.histograms is not None and not computations.spec.query_key
        merge = (measure_slices._MergeHistogramsFn if is_counted else measure_slices._MergeFn)(
            computations
        )
        values = [
            next(iter(merge.extract_output(merge.merge_accumulators(one)).values()))
            for _, one in sorted(merged.items())
        ]
        estimates.append(tested(np.array(values), queries or n)[0])
    # Where no formula is at hand, the mean of 300 is near enough to what all would have.
    centre = truth if truth is not None else float(np.mean([one.value for one in estimates]))
    covered = np.mean([one.lo <= centre <= one.hi for one in estimates])
    assert 0.92 <= covered <= 0.98
